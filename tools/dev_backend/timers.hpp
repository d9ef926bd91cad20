// timers: ends of leases, due retries and deadlines of silent workers, in order of time.
#pragma once
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>

#include "job.hpp"

namespace dev_backend {

// The caller holds the store's lock.
class timers {
  public:
    void set(job& timed, ojs::time_point when);  // time_point::max(): never
    void set(worker& silent_until, ojs::time_point when);
    // The first that is due by `now`; null: none.
    job* due_job(ojs::time_point now) const;
    worker* due_worker(ojs::time_point now) const;

    // Waits until the first is due, an earlier one is set, or wake().
    void wait(std::unique_lock<std::mutex>& held);
    void wake() { changed_.notify_all(); }

  private:
    ojs::time_point next() const;

    std::set<std::pair<ojs::time_point, job*>> jobs_;
    std::set<std::pair<ojs::time_point, worker*>> workers_;
    std::condition_variable changed_;
    ojs::time_point wakes_at_ = ojs::time_point::max();
};

}  // namespace dev_backend
