// managed_instance: one child, from its start to its end. [RFC-041 "Process State Machine", "Handshake Flows"]
#pragma once

#include <poll.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "../../base/detail/sync.hpp"
#include "../../coordinator/detail/rpc.ipp"
#include "../../core/detail/wake.hpp"
#include "../../net/http_client.hpp"
#include "../group_options.ipp"
#include "instance.hpp"

namespace ojs::detail {

enum class instance_event { runs, warms, is_ready, fails, is_asked, drains, ends_well, ends_badly, is_ended };

// What becomes of a state. `same`: nothing. A process that is ended by us is what it was until it has ended.
inline instance_state next_state(instance_state now, instance_event what) noexcept {
    using s = instance_state;
    constexpr s same = s(-1);
    static constexpr s table[][9] = {
        // clang-format off
        //                        runs         warms       is_ready  fails         is_asked               drains       ends_well    ends_badly  is_ended
        /* spawning           */ {s::starting, same,       same,     same,         s::shutdown_requested, same,        s::complete, s::crashed, s::forced},
        /* starting           */ {same,        s::warming, s::ready, s::unhealthy, s::shutdown_requested, same,        s::crashed,  s::crashed, s::forced},
        /* warming            */ {same,        same,       s::ready, s::unhealthy, s::shutdown_requested, same,        s::crashed,  s::crashed, s::forced},
        /* ready              */ {same,        same,       same,     s::unhealthy, s::shutdown_requested, same,        s::crashed,  s::crashed, s::forced},
        /* unhealthy          */ {same,        same,       s::ready, same,         s::shutdown_requested, same,        s::crashed,  s::crashed, s::forced},
        /* shutdown_requested */ {same,        same,       same,     same,         same,                  s::draining, s::complete, s::crashed, s::forced},
        /* draining           */ {same,        same,       same,     same,         same,                  same,        s::complete, s::crashed, s::forced},
        // clang-format on
    };
    if (is_over(now)) return now;
    const s next = table[static_cast<int>(now)][static_cast<int>(what)];
    return next == same ? now : next;
}

inline constexpr std::chrono::milliseconds kill_patience{5000};  // a SIGKILL that takes longer is told
inline constexpr int memory_pause = 100;      // ms, until what found no memory is tried again
inline constexpr unsigned told_failure = 10;  // of questions in a row, each so many-th

// In process_info 0 is "not yet".
inline std::chrono::milliseconds took_since(time_point then) noexcept {
    const long long took = milliseconds_since(then);
    return std::chrono::milliseconds(took > 0 ? took : 1);
}

inline time_point earlier(time_point one, time_point other) noexcept {
    return one < other ? one : other;
}

// One thread watches the child, asks its coordinator, and alone takes its status. Other threads leave wishes.
class managed_instance final : public instance {
  public:
    managed_instance(const instance_spec& spec, instance_changed changed, const logger& log)
        : spec_(spec), told_(std::move(changed)), log_(log) {
        info_.id = spec.id;
        info_.group = spec.group;
        info_.address = spec.options.participates ? spec.address : std::string();
        ready_ = address_of_ready_url(spec.options.ready_url, spec.id);
        info_.generation = spec.generation;
    }
    // Kills what still runs, and joins. Not from the own thread, that is, not from `changed`.
    ~managed_instance() override {
        wish(&wishes::abandoned);
        thread_.join();
    }

    result<void> start();

    process_info info() const override {
        const lock_guard held(mutex_);
        return info_;
    }
    void shut_down(const shutdown_order& order) override {
        {
            const lock_guard held(mutex_);
            if (wishes_.shut_down) return;
            order_ = order;
            wishes_.shut_down = true;
            interrupt_.notify();
        }
        waker_.notify();
    }
    void force() override { wish(&wishes::force); }
    void poll() override { wish(&wishes::look); }
    result<shutdown_status> ask_status(time_point deadline) override {
        if (!spec_.options.participates)
            return error{errc::unsupported, 0, cat({spec_.id, " does not take part in the protocol"})};
        return ask<shutdown_status>("GetShutdownStatus", shutdown_status_request{spec_.id}, deadline, -1);
    }

  private:
    struct wishes {
        bool shut_down = false;
        bool force = false;
        bool look = false;
        bool abandoned = false;
    };
    enum class manner { by_itself, asked, asked_by_signal, forced };
    using fields = std::initializer_list<log_field>;

    void wish(bool wishes::*which) {
        {
            const lock_guard held(mutex_);
            wishes_.*which = true;
            if (which != &wishes::look) interrupt_.notify();  // with the mutex held, as where it is cleared
        }
        waker_.notify();
    }
    wishes take_wishes() {
        const lock_guard held(mutex_);
        interrupt_.clear();
        const wishes out = wishes_;
        wishes_.look = false;
        return out;
    }
    // An outer launcher's variables are of this process, and not of its children.
    child_options options_of_child() const {
        child_options out = spec_.options.child;
        const bool takes_part = spec_.options.participates;
        out.environment.push_back(cat({"OJS_LIFECYCLE_ADDR=", takes_part ? spec_.address : std::string()}));
        out.environment.push_back(cat({"OJS_PROCESS_ID=", spec_.id}));
        out.environment.push_back(
            cat({"OJS_LAUNCHER_ADDR=", takes_part ? spec_.launcher_address : std::string()}));
        return out;
    }

    // ---- its life, of the thread alone: one thing at a time, whatever is due first ----

    // A step for which there is no memory is done once more.
    void work() {
        while (!is_over(state()) || untold_) {
            const bool done = attempt([this] {
                if (untold_) return update([](process_info&) {});
                if (state() == instance_state::spawning) return begin();
                watch();
            });
            if (!done) ::poll(nullptr, 0, memory_pause);
        }
    }
    void begin();
    void not_started(const error& why);
    // False: the child has ended, and its status was taken.
    bool sleep_until(time_point deadline) {
        pollfd watched[] = {{child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 2, poll_timeout(deadline));
        if (watched[1].revents != 0) waker_.clear();
        if (watched[0].revents == 0) return true;
        over(child_.wait());
        return false;
    }
    void watch() {
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
    void act(const wishes& wanted, time_point limit) {
        const time_point now = steady_clock::now();
        const bool look = now >= next_look_ || (wanted.look && client_);
        if (manner_ == manner::asked) {
            say_overdue();
            if (now >= limit) {
                return end_by_signal(manner::forced, deadline_after(spec_.options.shutdown.kill_delay),
                                     "forcing shutdown with SIGTERM", why_no_longer());
            }
            if (look) return request_due_ ? send_request() : look_at_status();
            return;
        }
        if (wanted.shut_down) return ask_to_shut_down();
        const bool too_late =
            now >= ready_by_;  // or this process stood still meanwhile: it is asked once more
        if (look || too_late) look_at_readiness(too_late ? time_point::max() : ready_by_);
        if (!too_late || ready_by_ == time_point::max()) return;
        ready_by_ = time_point::max();
        be_unhealthy(cat({"not ready within ", format_duration(spec_.options.readiness_timeout)}));
    }
    // Its coordinator. Everything may be asked twice: a repeated Shutdown changes nothing.
    template <class Answer, class Request>
    result<Answer> ask(const char* method, const Request& request, time_point deadline, int interrupt_fd) {
        http_call call;
        call.deadline = deadline;
        call.interrupt_fd = interrupt_fd;
        call.policy = resend::always;
        return rpc_call<Answer>(*client_, lifecycle_service, method, request, call);
    }
    result<readiness_response> ask_ready_url(time_point deadline) {
        http_request request;
        request.target = ready_.target;
        http_call call;
        call.deadline = deadline;
        call.interrupt_fd = interrupt_.fd();
        const result<http_response> answer = client_->send(request, call);
        if (!answer) return answer.error();
        if (answer->status != 200)
            return error{errc::unavailable, 0, cat({"ready_url answered with status ", answer->status})};
        readiness_response out;
        out.state = readiness_state::ready;
        return out;
    }
    // By a wish: what was asked is asked again at once, if it still matters then.
    template <class Answer>
    bool was_interrupted(const result<Answer>& answer) noexcept {
        if (answer || answer.error().code != errc::cancelled) return false;
        next_look_ = steady_clock::now();
        return true;
    }
    void look_at_readiness(time_point latest) {
        if (!client_) {
            readiness_response as_it_is;  // nothing else can be known
            as_it_is.state = readiness_state::ready;
            heard(as_it_is);
            next_look_ = time_point::max();
            return;
        }
        const time_point deadline = earlier(deadline_after(spec_.options.rpc_timeout), latest);
        const result<readiness_response> answer =
            spec_.options.participates
                ? ask<readiness_response>("GetReadinessStatus", readiness_request{spec_.id}, deadline,
                                          interrupt_.fd())
                : ask_ready_url(deadline);
        if (was_interrupted(answer)) return;
        if (answer) {
            failed_looks_ = 0;
            failed_questions_ = 0;
            heard(*answer);
        } else {
            look_failed(answer.error());
        }
        const bool is_ready = state() == instance_state::ready;
        const std::chrono::milliseconds pause =
            is_ready ? spec_.options.health_interval : spec_.options.readiness_interval;
        next_look_ = is_ready && pause.count() == 0 ? time_point::max() : deadline_after(pause);
    }
    void heard(const readiness_response& answer) {
        const std::string said = printable(answer.message);
        update([&](process_info& now) {
            now.readiness = answer;
            now.message = said;
        });
        if (answer.state == readiness_state::warming) {
            change(instance_event::warms, log_level::info, "process warming", said);
        } else if (answer.state == readiness_state::unhealthy) {
            be_unhealthy(said);
        } else if (answer.state == readiness_state::ready) {
            ready_by_ = time_point::max();
            change(instance_event::is_ready, log_level::info, "process ready", said);
        }
    }
    void look_failed(const error& why) {
        const bool is_ready = state() == instance_state::ready;
        tell_failure("readiness not known", is_ready ? log_level::warn : log_level::debug, why);
        if (!is_ready) update([&](process_info& now) { now.message = printable(why.text); });
        if (is_ready && ++failed_looks_ >= spec_.options.unhealthy_after) be_unhealthy(why.text);
    }
    void be_unhealthy(const std::string& why) {
        change(instance_event::fails, log_level::warn, "process unhealthy", why);
    }
    void ask_to_shut_down();
    void send_request();
    void look_at_status();
    void say_overdue();
    void heard(const shutdown_status& answer);
    void grant_time(const shutdown_status& answer, bool is_new);
    // The first of a row, and then now and again.
    void tell_failure(const char* text, log_level level, const error& why) {
        if (failed_questions_++ % told_failure == 0)
            say(level, text, state(), state(), why.text, {field("failures", failed_questions_)});
    }
    // When something else must happen, whatever the process says.
    time_point end_of_patience() const {
        if (manner_ != manner::asked) return ready_by_;
        return earlier(complete_end_,
                       spec_.options.shutdown.force_without_request ? granted_end_ : report_end_);
    }
    std::string why_no_longer() const {
        const time_point now = steady_clock::now();
        if (now >= complete_end_) return "it said that it is complete, and runs on";
        if (now >= hard_end_) return "it was not over at its hard deadline";
        return "its grace period is over, and so is what time it asked for";
    }
    void end_by_signal(manner how, time_point kill_at, const char* text, const std::string& why);
    void await_end(time_point kill_at);
    bool has_rest();
    void kill_child();
    instance_event kind_of_end(const result<child_exit>& ended) const;
    void over(const result<child_exit>& ended);

    // ---- what others see of it ----

    instance_state state() const {
        const lock_guard held(mutex_);
        return info_.state;
    }
    // False: the state stays. The log comes first, so that who acts on a change finds it there.
    bool change(instance_event what, log_level level, const char* text, const std::string& message) {
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
    // What others may act on is told to them; the rest they see when they look.
    template <class How>
    void update(How how) {
        lock_guard held(mutex_);
        const instance_state before = info_.state;
        const bool was_routable = info_.routable;
        const bool wanted_time = info_.shutdown.need_more_time;
        process_info next = info_;
        how(next);
        next.routable = next.state == instance_state::ready && next.readiness.state == readiness_state::ready;
        const bool same = before == next.state && was_routable == next.routable &&
                          wanted_time == next.shutdown.need_more_time && !untold_;
        const process_info now = same ? process_info() : next;
        info_ = std::move(next);
        if (same) return;
        untold_ = true;
        held.unlock();
        told_(now, told_state_);
        told_state_ = now.state;
        untold_ = false;
    }
    void say(log_level level, const char* text, instance_state from, instance_state now,
             std::string_view reason, fields more = {}) const {
        if (!log_.enabled(level)) return;
        attempt([&] { log_.write(record_of(level, text, from, now, reason, more)); });
    }
    log_record record_of(log_level level, const char* text, instance_state from, instance_state now,
                         std::string_view reason, const fields& more) const {
        log_record record;
        record.level = level;
        record.message = text;
        record.fields = {field("process_id", spec_.id), field("group", spec_.group),
                         field("state", to_string(now)), field("from", to_string(from)),
                         field("elapsed_ms", milliseconds_since(started_))};
        if (child_.pid() > 0) record.fields.push_back(field("pid", static_cast<long>(child_.pid())));
        if (!reason.empty()) record.fields.push_back(field("reason", reason));
        for (const log_field& each : more) record.fields.push_back(each);
        return record;
    }

    const instance_spec spec_;
    const instance_changed told_;
    const logger log_;
    time_point started_{};
    wake waker_;
    wake interrupt_;  // of a question: something is wished for that does not wait for its answer
    result<http_client> client_ = error{};  // of its coordinator, or its ready_url; none: nothing is asked
    ready_address ready_;
    child_process child_;
    thread thread_;

    mutable mutex mutex_;  // of the next three; held for no call to anybody
    process_info info_;
    wishes wishes_;
    shutdown_order order_;

    // Of the thread alone.
    bool untold_ = false;  // a change
    instance_state told_state_ = instance_state::spawning;
    time_point next_look_{};
    time_point ready_by_ = time_point::max();
    int failed_looks_ = 0;
    unsigned failed_questions_ = 0;
    manner manner_ = manner::by_itself;
    bool request_due_ = true;    // not sent, or a status says that it has not arrived
    bool acknowledged_ = false;  // the request
    bool past_grace_ = false;
    bool past_max_ = false;
    shutdown_request request_;
    time_point asked_at_{};
    time_point grace_end_ = time_point::max();
    time_point granted_end_ = time_point::max();   // where only what is asked for is granted
    time_point hard_end_ = time_point::max();      // of the drain
    time_point report_end_ = time_point::max();    // of what reports it
    time_point complete_end_ = time_point::max();  // when it must be gone that said it is complete
};

}  // namespace ojs::detail
