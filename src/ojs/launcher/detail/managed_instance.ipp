#pragma once

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include "../admin_messages.ipp"
#include "managed_instance.hpp"

namespace ojs::detail {
inline result<void> managed_instance::start() {
    for (wake* const each : {&waker_, &interrupt_}) {
        result<wake> made = wake::create();
        if (!made) return made.error();
        *each = std::move(*made);
    }
    if (spec_.options.has_coordinator || !spec_.options.ready_url.empty()) {
        http_client_options options;
        options.max_body = rpc_body_limit;
        client_ =
            http_client::create(spec_.options.has_coordinator ? url_of(spec_.address) : ready_.url, std::move(options));
        if (!client_) return client_.error();
    }
    started_ = info_.started_at = info_.changed_at = steady_clock::now();
    const std::string name = cat({"ojs-", spec_.id});
    thread_options named;
    named.stack_size = 256 * 1024;
    named.name = name.c_str();
    result<thread> started = thread::start([this] { run(); }, named);
    if (!started) return started.error();
    thread_ = std::move(*started);
    return {};
}

// False: the child has exited, or a command came that ends it at once.
inline bool managed_instance::run_pre_shutdown() {
    const std::chrono::milliseconds timeout = spec_.options.pre_shutdown_timeout;
    if (spec_.options.pre_shutdown.empty() || exchange(pre_shutdown_done_, true)) return true;
    child_options command;
    command.command = spec_.options.pre_shutdown;
    command.environment = make_child_options().environment;
    command.environment.push_back(cat({"OJS_PROCESS_PID=", child_.pid()}));
    command.working_directory = spec_.options.child.working_directory;
    command.start_timeout = timeout;
    const time_point begun = steady_clock::now();
    const time_point deadline = deadline_after(timeout);
    std::string fault;
    result<child_process> hook = start_child(command, interrupt_.fd(), true);
    bool goes_on = hook || hook.error().code != errc::cancelled;
    if (!hook) fault = hook.error().text;
    while (hook && fault.empty()) {
        pollfd watched[] = {{hook->fd(), POLLIN, 0}, {child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 3, poll_timeout(deadline));
        waker_.clear();
        const commands taken = take_commands();
        goes_on = watched[1].revents == 0 && !taken.force && !taken.destroy;
        if (watched[0].revents == 0 && goes_on && steady_clock::now() < deadline) continue;
        const bool ended = watched[0].revents != 0;
        const result<child_exit> end = ended ? hook->wait() : hook->kill(kill_timeout);
        if (end && end->ok()) break;
        fault = !goes_on ? "the process ended, or was forced, before pre_shutdown did"
                : ended  ? (end ? end->describe() : end.error().text)
                         : cat({"still ran after ", format_duration(timeout)});
    }
    log_state(fault.empty() ? log_level::info : log_level::warn,
              fault.empty() ? "pre_shutdown ended" : "pre_shutdown failed", fault,
              {field("took_ms", milliseconds_since(begun))});
    return goes_on;
}

inline void managed_instance::request_shutdown() {
    unique_lock held(mutex_);
    const shutdown_options options = shutdown_options_;
    held.unlock();
    const shutdown_timeouts granted = granted_times(options, spec_.options.shutdown);
    const std::chrono::milliseconds grace = granted.grace_period;
    const std::chrono::milliseconds max = granted.max_duration;
    request_ = {spec_.id, options.reason, wire_seconds(grace), wire_seconds(max)};
    requested_at_ = steady_clock::now();
    hard_deadline_ = deadline_after(max);
    grace_deadline_ = deadline_after(grace);
    granted_deadline_ =  // in whole seconds, as in the request
        std::min(hard_deadline_, deadline_after(std::chrono::seconds(request_.grace_period_seconds)));
    report_deadline_ = deadline_after(clamp_for_sum(max) + clamp_for_sum(granted.report_time));
    failed_requests_ = 0;
    change(instance_event::shutdown_requested, options.reason);
    stop_method_ = stop_method::request;
    if (spec_.options.has_coordinator) return send_shutdown();
    terminate_child(stop_method::signal, hard_deadline_, log_level::info, "requesting shutdown with SIGTERM",
                    "the process has no coordinator");
}

// No listener, or the request was refused. One that timed out may have arrived. [WIRE 4]
inline bool has_no_coordinator(const error& why) noexcept {
    const bool no_listener = why.code == errc::unreachable && why.sys_errno != EAGAIN;
    return no_listener || why.code == errc::unsupported || why.code == errc::rejected ||
           why.code == errc::invalid_argument;
}

inline void managed_instance::send_shutdown() {
    const time_point deadline = request_deadline(force_deadline());
    const result<shutdown_ack> ack = rpc_call<shutdown_ack>(*client_, "Shutdown", request_, deadline, interrupt_.fd());
    if (was_interrupted(ack)) return;
    if (!ack && has_no_coordinator(ack.error())) {
        return terminate_child(stop_method::signal,
                               std::max(hard_deadline_, deadline_after(spec_.options.shutdown.kill_delay)),
                               log_level::warn, "requesting shutdown with SIGTERM",
                               cat({"cannot call the coordinator: ", ack.error().text}));
    }
    request_due_ = false;
    acknowledged_ = ack && ack->acknowledged;
    if (acknowledged_) {
        failed_requests_ = 0;
    } else {
        log_failure("no acknowledgement of the shutdown request; polling the process", log_level::warn,
                    ack ? error{errc::rejected, 0, printable(ack->message)} : ack.error());
    }
    // At once, as a drain may be short.
    next_poll_ = acknowledged_ ? steady_clock::now() : deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::on_status(const shutdown_status& answer) {
    const shutdown_status before = info().shutdown;
    const std::string message = printable(answer.message);
    update([&](process_info& now) {
        now.shutdown = answer;
        now.message = message;
    });
    if (answer.state >= shutdown_state::draining)  // or complete: the drain was short
        change(instance_event::draining, message);
    if (answer.state == shutdown_state::complete && complete_deadline_ == time_point::max())
        complete_deadline_ = deadline_after(spec_.options.shutdown.kill_delay);
    std::string blocking;
    for (const std::string& each : answer.metrics.blocking_operations)
        append(blocking, {blocking.empty() ? "" : ", ", printable(each)});
    const bool same = before.state == answer.state && write_message(before.metrics) == write_message(answer.metrics);
    log_state(same ? log_level::debug : log_level::info, "shutdown progress", message,
              {field("shutdown_state", to_string(answer.state)), field("in_flight", answer.metrics.in_flight_requests),
               field("open_connections", answer.metrics.open_connections),
               field("buffered_bytes", static_cast<long long>(answer.metrics.buffered_bytes)),
               field("blocking", printable(blocking))});
    if (answer.need_more_time)
        grant_time(answer, !before.need_more_time || before.additional_seconds != answer.additional_seconds);
}

// Sends SIGTERM, SIGCONT for stopped processes, and later SIGKILL to the process group. Changes the state first, so
// that the process gets no more work.
inline void managed_instance::terminate_child(stop_method method, time_point kill_at, log_level level, const char* text,
                                              const std::string& why) {
    if (requested_at_ == time_point{}) requested_at_ = steady_clock::now();
    if (!change(instance_event::shutdown_requested, level, text, why)) {
        log_state(level, text, why);
        update([&](process_info& now) { now.message = why; });
    }
    stop_method_ = method;
    static_cast<void>(child_.signal(SIGTERM));  // await_end_or_kill() notices a process that has exited
    static_cast<void>(child_.signal(SIGCONT));
    await_end_or_kill(kill_at);
}

inline void managed_instance::await_end_or_kill(time_point kill_at) {
    bool ended = false;  // the child; its descendants have the rest of the time
    while (steady_clock::now() < kill_at) {
        const time_point check_at = ended ? std::min(kill_at, deadline_after(group_poll_interval)) : kill_at;
        // The descriptor of an exited child stays readable.
        pollfd watched[] = {{ended ? -1 : child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 2, poll_timeout(check_at));
        waker_.clear();
        ended = ended || watched[0].revents != 0;
        if (ended && !has_descendants()) return on_exit(child_.wait());
        const commands taken = take_commands();
        if (taken.destroy) return kill_child();
        if (!taken.force || stop_method_ == stop_method::force) continue;
        stop_method_ = stop_method::force;
        kill_at = std::min(kill_at, deadline_after(spec_.options.shutdown.kill_delay));
    }
    log_state(log_level::error, "still running after SIGTERM; sending SIGKILL", "",
              {field("limit", stop_method_ == stop_method::signal ? "max_duration" : "kill_delay")});
    if (!ended) return kill_child();
    on_exit(child_.terminate(std::chrono::milliseconds(0), kill_timeout));
}

// Reserves address space during a start, so that running processes have some left. Not from the heap: threads without
// an arena cannot use that.
class address_space_reserve {
  public:
    address_space_reserve() = default;
    address_space_reserve(const address_space_reserve&) = delete;
    address_space_reserve& operator=(const address_space_reserve&) = delete;
    ~address_space_reserve() {
        if (is_mapped()) ::munmap(at_, size);
    }
    bool is_mapped() const noexcept { return at_ != MAP_FAILED; }

  private:
    static constexpr std::size_t size = 8 * 1024 * 1024;
    void* const at_ = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

OJS_SHUTDOWN_INLINE result<ref<instance>> start_instance(const instance_spec& spec, instance_callback changed,
                                                         const logger& log) {
    const address_space_reserve reserve;
    if (!reserve.is_mapped())
        return error{errc::unavailable, ENOMEM, "no 8 MiB of address space are left to start a process"};
    const ref<managed_instance> out = make_ref<managed_instance>(spec, std::move(changed), log);
    const result<void> started = out->start();
    if (!started) return started.error();
    return ref<instance>(out.get());
}
}  // namespace ojs::detail
