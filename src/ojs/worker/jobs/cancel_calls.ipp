// cancel_calls: ends the waits of cancelled jobs and runs their callbacks.
#pragma once

#include <sched.h>

#include "../threads/pool_threads.ipp"

namespace ojs::detail {

// On threads of the pool, because user code may block. If none can be created, the caller's thread makes the
// calls: a job that misses its cancellation might wait for ever.
class cancel_calls {
  public:
    explicit cancel_calls(pool_threads& threads) : threads_(threads) {}

    // After one store has cancelled all jobs. In the order in which they were claimed, because the kernel
    // wakes the oldest waiter fastest. Only jobs whose handlers run can have waits or callbacks.
    template <class Jobs>
    void notify_all(const Jobs& jobs_in_handlers) {
        ref<cancel_round> round;
        const auto collect = [&] {
            round = make_ref<cancel_round>();
            round->jobs = jobs_in_handlers();
        };
        if (!insist(collect)) return;
        round->threads_wanted = static_cast<int>(round->jobs.size() / jobs_per_thread);
        {
            const unique_lock held(mutex_);
            current_round_ = round;
        }
        join(*round);
    }
    // For a thread whose handler has returned: among thousands of busy threads, one thread alone gets too
    // little CPU time.
    void help_notify_all() {
        unique_lock held(mutex_);
        const ref<cancel_round> round = current_round_;
        held.unlock();
        if (round) join(*round);
    }
    // For jobs that were cancelled alone.
    void run(const array<ref<active_job>>& jobs) {
        if (jobs.empty()) return;
        ref<cancel_round> round;
        const auto collect = [&] {
            round = make_ref<cancel_round>();
            for (const ref<active_job>& job : jobs) {
                if (job->cancel.callbacks_due()) round->jobs.push_back(job);
            }
        };
        if (insist(collect) && !round->jobs.empty() && !add_thread(*round)) join(*round);
    }

  private:
    static constexpr std::size_t jobs_per_thread = 128;

    // A slow callback delays no other job's.
    struct cancel_round : ref_counted {
        array<ref<active_job>> jobs;
        atomic<std::size_t> next{0};
        atomic<int> threads_wanted{0};  // none: 0 or less
        atomic<int> free_threads{0};    // not in a callback
    };

    bool add_thread(cancel_round& round) {
        const auto body = [this, kept = ref<cancel_round>(&round)] {
            sched_yield();  // the caller makes a call itself, and if that is quick, the others as well
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
    // Each thread starts two more: faster than one thread that starts all.
    void work(cancel_round& round) {
        for (int i = 0; i < 2; ++i) {
            if (round.threads_wanted.fetch_sub(1) > 0) add_thread(round);
        }
        for (std::size_t i; (i = round.next.fetch_add(1)) < round.jobs.size();) call(round, i);
    }
    void call(cancel_round& round, std::size_t place) {
        const ref<active_job> job = round.jobs[place];
        const bool last_free = round.free_threads.fetch_sub(1) <= 1;
        job->cancel.end_waits();
        if (job->cancel.callbacks_due()) {
            if (last_free && place + 1 < round.jobs.size()) add_thread(round);
            // A callback may end its thread: another thread then calls the rest.
            call_guarded([&] { job->cancel.run_callbacks(); },
                         [&] {
                             insist([&] { run({job}); });
                             join(round);
                         });
        }
        round.free_threads.fetch_add(1);
    }

    pool_threads& threads_;
    mutex mutex_;
    ref<cancel_round> current_round_;
};

}  // namespace ojs::detail
