// service_report: tells the service manager how a worker is doing: ready, stopping, alive, needing more time.
#pragma once

#include <cstdlib>
#include <cstring>

#include "../../base/detail/exchange.hpp"
#include "../../system/service_notifier.hpp"
#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// For the supervisor's thread alone. Without a service manager nothing is ever due. [sd_notify]
class service_report {
  public:
    // `closing`: what shutdown steps may take.
    service_report(worker_context& worker, std::chrono::milliseconds closing)
        : worker_(worker), closing_(closing) {}

    void start(time_point now) {
        result<service_notifier> found = service_notifier::from_environment();
        if (!found) {
            complain(found.error());
            found = service_notifier::from_environment(without_watchdog);  // READY=1 matters all the same
        }
        if (found) notifier_ = std::move(*found);
        if (!notifier_.active()) return;
        tell(notifier_.ready(text()));
        if (notifier_.watchdog_interval().count() > 0) watchdog_due_ = now;
    }

    // STOPPING=1 starts the manager's stop clock: so it is said of a drain, and never of quiet.
    void phase_changed(phase before, phase now) {
        if (!notifier_.active()) return;
        if (before < phase::draining && now >= phase::draining) {
            tell(notifier_.stopping(text()));
            extension_due_ = time_point::min();
        } else {
            tell(notifier_.status(text()));
        }
    }

    time_point next_due() const noexcept {
        return watchdog_due_ < extension_due_ ? watchdog_due_ : extension_due_;
    }

    // Sends what is due.
    void tick(time_point now, time_point drain_deadline) {
        if (now >= watchdog_due_) {
            tell(notifier_.watchdog());
            watchdog_due_ = now + notifier_.watchdog_interval();
        }
        if (now >= extension_due_) {
            extension_due_ = now + extension_interval;
            extend(now, end_after(drain_deadline));
        }
    }

  private:
    static const char* without_watchdog(const char* name) {
        return std::strncmp(name, "WATCHDOG_", 9) == 0 ? nullptr : std::getenv(name);
    }

    // The drain, the stop, and what the application then closes; never where one of them has no limit.
    time_point end_after(time_point drain_deadline) const noexcept {
        constexpr time_point latest = time_point::max();
        if (closing_ == no_limit) return latest;
        const steady_clock::duration tail = worker_.options.stop_timeout + closing_;
        return drain_deadline < latest - tail ? drain_deadline + tail : latest;
    }

    // A few seconds at a time, for as long as this worker keeps to its own deadlines: one that hangs is not extended.
    void extend(time_point now, time_point end) {
        if (now >= end) return;
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - now) + extension_interval;
        tell(notifier_.extend_timeout(left < longest_extension ? left : longest_extension));
        tell(notifier_.status(text()));
    }

    std::string text() const {
        return cat({to_string(worker_.life.phase()), ", ", worker_.jobs.size(), " jobs in flight"});
    }

    void tell(const result<void>& told) {
        if (told) {
            complained_ = false;
        } else {
            complain(told.error());
        }
    }
    void complain(const error& why) {
        if (!detail::exchange(complained_, true))
            worker_.log.write(log_level::warn, "service manager not reached", {field("error", why.text)});
    }

    static constexpr std::chrono::milliseconds extension_interval{1000};
    static constexpr std::chrono::milliseconds longest_extension{5000};

    worker_context& worker_;
    const std::chrono::milliseconds closing_;
    service_notifier notifier_;
    time_point watchdog_due_ = time_point::max();
    time_point extension_due_ = time_point::max();
    bool complained_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
