// managed_instance: one child, from its start to its end. [RFC-041 "Process State Machine", "Handshake Flows"]
#pragma once

#include <poll.h>
#include <signal.h>

#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#include "instance.hpp"
#include "lifecycle_client.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds longest_question{
    1000};  // to a coordinator, while its process is watched
inline constexpr std::chrono::milliseconds kill_patience{5000};  // a SIGKILL that takes longer is told
inline constexpr unsigned told_failure = 10;                     // of questions in a row, each so many-th

enum class instance_event { runs, warms, is_ready, fails, is_asked, drains, ends_well, ends_badly, is_ended };

// What becomes of a state. `same`: nothing. A process that is ended by us is what it was until it has ended.
inline instance_state next_state(instance_state now, instance_event what) noexcept {
    using s = instance_state;
    constexpr s same = s(-1);
    static constexpr s table[][9] = {
        // runs        warms       is_ready  fails         is_asked               drains       ends_well    ends_badly  is_ended
        {s::starting, same, same, same, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // spawning
        {same, s::warming, s::ready, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // starting
        {same, same, s::ready, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // warming
        {same, same, same, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // ready
        {same, same, s::ready, same, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // unhealthy
        {same, same, same, same, same, s::draining, s::complete, s::crashed,
         s::forced},                                                               // shutdown_requested
        {same, same, same, same, same, same, s::complete, s::crashed, s::forced},  // draining
    };
    if (is_over(now)) return now;
    const s next = table[static_cast<int>(now)][static_cast<int>(what)];
    return next == same ? now : next;
}

// On the wire a time is whole seconds, and 0 would be "your default".
inline std::int32_t wire_seconds(std::chrono::milliseconds time) noexcept {
    constexpr std::int64_t most = 86400;
    const std::int64_t whole = time.count() / 1000 + (time.count() % 1000 > 0 ? 1 : 0);
    return static_cast<std::int32_t>(whole < 1 ? 1 : whole > most ? most : whole);
}

inline std::chrono::milliseconds ms_since(time_point then) noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - then);
}

// In process_info 0 is "not yet".
inline std::chrono::milliseconds at_least_1ms(std::chrono::milliseconds took) noexcept {
    return took.count() == 0 ? std::chrono::milliseconds(1) : took;
}

// `wanted` where it says something and is not longer than what was granted.
inline std::chrono::milliseconds within(std::chrono::milliseconds wanted,
                                        std::chrono::milliseconds granted) noexcept {
    return wanted.count() > 0 && wanted < granted ? wanted : granted;
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
    void notified(const ready_notification&) override { wish(&wishes::look); }
    void notified(const shutdown_complete&) override { wish(&wishes::look); }
    instance_state await(bool (*holds)(instance_state), time_point deadline,
                         const cancel_token& until) override;
    result<shutdown_status> ask_status(time_point deadline) override;

  private:
    struct wishes {
        bool shut_down = false;
        bool force = false;
        bool look = false;
        bool abandoned = false;
    };
    enum class manner { by_itself, asked, asked_by_signal, forced };
    using fields = std::initializer_list<log_field>;

    void wish(bool wishes::*which);
    wishes take_wishes();
    child_options options_of_child() const;

    // Of the thread alone.
    void work();
    void begin();
    bool sleep_until(time_point deadline);
    void watch();
    void act(const wishes& wanted, time_point limit);
    template <class Answer>
    bool was_interrupted(const result<Answer>& answer) noexcept;
    void look_at_readiness();
    void heard(const readiness_response& answer);
    void look_failed(const error& why);
    void be_unhealthy(const std::string& why);
    void ask_to_shut_down();
    void send_request();
    void look_at_status();
    void tell_grace_is_over();
    void heard(const shutdown_status& answer);
    void grant_time(const shutdown_status& answer, bool is_new);
    void tell_failure(const char* text, log_level level, const error& why);
    time_point end_of_patience() const;
    std::string why_no_longer() const;
    void end_by_signal(manner how, time_point kill_at, const char* text, const std::string& why);
    void await_end(time_point kill_at);
    void kill_child();
    instance_event kind_of_end(const result<child_exit>& ended) const;
    void over(const result<child_exit>& ended);

    instance_state state() const;
    bool change(instance_event what, log_level level, const char* text, const std::string& message);
    template <class How>
    void update(How how);
    void say(log_level level, const char* text, instance_state from, instance_state now,
             std::string_view reason, fields more = {}) const;

    const instance_spec spec_;
    const instance_changed told_;
    const logger log_;
    time_point started_{};
    wake waker_;
    wake interrupt_;  // of a question: something is wished for that does not wait for its answer
    ref<lifecycle_client> client_;  // none: it does not take part
    child_process child_;
    thread thread_;

    mutable mutex mutex_;  // of the next four; held for no call to anybody
    condition changed_;
    process_info info_;
    wishes wishes_;
    shutdown_order order_;

    // Of the thread alone.
    time_point next_look_{};
    time_point ready_by_ = time_point::max();
    bool answered_ = false;  // its coordinator, ever
    int failed_looks_ = 0;
    unsigned failed_questions_ = 0;
    manner manner_ = manner::by_itself;
    bool delivered_ = false;
    bool past_grace_ = false;
    shutdown_request request_;
    time_point asked_at_{};
    time_point grace_end_ = time_point::max();
    time_point granted_end_ = time_point::max();  // where only what is asked for is granted
    time_point hard_end_ = time_point::max();
    time_point complete_end_ = time_point::max();  // when it must be gone that said it is complete
};

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

// By a wish: what was asked is asked again at once, if it still matters then.
template <class Answer>
bool managed_instance::was_interrupted(const result<Answer>& answer) noexcept {
    if (answer || answer.error().code != errc::cancelled) return false;
    next_look_ = steady_clock::now();
    return true;
}

// ---- whether it may be given work ----

inline void managed_instance::look_at_readiness() {
    const time_point deadline = earlier(deadline_after(longest_question), ready_by_);
    const result<readiness_response> answer = client_->readiness(spec_.id, deadline);
    if (was_interrupted(answer)) return;
    if (answer) {
        answered_ = true;
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

inline void managed_instance::heard(const readiness_response& answer) {
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

inline void managed_instance::look_failed(const error& why) {
    const bool is_ready = state() == instance_state::ready;
    tell_failure("readiness not known", is_ready ? log_level::warn : log_level::debug, why);
    if (is_ready && ++failed_looks_ >= spec_.options.unhealthy_after) be_unhealthy(why.text);
}

inline void managed_instance::be_unhealthy(const std::string& why) {
    change(instance_event::fails, log_level::warn, "process unhealthy", why);
}

// ---- the handshake ----

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
    failed_questions_ = 0;
    manner_ = manner::asked;
    change(instance_event::is_asked, log_level::info, "shutdown requested", order.reason);
    if (client_) return send_request();
    end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM", "it does not take part");
}

inline bool takes_no_part(const error& why, bool ever_answered) noexcept {
    const bool nobody = why.code == errc::unreachable && why.sys_errno != EAGAIN && !ever_answered;
    return nobody || why.code == errc::unsupported || why.code == errc::rejected ||
           why.code == errc::invalid_argument;
}

inline void managed_instance::send_request() {
    const time_point deadline = earlier(deadline_after(longest_question), end_of_patience());
    const result<shutdown_ack> ack = client_->shut_down(request_, deadline);
    if (was_interrupted(ack)) return;
    if (!ack && takes_no_part(ack.error(), answered_)) {
        return end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM",
                             cat({"it does not take part: ", ack.error().text}));
    }
    if (ack && ack->acknowledged) {
        answered_ = delivered_ = true;
        failed_questions_ = 0;
    } else {
        tell_failure("shutdown not delivered", log_level::warn,
                     ack ? error{errc::rejected, 0, printable(ack->message)} : ack.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::look_at_status() {
    const time_point deadline = earlier(deadline_after(longest_question), end_of_patience());
    const result<shutdown_status> answer = client_->status(spec_.id, deadline);
    if (was_interrupted(answer)) return;
    if (answer) {
        failed_questions_ = 0;
        heard(*answer);
    } else {  // the pid tells the rest; one that has drained serves no longer
        const bool gone = answer.error().code == errc::unreachable;
        tell_failure("shutdown status not known", gone ? log_level::info : log_level::warn, answer.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::tell_grace_is_over() {
    if (past_grace_ || steady_clock::now() < grace_end_) return;
    past_grace_ = true;
    say(log_level::warn, "past its grace period", state(), state(), "");
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

// The first of a row, and then now and again.
inline void managed_instance::tell_failure(const char* text, log_level level, const error& why) {
    if (failed_questions_++ % told_failure == 0)
        say(level, text, state(), state(), why.text, {field("failures", failed_questions_)});
}

// ---- its end ----

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
    while (steady_clock::now() < kill_at) {
        pollfd watched[] = {{child_.fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
        ::poll(watched, 2, poll_timeout(kill_at));
        waker_.clear();
        if (watched[0].revents != 0) {  // what it has started has the rest of the time
            const auto left = kill_at - steady_clock::now();
            return over(
                child_.terminate(std::chrono::duration_cast<std::chrono::milliseconds>(left), kill_patience));
        }
        const wishes wanted = take_wishes();
        if (wanted.abandoned) return kill_child();
        if (!wanted.force || manner_ == manner::forced) continue;
        manner_ = manner::forced;
        kill_at = earlier(kill_at, deadline_after(spec_.options.shutdown.kill_delay));
    }
    say(log_level::warn, "SIGTERM timeout, sending SIGKILL", state(), state(), "");
    kill_child();
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
        if (!unasked) now.shutdown_took = at_least_1ms(ms_since(asked_at_));
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
        if (first) now.startup = at_least_1ms(ms_since(now.started));
    });
    return true;
}

// What others may act on is told to them; the rest they see when they look.
template <class How>
void managed_instance::update(How how) {
    lock_guard held(mutex_);
    const instance_state before = info_.state;
    const bool was_routable = info_.routable;
    const bool wanted_time = info_.shutdown.need_more_time;
    how(info_);
    info_.routable = info_.state == instance_state::ready && info_.readiness.state == readiness_state::ready;
    const bool same = before == info_.state && was_routable == info_.routable &&
                      wanted_time == info_.shutdown.need_more_time;
    if (same) return;
    const process_info now = info_;
    changed_.notify_all();
    held.unlock();
    told_(now, before);
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
                     field("elapsed_ms", static_cast<long long>(ms_since(started_).count()))};
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
