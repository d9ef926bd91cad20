// coordinator_body: the implementation of a shutdown_coordinator.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/sync.ipp"
#include "../../server/detail/thread_end.ipp"
#include "../../server/http_server.hpp"
#include "../../stop/detail/machine_log.ipp"
#include "../../worker/detail/worker_core.ipp"
#include "../coordinator.hpp"
#include "readiness.ipp"
#include "rpc.ipp"

namespace ojs::detail {
// The events of a shutdown. `requested`: by a Shutdown request, a signal or a call.
enum class drain_event : unsigned char { requested, started, blocked, unblocked, finished, failed };

// The state after each event. Only blocked leads back, to draining. Forced is missing: only a launcher reports it.
inline constexpr shutdown_state next_states[6][5] = {
    // clang-format off
    /*              running                    requested                  draining                   blocked                    complete */
    /* requested */ {shutdown_state::requested, shutdown_state::requested, shutdown_state::draining, shutdown_state::blocked,  shutdown_state::complete},
    /* started   */ {shutdown_state::running,   shutdown_state::draining,  shutdown_state::draining, shutdown_state::blocked,  shutdown_state::complete},
    /* blocked   */ {shutdown_state::running,   shutdown_state::blocked,   shutdown_state::blocked,  shutdown_state::blocked,  shutdown_state::complete},
    /* unblocked */ {shutdown_state::running,   shutdown_state::requested, shutdown_state::draining, shutdown_state::draining, shutdown_state::complete},
    /* finished  */ {shutdown_state::complete,  shutdown_state::complete,  shutdown_state::complete, shutdown_state::complete, shutdown_state::complete},
    /* failed    */ {shutdown_state::blocked,   shutdown_state::blocked,   shutdown_state::blocked,  shutdown_state::blocked,  shutdown_state::complete},
    // clang-format on
};
constexpr shutdown_state next_state(drain_event event, shutdown_state now) noexcept {
    return next_states[static_cast<int>(event)][static_cast<int>(now)];
}

inline constexpr cause rpc_cause{cause_kind::rpc};
inline constexpr auto notify_timeout = std::chrono::milliseconds(500);  // of one attempt
inline constexpr int notify_tries = 2;

struct pending_notification {
    int tries_left = 0;
    time_point at{};
};

class coordinator_body final : public ref_counted {
  public:
    coordinator_body(coordinator_options options, lifecycle& life, const worker* worker)
        : options_(std::move(options)), life_(life), worker_(worker), log_(options_.log, "coordinator") {}
    ~coordinator_body() override {
        if (process_ != ::getpid()) return;  // a child made by fork(): the launcher knows the parent
        worker_ended_ = cancel_registration();
        update_state();
        unique_lock held(mutex_);
        const bool ends_now = under_way() && !drain_failed_;
        held.unlock();
        if (ends_now) finish("ended");
        held.lock();
        is_closing_ = true;
        held.unlock();
        if (thread_.joinable()) {
            wake_.notify();
            thread_.join();
            life_.unsubscribe(wake_.notify_fd());
        }
        if (server_) server_->stop(steady_clock::now() + notify_timeout);
        checks_.await_checks(steady_clock::now() + checks_timeout);
    }

    result<void> start() {
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        wake_ = std::move(*waker);
        if (options_.address.empty()) return {};
        if (!options_.launcher_address.empty()) {
            const result<endpoint> where = parse_listen_address(options_.launcher_address);
            if (!where) return where.error();
            launcher_ = http_client::create(url_of(where->name));
            if (!launcher_) return launcher_.error();
        }
        const result<void> serving = serve();
        return serving ? start_thread() : serving;
    }
    void follow_worker(const worker& worker) {
        checks_.set_state(readiness_state::warming, "the backend has not responded yet");
        is_warming_ = true;
        wake_.notify();  // its thread asks from now on
        worker_ended_ = worker.stopped_token().on_cancel([this] {
            if (worker_->exit_code() == 0) return finish("the worker has ended");
            const int status = worker_->exit_code();
            fail(cat({"the worker has ended with status ", status,
                      status == exit_status::unreported ? " (jobs are unreported)" : ""}));
        });
    }
    result<void> run(const function<result<void>(const cancel_token&)>& drain, const cancel_token& until) {
        if (!drain) return error{errc::invalid_argument, 0, "run(): the drain function is empty"};
        {
            const unique_lock held(mutex_);
            if (exchange(run_called_, true)) return error{errc::busy, 0, "run() has already been called"};
        }
        result<void> following = start_thread();  // for the deadline, without a launcher
        if (!following) {
            const unique_lock held(mutex_);
            run_called_ = false;
            return following;
        }
        result<void> asked = await_stop(until);
        if (!asked) return asked;
        update_state();
        sequence_options steps;
        steps.progress = [&](const step_result& each) { log_step(log_, each); };
        steps_.run(steps);
        {
            const unique_lock held(mutex_);
            apply_event(drain_event::started);
        }
        log_drain();
        const cancel_registration with_until = until.on_cancel([this] { cancel_.cancel(cancel_reason::cancelled); });
        result<void> drained = call_drain(drain, cancel_.token());
        if (!drained) {
            fail(drained.error().text);
        } else {
            finish("drained");
            life_.apply(event::drained, cause());
            life_.apply(event::finished, cause());
            unique_lock held(mutex_);
            while (completion_.tries_left > 0) notified_.wait(held);  // a few attempts, each with a deadline
        }
        const log_field id = field("process_id", options_.process_id);
        if (drained) log_.write(log_level::info, "drain complete", {id});
        if (!drained) log_.write(log_level::error, "drain failed", {id, field("error", drained.error().text)});
        return drained;
    }
    void fail(std::string message) {
        const unique_lock held(mutex_);
        drain_failed_ = true;
        message_ = std::move(message);
        apply_event(drain_event::failed);
    }
    void finish(std::string message) {
        const unique_lock held(mutex_);
        if (state_ == shutdown_state::complete) return;
        if (under_way() && launcher_) completion_.tries_left = notify_tries;
        if (under_way()) shutdown_ms_ = milliseconds_since(requested_at_);
        apply_event(drain_event::finished);
        message_ = std::move(message);
        wake_.notify();
    }
    void report_readiness(readiness_state state, std::string message) {
        checks_.set_state(state, message);
        const unique_lock held(mutex_);
        if (state != readiness_state::ready || !launcher_ || state_ != shutdown_state::running) return;
        ready_message_ = std::move(message);
        ready_notice_ = {notify_tries, {}};  // may get lost: the launcher polls as well
        wake_.notify();
    }

  private:
    friend class ojs::shutdown_coordinator;

    result<void> serve() {
        const result<endpoint> where = parse_listen_address(options_.address);
        if (!where) return where.error();
        http_server_options limits;
        limits.limits.head = 8 * 1024;
        limits.limits.body = rpc_body_limit;
        limits.max_connections = 8;
        limits.request_timeout = std::chrono::seconds(2);
        server_ = http_server::start(
            options_.address,
            [answers = service(*where)](const http_request& request) { return answers.answer(request); }, limits);
        if (!server_) return server_.error();
        address_ = server_->address();
        log_.write(log_level::debug, "lifecycle service listening", {field("address", address_)});
        return {};
    }
    rpc_service service(const endpoint& where) {
        http_guard guard;
        guard.on_loopback = where.unix_path.empty() && is_local(where);
        rpc_service out(lifecycle_service, guard);
        out.add("Shutdown", *this, &coordinator_body::on_shutdown_request);
        out.add("GetShutdownStatus", *this, &coordinator_body::on_status_request);
        out.add("GetReadinessStatus", *this, &coordinator_body::on_readiness_request);
        out.add("NotifyReady", *this, &coordinator_body::refuse<ready_ack, ready_notification>);
        out.add("NotifyShutdownComplete", *this, &coordinator_body::refuse<shutdown_complete_ack, shutdown_complete>);
        return out;
    }
    template <class Answer, class Request>
    result<Answer> refuse(const Request&) {
        return error{errc::unsupported, 0, "a launcher serves this method, not its child"};
    }
    result<shutdown_ack> on_shutdown_request(const shutdown_request& request) {
        const result<void> ours = check_process_id(request.process_id);
        if (!ours) return ours.error();
        if (request.grace_period_seconds < 0 || request.max_shutdown_seconds < 0) {
            return error{errc::invalid_argument, 0,
                         "grace_period_seconds and max_shutdown_seconds: must not be negative"};
        }
        const auto max = time_or(request.max_shutdown_seconds, options_.max_shutdown);
        const auto asked_grace = time_or(request.grace_period_seconds, options_.grace_period);
        const auto grace = std::min(asked_grace, max);
        const bool idle = write_message(metrics()) == write_message(shutdown_metrics());
        shutdown_ack out;
        out.acknowledged = true;
        unique_lock held(mutex_);
        const bool repeated = exchange(shutdown_requested_, true);
        const bool over = state_ == shutdown_state::complete;
        out.message = over       ? "complete"
                      : repeated ? "shutting down already, within the times of the first request"
                                 : "shutting down";
        if (over) return out;
        const time_point now = steady_clock::now();
        // In the grace period it ends, or asks for more time.
        const auto rest = repeated ? std::chrono::duration_cast<std::chrono::milliseconds>(cancel_at_ - now) : grace;
        const std::int32_t limit = extension_s_ > 0 ? extension_s_ : wire_seconds(rest);
        out.estimated_seconds = estimate_s_ > 0 ? estimate_s_ : idle ? 1 : limit;
        if (repeated) return out;
        if (state_ == shutdown_state::running) requested_at_ = now;  // a signal may have come first
        set_times(now, grace, max);
        apply_event(drain_event::requested);
        held.unlock();
        life_.apply(event::stop_request, rpc_cause);
        wake_.notify();
        log_.write(log_level::info, "shutdown requested",
                   {field("process_id", options_.process_id), field("reason", printable(request.reason)),
                    field("grace_ms", grace.count()), field("max_ms", max.count())});
        return out;
    }
    result<readiness_response> on_readiness_request(const readiness_request& request) {
        const result<void> ours = check_process_id(request.process_id);
        if (!ours) return ours.error();
        update_state();
        note_connection();
        return checks_.run_checks(phase() == phase::running);
    }
    result<shutdown_status> on_status_request(const shutdown_status_request& request) {
        const result<void> ours = check_process_id(request.process_id);
        if (!ours) return ours.error();
        update_state();
        shutdown_status out;
        // Before the state, which is then the newer of the two: complete means that nothing is left.
        out.metrics = metrics();
        const time_point now = steady_clock::now();
        const unique_lock held(mutex_);
        out.state = state_;
        out.message = message_;
        if (!under_way()) return out;
        out.additional_seconds = extension_s_;
        // A program asks by need_more_time(). For a worker with jobs in flight this asks, late in the granted time.
        const bool for_jobs = worker_ != nullptr && !extension_given_ && out.metrics.in_flight_requests > 0;
        if (for_jobs && shutdown_requested_ && now >= extend_at_)
            out.additional_seconds =
                wire_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(cancel_at_ - now));
        out.need_more_time = out.additional_seconds > 0;
        return out;
    }
    shutdown_metrics metrics() {
        shutdown_metrics out;
        if (options_.metrics) out = options_.metrics();
        const unique_lock held(mutex_);
        if (!options_.metrics) out = metrics_;
        for (const std::string& each : blocking_) out.blocking_operations.push_back(each);
        return out;
    }
    result<void> check_process_id(const std::string& process_id) const {
        if (process_id.empty() || options_.process_id.empty() || process_id == options_.process_id) return {};
        return error{errc::rejected, 0,
                     cat({"the request is for process ", printable(process_id), "; this is ", options_.process_id})};
    }

    ojs::phase phase() const noexcept { return worker_ != nullptr ? worker_->phase() : life_.phase(); }
    // Applies the lifecycle's phase to the shutdown state.
    void update_state() {
        if (phase() < phase::draining) return;
        unique_lock held(mutex_);
        if (state_ == shutdown_state::running) {
            requested_at_ = steady_clock::now();
            // After a signal, a worker keeps its own grace period.
            if (worker_ == nullptr)
                set_times(requested_at_, time_or(0, options_.grace_period), time_or(0, options_.max_shutdown));
            apply_event(drain_event::requested);
        }
        if (!run_called_ && steps_.size() == 0) apply_event(drain_event::started);  // steps wait for a later run()
        if (!blocking_.empty()) apply_event(drain_event::blocked);
        held.unlock();
        log_drain();
    }
    // Once, when it has begun.
    void log_drain() {
        {
            const unique_lock held(mutex_);
            if (state_ <= shutdown_state::requested || exchange(drain_logged_, true)) return;
        }
        log_.write(log_level::info, "drain started",
                   {field("process_id", options_.process_id), field("in_flight", metrics().in_flight_requests)});
    }
    static std::int32_t seconds_of(std::chrono::seconds given) noexcept {
        const auto max = std::chrono::duration_cast<std::chrono::seconds>(max_shutdown_time);
        return given.count() <= 0 ? 0 : wire_seconds(std::min(given, max));
    }
    void set_times(time_point from, std::chrono::milliseconds grace, std::chrono::milliseconds max) {
        extend_at_ = from + grace * 4 / 5;
        cancel_at_ = from + max;
    }
    void apply_event(drain_event event) { state_ = next_state(event, state_); }
    result<void> subscribe(const wake& to) {
        if (life_.subscribe(to.notify_fd())) return {};
        return error{errc::busy, 0, "more than 16 descriptors subscribe to this lifecycle"};
    }
    bool under_way() const noexcept { return state_ != shutdown_state::running && state_ != shutdown_state::complete; }

    result<void> start_thread() {
        if (thread_.joinable()) return {};
        result<void> subscribed = subscribe(wake_);
        if (!subscribed) return subscribed;
        thread_options named;
        named.name = "ojs-coord";
        result<thread> started = thread::start([this] { run_thread(); }, named);
        if (!started) {
            life_.unsubscribe(wake_.notify_fd());
            return started.error();
        }
        thread_ = std::move(*started);
        return {};
    }
    void run_thread() {
        for (bool ended = false; !ended;) {
            update_state();
            note_connection();
            while (cancel_overdue() || send_due()) update_state();
            time_point next = is_warming_ ? deadline_after(std::chrono::milliseconds(100)) : time_point::max();
            {
                const unique_lock held(mutex_);
                ended = is_closing_ && completion_.tries_left == 0;
                next = min(next, next_due());
            }
            if (!ended && wake_.await(next)) wake_.clear();
        }
    }
    // The worker is ready with the first response of its backend.
    void note_connection() {
        bool expected = true;
        if (is_warming_ && core_of(*worker_).is_connected && is_warming_.compare_exchange_strong(expected, false))
            report_readiness(readiness_state::ready, {});
    }
    // Cancels work at the maximum, or after a second stop signal; reports are sent after that. True: it did.
    bool cancel_overdue() {
        const bool forced = life_.phase() >= phase::stopping;
        {
            const unique_lock held(mutex_);
            const bool late = steady_clock::now() >= cancel_at_;
            if (!under_way() || work_cancelled_ || (!late && !forced)) return false;
            work_cancelled_ = true;
        }
        if (worker_ != nullptr) {
            if (!forced) life_.apply(event::cancel_request, rpc_cause);
        } else {
            cancel_.cancel(forced ? cancel_reason::forced : cancel_reason::grace_period_expired);
        }
        log_.write(log_level::warn, "work in progress is cancelled", {field("process_id", options_.process_id)});
        return true;
    }
    // True: it sent a notification.
    bool send_due() {
        unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        const bool ends = completion_.tries_left > 0;
        if (ends || is_closing_) ready_notice_.tries_left = 0;
        pending_notification& notification = ends ? completion_ : ready_notice_;
        if (notification.tries_left == 0 || (notification.at > now && !is_closing_)) return false;
        const shutdown_complete complete{options_.process_id, message_, shutdown_ms_};
        const ready_notification ready{options_.process_id, ready_message_};
        held.unlock();
        const result<void> notified = ends ? notify_launcher<shutdown_complete_ack>("NotifyShutdownComplete", complete)
                                           : notify_launcher<ready_ack>("NotifyReady", ready);
        held.lock();
        const bool again =
            !notified && notified.error().code != errc::unsupported && notified.error().code != errc::rejected;
        notification.tries_left = again ? notification.tries_left - 1 : 0;
        notification.at = steady_clock::now() + pause_.next();
        if (ends && notification.tries_left == 0) notified_.notify_all();
        return true;
    }
    template <class Ack, class Message>
    result<void> notify_launcher(const char* method, const Message& message) {
        const result<Ack> ack = rpc_call<Ack>(*launcher_, method, message, steady_clock::now() + notify_timeout);
        if (ack) return {};
        log_.write(log_level::warn, "cannot notify the launcher",
                   {field("method", method), field("error", ack.error().text)});
        return ack.error();
    }
    time_point next_due() const {
        time_point next = under_way() && !work_cancelled_ ? cancel_at_ : time_point::max();
        for (const pending_notification* each : {&ready_notice_, &completion_}) {
            if (each->tries_left > 0) next = std::min(next, each->at);
        }
        return next;
    }

    result<void> await_stop(const cancel_token& until) {
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        const wake& waker_of_run = *waker;
        result<void> subscribed = subscribe(waker_of_run);
        if (!subscribed) return subscribed;
        {
            const cancel_registration ends = until.on_cancel([&] { waker_of_run.notify(); });
            while (life_.phase() < phase::draining && !until.cancelled())
                if (waker_of_run.await(time_point::max())) waker_of_run.clear();
        }
        life_.unsubscribe(waker_of_run.notify_fd());
        if (life_.phase() >= phase::draining) return {};
        return error{errc::cancelled, 0, "cancelled before a shutdown was requested"};
    }
    static result<void> call_drain(const function<result<void>(const cancel_token&)>& drain,
                                   const cancel_token& token) {
        try {
            return drain(token);
        } catch (...) {
            rethrow_thread_exit();
            return error{errc::system, 0, cat({"the drain function threw: ", thrown_text()})};
        }
    }

    const coordinator_options options_;
    lifecycle& life_;
    const worker* const worker_;
    const logger log_;
    readiness_reports checks_;
    std::string address_;
    wake wake_;
    cancel_source cancel_;
    result<http_client> launcher_ = error{};  // none: there is no launcher to notify
    result<http_server> server_ = error{};    // none: nothing is served
    thread thread_;
    const pid_t process_ = ::getpid();
    atomic<bool> is_warming_{false};  // the worker has no response of its backend
    cancel_registration worker_ended_;

    mutex mutex_;  // guards what follows; held for no call to the program, the lifecycle or the log
    condition notified_;
    shutdown_state state_ = shutdown_state::running;
    std::string message_;
    std::string ready_message_;
    shutdown_metrics metrics_;
    std::vector<std::string> blocking_;
    shutdown_sequence steps_;
    bool shutdown_requested_ = false;  // by a Shutdown
    bool run_called_ = false;          // then run() determines when the drain begins
    bool drain_failed_ = false;
    bool work_cancelled_ = false;
    bool is_closing_ = false;
    bool drain_logged_ = false;
    bool extension_given_ = false;  // need_more_time() was called
    std::int32_t extension_s_ = 0;
    std::int32_t estimate_s_ = 0;
    time_point requested_at_{};
    time_point extend_at_ = time_point::max();
    time_point cancel_at_ = time_point::max();
    std::int64_t shutdown_ms_ = 0;
    pending_notification ready_notice_;
    pending_notification completion_;
    backoff pause_{std::chrono::milliseconds(100), std::chrono::milliseconds(1000)};
};
}  // namespace ojs::detail
