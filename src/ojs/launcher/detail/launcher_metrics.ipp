// launcher_metrics: what a group counts for /metrics. launcher_metrics_page shows it.
#pragma once

#include "../../server/detail/prometheus.ipp"
#include "../group_options.hpp"

namespace ojs::detail {

inline constexpr histogram_bound startup_bound_list[] = {
    {"0.005", 5},  {"0.05", 50}, {"0.1", 100},  {"0.25", 250}, {"0.5", 500},  {"1", 1000},
    {"2.5", 2500}, {"5", 5000},  {"10", 10000}, {"30", 30000}, {"60", 60000}, {"120", 120000}};
// 2, 5 and 10 s are what the RFC wants of the median, of 99 in 100 and of all.
inline constexpr histogram_bound shutdown_bound_list[] = {
    {"0.1", 100},  {"0.5", 500},  {"1", 1000},   {"2", 2000},   {"3", 3000},     {"5", 5000},
    {"10", 10000}, {"15", 15000}, {"30", 30000}, {"60", 60000}, {"120", 120000}, {"300", 300000}};
inline constexpr histogram_bounds startup_bounds{startup_bound_list, 12};
inline constexpr histogram_bounds shutdown_bounds{shutdown_bound_list, 12};

// How a shutdown can end, and a replacement.
inline constexpr instance_state shutdown_outcomes[] = {instance_state::complete, instance_state::forced,
                                                       instance_state::crashed};
inline constexpr const char* shutdown_outcome_names[] = {"complete", "forced", "crashed"};
enum class replacement_end : unsigned char { done, rolled_back, cancelled };
inline constexpr const char* replacement_end_names[] = {"done", "rolled_back", "cancelled"};

// Thread-safe, and never waits.
class group_metrics {
  public:
    // A process was `before`, and is `now`; `was_ready`, at any time before.
    void told(const process_info& before, const process_info& now, bool was_ready) noexcept {
        if (!was_ready && now.state == instance_state::ready) startup.observe(startup_bounds, now.startup);
        if (now.shutdown.need_more_time && !before.shutdown.need_more_time) count_one(extensions);
        if (is_over(now.state) && !is_over(before.state) && now.pid != 0) ended(before, now);
    }
    void replaced(replacement_end how) noexcept { count_one(replacements[static_cast<std::size_t>(how)]); }

    histogram startup;
    histogram shutdown[3];  // by shutdown_outcomes
    counter terminated{0};  // ended by SIGTERM
    counter killed{0};      // by SIGKILL
    counter crashes{0};     // nobody had asked them to end
    counter extensions{0};
    counter readiness_failures{0};
    counter restarts{0};
    counter replacements[3] = {};

  private:
    void ended(const process_info& before, const process_info& now) noexcept {
        const bool forced = now.state == instance_state::forced;
        if (now.killed) count_one(killed);
        if (forced && !now.killed) count_one(terminated);
        const bool was_asked = forced || now.state == instance_state::complete || is_stopping(before.state);
        if (!was_asked) return count_one(crashes);
        for (std::size_t i = 0; i < 3; ++i) {
            if (shutdown_outcomes[i] == now.state) shutdown[i].observe(shutdown_bounds, now.shutdown_took);
        }
    }
};

}  // namespace ojs::detail
