// active_job: a claimed job until it is settled, and the table of all of them.
#pragma once

#include <pthread.h>

#include <atomic>

#include "../base/sync.hpp"
#include "../core/drain_barrier.hpp"
#include "job.hpp"
#include "worker.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct registered_handler : ref_counted {
    std::string type;
    job_handler call;
    handler_options options;
};

// Who may report a job: the first to take it, and nobody after.
enum class settler : std::uint8_t { nobody, handler, stop };

// What a handler saved, and its turns to talk to the backend about it: one at a time, and none once the job is being
// reported. So a checkpoint never overtakes the FAIL or follows the last heartbeat.
class saved_state {
  public:
    // Waits for the turn of another thread. False: the job is being reported.
    bool begin_turn() {
        lock_guard held(mutex_);
        while (taken_ && !closed_) changed_.wait(held);
        if (closed_) return false;
        return taken_ = true;
    }
    void end_turn() {
        const lock_guard held(mutex_);
        taken_ = false;
        changed_.notify_all();
    }
    // No turn begins from now on. Waits for the one under way, until `deadline`.
    void close(time_point deadline) {
        lock_guard held(mutex_);
        closed_ = true;
        changed_.notify_all();
        while (taken_ && changed_.wait_until(held, deadline)) {
        }
    }

    // In a turn. False: the job is being reported, without this.
    bool keep(std::string state) {
        const lock_guard held(mutex_);
        if (!closed_) std::swap(kept_, state);
        return !closed_;
    }
    std::string kept() const {
        const lock_guard held(mutex_);
        return kept_;
    }
    // What an earlier run left with the backend, once that was asked.
    void note_found(std::string state) {
        const lock_guard held(mutex_);
        found_ = std::move(state);
        asked_ = true;
    }
    bool asked() const {
        const lock_guard held(mutex_);
        return asked_;
    }
    std::string found() const {
        const lock_guard held(mutex_);
        return found_;
    }

  private:
    mutable mutex mutex_;
    condition changed_;
    bool taken_ = false;
    bool closed_ = false;
    bool asked_ = false;
    std::string kept_;   // JSON of this run; empty: nothing saved
    std::string found_;  // JSON of an earlier run
};

// A claimed job until it is settled, shared by the thread that runs it, the table and the stop.
class active_job : public ref_counted {
  public:
    // `lease` is how long the claim holds, unless the job itself says.
    active_job(ojs::job claimed, time_point when, std::chrono::milliseconds lease)
        : job(std::move(claimed)),
          claimed_at(when),
          lease_(job.visibility_timeout.count() > 0 ? job.visibility_timeout : lease) {
        extend_lease(when);
    }

    // The one settlement: true for one caller ever.
    bool take(settler who) noexcept {
        settler expected = settler::nobody;
        return settler_.compare_exchange_strong(expected, who, std::memory_order_acq_rel);
    }
    bool taken() const noexcept { return settler_.load(std::memory_order_acquire) != settler::nobody; }

    void extend_lease(time_point from) noexcept {
        lease_until_.store((from + lease_).time_since_epoch().count(), std::memory_order_relaxed);
    }
    bool lease_expired(time_point now) const noexcept {
        return now.time_since_epoch().count() >= lease_until_.load(std::memory_order_relaxed);
    }

    // The clock of its own timeout starts with the handler, not with the claim.
    void handler_begins() noexcept {
        if (job.timeout.count() > 0) timeout_at.store(deadline_after(job.timeout).time_since_epoch().count());
    }
    // True once: its time is over, and it is cancelled for that.
    bool cancel_if_timed_out(time_point now) {
        if (now.time_since_epoch().count() < timeout_at.load()) return false;
        timeout_at.store(never);
        return request_cancel(cancel_reason::timeout, now);
    }
    // Sets the flag; true the first time.
    bool request_cancel(cancel_reason why, time_point now) {
        steady_clock::rep not_yet = never;
        cancelled_at.compare_exchange_strong(not_yet, now.time_since_epoch().count());
        return cancel.request(why);
    }
    // True once: it has been cancelled since before `since`, and its handler is still at work.
    bool found_stuck(time_point since) noexcept {
        return cancelled_at.load() <= since.time_since_epoch().count() && !known_stuck.exchange(true);
    }

    const ojs::job job;
    const time_point claimed_at;
    ref<registered_handler> handler;  // none: no handler of that type
    cancel_source cancel;
    saved_state saved;
    drain_barrier::ticket ticket;  // held until settled

    static constexpr steady_clock::rep never = time_point::max().time_since_epoch().count();
    // Moments, or never.
    std::atomic<steady_clock::rep> timeout_at{never};
    std::atomic<steady_clock::rep> cancelled_at{never};
    std::atomic<bool> known_stuck{false};
    // Guarded by the pool's mutex: the thread that runs the handler, good while the pool lists the job as running; and
    // whether somebody needs it to stay so.
    pthread_t thread{};
    bool pinned = false;

  private:
    const std::chrono::milliseconds lease_;
    std::atomic<settler> settler_{settler::nobody};
    std::atomic<steady_clock::rep> lease_until_{0};
};

// The jobs claimed and not settled.
class job_table {
  public:
    void add(const ref<active_job>& job) {
        const lock_guard held(mutex_);
        jobs_.push_back(job);
    }
    void remove(const active_job& job) {
        const lock_guard held(mutex_);
        for (ref<active_job>& each : jobs_) {
            if (each.get() != &job) continue;
            std::swap(each, jobs_.back());
            jobs_.pop_back();
            return;
        }
    }
    // The job of that id that nobody has taken to report, or none.
    ref<active_job> find_open(const std::string& id) const {
        const lock_guard held(mutex_);
        for (const ref<active_job>& each : jobs_) {
            if (each->job.id == id && !each->taken()) return each;
        }
        return {};
    }
    std::size_t size() const {
        const lock_guard held(mutex_);
        return jobs_.size();
    }
    template <class Look>
    void each(Look look) const {
        const lock_guard held(mutex_);
        for (const ref<active_job>& job : jobs_) look(job);
    }
    std::vector<ref<active_job>> snapshot() const {
        const lock_guard held(mutex_);
        return jobs_;
    }

  private:
    mutable mutex mutex_;
    std::vector<ref<active_job>> jobs_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
