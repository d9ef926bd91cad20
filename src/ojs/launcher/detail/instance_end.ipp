// instance_end: signals, and what a process has become when it is over.
#pragma once

#include <poll.h>
#include <signal.h>

#include "managed_instance.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// SIGTERM, and SIGCONT for what is stopped, then SIGKILL, to the group. It leaves its state, whatever that was: nobody
// may give it work any more.
inline void managed_instance::end_by_signal(manner how, time_point kill_at, const char* text,
                                            const std::string& why) {
    manner_ = how;
    if (asked_at_ == time_point{}) asked_at_ = steady_clock::now();
    if (!change(instance_event::is_asked, log_level::warn, text, why)) {
        say(log_level::warn, text, state(), state(), why);
        update([&](process_info& now) { now.message = why; });
    }
    static_cast<void>(child_.signal(SIGTERM));  // that it has ended meanwhile is seen below
    static_cast<void>(child_.signal(SIGCONT));
    await_end(kill_at);
}

inline void managed_instance::await_end(time_point kill_at) {
    bool ended = false;  // it, but not what it has started, which has the rest of the time
    while (steady_clock::now() < kill_at) {
        const time_point look_at = ended ? earlier(kill_at, deadline_after(between_looks)) : kill_at;
        // A child that has ended stays readable.
        pollfd watched[] = {{ended ? -1 : child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 2, poll_timeout(look_at));
        waker_.clear();
        ended = ended || watched[0].revents != 0;
        if (ended && !has_rest()) return over(child_.wait());
        const wishes wanted = take_wishes();
        if (wanted.abandoned) return kill_child();
        if (!wanted.force || manner_ == manner::forced) continue;
        manner_ = manner::forced;
        kill_at = earlier(kill_at, deadline_after(spec_.options.shutdown.kill_delay));
    }
    say(log_level::warn, "SIGTERM timeout, sending SIGKILL", state(), state(), "");
    if (!ended) return kill_child();
    over(child_.terminate(std::chrono::milliseconds(0), kill_patience));
}

// Anyone but its leader is in the group; that signals still reach it says that its number is ours.
inline bool managed_instance::has_rest() {
    return spec_.options.child.own_group && child_.signal(0) && group_has_others(child_.pid());
}

// A process that the kernel holds is waited for as long as anyone keeps this.
inline void managed_instance::kill_child() {
    manner_ = manner::forced;
    if (asked_at_ == time_point{}) asked_at_ = steady_clock::now();
    result<child_exit> ended = child_.kill(kill_patience);
    while (!ended && ended.error().code == errc::timed_out && !take_wishes().abandoned) {
        tell_failure("SIGKILL did not end the process", log_level::error, ended.error());
        update([&](process_info& now) { now.message = "SIGKILL did not end it"; });
        ended = child_.wait(deadline_after(kill_patience));
    }
    over(ended);
}

inline instance_event managed_instance::kind_of_end(const result<child_exit>& ended) const {
    if (manner_ == manner::forced) return instance_event::is_ended;
    if (!ended) return instance_event::ends_badly;
    if (ended->ok()) return instance_event::ends_well;
    const bool by_ours = ended->signal == SIGTERM || ended->signal == SIGKILL || ended->code == 128 + SIGTERM;
    return manner_ == manner::asked_by_signal && by_ours ? instance_event::is_ended
                                                         : instance_event::ends_badly;
}

inline void managed_instance::over(const result<child_exit>& ended) {
    const child_exit how = ended.value_or(child_exit());
    const bool unasked = manner_ == manner::by_itself;
    const instance_event what = kind_of_end(ended);
    std::string message = ended ? how.describe() : ended.error().text;
    if (unasked && ended && how.ok()) message = "exited by itself with status 0";
    update([&](process_info& now) {
        now.exit = how;
        now.killed = !unasked && how.signal == SIGKILL;
        if (!unasked) now.shutdown_took = took_since(asked_at_);
    });
    const instance_state next = next_state(state(), what);
    if (next == instance_state::complete) {
        change(what, log_level::info, "process complete", message);
    } else if (next == instance_state::forced) {
        change(what, log_level::warn, "process forced", message);
    } else {
        change(what, log_level::error, "process crashed", message);
    }
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
