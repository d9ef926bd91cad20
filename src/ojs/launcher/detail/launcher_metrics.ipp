// launcher_metrics: the counters of a group, and the response of GET /metrics.
#pragma once

#include "../../server/detail/prometheus.ipp"
#include "../launcher_options.hpp"

namespace ojs::detail {
inline constexpr histogram_bound startup_bound_list[] = {
    {"0.005", 5}, {"0.05", 50},  {"0.1", 100},  {"0.25", 250}, {"0.5", 500},  {"1", 1000},    {"2.5", 2500},
    {"5", 5000},  {"10", 10000}, {"15", 15000}, {"30", 30000}, {"60", 60000}, {"120", 120000}};
// 2, 5 and 10 s: the targets of the RFC for the median, the 99th percentile and the maximum.
inline constexpr histogram_bound shutdown_bound_list[] = {
    {"0.1", 100},  {"0.5", 500},  {"1", 1000},   {"2", 2000},   {"3", 3000},     {"5", 5000},
    {"10", 10000}, {"15", 15000}, {"30", 30000}, {"60", 60000}, {"120", 120000}, {"300", 300000}};
inline constexpr histogram_bounds startup_bounds{startup_bound_list, 13};
inline constexpr histogram_bounds shutdown_bounds{shutdown_bound_list, 12};

// By instance_state, from complete up.
inline constexpr const char* shutdown_outcome_names[] = {"complete", "forced", "crashed"};
enum class rollout_result : unsigned char { done, rolled_back, cancelled };
inline constexpr const char* rollout_result_names[] = {"done", "rolled_back", "cancelled"};

// Thread-safe and lock-free.
class group_metrics {
  public:
    void on_process_changed(const process_info& before, const process_info& now, bool was_ready) noexcept {
        if (!was_ready && now.state == instance_state::ready) startup.observe(startup_bounds, now.startup_duration);
        if (now.shutdown.need_more_time && !before.shutdown.need_more_time) count_one(extensions);
        if (is_final(now.state) && !is_final(before.state) && now.pid != 0) count_end(before, now);
    }
    void count_rollout(rollout_result result) noexcept { count_one(rollouts[static_cast<std::size_t>(result)]); }

    histogram startup;
    histogram shutdown[3];  // by shutdown_outcome_names
    counter terminated{0};  // by SIGTERM
    counter killed{0};      // by SIGKILL
    counter crashes{0};     // failed without a shutdown request
    counter extensions{0};
    counter readiness_failures{0};
    counter restarts{0};
    counter rollouts[3] = {};

  private:
    void count_end(const process_info& before, const process_info& now) noexcept {
        const bool forced = now.state == instance_state::forced;
        if (now.killed) count_one(killed);
        if (forced && !now.killed) count_one(terminated);
        const bool crashed = now.state == instance_state::crashed;
        if (!forced && !is_stopping_or_ended(before.state)) return crashed ? count_one(crashes) : void();
        const int outcome = static_cast<int>(now.state) - static_cast<int>(instance_state::complete);
        shutdown[outcome].observe(shutdown_bounds, now.shutdown_duration);
    }
};

// Collects all groups first, as the samples of a family must be adjacent.
class launcher_metrics_page {
  public:
    void add(group_info info, const group_metrics& metrics) {
        const std::string labels = label("group", info.options.name);
        groups_.push_back({std::move(info), &metrics, labels});
    }
    std::string text() {
        add_gauges();
        add_histograms();
        add_counters();
        page_.family("ojs_launcher_build_info", "gauge", "Always 1, labelled with the version of ojs_shutdown.");
        page_.sample(1, label("version", OJS_SHUTDOWN_VERSION));
        return std::move(page_.text);
    }

  private:
    struct shown_group {
        group_info info;
        const group_metrics* metrics = nullptr;
        std::string labels;
    };

    template <class Show>
    void family(const char* name, const char* type, const char* help, Show show) {
        page_.family(name, type, help);
        for (const shown_group& group : groups_) show(group);
    }
    template <class Value>
    void gauge(const char* name, const char* help, Value value) {
        family(name, "gauge", help, [&](const auto& group) { page_.sample(value(group.info), group.labels); });
    }
    void total(const char* name, const char* help, counter group_metrics::*which) {
        family(name, "counter", help,
               [&](const auto& group) { page_.sample(read_counter(group.metrics->*which), group.labels); });
    }
    static std::string with(const shown_group& group, const char* name, const char* value) {
        return cat({group.labels, ",", label(name, value)});
    }

    void add_gauges() {
        family("ojs_launcher_processes", "gauge", "Processes that have not ended, by state.", [&](const auto& group) {
            int counts[static_cast<int>(instance_state::crashed) + 1] = {};
            for (const process_info& info : group.info.processes) ++counts[static_cast<int>(info.state)];
            for (int each = 0; each <= static_cast<int>(instance_state::draining); ++each)
                page_.sample(counts[each], with(group, "state", to_string(instance_state(each))));
        });
        gauge("ojs_launcher_desired", "Desired number of processes.",
              [](const group_info& info) { return info.options.desired; });
        gauge("ojs_launcher_ready", "Processes that take work.", [](const group_info& info) { return info.ready; });
        gauge("ojs_launcher_min_healthy", "Minimum of ready processes during a rollout.",
              [](const group_info& info) { return info.options.min_healthy; });
        gauge("ojs_launcher_degraded", "1: a slot is empty: failed too often, or cannot start.",
              [](const group_info& info) { return info.degraded ? 1 : 0; });
        gauge("ojs_launcher_rollout_in_progress", "1: a rollout is in progress.",
              [](const group_info& info) { return info.replacing ? 1 : 0; });
    }
    void add_histograms() {
        family("ojs_launcher_startup_seconds", "histogram", "Time from the start of a process to ready.",
               [&](const auto& group) { page_.samples(group.metrics->startup, startup_bounds, group.labels); });
        family("ojs_launcher_shutdown_seconds", "histogram", "Time from the shutdown request to the exit, by outcome.",
               [&](const auto& group) {
                   for (std::size_t i = 0; i < 3; ++i)
                       page_.samples(group.metrics->shutdown[i], shutdown_bounds,
                                     with(group, "outcome", shutdown_outcome_names[i]));
               });
    }
    void add_counters() {
        family("ojs_launcher_kills_total", "counter", "Forced shutdowns, by signal.", [&](const auto& group) {
            page_.sample(read_counter(group.metrics->terminated), with(group, "signal", "SIGTERM"));
            page_.sample(read_counter(group.metrics->killed), with(group, "signal", "SIGKILL"));
        });
        total("ojs_launcher_crashes_total", "Processes that failed without a shutdown request.",
              &group_metrics::crashes);
        total("ojs_launcher_extensions_total", "Shutdowns in which the process requested more time.",
              &group_metrics::extensions);
        total("ojs_launcher_readiness_failures_total", "Processes that did not become ready.",
              &group_metrics::readiness_failures);
        total("ojs_launcher_restarts_total", "Restarts of processes that exited by themselves.",
              &group_metrics::restarts);
        family("ojs_launcher_rollouts_total", "counter", "Rollouts, by result.", [&](const auto& group) {
            for (std::size_t i = 0; i < 3; ++i)
                page_.sample(read_counter(group.metrics->rollouts[i]), with(group, "result", rollout_result_names[i]));
        });
    }

    array<shown_group> groups_;
    metrics_page page_;
};
}  // namespace ojs::detail
