// worker_core: the machine of a worker, its parts, and the stages of its stop.
#pragma once

#include "../transport_scheme.ipp"
#include "slots.ipp"

namespace ojs::detail {
class worker_core final : public slots {
  public:
    using slots::slots;

    bool add_handler(std::string type, job_handler handler, handler_options wanted) {
        if (!accepts("handler", type)) return false;  // too late for run() and start() to report it
        const char* fault = type.empty() ? "has no type" : !handler ? "is empty" : nullptr;
        if (find_handler(type) != nullptr) fault = "is registered twice";
        if (fault != nullptr) {
            if (handlers_valid_)
                handlers_valid_ = invalid(cat({"the handler of job type '", printable(type), "' ", fault}));
            return false;
        }
        registered.push_back({std::move(type), std::move(handler), wanted});
        return true;
    }

    // With `claim`, of run(). After an error nothing runs.
    result<void> start(run_claim* claim) {
        result<void> valid = check_options(options);
        if (valid) valid = handlers_valid_;
        if (valid && registered.empty()) valid = invalid("no handler is registered: call register_handler()");
        if (!valid) return valid;
        if (locked([this] { return exchange(is_started, true); }))
            return error{errc::busy, 0, "this worker has already been started"};
        owns_process = claim != nullptr;
        result<void> outcome = prepare();
        if (outcome && owns_process) outcome = claim->claim(options, phases.signalled(), log);
        if (outcome) outcome = prepare_turns();
        if (outcome) outcome = start_threads();
        if (outcome) return outcome;
        tear_down();
        if (owned_transport) transport = nullptr;  // the next start names the worker anew
        owned_transport = {};
        locked([this] { is_started = false; });
        changed.notify_all();  // callers that wait for the end return
        return outcome;
    }
    void run_to_end() {
        const user_call entered(callbacks);
        begin();
        while (turn()) waker.await(due);
    }
    // A child of fork() has none of the threads that it would wait for.
    bool await_end(time_point deadline) {
        if (is_forked()) return false;
        const bool is_inside = in_own_call();
        if (is_inside && !stopped.requested())
            log.write(log_level::warn, "a handler or a callback of the worker cannot wait for the worker's end");
        unique_lock held(guard);
        while (is_started && !has_ended && !is_inside && changed.wait_until(held, deadline)) continue;
        return has_ended;
    }
    // No thread calls the transport, a hook or a callback after it.
    bool close(time_point deadline) {
        calls.close();
        const std::uint64_t left = calls.wait_until(deadline);
        callbacks.close();  // last: the calls may log
        return callbacks.wait_until(deadline) + left == 0;
    }

  private:
    result<void> prepare() {
        result<void> claimed = claim_process();
        if (!claimed) return claimed;
        identity.queues = options.queues;
        identity.labels = options.labels;
        identity.visibility_timeout = options.visibility_timeout;
        job_types.clear();
        for (const registered_handler& each : registered) job_types.push_back(each.type);
        if (transport != nullptr) return {};
        const result<transport_ref> opened =
            open_transport(options, identity, [this](const log_record& record) { log.write(record); });
        if (!opened) return opened.error();
        owned_transport = *opened;
        transport = opened->get();
        backend_url = public_url(options.url);
        return {};
    }
    // With one thread for urgent tasks no task runs on the thread that turns the machine.
    result<void> start_threads() {
        transport->on_work_available([self = ref<worker_core>(this)] {
            const unique_lock held(self->guard);
            self->on_work_hint();
        });
        transport->on_job_cancelled([self = ref<worker_core>(this)](const std::string& id) {
            for (const ref<work>& each : self->works()) {
                if (each->job.id == id) self->revoke(as_job(each));
            }
        });
        threads.close(false);
        result<void> started = threads.prepare(task_kind::urgent, 1);
        if (started) started = start_slots();
        if (!started) threads.close();
        return started;
    }
    void tear_down() override {
        slots::tear_down();
        if (transport == nullptr) return;
        call_user("the transport threw; ignored", [this] {
            transport->on_work_available(nullptr);
            transport->on_job_cancelled(nullptr);
        });
    }

    // ---- with the guard held ----

    bool has_parted() const noexcept override { return beats.last_has_begun && beats.calls == 0; }
    // Handlers that saw their cancellation have the rest of the stop to return.
    bool has_returning_handlers(bool only_seen) const noexcept override {
        std::size_t ignoring = 0;
        for (const work_list* const list : {&in_flight, &unreturned}) {
            for (const ref<work>& each : *list) {
                if (as_job(each).is_in_handler() && !each->cancel.token().seen()) ++ignoring;
            }
        }
        return handlers > (only_seen ? ignoring : 0);
    }
    std::size_t hung_threads() const noexcept override { return handlers + beats.calls; }

    void on_change(bool moved) override {
        if (moved) {
            const ojs::phase now = seen_.phase;
            static_cast<void>(call([now](ojs::transport& receiver) { return receiver.on_phase(now), result<void>(); }));
        }
        update_taking();
        const bool takes = phases.may_take();
        const unique_lock held(guard);
        if (exchange(took_, takes) != takes) request_beat(time_point::min());
        on_work_hint();
    }
    void begin_drain() override {
        unique_lock held(guard);
        retry_reports();                // ends any longer Retry-After
        check_soon(time_point::min());  // held jobs go back
        close_slots();
        held.unlock();
        // Handlers of many jobs may keep all processors busy when reports need threads.
        static_cast<void>(threads.prepare(task_kind::report, min<std::size_t>((active() + 7) / 8, 16)));
    }
    milliseconds parting_time() const noexcept override { return last_beat_time(options.times); }
    time_point do_due_work(time_point now) override {
        const char* const reason = locked([this] { return in_flight.empty() ? done_by : nullptr; });
        if (reason != nullptr && phases.apply(event::stop_request))
            log.write(log_level::info, "the worker stops by itself", {field("reason", reason)});
        return min(check_jobs(now), min(retry_threads(now), send_due(now)));
    }
    // Reports as interrupted all jobs whose handlers do not return first, in parallel.
    void begin_reporting() override {
        unique_lock held(guard);
        is_abandoning = true;
        changed.notify_all();
        held.unlock();
        const cancel_reason reason = reason_of_stop();
        for (const ref<work>& each : works())
            threads.post(task_kind::report, [this, job = ref<active_job>(&as_job(each)), reason] {
                if (!take(*job)) return;
                // A timeout or a cancellation from before the stop keeps its reason.
                const cancel_reason why = job->cancelled_alone() ? job->cancel.reason() : reason;
                settle_in_task(*job, job->has_begun ? cut_short(*this, *job, why, "") : unstarted(*this));
            });
    }
    void end_parting() override {
        calls.close();
        if (locked([this] { return fetches > 0; }))
            log.write(log_level::warn,
                      "a FETCH is still unanswered; jobs it may have claimed come back after their visibility "
                      "timeout");
    }
    void on_left_threads() override {
        std::vector<std::string> ids;
        for (const ref<work>& each : works(true)) {
            const unique_lock held(guard);
            each->is_stuck = each->is_stuck || as_job(each).is_in_handler();
            if (as_job(each).is_in_handler()) ids.push_back(each->job.id);
        }
        if (!ids.empty())
            log.write(log_level::warn, "handlers have not returned; exiting without waiting for them",
                      {field("job_ids", join_names(ids))});
    }
    // An unreported job takes precedence over a stuck handler.
    int choose_status(bool /*all_ended*/) const override {
        const unique_lock held(guard);
        if (not_reported > 0 || was_stopped_stuck_) return exit_status::unreported;
        return handlers == 0 ? exit_status::settled : options.profile.stop.stuck_exit_status;
    }
    std::vector<log_field> fields_of(const work& one) const override { return job_fields(one); }
    std::vector<log_field> in_flight_fields(const work& one) const override {
        std::vector<log_field> out = job_fields(one);
        out.push_back(field("cancelled", one.cancel.requested() ? "yes" : "no"));
        const active_job& job = static_cast<const active_job&>(one);
        const unique_lock held(guard);
        out.push_back(field("reporting", job.is_taken ? "yes" : "no"));
        out.push_back(field("handler", job.handler_state));
        return out;
    }

    time_point check_jobs(time_point now) {
        unique_lock held(guard);
        if (now < next_check) return next_check;
        next_check = never;
        held.unlock();
        for (const ref<work>& each : works()) check(ref<active_job>(&as_job(each)), now);
        held.lock();
        return next_check;
    }
    void check(const ref<active_job>& job, time_point now) {
        unique_lock held(guard);
        if (job->is_taken) return;
        if (job->is_held && (now >= job->due_at || phases.has_stop_begun())) {
            job->is_taken = true;
            --held_jobs;
            held.unlock();
            return return_unrun(job);
        }
        const bool times_out = now >= job->due_at && job->cancel_alone(cancel_reason::timeout);
        if (now >= job->due_at) job->due_at = never;
        next_check = min(next_check, job->due_at);
        const bool is_stuck = gets_stuck(*job, now, job->is_in_handler());
        held.unlock();
        if (times_out) {
            deliver_cancellation(*job);
            log_job(*job, log_level::warn, "job cancelled: its timeout is over");
        }
        if (is_stuck) handle_stuck(job);
    }
    // A job cancelled by its timeout or its backend is reported; its slot stays taken. [WIRE 5]
    void handle_stuck(const ref<active_job>& job) {
        const std::size_t count = report().stuck.size();
        std::vector<log_field> fields = job_fields(*job);
        fields.push_back(field("stuck_jobs", count));
        log.write({log_level::warn, "job is stuck: cancelled, but its handler still runs", std::move(fields), {}});
        if (job->cancelled_alone() && take(*job)) post(job, cut_short(*this, *job, job->cancel.reason(), ""));
        if (count < slot_count() || !phases.apply(event::stop_request)) return;
        was_stopped_stuck_ = true;
        log.write(log_level::error, "handlers are stuck; the worker stops", {field("stuck_jobs", count)});
    }

    result<void> handlers_valid_;     // the first refused one
    bool took_ = true;                // at the latest change
    bool was_stopped_stuck_ = false;  // the handlers of all slots were stuck
};
}  // namespace ojs::detail
