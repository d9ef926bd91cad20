#pragma once

#include "../core/signals.hpp"
#include "../host/container.ipp"
#include "detail/environment.ipp"
#include "loop_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline constexpr const char* grace_variables = "OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD OJS_SHUTDOWN_TIMEOUT";

template <class Options, class Visit>
void visit_log_options(Options& log, Visit& visit) {
    visit("log.level", "OJS_LOG_LEVEL", log.level, "debug info warn error off");
    visit("log.format", "OJS_LOG_FORMAT", log.format, "text logfmt json");
}

// visit(name, variables, value, constraints) per option; the first set variable counts.
template <class Options, class Visit>
void visit_loop_options(Options& o, Visit& visit) {
    using namespace std::chrono_literals;
    // First, as it sets other options.
    visit("profile", "OJS_PROFILE", o, "graceful_shutdown website worker_protocol spot_controller");
    visit("concurrency", "OJS_CONCURRENCY", o.concurrency, 1, 1000);
    visit("times.shutdown_grace_period", grace_variables, o.times.shutdown_grace_period, 0ms, no_limit);
    visit("times.cancel_before_deadline", "OJS_CANCEL_BEFORE_DEADLINE", o.times.cancel_before_deadline, 0ms);
    visit("times.cancel_grace", "OJS_CANCEL_GRACE", o.times.cancel_grace, 0ms);
    visit("times.reclaim_grace", "OJS_RECLAIM_GRACE", o.times.reclaim_grace, 0ms);
    visit("times.stop_timeout", "OJS_STOP_TIMEOUT", o.times.stop_timeout, 100ms);
    visit("termination_mode_file", "OJS_TERMINATION_MODE_FILE OJS_TERMINATION_TYPE_FILE", o.termination_mode_file,
          text_kind::path);
    visit("stuck_after", "OJS_STUCK_AFTER", o.stuck_after, 10ms);
    visit("signal_debounce", "OJS_SIGNAL_DEBOUNCE", o.signal_debounce, 0ms);
    visit("stop_signals", "OJS_STOP_SIGNALS", o.stop_signals);
    visit("progress_interval", "OJS_PROGRESS_INTERVAL", o.progress_interval, 10ms);
    visit("container_grace_period", "OJS_CONTAINER_GRACE_PERIOD", o.container_grace_period, 0ms);
    visit("prestop_delay", "OJS_PRESTOP_DELAY", o.prestop_delay, 0ms);
    visit("worker_id", "OJS_WORKER_ID", o.worker_id, text_kind::name);
    visit_log_options(o.log, visit);
    visit("log.error_messages", "OJS_LOG_ERROR_MESSAGES", o.log.error_messages, "0 1");
}

// Returns no_limit instead of overflowing.
inline milliseconds capped_sum(milliseconds a, milliseconds b) noexcept {
    return a > no_limit - max(b, milliseconds(0)) ? no_limit : a + b;
}

// If neither grace period is set, the stop must fit into the platform's default. A profile with over 30 s expects more.
inline void fit_default_grace(loop_options& options, option_visitor& read, const std::string& root) {
    if (!read.status || read.select_first_set(grace_variables)) return;
    const stop_platform* const platform = detect_container({root, read.lookup, 0}).platform;
    if (platform == nullptr || !platform->adapts_grace_period || options.container_grace_period.count() > 0) return;
    const auto reports = max<milliseconds>(options.times.stop_timeout, std::chrono::seconds(5));
    const auto max_grace = platform->grant - reports - options.prestop_delay;
    auto& grace = options.times.shutdown_grace_period;
    if (max_grace.count() <= 0 || grace > std::chrono::seconds(30) || grace <= max_grace) return;
    grace = max_grace;
    options.platform_grace = {platform->id, grace};
}

inline result<void> check_stop(const loop_options& options) {
    for (const worker_extension_factory& factory : options.extensions) {
        result<void> valid = factory.check ? factory.check(options) : result<void>();
        if (!valid) return valid;
    }
    return check_stop_signals(options.stop_signals, !options.termination_mode_file.empty());
}

inline result<void> check_loop_options(const loop_options& options) {
    option_visitor check;
    visit_loop_options(options, check);
    return check.status ? check_stop(options) : check.status;
}
}  // namespace detail

OJS_SHUTDOWN_INLINE void loop_options::apply_profile(ojs::profile preset) {
    times = preset.stop.times;
    termination_mode_file = preset.stop.termination_mode_file;
    profile = std::move(preset);
}

OJS_SHUTDOWN_INLINE result<loop_options> loop_options::from_environment(const environment_lookup& lookup,
                                                                        const std::string& root) {
    loop_options out;
    detail::option_visitor read(lookup);
    detail::visit_loop_options(out, read);
    detail::fit_default_grace(out, read, root);
    if (read.status) read.status = detail::check_stop(out);
    return read.status ? result<loop_options>(std::move(out)) : read.status.error();
}

// Both error codes, requeue_interrupted and the states come first.
OJS_SHUTDOWN_INLINE profile profile::graceful_shutdown() { return {}; }
OJS_SHUTDOWN_INLINE profile profile::website() { return {"shutdown", "shutdown", false, "quiet", "terminated"}; }
OJS_SHUTDOWN_INLINE profile profile::worker_protocol() {
    return {"shutdown", "shutdown", true, "terminate", "terminate", true, {false, 0, {std::chrono::seconds(25)}}};
}
OJS_SHUTDOWN_INLINE profile profile::spot_controller() {
    using namespace std::chrono_literals;
    profile out;
    out.stop = {true, 0, {3550s, 10s, 0s, 500ms}, "/tmp/termination-type"};
    return out;
}
}  // namespace v0_1_0
}  // namespace ojs
