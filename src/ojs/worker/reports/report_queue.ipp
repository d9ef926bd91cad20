// report_queue: jobs to be settled beside the threads that run them.
#pragma once

#include "../threads/pool_threads.ipp"
#include "settlement.ipp"

namespace ojs::detail {

// Many round trips at once, each on a thread of the pool, because a stop has little time. Thread-safe.
class report_queue {
  public:
    // `settled_one` is called after each. `first_task` may block.
    report_queue(worker_context& worker, pool_threads& threads, function<void()> settled_one,
                 function<void()> first_task)
        : worker_(worker),
          threads_(threads),
          settled_one_(std::move(settled_one)),
          first_task_(std::move(first_task)) {}

    // A job that the caller has taken. Reports it on this thread if there is no memory to queue it.
    void add(ref<active_job> job, verdict report) {
        entry added{std::move(job), std::move(report)};
        if (keep(added)) return start_wanted();
        settle(worker_, *added.job, std::move(added.report));
        settled_one_();
    }

    // Reports all jobs as interrupted, unless their handlers are faster: each is taken in its turn. Allocates nothing if
    // threads wait: busy handlers may hold up each malloc().
    void interrupt_all(cancel_reason why) {
        worker_.jobs.begin_taking();
        bool some_wait = false;
        {
            const lock_guard held(mutex_);
            why_ = why;
            interrupting_ = true;
            expected_ = 0;
            some_wait = running_ > busy_;
            work_.notify_all();
        }
        if (!some_wait) start_wanted();  // or those do
    }

    // Runs the first task before the next report, on another thread. The same holds.
    void run_first() {
        {
            const lock_guard held(mutex_);
            first_due_ = true;
            if (expected_ > 0) --expected_;
            work_.notify_one();
        }
        start_wanted();
    }

    // Starts this many threads, which is slow while handlers are busy.
    void expect(std::size_t threads) {
        {
            const lock_guard held(mutex_);
            expected_ = threads;
        }
        start_wanted();
    }

    // The threads end when all is reported.
    void close() {
        const lock_guard held(mutex_);
        closed_ = true;
        expected_ = 0;
        work_.notify_all();
    }

  private:
    struct entry {
        ref<active_job> job;
        verdict report;
        settle_end end = settle_end::accepted;
    };
    static constexpr std::size_t max_threads = 128;

    bool keep(entry& added) {
        const lock_guard held(mutex_);
        if (!attempt([&] { taken_.reserve_one(); })) return false;
        taken_.push_back(std::move(added));
        work_.notify_one();
        return true;
    }

    // True if one more thread would have something to do; it counts as started.
    bool wants_thread() {
        const lock_guard held(mutex_);
        const std::size_t untaken = interrupting_ ? worker_.jobs.size() : 0;  // about
        if (running_ - busy_ >= taken_.size() + untaken + expected_ + (first_due_ ? 1 : 0) ||
            running_ >= max_threads)
            return false;
        ++running_;
        return true;
    }
    // One more if that has work. Each starts two more, so that a stop does not wait for one thread to start them all. Where
    // there is none, the caller does its work.
    void start_wanted() {
        if (!wants_thread()) return;
        if (threads_.start_service(worker_.service_thread("ojs-report"), [this] { work(); })) return;
        lock_guard held(mutex_);
        if (--running_ == 0) work_off(held);
    }

    void work() {
        for (;;) {
            for (int i = 0; i < 2; ++i) start_wanted();
            lock_guard held(mutex_);
            ++busy_;
            work_off(held);
            --busy_;
            if (closed_)
                return static_cast<void>(--running_);  // what a late FETCH brings needs another thread
            work_.wait(held);
        }
    }

    // Reports all there is, then logs what became of it.
    void work_off(lock_guard& held) {
        array<entry> settled;
        entry next;
        if (first_due_) {
            first_due_ = false;
            held.unlock();
            first_task_();
            held.lock();
        }
        while (take(next, held)) {
            next.end = conclude(worker_, *next.job, next.report);
            settled_one_();
            if (attempt([&] { settled.reserve_one(); })) settled.push_back(std::move(next));
            held.lock();
        }
        if (settled.empty()) return;
        held.unlock();
        for (const entry& each : settled)
            attempt([&] { log_settled(worker_, *each.job, each.report, each.end); });
        settled.clear();
        held.lock();
    }

    // The next job to report, taken, with the mutex let go of; false, with the mutex held, when there is none. Their order
    // does not matter: a stop reports all it has at once.
    bool take(entry& next, lock_guard& held) {
        if (!taken_.empty()) {
            next = std::move(taken_.back());
            taken_.pop_back();
            held.unlock();
            return true;
        }
        while (interrupting_) {
            next.job = worker_.jobs.take_next();
            interrupting_ = bool(next.job);
            if (!next.job) break;
            held.unlock();
            if (insist([&] { next.report = shutdown_result(*next.job); })) return true;
            held.lock();  // unreported, and logged as such
        }
        return false;
    }

    verdict shutdown_result(const active_job& job) const {
        if (!job.began()) return handed_back(worker_);
        // A job that took too long before the stop came: that was its fault. One that was cancelled stays so.
        return cut_short(worker_, job, job.cancelled_alone() ? job.cancel.reason() : why_, "");
    }

    worker_context& worker_;
    pool_threads& threads_;
    const function<void()> settled_one_;
    const function<void()> first_task_;
    mutex mutex_;
    condition work_;
    array<entry> taken_;
    cancel_reason why_ = cancel_reason::none;
    bool first_due_ = false;
    bool interrupting_ = false;  // some jobs are not yet taken
    std::size_t expected_ = 0;   // jobs and tasks yet to come
    std::size_t running_ = 0;    // threads
    std::size_t busy_ = 0;       // of them
    bool closed_ = false;
};

}  // namespace ojs::detail
