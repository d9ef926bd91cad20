// stuck_watch: handles jobs that time out, are cancelled by the backend, are stuck, or are held back.
#pragma once

#include "../../base/detail/light.hpp"
#include "../jobs/job_pool.ipp"

namespace ojs::detail {

struct stuck_entry {
    ref<active_job> job;
    stuck_job info;
};

// Used by the supervising thread.
class stuck_watch {
  public:
    stuck_watch(worker_context& worker, job_pool& pool) : worker_(worker), pool_(pool) {}

    // Acts on the jobs in flight; returns when to call it again.
    time_point handle_overdue(time_point now) {
        pool_.next_check = never;
        const overdue found = take_overdue(now);
        pool_.next_check = found.next;
        pool_.calls.deliver_cancellation(found.timed_out);
        pool_.calls.deliver_cancellation(found.revoked);
        for (const ref<active_job>& job : found.timed_out)
            log_job(worker_, *job, log_level::warn, "job cancelled: its timeout is over");
        for (const ref<active_job>& job : found.revoked)
            log_job(worker_, *job, log_level::info, "job cancelled by its backend");
        for (const ref<active_job>& job : found.held) pool_.job_fetcher.hand_back(job);
        array<ref<active_job>> stuck;
        for (const ref<active_job>& job : found.stuck) {
            if (job->cancelled_alone() && !pool_.report_stuck(job)) continue;
            if (job->mark_stuck()) stuck.push_back(job);
        }
        handle_stuck(stuck, false);
        return found.next;
    }

    // Logs these as stuck; the stop no longer waits for them.
    void abandon(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& job : jobs) job->mark_stuck();
        handle_stuck(jobs, true);
    }

    void add_reported_stuck(array<ref<active_job>>& jobs) const {
        const std::size_t claimed = jobs.size();
        for (const ref<active_job>& job : pool_.jobs_with_thread()) {
            std::size_t i = job->is_stuck() ? 0 : claimed;
            while (i < claimed && jobs[i].get() != job.get()) ++i;
            if (job->is_stuck() && i == claimed) jobs.push_back(job);
        }
    }

    // Unresponsive threads must not delay the stop: all stacks of one round share a deadline.
    static time_point stacks_deadline() { return steady_clock::now() + std::chrono::milliseconds(100); }
    void add_stack(active_job& job, time_point deadline, std::vector<log_field>& fields) const {
        if (steady_clock::now() >= deadline) return;
        std::string stack;  // if an extension provides it
        job.with_thread([&](pthread_t thread) {
            worker_.user.for_each_extension([&](worker_extension& extension) {
                if (stack.empty()) stack = extension.stack_of(thread, deadline);
            });
        });
        if (!stack.empty()) fields.push_back(field("stack", stack));
    }

  private:
    struct overdue {
        array<ref<active_job>> timed_out;  // just cancelled: their callbacks must be called
        array<ref<active_job>> revoked;    // likewise
        array<ref<active_job>> stuck;      // newly
        array<ref<active_job>> held;       // unknown types, to be requeued now
        time_point next = never;
    };

    overdue take_overdue(time_point now) {
        overdue out;
        const std::chrono::milliseconds stuck_after = worker_.options.stuck_after;
        const bool draining = worker_.stage.has_stop_begun();
        worker_.jobs.for_each([&](active_job& job) {
            if (job.taken()) return;
            if (job.cancel_if_timed_out(now)) out.timed_out.push_back(ref<active_job>(&job));
            if (job.take_revoked()) out.revoked.push_back(ref<active_job>(&job));
            out.next = detail::min(out.next, job.timeout_at());
            const time_point held = job.hand_back_at();
            if (held <= now || (held != never && draining)) {
                out.held.push_back(ref<active_job>(&job));
            } else {
                out.next = detail::min(out.next, held);
            }
            const time_point cancelled = job.cancelled_at();
            if (cancelled == never || job.is_stuck() || held != never) return;  // a held job has no handler
            if (now < cancelled + stuck_after) {
                out.next = detail::min(out.next, cancelled + stuck_after);
            } else {
                out.stuck.push_back(ref<active_job>(&job));
            }
        });
        return out;
    }

    // Logs them and does what on_stuck_job says. By default: keep if abandoned, stop if all slots are stuck, else replace.
    void handle_stuck(const array<ref<active_job>>& jobs, bool abandoned) const {
        if (jobs.empty()) return;
        const time_point deadline = stacks_deadline();
        const std::size_t count = worker_.jobs.stuck_ids().size();
        const bool all = count >= static_cast<std::size_t>(worker_.options.concurrency);
        const stuck_action usual = abandoned ? stuck_action::keep
                                   : all     ? stuck_action::stop
                                             : stuck_action::replace;
        array<stuck_entry> entries;
        for (const ref<active_job>& job : jobs) {
            log_stuck(*job, abandoned, count, deadline);
            const std::chrono::milliseconds ran(milliseconds_since(job->claimed_at));
            const std::chrono::milliseconds cancelled(cancelled_ms(*job));
            entries.push_back({job, {job->job.id, job->job.type, ran, cancelled, abandoned, count, usual}});
        }
        // On another thread, because the listener may block. The pool outlives that thread.
        const auto run = [self = *this, entries] {
            for (const stuck_entry& entry : entries) self.act_on(entry, true);
        };
        if (worker_.options.on_stuck_job && pool_.calls.run(run)) return;
        for (const stuck_entry& entry : entries) act_on(entry, false);
    }
    void act_on(const stuck_entry& stuck, bool calls_listener) const {
        stuck_action action = stuck.info.default_action;
        if (calls_listener)
            worker_.user.call_back("on_stuck_job threw; ignored",
                                   [&] { action = worker_.options.on_stuck_job(stuck.info); });
        if (action == stuck_action::replace) pool_.replace_thread(*stuck.job);
        if (action != stuck_action::stop ||
            !worker_.stage.own.apply(event::stop_request, {cause_kind::api, 0}))
            return;
        worker_.stopped_stuck = true;
        attempt([&] {
            worker_.log.write(log_level::error, "handlers are stuck; the worker stops",
                              {field("stuck_jobs", stuck.info.count)});
        });
    }

    void log_stuck(active_job& job, bool abandoned, std::size_t count, time_point deadline) const {
        std::vector<log_field> fields = job_fields(job);
        fields.push_back(field("cancelled_ms", cancelled_ms(job)));
        fields.push_back(field("stuck_jobs", count));
        add_stack(job, deadline, fields);
        worker_.log.write({log_level::warn,
                           abandoned ? "job abandoned: its handler has not returned"
                                     : "job is stuck: cancelled, but its handler still runs",
                           std::move(fields),
                           {}});
    }

    static long long cancelled_ms(const active_job& job) {
        const time_point cancelled_at = job.cancelled_at();
        return cancelled_at == never ? 0 : milliseconds_since(cancelled_at);
    }

    worker_context& worker_;
    job_pool& pool_;
};

}  // namespace ojs::detail
