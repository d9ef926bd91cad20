#pragma once

#include <poll.h>

#include "instance_end.ipp"
#include "instance_readiness.ipp"
#include "instance_shutdown.ipp"
#include "managed_instance.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// ---- what is wished for ----

inline void managed_instance::wish(bool wishes::*which) {
    {
        const lock_guard held(mutex_);
        wishes_.*which = true;
        if (which != &wishes::look) interrupt_.notify();  // with the mutex held, as where it is cleared
    }
    waker_.notify();
}

inline managed_instance::wishes managed_instance::take_wishes() {
    const lock_guard held(mutex_);
    interrupt_.clear();
    const wishes out = wishes_;
    wishes_.look = false;
    return out;
}

inline instance_state managed_instance::await(bool (*holds)(instance_state), time_point deadline,
                                              const cancel_token& until) {
    const cancel_registration told = until.on_cancel([this] {
        const lock_guard held(mutex_);  // so that it does not come between a look and the sleep
        changed_.notify_all();
    });
    lock_guard held(mutex_);
    // What is over stays as it is.
    while (!holds(info_.state) && !is_over(info_.state) && !until.cancelled() &&
           changed_.wait_until(held, deadline)) {
    }
    return info_.state;
}

inline result<shutdown_status> managed_instance::ask_status(time_point deadline) {
    if (!client_) return error{errc::unsupported, 0, cat({spec_.id, " does not take part in the protocol"})};
    return client_->status_for_operator(spec_.id, deadline);
}

// ---- its start ----

// An outer launcher's variables are of this process, and not of its children.
inline child_options managed_instance::options_of_child() const {
    child_options out = spec_.options.child;
    const bool takes_part = spec_.options.participates;
    out.environment.push_back(cat({"OJS_LIFECYCLE_ADDR=", takes_part ? spec_.address : std::string()}));
    out.environment.push_back(cat({"OJS_PROCESS_ID=", spec_.id}));
    out.environment.push_back(
        cat({"OJS_LAUNCHER_ADDR=", takes_part ? spec_.launcher_address : std::string()}));
    return out;
}

inline result<void> managed_instance::start() {
    result<wake> waker = wake::create();
    if (!waker) return waker.error();
    waker_ = std::move(*waker);
    waker = wake::create();
    if (!waker) return waker.error();
    interrupt_ = std::move(*waker);
    if (spec_.options.participates) {
        result<ref<lifecycle_client>> client = lifecycle_client::create(spec_.address, interrupt_.fd());
        if (!client) return client.error();
        client_ = *client;
    }
    started_ = info_.started = info_.changed = steady_clock::now();
    result<child_process> child = child_process::start(options_of_child());
    if (!child) return child.error();
    child_ = std::move(*child);
    info_.pid = child_.pid();
    const std::string name = cat({"ojs-", spec_.id}).substr(0, 15);
    thread_options how;
    how.stack_size = 256 * 1024;
    how.name = name.c_str();
    result<thread> started = thread::start([this] { work(); }, how);
    if (!started) return started.error();  // and the child is killed
    thread_ = std::move(*started);
    return {};
}

inline void managed_instance::work() {
    begin();
    while (!is_over(state())) watch();
}

inline void managed_instance::begin() {
    change(instance_event::runs, log_level::info, "process spawned", "");
    next_look_ = steady_clock::now();
    if (client_) {
        ready_by_ = deadline_after(spec_.options.readiness_timeout);
        return;
    }
    next_look_ = time_point::max();
    readiness_response as_it_is;  // nothing else can be known
    as_it_is.state = readiness_state::ready;
    heard(as_it_is);
}

// ---- its life: one thing at a time, whatever is due first ----

// False: the child has ended, and its status was taken.
inline bool managed_instance::sleep_until(time_point deadline) {
    pollfd watched[] = {{child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
    ::poll(watched, 2, poll_timeout(deadline));
    if (watched[1].revents != 0) waker_.clear();
    if (watched[0].revents == 0) return true;
    over(child_.wait());
    return false;
}

inline void managed_instance::watch() {
    const time_point limit = end_of_patience();
    if (!sleep_until(earlier(next_look_, limit))) return;
    const wishes wanted = take_wishes();
    if (wanted.abandoned) return kill_child();
    if (wanted.force) {
        return end_by_signal(manner::forced, deadline_after(spec_.options.shutdown.kill_delay),
                             "forcing shutdown with SIGTERM", "the launcher was told to");
    }
    act(wanted, limit);
}

inline void managed_instance::act(const wishes& wanted, time_point limit) {
    const time_point now = steady_clock::now();
    const bool look = now >= next_look_ || (wanted.look && client_);
    if (manner_ == manner::asked) {
        tell_grace_is_over();
        if (now >= limit) {
            return end_by_signal(manner::forced, deadline_after(spec_.options.shutdown.kill_delay),
                                 "forcing shutdown with SIGTERM", why_no_longer());
        }
        if (look) return delivered_ ? look_at_status() : send_request();
        return;
    }
    if (wanted.shut_down) return ask_to_shut_down();
    if (look) look_at_readiness();
    if (steady_clock::now() < ready_by_) return;
    ready_by_ = time_point::max();
    be_unhealthy(cat({"not ready within ", format_duration(spec_.options.readiness_timeout)}));
}

// When something else must happen, whatever the process says.
inline time_point managed_instance::end_of_patience() const {
    if (manner_ != manner::asked) return ready_by_;
    if (!delivered_) return earlier(grace_end_, hard_end_);
    const bool only_granted = spec_.options.shutdown.force_without_request;
    return earlier(complete_end_, only_granted ? earlier(granted_end_, hard_end_) : hard_end_);
}

inline std::string managed_instance::why_no_longer() const {
    const time_point now = steady_clock::now();
    if (!delivered_) return "the request could not be delivered";
    if (now >= complete_end_) return "it said that it is complete, and runs on";
    if (now >= hard_end_) return "it was not over at its hard deadline";
    return "its grace period is over, and so is what time it asked for";
}

// ---- what others see of it ----

inline instance_state managed_instance::state() const {
    const lock_guard held(mutex_);
    return info_.state;
}

// False: the state stays. The log comes first, so that who acts on a change finds it there.
inline bool managed_instance::change(instance_event what, log_level level, const char* text,
                                     const std::string& message) {
    const instance_state before = state();
    const instance_state next = next_state(before, what);
    if (next == before) return false;
    say(level, text, before, next, message);
    update([&](process_info& now) {
        now.state = next;
        now.changed = steady_clock::now();
        if (!message.empty()) now.message = message;
        const bool first = next == instance_state::ready && now.startup.count() == 0;
        if (first) now.startup = took_since(now.started);
    });
    return true;
}

// The first of a row, and then now and again.
inline void managed_instance::tell_failure(const char* text, log_level level, const error& why) {
    if (failed_questions_++ % told_failure == 0)
        say(level, text, state(), state(), why.text, {field("failures", failed_questions_)});
}

inline void managed_instance::say(log_level level, const char* text, instance_state from, instance_state now,
                                  std::string_view reason, fields more) const {
    if (!log_.enabled(level)) return;
    log_record record;
    record.level = level;
    record.message = text;
    record.fields = {field("process_id", spec_.id),
                     field("group", spec_.group),
                     field("state", to_string(now)),
                     field("from", to_string(from)),
                     field("pid", static_cast<long>(child_.pid())),
                     field("elapsed_ms", milliseconds_since(started_))};
    if (!reason.empty()) record.fields.push_back(field("reason", reason));
    for (const log_field& each : more) record.fields.push_back(each);
    log_.write(std::move(record));
}

OJS_SHUTDOWN_INLINE result<ref<instance>> start_instance(const instance_spec& spec, instance_changed changed,
                                                         const logger& log) {
    const ref<managed_instance> out = make_ref<managed_instance>(spec, std::move(changed), log);
    const result<void> started = out->start();
    if (!started) return started.error();
    return ref<instance>(out.get());
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
