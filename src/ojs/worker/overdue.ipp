// overdue_jobs: which jobs ran longer than they may, and which outlived their cancellation.
#pragma once

#include "active_job.ipp"

namespace ojs {
inline namespace v1 {
namespace detail {

struct overdue_jobs {
    std::vector<ref<active_job>> timed_out;  // cancelled just now; their callbacks have yet to be called
    std::vector<ref<active_job>> stuck;      // not known before
    time_point next = time_point::max();     // when to look again

    void look_again(steady_clock::rep when) noexcept {
        if (when < next.time_since_epoch().count()) next = time_point(steady_clock::duration(when));
    }
};

inline overdue_jobs find_overdue(const job_table& jobs, time_point now,
                                 std::chrono::milliseconds stuck_after) {
    overdue_jobs out;
    const steady_clock::rep patience = steady_clock::duration(stuck_after).count();
    jobs.each([&](const ref<active_job>& job) {
        if (job->taken()) return;
        if (job->cancel_if_timed_out(now)) out.timed_out.push_back(job);
        out.look_again(job->timeout_at);
        const steady_clock::rep cancelled = job->cancelled_at;
        if (cancelled == active_job::never || job->known_stuck) return;
        if (now.time_since_epoch().count() < cancelled + patience) {
            out.look_again(cancelled + patience);
        } else {
            job->known_stuck = true;
            out.stuck.push_back(job);
        }
    });
    return out;
}

}  // namespace detail
}  // namespace v1
}  // namespace ojs
