// cancel_calls: calls back who asked to be told of a job's cancellation.
#pragma once

#include <sched.h>

#include "pool_threads.ipp"
#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Beside the caller, on threads of the pool: what is called is not ours to know. For want of threads the caller calls: a
// job that is never told might wait for ever.
class cancel_calls {
  public:
    cancel_calls(const worker_context& worker, pool_threads& threads) : worker_(worker), threads_(threads) {}

    // After all jobs were cancelled by one store: ends their waits and calls their callbacks. Only a handler that has begun
    // can wait or be called back; and those that waited first are woken first, which spares the system to search for each
    // among all that wait.
    template <class Jobs>
    void tell_all(const Jobs& jobs_in_handlers) {
        const auto tell = [this, jobs_in_handlers] {
            array<ref<active_job>> held_up;  // by a handler that may wait long for a processor
            ref<callback_round> round;
            const auto end_waits = [&] {
                const array<ref<active_job>> jobs = jobs_in_handlers();
                held_up.reserve(jobs.size());
                round = callbacks_of(jobs);
                for (const ref<active_job>& job : jobs) {
                    if (!job->cancel.try_end_waits()) held_up.push_back(job);
                }
            };
            if (!insist(end_waits)) return;
            const bool beside_us = round->jobs.empty() || add_thread(round);
            for (const ref<active_job>& job : held_up) job->cancel.end_waits();
            if (!beside_us) call_back(*round);
        };
        if (!threads_.start_service(options(), tell)) tell();
    }

    void run(const array<ref<active_job>>& jobs) {
        if (jobs.empty()) return;
        ref<callback_round> round;
        if (!insist([&] { round = callbacks_of(jobs); }) || round->jobs.empty() || add_thread(round)) return;
        call_back(*round);
    }

  private:
    // Jobs whose callbacks are to be called. One that takes its time holds up none but its thread.
    struct callback_round : ref_counted {
        array<ref<active_job>> jobs;
        atomic<std::size_t> next{0};
        atomic<int> free_threads{0};  // not in a callback
    };

    static ref<callback_round> callbacks_of(const array<ref<active_job>>& jobs) {
        const ref<callback_round> round = make_ref<callback_round>();
        for (const ref<active_job>& job : jobs) {
            if (job->cancel.callbacks_due()) round->jobs.push_back(job);
        }
        return round;
    }

    thread_options options() const noexcept { return worker_.service_thread("ojs-cancel"); }

    bool add_thread(const ref<callback_round>& round) {
        round->free_threads.fetch_add(1);
        const result<void> added = threads_.start_service(options(), [this, round] {
            sched_yield();  // who started this is about to call one itself, and if that is quick, goes on with the others
            call_back(*round);
        });
        if (!added) round->free_threads.fetch_sub(1);
        return added.has_value();
    }

    void call_back(callback_round& round) {
        for (std::size_t i; (i = round.next.fetch_add(1)) < round.jobs.size();) {
            const ref<active_job> job = round.jobs[i];
            const bool last_free = round.free_threads.fetch_sub(1) <= 1;
            if (last_free && i + 1 < round.jobs.size()) add_thread(ref<callback_round>(&round));
            // One that ends its thread must not keep the others from being called.
            call_guarded([&] { job->cancel.run_callbacks(); },
                         [&] {
                             run({job});
                             round.free_threads.fetch_add(1);
                             call_back(round);
                         });
            round.free_threads.fetch_add(1);
        }
    }

    const worker_context& worker_;
    pool_threads& threads_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
