// launcher_metrics_page: what GET /metrics of a launcher shows.
#pragma once

#include "process_group.ipp"

namespace ojs::detail {

inline int count_in_state(const group_info& of, instance_state state) noexcept {
    int out = 0;
    for (const process_info& each : of.processes) out += each.state == state ? 1 : 0;
    return out;
}

// Page and group by group, so that each family stands together.
class launcher_metrics_page {
  public:
    explicit launcher_metrics_page(const process_groups& of) : groups_(of) {
        for (const ref<process_group>& each : of) infos_.push_back(each->info());
    }

    std::string text() {
        show_now();
        show_times();
        show_counts();
        page_.family("ojs_launcher_build_info", "gauge",
                     "Always 1; the label has the version of ojs_shutdown.");
        page_.sample(1, label("version", OJS_SHUTDOWN_VERSION));
        return std::move(page_.text);
    }

  private:
    std::string group_label(std::size_t i) const { return label("group", infos_[i].options.name); }

    template <class Value>
    void gauge(const char* name, const char* help, Value value) {
        page_.family(name, "gauge", help);
        for (std::size_t i = 0; i < infos_.size(); ++i) page_.sample(value(infos_[i]), group_label(i));
    }
    void total(const char* name, const char* help, counter group_metrics::*of) {
        page_.family(name, "counter", help);
        for (std::size_t i = 0; i < groups_.size(); ++i)
            page_.sample(read_counter(groups_[i]->metrics().*of), group_label(i));
    }
    void show_now() {
        page_.family("ojs_launcher_processes", "gauge", "Processes that have not ended, by state.");
        for (std::size_t i = 0; i < infos_.size(); ++i) {
            for (int each = 0; each <= static_cast<int>(instance_state::draining); ++each) {
                const auto state = static_cast<instance_state>(each);
                page_.sample(count_in_state(infos_[i], state),
                             cat({group_label(i), ",", label("state", to_string(state))}));
            }
        }
        gauge("ojs_launcher_desired", "Processes the group shall have.",
              [](const group_info& of) { return of.options.desired; });
        gauge("ojs_launcher_ready", "Processes that take work.",
              [](const group_info& of) { return of.ready; });
        gauge("ojs_launcher_min_healthy", "So many stay ready while the group is replaced.",
              [](const group_info& of) { return of.options.min_healthy; });
        gauge("ojs_launcher_degraded", "1: the group goes on with fewer, because some failed too often.",
              [](const group_info& of) { return of.degraded ? 1 : 0; });
        gauge("ojs_launcher_replacing", "1: a rolling replacement is under way.",
              [](const group_info& of) { return of.replacing ? 1 : 0; });
    }
    void show_times() {
        page_.family("ojs_launcher_startup_seconds", "histogram", "From the start of a process to ready.");
        for (std::size_t i = 0; i < groups_.size(); ++i)
            page_.samples(groups_[i]->metrics().startup, startup_bounds, group_label(i));
        page_.family("ojs_launcher_shutdown_seconds", "histogram",
                     "From the request to end to the end, by how that was.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            for (std::size_t way = 0; way < 3; ++way)
                page_.samples(groups_[i]->metrics().shutdown[way], shutdown_bounds,
                              cat({group_label(i), ",", label("outcome", shutdown_outcome_names[way])}));
        }
    }
    void show_counts() {
        page_.family("ojs_launcher_kills_total", "counter",
                     "Processes ended by force, by the signal that did it.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            const group_metrics& counted = groups_[i]->metrics();
            const std::string of = group_label(i) + ",";
            page_.sample(read_counter(counted.terminated), of + label("signal", "SIGTERM"));
            page_.sample(read_counter(counted.killed), of + label("signal", "SIGKILL"));
        }
        total("ojs_launcher_crashes_total", "Processes that ended though nobody had asked them to.",
              &group_metrics::crashes);
        total("ojs_launcher_extensions_total", "Shutdowns in which more time was asked for.",
              &group_metrics::extensions);
        total("ojs_launcher_readiness_failures_total", "Processes that did not become ready.",
              &group_metrics::readiness_failures);
        total("ojs_launcher_restarts_total", "Processes started for one that had ended by itself.",
              &group_metrics::restarts);
        page_.family("ojs_launcher_rolling_replaces_total", "counter",
                     "Rolling replacements, by how they ended.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            for (std::size_t end = 0; end < 3; ++end)
                page_.sample(read_counter(groups_[i]->metrics().replacements[end]),
                             cat({group_label(i), ",", label("result", replacement_end_names[end])}));
        }
    }

    const process_groups& groups_;
    array<group_info> infos_;
    metrics_page page_;
};

}  // namespace ojs::detail
