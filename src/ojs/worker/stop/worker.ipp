#pragma once

#include "../../base/detail/light.hpp"
#include "../worker.hpp"

#include <unistd.h>

#include "../../loop/worker_extension.ipp"
#include "../options/transport_scheme.ipp"
#include "supervisor.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Shared by the worker object and the threads that wait for its end.
struct worker_impl : ref_counted {
    worker_impl(worker_options options, ojs::transport* transport, lifecycle* shared)
        : context(make_ref<worker_context>(std::move(options), transport, shared)) {}

    stop_result await_stopped(time_point deadline, const cancel_token& until) {
        // The child of a fork has none of the threads that it would wait for.
        if (!started || context->backend.is_forked()) return {stop_status::never_started};
        cancel_registration registration;
        retry_allocation([&] {
            registration = until.on_cancel([this] {
                const unique_lock held(guard);  // or the wait could miss it
                changed.notify_all();
            });
        });
        const bool is_inside = in_own_call();
        unique_lock held(guard);
        bool in_time = true;
        while (started && !stopped_source.requested() && in_time && !is_inside && !until.cancelled())
            in_time = changed.wait_until(held, deadline);
        const bool ended = stopped_source.requested();
        if (!started) return {stop_status::never_started};
        if (!ended && is_inside) return {stop_status::called_inside};
        if (!ended) return {until.cancelled() ? stop_status::cancelled : stop_status::timed_out};
        return {context->tally.unreported() == 0 ? stop_status::ended : stop_status::unreported};
    }
    bool set_paused(const std::string& queue, bool paused) {
        const bool changes = !context->backend.is_forked() && context->queues.set(queue, paused);
        if (changes && can_notify) context->supervisor.notify();
        return changes;
    }

    // The calling thread is in a callback, a hook, an extension or a transport call of this worker.
    bool in_own_call() const noexcept {
        return user_call::is_in(context->user.callbacks) || user_call::is_in(context->backend.calls) ||
               user_call::is_in(context->cancel_callbacks);
    }

    // The start of run(), which gives `signals`, or of start(). After an error nothing runs.
    result<void> begin(run_signals* signals) {
        worker_context& worker = *context;
        result<void> valid = check_options(worker.options);
        if (valid) valid = check_extensions(worker.options);
        if (!valid) return valid;
        if (!registration_error) return registration_error;
        if (handlers.empty()) return error{errc::invalid_argument, 0, "no handler is registered"};
        {
            const unique_lock held(guard);
            if (started) return error{errc::busy, 0, "this worker has already been started"};
            worker.backend.owner = fork_generation();
            started = true;
        }
        result<void> outcome = unless_out_of_memory([&] { return try_begin(signals); });
        if (outcome) return outcome;
        tear_down();
        const unique_lock held(guard);
        started = false;
        changed.notify_all();  // callers that wait for the end return
        return outcome;        // not a copy of the error, which may be a lack of memory
    }
    result<void> try_begin(run_signals* signals) {
        result<void> outcome = prepare();
        if (outcome && signals != nullptr) outcome = install_signals(*context, *signals);
        if (outcome) outcome = start_extensions(signals != nullptr);  // first: if it fails, no thread runs
        return outcome ? start_threads() : outcome;
    }

    result<void> prepare() {
        worker_context& worker = *context;
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        worker.identify("worker", {worker.options.auth_token});
        worker.identity.queues = worker.options.queues;
        worker.identity.labels = worker.options.labels;
        worker.identity.visibility_timeout = worker.options.visibility_timeout;
        if (worker.backend.transport == nullptr) {
            const result<transport_ref> opened =
                open_transport(worker.options, worker.identity,
                               [&worker](const log_record& record) { worker.log.write(record); });
            if (!opened) return opened.error();
            worker.owned_transport = *opened;
            worker.backend.transport = opened->get();
            worker.backend_url = public_url(worker.options.url);
        }
        worker.supervisor = std::move(*waker);
        can_notify = true;
        return {};
    }

    result<void> start_threads() {
        worker_context& worker = *context;
        if (!worker.stage.subscribe(worker.supervisor.notify_fd()))
            return error{errc::busy, 0, "too many workers follow one lifecycle (at most 16)"};
        const ref<job_pool> pool = make_ref<job_pool>(context, handlers);
        running_supervisor = make_ref<supervisor>(context, pool, shutdown_steps);
        worker.backend.transport->on_work_available([pool] { pool->wake(); });
        worker.backend.transport->on_job_cancelled([context = context](const std::string& id) {
            context->jobs.for_each_with_id(id, [&](active_job& job) {
                if (job.revoke()) context->supervisor.notify();
            });
        });
        return running_supervisor->start();
    }

    void warn_of_missing_handlers() const {
        std::string missing;
        for (const std::string& type : context->options.expected_job_types) {
            if (!contains(context->job_types, type))
                append(missing, {missing.empty() ? "" : ",", printable(type)});
        }
        if (!missing.empty())
            context->log.write(log_level::warn, "OJS_JOB_TYPES lists job types that have no handler",
                               {field("job_types", missing)});
    }
    result<void> start_extensions(bool owns_process) {
        worker_context& worker = *context;
        worker.owns_process = owns_process;
        worker.steps_timeout = shutdown_steps.timeout();
        worker.job_types.clear();
        for (const ref<registered_handler>& handler : handlers) worker.job_types.push_back(handler->type);
        warn_of_missing_handlers();
        return start_worker_extensions(ref<loop_context>(context.get()));
    }

    void log_calling_job(event request) const {
        const bool cancels = request == event::cancel_request;
        if (!cancels && request != event::stop_request) return;
        for (const ref<active_job>& job : context->jobs.snapshot()) {
            if (job->is_here())
                context->log.write(log_level::info, "stop requested in the handler of a job",
                                   {field("call", cancels ? "stop_and_cancel()" : "stop()"),
                                    field("job_id", job->job.id), field("job_type", job->job.type)});
        }
    }

    // Works until the end. True: run() must not return; see end_run().
    bool supervise() {
        const user_call entered(context->user.callbacks);
        const int status = running_supervisor->supervise();
        const bool must_exit = running_supervisor->must_exit();
        tear_down();
        exit_code = status;
        stopped_source.request(cancel_reason::cancelled);
        {
            const unique_lock held(guard);
            changed.notify_all();
        }
        stopped_source.run_callbacks();
        return must_exit;
    }

    void tear_down() {
        worker_context& worker = *context;
        stop_worker_extensions(worker, steady_clock::now());
        if (running_supervisor) {
            worker.backend.transport->on_work_available(nullptr);
            worker.backend.transport->on_job_cancelled(nullptr);
        }
        worker.stage.unsubscribe(worker.supervisor.notify_fd());
        running_supervisor = {};
    }

    const ref<worker_context> context;
    array<ref<registered_handler>> handlers;
    shutdown_sequence shutdown_steps;
    result<void> registration_error;  // of the first refused handler
    ref<supervisor> running_supervisor;
    cancel_source stopped_source;
    atomic<int> exit_code{0};
    mutex guard;
    condition changed;
    atomic<bool> started{false};
    atomic<bool> can_notify{false};  // context->supervisor exists
};

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(stop_status status) noexcept {
    static constexpr const char* names[] = {"ended",     "unreported",    "timed out",
                                            "cancelled", "never started", "called inside"};
    return names[static_cast<int>(status)];
}

// Not in the header, where every file would compile the code that copies and destroys options.
OJS_SHUTDOWN_INLINE worker::worker(worker_options options) : worker(std::move(options), nullptr, nullptr) {}
OJS_SHUTDOWN_INLINE worker::worker(worker_options options, lifecycle& shared)
    : worker(std::move(options), nullptr, &shared) {}
OJS_SHUTDOWN_INLINE worker::worker(worker_options options, ojs::transport& transport)
    : worker(std::move(options), &transport, nullptr) {}
OJS_SHUTDOWN_INLINE worker::worker(worker_options options, ojs::transport& transport, lifecycle& shared)
    : worker(std::move(options), &transport, &shared) {}
OJS_SHUTDOWN_INLINE worker::worker(worker_options options, ojs::transport* transport, lifecycle* shared)
    : impl_(detail::make_ref<detail::worker_impl>(std::move(options), transport, shared)) {}

OJS_SHUTDOWN_INLINE worker::~worker() {
    if (!impl_->started) return;
    if (impl_->context->backend.is_forked()) {
        // In a fork() child: the threads exist in the parent only.
        impl_->retain();
        return;
    }
    if (impl_->in_own_call()) detail::abort_with("a worker was destroyed in one of its own callbacks");
    if (!stopped()) stop();
    // Refuses new calls to transports, hooks and callbacks, and waits for those in flight.
    detail::worker_context& context = *impl_->context;
    const auto deadline = deadline_after(context.options.request_timeout + std::chrono::seconds(1));
    context.backend.calls.close();
    const std::uint64_t calls = context.backend.calls.wait_until(deadline);
    context.user.callbacks.close();  // last: the calls may log
    if (context.user.callbacks.wait_until(deadline) + calls > 0)
        context.log.write(log_level::error,
                          "a transport, a hook or a callback has not returned; the worker is destroyed");
    static_cast<void>(background_.end_by(deadline));
}

OJS_SHUTDOWN_INLINE bool worker::add_handler(std::string type, job_handler handler, handler_options options) {
    if (impl_->started) {  // too late for run() and start() to report it
        impl_->context->log.write(log_level::error,
                                  "a handler was registered after the start, and is not used",
                                  {detail::field("job_type", type)});
        return false;
    }
    const char* fault = type.empty() ? "has no type" : !handler ? "is empty" : nullptr;
    if (detail::find_handler(impl_->handlers, type)) fault = "is registered twice";
    if (fault != nullptr) {
        const auto text = detail::cat({"the handler of job type '", detail::printable(type), "' ", fault});
        if (impl_->registration_error) impl_->registration_error = error{errc::invalid_argument, 0, text};
        return false;
    }
    detail::ref<detail::registered_handler> added = detail::make_ref<detail::registered_handler>();
    added->type = std::move(type);
    added->call = std::move(handler);
    added->options = options;
    impl_->handlers.push_back(std::move(added));
    return true;
}

OJS_SHUTDOWN_INLINE bool worker::add_step(std::string name, function<void()> step,
                                          std::chrono::milliseconds timeout) {
    if (!impl_->started) return impl_->shutdown_steps.add(std::move(name), std::move(step), timeout);
    impl_->context->log.write(log_level::error, "a shutdown step was added after the start, and is not run",
                              {detail::field("step", name)});
    return false;
}

OJS_SHUTDOWN_INLINE int worker::run() {
    const detail::ref<detail::worker_impl> impl = impl_;  // at its end another thread may delete this
    detail::begin_run();
    detail::run_signals installed;
    const result<void> started = impl->begin(&installed);
    if (!started) {
        detail::attempt([&] {
            impl->context->log.write(log_level::error, "cannot start the worker",
                                     {detail::field("error", started.error().text)});
        });
        detail::end_run(exit_status::settled, false);
        return exit_status::usage;
    }
    if (impl->supervise()) {
        for (;;) ::pause();
    }
    return impl->exit_code.load(detail::memory_order::acquire);
}

OJS_SHUTDOWN_INLINE result<void> worker::start() {
    const detail::ref<detail::worker_impl> impl = impl_;
    result<void> begun = impl->begin(nullptr);
    if (!begun) return begun;
    detail::thread_options options;
    options.name = "ojs-worker";
    result<detail::thread> started = detail::unless_out_of_memory(
        [&] { return detail::thread::start([impl] { impl->supervise(); }, options); });
    if (!started) {  // stop in order, on this thread
        request_stop_and_cancel();
        impl->supervise();
        return started.error();
    }
    background_ = std::move(*started);
    return {};
}

OJS_SHUTDOWN_INLINE bool worker::wait(time_point deadline) {
    const stop_status status = impl_->await_stopped(deadline, {}).status;
    return status == stop_status::ended || status == stop_status::unreported;
}
OJS_SHUTDOWN_INLINE bool worker::stopped() const noexcept {
    return impl_->stopped_source.requested();
}
OJS_SHUTDOWN_INLINE int worker::exit_code() const noexcept {
    return impl_->exit_code.load(detail::memory_order::acquire);
}

OJS_SHUTDOWN_INLINE bool worker::apply(event request) {
    const bool applied = impl_->context->stage.own.apply(request, {cause_kind::api, 0});
    if (applied && impl_->started && !impl_->context->backend.is_forked())
        detail::attempt([&] { impl_->log_calling_job(request); });
    return applied;
}
OJS_SHUTDOWN_INLINE bool worker::resume() {
    detail::worker_context& context = *impl_->context;
    if (context.backend.is_forked()) return false;
    const bool queues = context.queues.unpaused().size() < context.options.queues.size();
    return apply(event::resume_request) || queues;
}
OJS_SHUTDOWN_INLINE bool worker::pause(const std::string& queue) {
    return impl_->set_paused(queue, true);
}
OJS_SHUTDOWN_INLINE bool worker::resume(const std::string& queue) {
    return impl_->set_paused(queue, false);
}
OJS_SHUTDOWN_INLINE stop_result worker::stop(time_point deadline, const cancel_token& until) {
    request_stop();
    return impl_->await_stopped(deadline, until);
}
OJS_SHUTDOWN_INLINE stop_result worker::stop_and_cancel(time_point deadline, const cancel_token& until) {
    request_stop_and_cancel();
    return impl_->await_stopped(deadline, until);
}
OJS_SHUTDOWN_INLINE cancel_token worker::stopped_token() const {
    return impl_->stopped_source.token();
}
OJS_SHUTDOWN_INLINE cancel_token worker::connected_token() const {
    return impl_->context->backend.connected.token();
}

OJS_SHUTDOWN_INLINE phase worker::phase() const noexcept {
    return impl_->context->stage.effective_phase();
}
OJS_SHUTDOWN_INLINE std::size_t worker::active_jobs() const {
    return impl_->context->jobs.size();
}

OJS_SHUTDOWN_INLINE worker_report worker::report() const {
    return impl_->context->report();
}
OJS_SHUTDOWN_INLINE const log_options& worker::log() const noexcept {
    return impl_->context->options.log;
}

}  // namespace v0_1_0
}  // namespace ojs
