// stuck_watch: cancels jobs that ran longer than they may, tells of those that the backend has cancelled, and of those that
// outlive their cancellation.
#pragma once

#include "../../base/detail/array.hpp"
#include "../../system/detail/thread_stack.hpp"
#include "job_pool.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// For the supervising thread.
class stuck_watch {
  public:
    stuck_watch(worker_context& worker, job_pool& pool) : worker_(worker), pool_(pool) {}

    // Looks through the jobs in flight. Returns when to look again.
    time_point look(time_point now) {
        pool_.looks().begins();
        const overdue found = find(now);
        pool_.looks().ends(found.next);
        for (const ref<active_job>& job : found.timed_out)
            log_job(worker_, *job, log_level::warn, "job cancelled: its timeout is over");
        pool_.run_cancel_callbacks(found.timed_out);
        for (const ref<active_job>& job : found.revoked)
            log_job(worker_, *job, log_level::info, "job cancelled by its backend");
        pool_.run_cancel_callbacks(found.revoked);
        tell_all(found.stuck, false);
        return time_point(steady_clock::duration(found.next));
    }

    // The stop leaves without these.
    void leave_behind(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& job : jobs) {
            if (!job->known_stuck.exchange(true)) ++count_;
        }
        tell_all(jobs, true);
    }

    // Threads that do not answer must not hold up the stop: all that are asked at a time share one deadline.
    static time_point stacks_deadline() { return steady_clock::now() + std::chrono::milliseconds(100); }
    void add_stack(active_job& job, time_point deadline, std::vector<log_field>& fields) const {
        if (steady_clock::now() >= deadline) return;
        std::string stack;  // as far as the platform tells
        job.runner.use([&](pthread_t thread) { stack = capture_stack(thread, deadline); });
        if (!stack.empty()) fields.push_back(field("stack", stack));
    }

  private:
    struct overdue {
        array<ref<active_job>> timed_out;  // cancelled just now; their callbacks have yet to be called
        array<ref<active_job>> revoked;    // the same
        array<ref<active_job>> stuck;      // not known before
        steady_clock::rep next = never;

        void look_again(steady_clock::rep when) noexcept { next = when < next ? when : next; }
    };

    overdue find(time_point now) {
        overdue out;
        const steady_clock::rep patience = steady_clock::duration(worker_.options.stuck_after).count();
        worker_.jobs.each([&](active_job& job) {
            if (job.taken()) return;
            if (job.cancel_if_timed_out(now)) out.timed_out.push_back(ref<active_job>(&job));
            if (job.was_revoked()) out.revoked.push_back(ref<active_job>(&job));
            out.look_again(job.timeout_at);
            const steady_clock::rep cancelled = job.cancelled_at();
            if (cancelled == never || job.known_stuck) return;
            if (now.time_since_epoch().count() < cancelled + patience) {
                out.look_again(cancelled + patience);
            } else {
                job.known_stuck = true;
                ++count_;
                out.stuck.push_back(ref<active_job>(&job));
            }
        });
        return out;
    }

    void tell_all(const array<ref<active_job>>& jobs, bool abandoned) const {
        const time_point deadline = stacks_deadline();
        for (const ref<active_job>& job : jobs) {
            log(*job, abandoned, deadline);
            call_listener(*job, abandoned);
        }
    }

    void log(active_job& job, bool abandoned, time_point deadline) const {
        std::vector<log_field> fields = job_fields(job);
        fields.push_back(field("cancelled_ms", cancelled_ms(job)));
        fields.push_back(field("stuck_jobs", count_));
        add_stack(job, deadline, fields);
        worker_.log.write({log_level::warn,
                           abandoned ? "job left behind: its handler has not returned"
                                     : "job is stuck: cancelled, and its handler goes on",
                           std::move(fields),
                           {}});
    }

    void call_listener(const active_job& job, bool abandoned) const {
        worker_.call_back("on_stuck_job threw; ignored", [&] {
            worker_.options.on_stuck_job({job.job.id, job.job.type,
                                          std::chrono::milliseconds(milliseconds_since(job.claimed_at)),
                                          std::chrono::milliseconds(cancelled_ms(job)), abandoned, count_});
        });
    }

    static long long cancelled_ms(const active_job& job) {
        const steady_clock::rep when = job.cancelled_at();
        return when == never ? 0 : milliseconds_since(time_point(steady_clock::duration(when)));
    }

    worker_context& worker_;
    job_pool& pool_;
    std::size_t count_ = 0;  // jobs found stuck so far
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
