// slots: the threads that fetch jobs and run them, each with at most one job.
#pragma once

#include "fetch_plan.ipp"
#include "heartbeats.ipp"

namespace ojs::detail {
// A thread fetches jobs, runs one, and hands the others on: each wakes the next only when there is a job for it.
class slots : public heartbeats {
  public:
    using heartbeats::heartbeats;

    result<void> start_slots() {
        unique_lock held(guard);
        busy_at_ = steady_clock::now();
        return start_thread(held);
    }
    // `concurrency`, or fewer if threads are missing.
    std::size_t slot_count() const noexcept {
        return locked([this] { return limit_; });
    }
    // With the guard held, as the next.
    void close_slots() {
        is_closed_ = true;
        leader_due_.notify_one();
        slot_due_.notify_all();
    }
    // After a change that a FETCH depends on.
    void on_work_hint() noexcept override {
        schedule_.note_work_hint();
        leader_due_.notify_one();
    }

    // Starts a missing thread when that is due; returns when to call it again.
    time_point retry_threads(time_point now) {
        unique_lock held(guard);
        if (now < retry_at_) return retry_at_;
        limit_ = max_threads_;
        const time_point before = retry_at_;
        if (!is_closed_ || ready_.size() > 0) add_thread(held);
        if (retry_at_ == before) retry_at_ = never;
        return retry_at_;
    }
    void return_unrun(const ref<active_job>& job) {
        post(job, phases.has_stop_begun() ? unstarted(*this) : unstartable(*this, *job));
    }

  private:
    // ---- threads: the guard is held, and unlocked meanwhile ----

    result<void> start_thread(unique_lock& held) {
        return threads.start(held, threads_, "ojs-job", true, [this] { serve(); });
    }
    // If the system has no more threads for now, fewer jobs are fetched.
    void add_thread(unique_lock& held) {
        const result<void> added = start_thread(held);
        if (added) return;  // another start may have failed meanwhile
        limit_ = threads_;
        const bool is_logged = exchange(retry_at_, deadline_after(milliseconds(1000))) != never;
        waker.notify();
        if (is_logged) return;
        const std::size_t limit = limit_;
        held.unlock();
        log.write(log_level::warn, "cannot create threads; concurrency reduced for now",
                  {field("concurrency", limit), field("error", added.error().text)});
        held.lock();
    }
    // One runs the next ready job, or waits until a FETCH is due, as the leader.
    void wake_next(unique_lock& held) {
        if (ready_.size() == 0 && (has_leader_ || is_closed_)) return;
        if (idle_ > 0) return slot_due_.notify_one();
        if (threads_ < limit_) return add_thread(held);
        if (has_leader_) leader_due_.notify_one();
    }
    void serve() {
        unique_lock held(guard);
        while (ready_.size() > 0 || !is_closed_) {
            if (ready_.size() > 0) {
                run_next(held);
                continue;
            }
            const bool may_fetch = phases.may_take() && beats.begun > 0 && fetches < max_fetches_;
            const std::size_t free = may_fetch ? free_slots() : 0;
            const time_point fetch_at = free > 0 ? schedule_.due() : never;
            if (fetch_at == time_point::min() || (fetch_at != never && steady_clock::now() >= fetch_at)) {
                fetch(held, min(free, limit_of_fetch_.max_count()));
            } else if (has_leader_) {
                if (fetch_at < leads_until_) leader_due_.notify_one();  // when it began to wait, no slot was free
                ++idle_;
                slot_due_.wait(held);
                --idle_;
            } else {
                has_leader_ = true;
                leads_until_ = fetch_at;
                leader_due_.wait_until(held, fetch_at);
                has_leader_ = false;
            }
        }
        --threads_;
    }
    // Without a job or a FETCH. Up to 100 held jobs take no slot; a reported job whose handler runs takes one.
    std::size_t free_slots() const noexcept {
        const std::size_t room = limit_ + min<std::size_t>(held_jobs, 100);
        const std::size_t used = in_flight.size() + requested_ + unreturned.size();
        const std::size_t left = max_jobs_ - min(max_jobs_, started_ + requested_);
        return used < room ? min(room - used, min(limit_, left)) : 0;
    }

    void fetch(unique_lock& held, std::size_t count) {
        const std::uint64_t hints = schedule_.hints();
        requested_ += count;
        ++fetches;
        held.unlock();
        const time_point sent = steady_clock::now();
        const milliseconds leased_at = lease_clock();
        const fetch_request request{{&identity, [this] { return phases.may_take(); }}, count, taking()};
        bool is_announced = false;
        result<std::vector<job>> response = call([&](ojs::transport& backend) {
            result<std::vector<job>> got = backend.fetch(request, sent + options.request_timeout);
            is_announced = backend.announces_work();
            return got;
        });
        std::size_t claimed = 0;
        for (std::size_t i = 0; response && i < response->size(); ++i) {
            job& each = (*response)[i];
            std::size_t last = response->size() - 1;  // one that the response holds twice counts once
            while ((*response)[last].id != each.id) --last;
            if ((last == i || each.id.empty()) && admit(each, sent, leased_at)) ++claimed;
        }
        held.lock();
        --fetches;
        notify_if_idle();
        requested_ -= count;
        const result<std::size_t> fetched = response ? result<std::size_t>(claimed) : response.error();
        const time_point now = steady_clock::now();
        limit_of_fetch_.note(count, fetched, now);
        const bool failed = !schedule_.schedule_next(fetched, hints, is_announced, now);
        note_idle(!response || claimed > 0);
        while (ready_.size() > idle_ + 1 && threads_ < limit_) add_thread(held);
        if (has_leader_) leader_due_.notify_one();      // the due time may have changed
        if (ready_.size() > 1) slot_due_.notify_one();  // hooks may block this thread
        held.unlock();
        after_fetch(count, fetched, sent, failed);
        held.lock();
    }
    void after_fetch(std::size_t count, const result<std::size_t>& fetched, time_point sent, bool failed) {
        const fetch_status status = !fetched       ? fetch_status::failed
                                    : *fetched > 0 ? fetch_status::jobs
                                                   : fetch_status::empty;
        if (fetched || fetched.error().code != errc::cancelled)
            call_extensions([status](worker_extension& extension) { extension.on_fetch(status); });
        if (fetched) is_connected = true;
        const bool is_outage = note_response(fetched, sent);
        const bool is_unreadable = !fetched && fetched.error().code == errc::bad_response;
        if (failed || is_unreadable)
            log.write(
                is_unreadable ? log_level::error
                : is_outage   ? log_level::debug
                              : log_level::warn,
                "FETCH failed",
                {field("error", fetched.error().text),
                 field("may_have_claimed", may_have_claimed(fetched.error()) ? text_part(count) : text_part(""))});
    }

    // False: it is still here, or has no id.
    bool admit(job& claimed, time_point sent, milliseconds leased_at) {
        if (claimed.id.empty()) return record_unreportable(claimed), false;
        unique_lock held(guard);
        limit_of_fetch_.note_size(claimed.envelope_json.size(), sent);
        bool is_claimed_again = false;
        for (const ref<work>& each : in_flight) {
            if (each->job.id == claimed.id)
                is_claimed_again = as_job(each).claim_again(claimed, leased_at) || is_claimed_again;
        }
        if (is_claimed_again) {
            retry_reports();
            held.unlock();
            log.write(log_level::warn, "claimed a job that is still running here; not started twice",
                      {field("job_id", claimed.id), field("attempt", claimed.attempt)});
            return false;
        }
        registered_handler* const handler = claimed.malformed.empty() ? find_handler(claimed.type) : nullptr;
        const auto job = make_ref<active_job>(std::move(claimed), new_member(), sent, leased_at,
                                              options.visibility_timeout, handler);
        add(ref<work>(job.get()));
        request_renewal(sent, job->lease);
        const bool is_malformed = !job->job.malformed.empty();
        const bool is_requeued = is_malformed || options.on_unknown_type == unknown_type_action::requeue;
        const bool is_refused = phases.has_stop_begun() || (!job->handler && !is_requeued);
        job->is_taken = is_refused;
        const bool is_held = !is_refused && (!job->handler || is_full(*job->handler));
        if (!is_refused && !is_held) make_ready(job);
        const bool is_first_held = is_held && delay_return(*job);
        held.unlock();
        log_job(*job, log_level::debug, "job fetched");
        if (is_refused)
            return_unrun(job);
        else if (is_malformed)
            log_job(*job, log_level::error, "the job cannot be read; it is not run", unstartable(*this, *job));
        else if (is_first_held && !job->handler)
            log.write(log_level::warn, "no handler for this job type; such jobs are requeued",
                      {field("job_type", printable(job->job.type)), field("job_id", job->job.id)});
        return true;
    }
    // A job without an id comes back after its visibility timeout.
    void record_unreportable(const job& claimed) {
        const std::string reason = claimed.malformed.empty() ? "the job has no id" : claimed.malformed;
        unique_lock held(guard);
        ++counts.claimed;
        count_unreported(cat({"(", reason, ")"}));
        held.unlock();
        log.write(log_level::error, "claimed job has no usable id; it cannot be reported",
                  {field("job_type", printable(claimed.type)), field("error", reason)});
    }

    // ---- with the guard held ----

    bool is_full(const registered_handler& handler) const noexcept {
        const std::size_t limit = handler.options.max_concurrency;
        return (limit > 0 && handler.started >= limit) || started_ >= max_jobs_;
    }
    void make_ready(const ref<active_job>& job) {
        ++job->handler->started;
        ++started_;
        ready_.push_back(job);
    }
    // A job of that handler that waits for its turn becomes ready, but not in a quiet or a drain.
    void end_turn(registered_handler& handler) {
        --handler.started;
        if (!phases.may_take()) return;
        for (const ref<work>& each : in_flight) {
            active_job& job = as_job(each);
            if (!job.is_held || job.is_taken || job.handler != &handler || is_full(handler)) continue;
            job.is_held = false;
            job.due_at = never;
            --held_jobs;
            make_ready(ref<active_job>(&job));
            if (has_leader_) leader_due_.notify_one();  // runs it, or fetches
        }
    }
    // After a FETCH that found nothing, and after a run.
    void note_idle(bool is_busy) {
        const bool may_end = options.exit_when_idle.count() > 0;
        const time_point now = may_end ? steady_clock::now() : busy_at_;
        if (is_busy || !in_flight.empty()) busy_at_ = now;
        const bool is_idle = may_end && now - busy_at_ >= options.exit_when_idle;
        done_by = started_ >= max_jobs_ ? "max_jobs" : is_idle ? "exit_when_idle" : nullptr;
        if (done_by != nullptr && in_flight.empty()) waker.notify();
    }
    // A job that cannot be run is requeued after a back-off of 100 ms to 5 s: a lone worker would fetch it again at once.
    // Returns true for the first held job in 5 s: log it.
    bool delay_return(active_job& job) noexcept {
        job.is_held = true;
        constexpr milliseconds max_delay{5000};
        const time_point now = steady_clock::now();
        const bool is_first = now >= held_until_ + max_delay;
        if (now >= held_until_) {
            hold_delay_ = is_first ? milliseconds(100) : min(hold_delay_ * 2, max_delay);
            held_until_ = now + hold_delay_;
        }
        job.due_at = held_until_;
        ++held_jobs;
        check_soon(held_until_);
        return is_first;
    }

    // ---- a job: the guard is held, and unlocked meanwhile ----

    void run_next(unique_lock& held) {
        const ref<active_job> job = ready_.remove(0);
        wake_next(held);
        if (begin_job(*job)) {
            held.unlock();
            job_report report = call_handler(*job);
            held.lock();
            job->has_returned = true;
            job->handler_state = report.ack ? "completed" : "returned";
            report_if_free(held, *job, std::move(report));
            leave(*job);
        } else {
            report_if_free(held, *job, unstarted(*this));  // its claim is lost, or the stop was faster
        }
        end_turn(*job->handler);
        note_idle(true);
        schedule_.note_work_hint();
    }
    bool begin_job(active_job& job) noexcept {
        if (job.is_taken || is_abandoning || job.is_lost || job.lease_expired()) return false;
        job.has_begun = true;
        job.handler_state = "running";
        ++handlers;
        if (job.job.timeout.count() > 0) {
            job.due_at = deadline_after(job.job.timeout);
            check_soon(job.due_at);
        }
        return true;
    }
    job_report call_handler(active_job& job) {
        try {
            job_context context(*this, job, job.job);
            outcome got;
            {
                const user_call inside(handler_calls);  // ends a child of fork() that returns
                call_wrapped(0, job, context, got);
            }
            return returned(*this, job, std::move(got));
        } catch (...) {
            return thrown(*this, job, printable(thrown_text(), 2000));
        }
    }
    void call_wrapped(std::size_t at, active_job& job, job_context& context, outcome& got) {
        if (at == wrappers.size()) return void(got = job.handler->call(context));
        bool was_called = false;
        std::exception_ptr thrown;
        wrappers[at](context, [&]() -> const outcome& {
            if (exchange(was_called, true)) return got;
            try {
                call_wrapped(at + 1, job, context, got);
            } catch (...) {
                thrown = std::current_exception();
                throw;
            }
            return got;
        });
        if (thrown) std::rethrow_exception(thrown);
        if (!was_called) throw std::logic_error("a wrapper has not called next()");
    }
    // Unless another thread reports it already.
    void report_if_free(unique_lock& held, active_job& job, job_report report) {
        const bool is_mine = !exchange(job.is_taken, true);
        const bool was_stuck = job.is_stuck;
        held.unlock();
        if (is_mine) {
            settle(job, std::move(report));
        } else if (was_stuck) {
            log_job(job, log_level::warn, "a stuck handler has returned; its result is dropped", report);
        }
        held.lock();
    }

    // Guarded.
    condition slot_due_;            // for idle threads: a ready job, the lead, or the end
    condition leader_due_;          // for the leader: a slot or the phase changed
    array<ref<active_job>> ready_;  // to be run
    const std::size_t max_threads_ = static_cast<std::size_t>(max<std::int64_t>(options.concurrency, 1));
    std::size_t limit_ = max_threads_;  // fewer if threads are missing
    const std::size_t max_fetches_ = max_threads_ < 32 ? max_threads_ : 2;
    std::size_t threads_ = 0;
    std::size_t idle_ = 0;       // of these, waiting for work
    std::size_t requested_ = 0;  // by FETCHes in flight
    bool has_leader_ = false;
    time_point leads_until_ = never;
    bool is_closed_ = false;
    time_point retry_at_ = never;  // when to start a missing thread
    fetch_schedule schedule_{options.poll_interval, options.heartbeat_interval};
    fetch_limit limit_of_fetch_{options.visibility_timeout + std::chrono::minutes(1)};
    const std::size_t max_jobs_ = static_cast<std::size_t>(options.max_jobs > 0 ? options.max_jobs : -1);
    std::size_t started_ = 0;                    // jobs with a handler, so far
    time_point busy_at_;                         // when there was a job, or a FETCH failed
    time_point held_until_ = time_point::min();  // when held jobs go back
    milliseconds hold_delay_{0};
};
}  // namespace ojs::detail
