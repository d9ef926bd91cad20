// managed_instance: one child process, from its start to its exit. [RFC-041 "Process State Machine", "Handshake Flows"]
#pragma once

#include <poll.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "../../coordinator/detail/rpc.ipp"
#include "../../process/detail/out_of_memory.hpp"
#include "../launcher_options.ipp"
#include "instance.hpp"

namespace ojs::detail {
enum class instance_event { spawned, warming, ready, failed, shutdown_requested, draining, completed, crashed, forced };

struct state_log {
    log_level level;
    const char* text;
};
inline constexpr state_log state_logs[] = {{log_level::info, ""},
                                           {log_level::info, "process spawned"},
                                           {log_level::info, "process warming"},
                                           {log_level::info, "process ready"},
                                           {log_level::warn, "process unhealthy"},
                                           {log_level::info, "shutdown requested"},
                                           {log_level::info, "process draining"},
                                           {log_level::info, "process exited after its drain"},
                                           {log_level::warn, "process force-stopped"},
                                           {log_level::error, "process crashed"}};

// `same`: no change. A process that we force keeps its state until it has exited.
inline instance_state next_state(instance_state now, instance_event event) noexcept {
    using s = instance_state;
    constexpr s same = s(-1);
    static constexpr s table[][9] = {
        // clang-format off
        /*                        spawned      warming     ready     failed        shutdown_requested     draining     completed    crashed     forced */
        /* spawning           */ {s::starting, same,       same,     same,         s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* starting           */ {same,        s::warming, s::ready, s::unhealthy, s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* warming            */ {same,        same,       s::ready, s::unhealthy, s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* ready              */ {same,        same,       same,     s::unhealthy, s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* unhealthy          */ {same,        same,       s::ready, same,         s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* shutdown_requested */ {same,        same,       same,     same,         same,                  s::draining, s::complete, s::crashed, s::forced},
        /* draining           */ {same,        same,       same,     same,         same,                  same,        s::complete, s::crashed, s::forced},
        // clang-format on
    };
    if (is_final(now)) return now;
    const s next = table[static_cast<int>(now)][static_cast<int>(event)];
    return next == same ? now : next;
}

inline constexpr std::chrono::milliseconds kill_timeout{5000};  // a SIGKILL that takes longer is logged
inline constexpr int memory_retry_ms = 100;                     // ms; retry delay after a failed allocation
inline constexpr unsigned failure_log_interval = 10;            // logs every n-th consecutive failure

// At least 1 ms, as 0 means "not yet" in process_info.
inline std::chrono::milliseconds elapsed_since(time_point then) noexcept {
    const long long took = milliseconds_since(then);
    return std::chrono::milliseconds(std::max(took, 1LL));
}

// Its thread waits for the child and calls its coordinator. Other threads post commands to it.
class managed_instance final : public instance {
  public:
    managed_instance(const instance_spec& spec, instance_callback changed, const logger& log)
        : spec_(spec),
          on_changed_(std::move(changed)),
          log_(log),
          ready_(address_of_ready_url(spec.options.ready_url, spec.id)) {
        info_.id = spec.id;
        info_.group = spec.group;
        info_.address = spec.address;
        info_.generation = spec.generation;
    }
    // Kills a process that still runs, and joins the thread. Must not be called by `changed`.
    ~managed_instance() override {
        post(&commands::destroy);
        thread_.join();
    }

    result<void> start();

    process_info info() const override {
        const unique_lock held(mutex_);
        return info_;
    }
    void shut_down(const shutdown_options& options) override {
        {
            const unique_lock held(mutex_);
            if (exchange(posted_.shut_down, true)) return;
            shutdown_options_ = options;
        }
        post(&commands::shut_down);
    }
    void force() override { post(&commands::force); }
    void poll() override { post(&commands::poll); }
    result<shutdown_status> request_status(time_point deadline) override {
        if (!spec_.options.has_coordinator) return error{errc::unsupported, 0, cat({spec_.id, " has no coordinator"})};
        return rpc_call<shutdown_status>(*client_, "GetShutdownStatus", shutdown_status_request{spec_.id}, deadline);
    }

  private:
    struct commands {
        bool shut_down = false;
        bool force = false;
        bool poll = false;
        bool destroy = false;
    };
    enum class stop_method { none, request, signal, force };
    using fields = std::initializer_list<log_field>;

    void post(bool commands::*command) {
        {
            const unique_lock held(mutex_);
            posted_.*command = true;
            if (command != &commands::poll) interrupt_.notify();  // mutex held: take_commands() clears it
        }
        waker_.notify();
    }
    // Takes only `poll`: the others hold for good.
    commands take_commands() {
        const unique_lock held(mutex_);
        interrupt_.clear();
        const commands out = posted_;
        posted_.poll = false;
        return out;
    }
    // Overwrites the variables that an outer launcher has set for this process.
    child_options make_child_options() const {
        child_options out = spec_.options.child;
        for (std::string& each : out.environment) each = with_process_id(std::move(each), spec_.id);
        out.environment.push_back(cat({"OJS_LIFECYCLE_ADDR=", spec_.address}));
        out.environment.push_back(cat({"OJS_PROCESS_ID=", spec_.id}));
        out.environment.push_back(cat({"OJS_LAUNCHER_ADDR=", spec_.launcher_address}));
        if (spec_.record) {
            out.before_exec = [this](pid_t pid) {
                const function<result<void>(pid_t)>& given = spec_.options.child.before_exec;
                const result<void> recorded = spec_.record(pid, interrupt_.fd());
                return recorded && given ? given(pid) : recorded;
            };
        }
        return out;
    }

    // ---- only the thread calls these: one step at a time, the first that is due ----

    // Repeats a step that runs out of memory.
    void run() {
        while (!is_final(state()) || unreported_) {
            const bool done = attempt([this] {
                if (unreported_) return update([](process_info&) {});
                if (state() == instance_state::spawning) return spawn();
                watch();
            });
            if (!done) ::poll(nullptr, 0, memory_retry_ms);
        }
    }
    // The state file's disk or exec() may hang: any command interrupts that.
    void spawn() {
        if (child_.pid() == 0) {
            result<child_process> child =
                unless_out_of_memory([this] { return start_child(make_child_options(), interrupt_.fd(), true); });
            if (!child) return on_spawn_failed(child.error());
            child_ = std::move(*child);
        }
        next_poll_ = steady_clock::now();
        if (client_) ready_by_ = deadline_after(spec_.options.readiness_timeout);
        update([this](process_info& now) { now.pid = child_.pid(); });
        change(instance_event::spawned, "");
    }
    void on_spawn_failed(const error& why) {
        const instance_event end = why.code != errc::cancelled ? instance_event::crashed
                                   : take_commands().force     ? instance_event::forced
                                                               : instance_event::completed;
        change(end, end == instance_event::crashed ? log_level::error : log_level::info, "cannot start the process",
               why.text);
    }
    // False: the child has exited, and on_exit() was called.
    bool sleep_until(time_point deadline) {
        pollfd watched[] = {{child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 2, poll_timeout(deadline));
        if (watched[1].revents != 0) waker_.clear();
        if (watched[0].revents == 0) return true;
        on_exit(child_.wait());
        return false;
    }
    // Waits for what is due next, then does it: polls, or stops or kills the child.
    void watch() {
        const time_point limit = force_deadline();
        if (!sleep_until(std::min(next_poll_, limit))) return;
        const commands taken = take_commands();
        if (taken.destroy) return kill_child();
        if (taken.force) return force_child("forced by the launcher");
        act(taken, limit);
    }
    void act(const commands& taken, time_point limit) {
        const time_point now = steady_clock::now();
        const bool poll_due = now >= next_poll_ || (taken.poll && client_);
        if (stop_method_ == stop_method::request) {
            log_overdue();
            // More time may have been requested since the last poll.
            if (now >= limit && limit == granted_deadline_) poll_status(time_point::max());
            if (now >= force_deadline()) return force_child(force_reason());
            if (poll_due && now < limit) return request_due_ ? send_shutdown() : poll_status(limit);
            return;
        }
        if (taken.shut_down) {
            if (run_pre_shutdown()) request_shutdown();
            return;
        }
        // If the launcher itself was suspended, the process is ready by now: poll once more.
        const bool too_late = now >= ready_by_;
        if (poll_due || too_late) poll_readiness(too_late ? time_point::max() : ready_by_);
        if (!too_late || ready_by_ == time_point::max()) return;
        ready_by_ = time_point::max();
        const std::string last = info().message;
        const std::string more = last.empty() ? "" : cat({": ", last});
        change(instance_event::failed,
               cat({"not ready within ", format_duration(spec_.options.readiness_timeout), more}));
    }
    time_point request_deadline(time_point deadline) const {
        return std::min(deadline_after(spec_.options.rpc_timeout), deadline);
    }
    result<readiness_response> request_readiness(time_point deadline) {
        if (spec_.options.has_coordinator)
            return rpc_call<readiness_response>(*client_, "GetReadinessStatus", readiness_request{spec_.id}, deadline,
                                                interrupt_.fd());
        readiness_response ready;
        ready.state = readiness_state::ready;
        if (!client_) return ready;
        http_request request;
        request.target = ready_.target;
        http_call call;
        call.deadline = deadline;
        call.interrupt_fd = interrupt_.fd();
        const result<http_response> answer = client_->send(request, call);
        if (!answer) return answer.error();
        if (answer->status == 200) return ready;
        return error{errc::unavailable, 0,
                     cat({client_->describe("GET", ready_.target), " answered ", answer->status})};
    }
    // By a command. Makes the next poll due at once.
    template <class Answer>
    bool was_interrupted(const result<Answer>& answer) noexcept {
        if (answer || answer.error().code != errc::cancelled) return false;
        next_poll_ = steady_clock::now();
        return true;
    }
    void poll_readiness(time_point deadline) {
        const result<readiness_response> answer = request_readiness(request_deadline(deadline));
        if (was_interrupted(answer)) return;
        if (answer) {
            failed_polls_ = 0;
            failed_requests_ = 0;
            on_readiness(*answer);
        } else {
            on_poll_failed(answer.error());
        }
        const bool is_ready = state() == instance_state::ready;
        const std::chrono::milliseconds pause =
            is_ready ? spec_.options.health_interval : spec_.options.readiness_interval;
        const bool no_more = !client_ || (is_ready && pause.count() == 0);
        next_poll_ = no_more ? time_point::max() : deadline_after(pause);
    }
    void on_readiness(const readiness_response& answer) {
        const std::string message = printable(answer.message);
        bool was_routable = false;
        update([&](process_info& now) {
            was_routable = now.routable;
            now.readiness = answer;
            now.message = message;
        });
        if (answer.state == readiness_state::warming) {
            change(instance_event::warming, message);
        } else if (answer.state == readiness_state::unhealthy) {
            change(instance_event::failed, message);
        } else if (answer.state == readiness_state::ready) {
            ready_by_ = time_point::max();
            change(instance_event::ready, message);
        }
        if (answer.state != readiness_state::ready && state() <= instance_state::ready)
            log_state(was_routable ? log_level::warn : log_level::debug,
                      was_routable ? "process no longer ready" : "waiting for ready", message,
                      {field("readiness", to_string(answer.state))});
    }
    void on_poll_failed(const error& why) {
        const bool is_ready = state() == instance_state::ready;
        log_failure("readiness check failed", is_ready ? log_level::warn : log_level::debug, why);
        if (!is_ready) update([&](process_info& now) { now.message = printable(why.text); });
        if (is_ready && ++failed_polls_ >= spec_.options.unhealthy_after) change(instance_event::failed, why.text);
    }
    bool run_pre_shutdown();
    void request_shutdown();
    void send_shutdown();
    void poll_status(time_point deadline) {
        const result<shutdown_status> answer =
            rpc_call<shutdown_status>(*client_, "GetShutdownStatus", shutdown_status_request{spec_.id},
                                      request_deadline(deadline), interrupt_.fd());
        if (was_interrupted(answer)) return;
        if (answer) {
            failed_requests_ = 0;
            request_due_ = !acknowledged_ && answer->state == shutdown_state::running;
            on_status(*answer);
        } else {  // a drained process no longer serves: only its pid shows that it has exited
            const errc why = answer.error().code;
            const bool gone = why == errc::unreachable || why == errc::disconnected;
            log_failure("shutdown status request failed", gone ? log_level::info : log_level::warn, answer.error());
        }
        next_poll_ = deadline_after(spec_.options.shutdown.poll_interval);
    }
    void log_overdue() {
        const time_point now = steady_clock::now();
        if (now >= grace_deadline_ && !exchange(past_grace_, true))
            log_state(log_level::warn, "process exceeded its grace_period", "");
        if (now >= hard_deadline_ && now < report_deadline_ && !exchange(past_max_, true))
            log_state(log_level::warn, "process exceeded its max_duration; waiting report_time for its report", "",
                      {field("report_time_ms", spec_.options.shutdown.report_time.count())});
    }
    void on_status(const shutdown_status& answer);
    // At most until the hard deadline.
    void grant_time(const shutdown_status& answer, bool is_new) {
        const std::chrono::seconds asked(answer.additional_seconds);
        const time_point requested = asked.count() > 0 ? deadline_after(asked) : hard_deadline_;
        if (requested > granted_deadline_) granted_deadline_ = std::min(requested, hard_deadline_);
        if (!is_new) return;
        log_state(log_level::warn, "more time requested", printable(answer.message),
                  {field("additional_seconds", answer.additional_seconds)});
    }
    // Logs the first of consecutive failures, then every n-th.
    void log_failure(const char* text, log_level level, const error& why) {
        if (failed_requests_++ % failure_log_interval == 0)
            log_state(level, text, why.text, {field("failures", failed_requests_)});
    }
    // When the launcher must act, whatever the process reports.
    time_point force_deadline() const {
        if (stop_method_ != stop_method::request) return ready_by_;
        const bool at_granted = spec_.options.shutdown.force_without_request && granted_deadline_ < hard_deadline_;
        return std::min(complete_deadline_, at_granted ? granted_deadline_ : report_deadline_);
    }
    std::string force_reason() const {
        const time_point now = steady_clock::now();
        if (now >= complete_deadline_) return "the process reported COMPLETE but still runs";
        if (now >= hard_deadline_) return "the process still runs at its max_duration";
        return "the grace period and additional time of the process are over";
    }
    void terminate_child(stop_method method, time_point kill_at, log_level level, const char* text,
                         const std::string& why);
    // SIGTERM now, SIGKILL after kill_delay.
    void force_child(const std::string& why) {
        terminate_child(stop_method::force, deadline_after(spec_.options.shutdown.kill_delay), log_level::warn,
                        "forcing shutdown with SIGTERM", why);
    }
    void await_end_or_kill(time_point kill_at);
    // Whether its process group has members besides the leader. A signal that reaches the child proves that the pid is
    // ours.
    bool has_descendants() {
        return spec_.options.child.own_group && child_.signal(0) && group_has_others(child_.pid());
    }
    // Waits for a process that sleeps in the kernel until this object is destroyed.
    void kill_child() {
        stop_method_ = stop_method::force;
        kill_sent_ = true;
        if (requested_at_ == time_point{}) requested_at_ = steady_clock::now();
        result<child_exit> ended = child_.kill(kill_timeout);
        while (!ended && ended.error().code == errc::timed_out && !take_commands().destroy) {
            log_failure("SIGKILL did not end the process", log_level::error, ended.error());
            update([&](process_info& now) { now.message = "SIGKILL did not end the process"; });
            ended = child_.wait(deadline_after(kill_timeout));
        }
        on_exit(ended);
    }
    instance_event exit_event(const result<child_exit>& ended) const {
        if (stop_method_ == stop_method::force) return instance_event::forced;
        if (!ended) return instance_event::crashed;
        if (ended->ok()) return instance_event::completed;
        const bool by_our_signal = ended->signal == SIGTERM || ended->signal == SIGKILL || ended->code == 128 + SIGTERM;
        return stop_method_ == stop_method::signal && by_our_signal ? instance_event::forced : instance_event::crashed;
    }
    void on_exit(const result<child_exit>& ended) {
        const child_exit status = ended.value_or(child_exit());
        const bool by_itself = stop_method_ == stop_method::none;
        std::string message = ended ? status.describe() : ended.error().text;
        if (by_itself && ended && status.ok()) message = "exited by itself with status 0";
        const instance_event end = exit_event(ended);
        update([&](process_info& now) {
            if (end == instance_event::forced) now.shutdown.state = shutdown_state::forced;
            now.exit = status;
            now.killed = kill_sent_ && status.signal == SIGKILL;
            if (!by_itself) now.shutdown_duration = elapsed_since(requested_at_);
        });
        // A drain may be shorter than the first poll.
        if (acknowledged_ && end == instance_event::completed) change(instance_event::draining, "");
        change(end, message);
    }

    // ---- its state, for other threads ----

    instance_state state() const {
        const unique_lock held(mutex_);
        return info_.state;
    }
    // False: no change. Logs first, so that on_changed_ finds the record in the log.
    bool change(instance_event event, const std::string& message) {
        const state_log& log = state_logs[static_cast<int>(next_state(state(), event))];
        return change(event, log.level, log.text, message);
    }
    bool change(instance_event event, log_level level, const char* text, const std::string& message) {
        const instance_state before = state();
        const instance_state next = next_state(before, event);
        if (next == before) return false;
        log_state(level, text, before, next, message);
        update([&](process_info& now) {
            now.state = next;
            now.changed_at = steady_clock::now();
            if (!message.empty()) now.message = message;
            const bool first = next == instance_state::ready && now.startup_duration.count() == 0;
            if (first) now.startup_duration = elapsed_since(now.started_at);
        });
        return true;
    }
    // Calls on_changed_ if the state, `routable` or need_more_time has changed; other changes are only visible in
    // info().
    template <class Change>
    void update(Change apply) {
        unique_lock held(mutex_);
        const instance_state before = info_.state;
        const bool was_routable = info_.routable;
        const bool needed_more_time = info_.shutdown.need_more_time;
        process_info next = info_;
        apply(next);
        next.routable = next.state == instance_state::ready && next.readiness.state == readiness_state::ready;
        const bool same = before == next.state && was_routable == next.routable &&
                          needed_more_time == next.shutdown.need_more_time && !unreported_;
        const process_info now = same ? process_info() : next;
        info_ = std::move(next);
        if (same) return;
        unreported_ = true;
        held.unlock();
        on_changed_(now, reported_state_);
        reported_state_ = now.state;
        unreported_ = false;
    }
    void log_state(log_level level, const char* text, instance_state from, instance_state now, std::string_view reason,
                   fields extra = {}) const {
        if (!log_.enabled(level)) return;
        attempt([&] {
            log_record record{
                level,
                text,
                {field("process_id", spec_.id), field("group", spec_.group), field("state", to_string(now)),
                 field("from", to_string(from)), field("uptime_ms", milliseconds_since(started_))},
                {}};
            if (requested_at_ != time_point{})
                record.fields.push_back(field("elapsed_ms", milliseconds_since(requested_at_)));
            if (child_.pid() > 0) record.fields.push_back(field("pid", static_cast<long>(child_.pid())));
            if (!reason.empty()) record.fields.push_back(field("reason", reason));
            for (const log_field& each : extra) record.fields.push_back(each);
            log_.write(std::move(record));
        });
    }
    // Without a change of the state.
    void log_state(log_level level, const char* text, std::string_view reason, fields extra = {}) const {
        log_state(level, text, state(), state(), reason, extra);
    }

    const instance_spec spec_;
    const instance_callback on_changed_;
    const logger log_;
    time_point started_{};
    wake waker_;
    wake interrupt_;                        // interrupts a request, so that commands need not wait
    result<http_client> client_ = error{};  // of its coordinator or ready_url; none: no polls
    ready_address ready_;
    child_process child_;
    thread thread_;

    mutable mutex mutex_;  // guards the next three; never held during a call to others
    process_info info_;
    commands posted_;
    shutdown_options shutdown_options_;

    // Only the thread uses the rest.
    bool unreported_ = false;  // on_changed_ is due
    instance_state reported_state_ = instance_state::spawning;
    time_point next_poll_{};
    time_point ready_by_ = time_point::max();
    int failed_polls_ = 0;
    unsigned failed_requests_ = 0;
    stop_method stop_method_ = stop_method::none;
    bool pre_shutdown_done_ = false;
    bool request_due_ = true;    // not sent, or lost according to a status
    bool acknowledged_ = false;  // the shutdown request
    bool past_grace_ = false;
    bool past_max_ = false;
    bool kill_sent_ = false;
    shutdown_request request_;
    time_point requested_at_{};
    time_point grace_deadline_ = time_point::max();
    time_point granted_deadline_ = time_point::max();   // extended when the process requests more time
    time_point hard_deadline_ = time_point::max();      // end of the drain
    time_point report_deadline_ = time_point::max();    // end of report_time
    time_point complete_deadline_ = time_point::max();  // the exit is due after COMPLETE
};
}  // namespace ojs::detail
