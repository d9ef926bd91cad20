// cancel_calls: ends the waits of cancelled jobs and runs their callbacks.
#pragma once

#include <sched.h>

#include "../threads/pool_threads.ipp"

namespace ojs::detail {

// Runs on threads of the pool, because user code may block. If none can be created, the calling thread does the
// work: a job that misses its cancellation might wait forever.
class cancel_calls {
  public:
    cancel_calls(pool_threads& threads, drain_barrier& callbacks)
        : threads_(threads), callbacks_(callbacks) {}

    // Called after one store has cancelled all jobs. In the order of claims, because the kernel wakes the oldest
    // waiter fastest. Only running handlers can have waits or callbacks.
    template <class Jobs>
    void notify_all(const Jobs& jobs_in_handlers) {
        ref<cancel_round> round;
        const auto collect = [&] {
            round = make_ref<cancel_round>();
            round->jobs = jobs_in_handlers();
        };
        if (!retry_allocation(collect)) return;
        round->threads_wanted = static_cast<int>(round->jobs.size() / jobs_per_thread);
        {
            const unique_lock held(mutex_);
            current_round_ = round;
        }
        join(*round);
    }
    // For threads whose handlers have returned: among thousands of busy threads, one alone gets too little CPU time.
    void help_notify_all() {
        unique_lock held(mutex_);
        const ref<cancel_round> round = current_round_;
        held.unlock();
        if (round) join(*round);
    }
    // For jobs that were cancelled individually.
    void run_callbacks(const array<ref<active_job>>& jobs) {
        if (jobs.empty()) return;
        ref<cancel_round> round;
        const auto collect = [&] {
            round = make_ref<cancel_round>();
            for (const ref<active_job>& job : jobs) {
                if (job->cancel.has_pending_callbacks()) round->jobs.push_back(job);
            }
        };
        if (retry_allocation(collect) && !round->jobs.empty() && !add_thread(*round)) join(*round);
    }

  private:
    static constexpr std::size_t jobs_per_thread = 128;

    // Threads share it, so that a slow callback does not delay those of other jobs.
    struct cancel_round : ref_counted {
        array<ref<active_job>> jobs;
        atomic<std::size_t> next{0};
        atomic<int> threads_wanted{0};  // 0 or less: none
        atomic<int> free_threads{0};    // not in a callback
    };

    bool add_thread(cancel_round& round) {
        const auto body = [this, kept = ref<cancel_round>(&round)] {
            sched_yield();  // the caller may finish quick callbacks alone
            work(*kept);
        };
        round.free_threads.fetch_add(1);
        if (threads_.start_service("ojs-cancel", body)) return true;
        round.free_threads.fetch_sub(1);
        return false;
    }
    void join(cancel_round& round) {
        round.free_threads.fetch_add(1);
        work(round);
    }
    // Each thread starts two more, which is faster than one thread that starts all.
    void work(cancel_round& round) {
        for (int i = 0; i < 2; ++i) {
            if (round.threads_wanted.fetch_sub(1) > 0) add_thread(round);
        }
        for (std::size_t i; (i = round.next.fetch_add(1)) < round.jobs.size();) call(round, i);
    }
    void call(cancel_round& round, std::size_t index) {
        const ref<active_job> job = round.jobs[index];
        const bool last_free = round.free_threads.fetch_sub(1) <= 1;
        job->cancel.wake_waiters();
        if (job->cancel.has_pending_callbacks()) {
            if (last_free && index + 1 < round.jobs.size()) add_thread(round);
            const user_call entered(callbacks_);
            job->cancel.run_callbacks();
        }
        round.free_threads.fetch_add(1);
    }

    pool_threads& threads_;
    drain_barrier& callbacks_;
    mutex mutex_;
    ref<cancel_round> current_round_;
};

}  // namespace ojs::detail
