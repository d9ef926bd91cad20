#pragma once

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include "../admin_messages.ipp"
#include "managed_instance.hpp"

namespace ojs::detail {

inline result<void> managed_instance::start() {
    result<wake> waker = wake::create();
    if (!waker) return waker.error();
    waker_ = std::move(*waker);
    waker = wake::create();
    if (!waker) return waker.error();
    interrupt_ = std::move(*waker);
    if (spec_.options.participates || !spec_.options.ready_url.empty()) {
        http_client_options how;
        how.limits.head = 8 * 1024;
        how.limits.body = rpc_body_limit;
        how.max_idle_connections = 2;  // our own thread, and an operator's question
        client_ = http_client::create(spec_.options.participates ? url_of(spec_.address) : ready_.url,
                                      std::move(how));
        if (!client_) return client_.error();
    }
    started_ = info_.started = info_.changed = steady_clock::now();
    const std::string name = cat({"ojs-", spec_.id});
    thread_options how;
    how.stack_size = 256 * 1024;
    how.name = name.c_str();
    result<thread> started = thread::start([this] { work(); }, how);
    if (!started) return started.error();
    thread_ = std::move(*started);
    return {};
}

// exec() may hang, and that holds up nobody else: any wish interrupts it.
inline void managed_instance::begin() {
    if (child_.pid() == 0) {
        result<child_process> child =
            unless_out_of_memory([this] { return start_child(options_of_child(), interrupt_.fd(), true); });
        if (!child) return not_started(child.error());
        child_ = std::move(*child);
    }
    next_look_ = steady_clock::now();
    if (client_) ready_by_ = deadline_after(spec_.options.readiness_timeout);
    update([this](process_info& now) { now.pid = child_.pid(); });
    change(instance_event::runs, log_level::info, "process spawned", "");
}

inline void managed_instance::not_started(const error& why) {
    const instance_event end = why.code != errc::cancelled ? instance_event::ends_badly
                               : take_wishes().force       ? instance_event::is_ended
                                                           : instance_event::ends_well;
    change(end, end == instance_event::ends_badly ? log_level::error : log_level::info, "process not started",
           why.text);
}

// ---- the handshake, from the request until it has drained, or its time is over ----

// `wanted` where it says something and is not longer than what was granted.
inline std::chrono::milliseconds within(std::chrono::milliseconds wanted,
                                        std::chrono::milliseconds granted) noexcept {
    return wanted.count() > 0 && wanted < granted ? wanted : granted;
}

inline void managed_instance::ask_to_shut_down() {
    const shutdown_timeouts& granted = spec_.options.shutdown;
    lock_guard held(mutex_);
    const shutdown_order order = order_;
    held.unlock();
    const std::chrono::milliseconds max = within(order.max, granted.max_duration);
    std::chrono::milliseconds grace = within(order.grace, granted.grace_period);
    if (max < grace) grace = max;
    request_ = {spec_.id, order.reason, wire_seconds(grace), wire_seconds(max)};
    asked_at_ = steady_clock::now();
    grace_end_ = granted_end_ = deadline_after(grace);
    hard_end_ = deadline_after(max);
    report_end_ = deadline_after(summable(max) + summable(granted.report_time));
    failed_questions_ = 0;
    change(instance_event::is_asked, log_level::info, "shutdown requested", order.reason);
    manner_ = manner::asked;
    if (spec_.options.participates) return send_request();
    end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM", "it does not take part");
}

// Nobody listens, or who listens refuses. What timed out may have arrived. [WIRE 4]
inline bool takes_no_part(const error& why) noexcept {
    const bool nobody = why.code == errc::unreachable && why.sys_errno != EAGAIN;
    return nobody || why.code == errc::unsupported || why.code == errc::rejected ||
           why.code == errc::invalid_argument;
}

inline void managed_instance::send_request() {
    const time_point deadline = earlier(deadline_after(spec_.options.rpc_timeout), end_of_patience());
    const result<shutdown_ack> ack = ask<shutdown_ack>("Shutdown", request_, deadline, interrupt_.fd());
    if (was_interrupted(ack)) return;
    if (!ack && takes_no_part(ack.error())) {
        return end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM",
                             cat({"it does not take part: ", ack.error().text}));
    }
    request_due_ = false;
    acknowledged_ = ack && ack->acknowledged;
    if (acknowledged_) {
        failed_questions_ = 0;
    } else {
        tell_failure("shutdown not acknowledged", log_level::warn,
                     ack ? error{errc::rejected, 0, printable(ack->message)} : ack.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::look_at_status() {
    const time_point deadline = earlier(deadline_after(spec_.options.rpc_timeout), end_of_patience());
    const result<shutdown_status> answer = ask<shutdown_status>(
        "GetShutdownStatus", shutdown_status_request{spec_.id}, deadline, interrupt_.fd());
    if (was_interrupted(answer)) return;
    if (answer) {
        failed_questions_ = 0;
        request_due_ = !acknowledged_ && answer->state == shutdown_state::running;
        heard(*answer);
    } else {  // the pid tells the rest; one that has drained serves no longer
        const errc why = answer.error().code;
        const bool gone = why == errc::unreachable || why == errc::disconnected;
        tell_failure("shutdown status not known", gone ? log_level::info : log_level::warn, answer.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::say_overdue() {
    const time_point now = steady_clock::now();
    if (now >= grace_end_ && !exchange(past_grace_, true))
        say(log_level::warn, "past its grace period", state(), state(), "");
    if (now >= hard_end_ && now < report_end_ && !exchange(past_max_, true))
        say(log_level::warn, "past its maximum, it may still report", state(), state(), "",
            {field("report_time_ms", spec_.options.shutdown.report_time.count())});
}

inline bool same_progress(const shutdown_status& one, const shutdown_status& other) {
    return one.state == other.state && one.metrics.in_flight_requests == other.metrics.in_flight_requests &&
           one.metrics.open_connections == other.metrics.open_connections &&
           one.metrics.buffered_bytes == other.metrics.buffered_bytes &&
           one.metrics.blocking_operations == other.metrics.blocking_operations;
}

inline void managed_instance::heard(const shutdown_status& answer) {
    const shutdown_status before = info().shutdown;
    const std::string said = printable(answer.message);
    update([&](process_info& now) {
        now.shutdown = answer;
        now.message = said;
    });
    if (answer.state == shutdown_state::draining || answer.state == shutdown_state::blocked)
        change(instance_event::drains, log_level::info, "process draining", said);
    if (answer.state == shutdown_state::complete && complete_end_ == time_point::max())
        complete_end_ = deadline_after(spec_.options.shutdown.kill_delay);
    std::string blocking;
    for (const std::string& each : answer.metrics.blocking_operations)
        append(blocking, {blocking.empty() ? "" : ", ", printable(each)});
    say(same_progress(before, answer) ? log_level::debug : log_level::info, "shutdown progress", state(),
        state(), said,
        {field("in_flight", answer.metrics.in_flight_requests),
         field("open_connections", answer.metrics.open_connections),
         field("buffered_bytes", static_cast<long long>(answer.metrics.buffered_bytes)),
         field("blocking", printable(blocking))});
    if (answer.need_more_time)
        grant_time(answer, !before.need_more_time || before.additional_seconds != answer.additional_seconds);
}

// Up to the hard deadline, and never past it.
inline void managed_instance::grant_time(const shutdown_status& answer, bool is_new) {
    const time_point wanted = deadline_after(std::chrono::seconds(answer.additional_seconds));
    if (wanted > granted_end_) granted_end_ = earlier(wanted, hard_end_);
    if (!is_new) return;
    say(log_level::warn, "more time asked for", state(), state(), printable(answer.message),
        {field("additional_seconds", answer.additional_seconds)});
}

// ---- signals, and what it has become when it is over ----

// SIGTERM, and SIGCONT for what is stopped, then SIGKILL, to the group. It leaves its state, whatever that was: nobody
// may give it work any more.
inline void managed_instance::end_by_signal(manner how, time_point kill_at, const char* text,
                                            const std::string& why) {
    if (asked_at_ == time_point{}) asked_at_ = steady_clock::now();
    if (!change(instance_event::is_asked, log_level::warn, text, why)) {
        say(log_level::warn, text, state(), state(), why);
        update([&](process_info& now) { now.message = why; });
    }
    manner_ = how;
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

// Address space that must be left during a start: one that takes the last leaves none for those that run. Not of the heap,
// which threads that found no arena cannot share.
class spare_memory {
  public:
    spare_memory() = default;
    spare_memory(const spare_memory&) = delete;
    spare_memory& operator=(const spare_memory&) = delete;
    ~spare_memory() {
        if (is_there()) ::munmap(at_, size);
    }
    bool is_there() const noexcept { return at_ != MAP_FAILED; }

  private:
    static constexpr std::size_t size = 8 * 1024 * 1024;
    void* const at_ = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

OJS_SHUTDOWN_INLINE result<ref<instance>> start_instance(const instance_spec& spec, instance_changed changed,
                                                         const logger& log) {
    const spare_memory spare;
    if (!spare.is_there()) return error{errc::unavailable, ENOMEM, "out of memory"};
    const ref<managed_instance> out = make_ref<managed_instance>(spec, std::move(changed), log);
    const result<void> started = out->start();
    if (!started) return started.error();
    return ref<instance>(out.get());
}

}  // namespace ojs::detail
