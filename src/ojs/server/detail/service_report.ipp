// service_report: tells the service manager how a program is doing: ready, stopping, alive, needing more time.
#pragma once

#include <cstdlib>
#include <cstring>

#include "../../base/detail/light.hpp"
#include "../../base/duration.hpp"
#include "../../base/log.hpp"
#include "../service_notifier.hpp"

namespace ojs::detail {

// For one thread. Without a service manager nothing is ever due. [sd_notify]
class service_report {
  public:
    explicit service_report(const logger& log) : log_(log) {}

    void start(time_point now) {
        result<service_notifier> found = service_notifier::from_environment();
        if (!found) {
            complain(found.error());
            found = service_notifier::from_environment(without_watchdog);  // READY=1 matters all the same
        }
        if (found) notifier_ = std::move(*found);
        if (notifier_.active() && notifier_.watchdog_interval().count() > 0) watchdog_due_ = now;
    }
    bool active() const noexcept { return notifier_.active(); }

    // READY=1 once, when `is_ready` first holds; from then on the text, whenever it is another.
    void report(bool is_ready, const std::string& text) {
        if (!active() || !(is_ready || ready_) || (ready_ && text == text_)) return;
        if (!tell(ready_ ? notifier_.status(text) : notifier_.ready(text)))
            return;  // it is tried with the next
        ready_ = true;
        text_ = text;
    }
    // STOPPING=1 starts the manager's stop clock: so it is said of a drain, and never of quiet.
    void stopping(std::string_view text) {
        if (!active()) return;
        tell(notifier_.stopping(text));
        extension_due_ = time_point::min();
    }

    time_point next_due() const noexcept {
        return watchdog_due_ < extension_due_ ? watchdog_due_ : extension_due_;
    }
    // Sends what is due. `end`: when a stop under way will be over. More time is asked for a few seconds at a time, for as long as
    // that deadline is kept: a program that hangs is not extended. True: it was asked for.
    bool tick(time_point now, time_point end) {
        if (now >= watchdog_due_) {
            tell(notifier_.watchdog());
            watchdog_due_ = now + notifier_.watchdog_interval();
        }
        if (now < extension_due_) return false;
        extension_due_ = now + extension_interval;
        if (now >= end) return false;
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - now) + extension_interval;
        return tell(notifier_.extend_timeout(left < longest_extension ? left : longest_extension));
    }

  private:
    static const char* without_watchdog(const char* name) {
        return std::strncmp(name, "WATCHDOG_", 9) == 0 ? nullptr : std::getenv(name);
    }
    bool tell(const result<void>& told) {
        if (told) {
            complained_ = false;
        } else {
            complain(told.error());
        }
        return static_cast<bool>(told);
    }
    void complain(const error& why) {
        if (!detail::exchange(complained_, true))
            log_.write(log_level::warn, "service manager not reached", {field("error", why.text)});
    }

    static constexpr std::chrono::milliseconds extension_interval{1000};
    static constexpr std::chrono::milliseconds longest_extension{5000};

    const logger& log_;
    service_notifier notifier_;
    std::string text_;  // as last said
    time_point watchdog_due_ = time_point::max();
    time_point extension_due_ = time_point::max();
    bool ready_ = false;
    bool complained_ = false;
};

}  // namespace ojs::detail
