// rollout: one rolling replacement: its stages, waits and report. [RFC-041 "Rolling Replacement Algorithm"]
#pragma once

#include "../launcher_options.ipp"
#include "group_plan.hpp"
#include "launcher_metrics.ipp"

namespace ojs::detail {

// Under the mutex of its group, which says what the processes do and asks what follows.
struct rollout : ref_counted {
    enum class stage { forward, rolling_back, ending, ended };
    enum class canary_step { starting, watched, check_due, checking, passed };
    enum class failure_step { none, retry, roll_back, give_up };

    rollout(group_options given, rolling_options with, const group_options& before, std::uint64_t number)
        : to(std::move(given)),
          options(with.retries == -1 ? with_retries(std::move(with), to.retry) : std::move(with)),
          generation(number),
          max_others(std::max(before.desired, to.desired)),
          max_total(max_others + std::max(to.max_surge, 1)),
          min_healthy(std::min(before.min_healthy, to.min_healthy)),
          pauses(options.retry_first, options.retry_last) {
        begin_stage(stage::forward);
        if (options.canary == 0) canaries = canary_step::passed;
    }

    // A process that it has started, and still needs, failed. What it was rolled back for stays the reason.
    void fail(const std::string& id, std::string why) {
        failed = true;
        if (at != stage::forward) return;
        report.failed_id = id;
        report.why = std::move(why);
    }
    void fail_for_good(std::string why) {
        may_retry = false;
        fail("", std::move(why));
    }
    failure_step after_failure(time_point now) {
        if (!exchange(failed, false) || now < paused_until)
            return failure_step::none;  // it failed beside another
        if (may_retry && retries_left > 0) {
            --retries_left;
            ++status.retries;
            paused_until = now + pauses.next();
            return failure_step::retry;
        }
        if (at != stage::forward) return failure_step::give_up;
        report.rolled_back = true;
        begin_stage(stage::rolling_back);
        return failure_step::roll_back;
    }
    // `proven` of the `needed` canaries are. True: the step has changed.
    bool watch_canaries(time_point now, int proven, int needed) {
        const canary_step before = canaries;
        if (canaries == canary_step::passed) return false;
        if (proven < needed) canaries = canary_step::starting;
        if (proven >= needed && canaries == canary_step::starting) {
            canaries = canary_step::watched;
            watched_until = now + options.canary_wait;
        } else if (canaries == canary_step::watched && now >= watched_until) {
            canaries = options.canary_check ? canary_step::check_due : canary_step::passed;
        }
        return canaries != before;
    }
    // The program's check. What it throws must not leave the group in the middle of a replacement.
    result<void> ask_canary_check(const std::vector<process_info>& started) const {
        try {
            return options.canary_check(started);
        } catch (...) {
            pass_on_thread_end();
            return error{errc::system, 0, "it threw"};
        }
    }
    // How far it has come, with `old` processes left. True: farther than was logged.
    bool show(time_point now, int old, bool drains) {
        report.replaced = std::max(0, report.of - old);
        status.phase = report.rolled_back    ? replacement_phase::rolling_back
                       : now < paused_until  ? replacement_phase::pausing
                       : watched_until > now ? replacement_phase::canaries
                       : drains              ? replacement_phase::draining
                                             : replacement_phase::starting;
        status.replaced = report.replaced;
        status.of = report.of;
        status.failed_id = report.failed_id;
        status.why = report.why;
        if (at != stage::forward || drains || report.replaced <= logged_replaced || old == 0) return false;
        logged_replaced = report.replaced;
        return true;
    }
    // With so many processes of its configuration, and of others. How it has ended, as group_info::message.
    std::string end(int fresh, int old) {
        const bool done = ending == replacement_end::done;
        at = stage::ended;
        report.cancelled = ending == replacement_end::cancelled;
        report.replaced = done ? report.of : report.rolled_back ? fresh : std::max(0, report.of - old);
        report.mixed = !done && fresh > 0 && (report.rolled_back || old > 0);
        status.phase = done               ? replacement_phase::done
                       : report.cancelled ? replacement_phase::cancelled
                                          : replacement_phase::rolled_back;
        status.replaced = report.replaced;
        status.cancelling = false;
        const std::string counts = cat({report.replaced, " of ", report.of});
        if (done) return cat({"replaced ", counts});
        if (report.cancelled) return cat({"cancelled, replaced ", counts});
        return cat({report.mixed ? "rolled back in part, " : "rolled back, ", report.failed_id,
                    report.failed_id.empty() ? "" : ": ", report.why});
    }

    const group_options to;
    const rolling_options options;
    const std::uint64_t generation;
    const int max_others;   // of other configurations
    const int max_total;    // processes at any moment, those that drain included
    const int min_healthy;  // what both configurations can hold

    stage at = stage::forward;
    canary_step canaries = canary_step::starting;
    time_point paused_until{};
    time_point watched_until{};
    bool failed = false;                             // since the last reconciliation
    replacement_end ending = replacement_end::done;  // once it is ending
    rolling_report report;
    replacement_status status;

  private:
    void begin_stage(stage next) noexcept {
        at = next;
        retries_left = options.retries;
        pauses.reset();
        paused_until = time_point();
    }
    static rolling_options with_retries(rolling_options out, const retry_options& configured) {
        out.retries = configured.limit;
        out.retry_first = configured.first;
        out.retry_last = configured.last;
        return out;
    }

    int retries_left = 0;
    backoff pauses;
    bool may_retry = true;
    int logged_replaced = 0;
};

// errc::invalid_argument: as check_group(), another name, or options that contradict each other.
inline result<void> check_rollout(const group_options& from, const group_options& to,
                                  const rolling_options& options) {
    const auto fault = [](const char* text) { return error{errc::invalid_argument, 0, text}; };
    const result<void> sound = check_group(to);
    if (!sound) return sound;
    if (to.name != from.name) return fault("a group keeps its name");
    if (options.canary < 0 || options.retries < -1) return fault("canary and retries are not negative");
    if (options.retry_last < options.retry_first)
        return fault("the last pause between retries is not the shortest");
    if (options.retry_last > max_pause) return fault("a pause between retries is longer than 24 days");
    return {};
}

}  // namespace ojs::detail
