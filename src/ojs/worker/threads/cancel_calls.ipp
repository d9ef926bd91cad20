// cancel_calls: ends the waits of cancelled jobs and runs their callbacks.
#pragma once

#include "pool_threads.ipp"

namespace ojs::detail {

// Runs on threads of the pool, because user code may block: then up to max_threads at a time. Where none can be created,
// the calling thread does the work: a job that misses its cancellation might wait forever.
class cancel_calls {
  public:
    cancel_calls(pool_threads& threads, drain_barrier& callbacks)
        : threads_(threads), callbacks_(callbacks) {}

    // Called after one store has cancelled all jobs. In the order of claims, because the kernel wakes the oldest
    // waiter fastest. Only running handlers can have waits or callbacks.
    template <class Jobs>
    void notify_all(const Jobs& jobs_in_handlers) {
        const ref<cancel_round> round = new_round(jobs_in_handlers);
        if (!round) return;
        for (std::size_t i = jobs_per_thread; i < round->jobs.size(); i += jobs_per_thread)
            add_thread(*round);
        work(*round);
    }
    // For jobs that were cancelled individually.
    void run_callbacks(const array<ref<active_job>>& jobs) {
        const ref<cancel_round> round = new_round([&] {
            array<ref<active_job>> out;
            for (const ref<active_job>& job : jobs) {
                if (job->cancel.has_pending_callbacks()) out.push_back(job);
            }
            return out;
        });
        if (round && !round->jobs.empty() && !add_thread(*round)) work(*round);
    }

  private:
    static constexpr std::size_t jobs_per_thread = 64;
    static constexpr int max_threads = 16;

    // Threads share it, so that a slow callback does not delay other jobs.
    struct cancel_round : ref_counted {
        array<ref<active_job>> jobs;
        atomic<std::size_t> next{0};
        atomic<int> threads{0};
    };

    template <class Jobs>
    static ref<cancel_round> new_round(const Jobs& jobs) {
        ref<cancel_round> round;
        const bool made = retry_allocation([&] {
            round = make_ref<cancel_round>();
            round->jobs = jobs();
        });
        return made ? round : ref<cancel_round>();
    }
    bool add_thread(cancel_round& round) {
        if (round.threads.fetch_add(1) >= max_threads) return false;
        const auto body = [this, kept = ref<cancel_round>(&round)] { work(*kept); };
        return bool(threads_.start_service("ojs-cancel", body));
    }
    void work(cancel_round& round) {
        for (std::size_t i; (i = round.next.fetch_add(1)) < round.jobs.size();) {
            active_job& job = *round.jobs[i];
            job.cancel.wake_waiters();
            if (!job.cancel.has_pending_callbacks()) continue;
            if (i + 1 < round.jobs.size()) add_thread(round);  // this callback may be slow
            const user_call entered(callbacks_);
            job.cancel.run_callbacks();
        }
    }

    pool_threads& threads_;
    drain_barrier& callbacks_;
};

}  // namespace ojs::detail
