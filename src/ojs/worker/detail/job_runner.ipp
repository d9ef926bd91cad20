// job_runner: a job from its last check before the start to its report.
#pragma once

#include "reports.ipp"

namespace ojs::detail {

class job_runner {
  public:
    job_runner(worker_state& worker, const claims& of, const reports& by)
        : worker_(worker), claims_(of), reports_(by) {}

    void run(const ref<active_job>& job) const {
        bool is_ours = claims_.confirm_before_start(*job);
        if (begin_job(*job, is_ours)) return report_if_free(job, call_handler(*job));
        if (!is_ours) report_if_free(job, unstarted(worker_));  // as gone
    }

  private:
    // False: its claim is lost, or the stop was faster.
    bool begin_job(active_job& job, bool& is_ours) const {
        const unique_lock held(worker_.guard);
        is_ours = is_ours && !job.is_lost;
        if (!is_ours || job.is_taken || worker_.is_abandoning) return false;
        job.has_begun = true;
        job.thread = pthread_self();
        ++worker_.handlers;
        if (job.job.timeout.count() > 0) {
            job.due_at = deadline_after(job.job.timeout);
            worker_.check_soon(job.due_at);
        }
        return true;
    }
    job_report call_handler(active_job& job) const {
        try {
            job_context context(worker_, job, job.job);
            return returned(worker_, job, call_inside(job.handler->call, context));
        } catch (...) {
            return thrown(worker_, job, printable(thrown_text(), 2000));
        }
    }
    // In a child of fork() that returns from the handler, this ends the child.
    outcome call_inside(job_handler& handler, job_context& context) const {
        const user_call inside(worker_.handler_calls);
        return handler(context);
    }
    // Unless another thread reports it already.
    void report_if_free(const ref<active_job>& job, job_report report) const {
        bool is_mine = false;
        bool was_stuck = false;
        {
            const unique_lock held(worker_.guard);
            job->has_returned = job->has_begun;
            is_mine = !detail::exchange(job->is_taken, true);
            was_stuck = job->is_stuck;
        }
        if (is_mine) return reports_.settle(job, std::move(report));
        if (was_stuck)
            reports_.log_job(*job, log_level::warn, "a stuck handler has returned; its result is dropped",
                             report);
    }

    worker_state& worker_;
    const claims& claims_;
    const reports& reports_;
};

}  // namespace ojs::detail
