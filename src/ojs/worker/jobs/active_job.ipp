// active_job: a claimed job until it is settled, and the table of all of them.
#pragma once

#include <pthread.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/drain_barrier.hpp"
#include "../job_context.hpp"

namespace ojs::detail {

struct registered_handler : ref_counted {
    std::string type;
    job_handler call;
    handler_options options;
    atomic<bool> told_too_long{false};  // the log says that its jobs may outlast the grace period
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
        if (!closed_) detail::swap(kept_, state);
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

inline constexpr time_point never = time_point::max();

// Cancels every job of a worker by one store.
class all_jobs_cancel : public cancel_group {
  public:
    // False: they were cancelled before.
    bool request(cancel_reason why, time_point now) noexcept {
        time_point not_yet = never;
        at_.compare_exchange_strong(not_yet, now);
        return cancel_group::request(why);
    }
    time_point at() const noexcept { return at_.load(memory_order::relaxed); }  // or never

    // From now on jobs are reported without their handlers.
    void abandon() noexcept { abandoned_.store(true, memory_order::release); }
    bool abandoned() const noexcept { return abandoned_.load(memory_order::acquire); }

  private:
    atomic<bool> abandoned_{false};
    atomic<time_point> at_{never};
};

// The thread that is in a job's handler, while it is: whoever does something with it holds it there meanwhile.
class handler_thread {
  public:
    class inside {
      public:
        explicit inside(handler_thread& of) noexcept : of_(of) { of_.set(true); }
        inside(const inside&) = delete;
        inside& operator=(const inside&) = delete;
        ~inside() { of_.set(false); }

      private:
        handler_thread& of_;
    };

    template <class Use>
    void use(Use with) noexcept {
        if (!mutex_.try_lock()) return;  // it is about to be through
        if (inside_) with(thread_);
        mutex_.unlock();
    }
    // False as well while that is just changing.
    bool is_inside() noexcept {
        if (!mutex_.try_lock()) return false;
        const bool found = inside_;
        mutex_.unlock();
        return found;
    }

  private:
    void set(bool is_inside) noexcept {
        const lock_guard held(mutex_);
        thread_ = pthread_self();
        inside_ = is_inside;
    }

    mutex mutex_;
    pthread_t thread_{};
    bool inside_ = false;
};

// The slot of a job's thread. `kept`: the job is reported, the handler runs on. `replaced`: another thread has the slot.
// `left`: the handler has returned.
enum class slot_state : std::uint8_t { own, kept, replaced, left };

// A claimed job until it is settled, shared by the thread that runs it, the table and the stop.
class active_job : public ref_counted {
  public:
    // `usual_lease` is how long the claim holds, unless the job itself says.
    active_job(ojs::job&& claimed, time_point when, std::chrono::milliseconds usual_lease,
               ref<all_jobs_cancel> all_jobs)
        : cancel(all_jobs->member()),
          job(std::move(claimed)),
          claimed_at(when),
          lease(longer_than_least(job.visibility_timeout.count() > 0 ? job.visibility_timeout : usual_lease)),
          all_jobs_(std::move(all_jobs)) {
        extend_lease(when);
    }

    // The one settlement: true for one caller ever.
    bool take(settler who) noexcept {
        settler expected = settler::nobody;
        return settler_.compare_exchange_strong(expected, who, memory_order::acq_rel);
    }

    // A stop may have taken all jobs at once, to report each when its turn comes, unless its handler is faster.
    bool abandoned() const noexcept { return taken() || all_jobs_->abandoned(); }
    bool taken() const noexcept { return settler_.load(memory_order::acquire) != settler::nobody; }

    void extend_lease(time_point from) noexcept {
        const time_point until = from + lease;
        time_point had = lease_until_.load(memory_order::relaxed);
        while (had < until && !lease_until_.compare_exchange_weak(had, until, memory_order::relaxed)) {
        }
    }
    time_point lease_until() const noexcept { return lease_until_.load(memory_order::relaxed); }
    bool lease_expired(time_point now) const noexcept { return now >= lease_until(); }

    // The clock of its own timeout starts with the handler, not with the claim.
    void handler_begins() noexcept {
        began_.store(true, memory_order::relaxed);
        if (job.timeout.count() > 0) timeout_at = deadline_after(job.timeout);
    }
    bool began() const noexcept { return began_.load(memory_order::relaxed); }
    outcome call_handler(worker_context& worker) {
        job_context context(worker, *this, job);
        const cancellable on(true);
        return handler->call(context);
    }
    // True once: its time is over, and it is cancelled for that.
    bool cancel_if_timed_out(time_point now) {
        if (now < timeout_at.load()) return false;
        timeout_at = never;
        return cancel_alone(cancel_reason::timeout, now);
    }
    // From any thread: the backend has cancelled it. True if that is news, which the supervisor is to be woken for.
    bool revoke() {
        if (taken() || !cancel_alone(cancel_reason::revoked, steady_clock::now())) return false;
        revoked_.store(true);
        return true;
    }
    // revoke(), and another worker may have the job: nothing is reported for it.
    bool lose() {
        lost_.store(true);
        return revoke();
    }
    bool lost() const noexcept { return lost_.load(); }

    // The answer to a heartbeat sent at `sent` lists it in jobs_extended.
    void note_listed(time_point sent) noexcept { listed_at_ = sent; }
    // Whether that answer omits it, and the backend was not asked about it since it was last listed.
    bool is_missing(time_point sent) const noexcept { return !taken() && listed_at_.load() < sent; }
    void note_asked() noexcept { listed_at_ = never; }

    // For the supervisor, true once.
    bool was_revoked() noexcept { return revoked_.load(memory_order::relaxed) && revoked_.exchange(false); }
    // For its own timeout or by the backend, not by a stop.
    bool cancelled_alone() const noexcept {
        const cancel_reason why = cancel.reason();
        return why == cancel_reason::timeout || why == cancel_reason::revoked;
    }
    // When it was cancelled, alone or with all others; or never.
    time_point cancelled_at() const noexcept {
        const time_point alone = cancelled_alone_at_;
        const time_point with_all = all_jobs_->at();
        return alone < with_all ? alone : with_all;
    }

    cancel_source cancel;  // first: if it throws, `claimed` is not moved from
    const ojs::job job;
    const time_point claimed_at;
    const std::chrono::milliseconds lease;  // how long the claim holds without a heartbeat
    ref<registered_handler> handler;        // none: no handler of that type
    saved_state saved;
    drain_barrier::ticket ticket;  // held until settled

    atomic<time_point> timeout_at{never};
    atomic<time_point> held_until{never};  // when a job without a handler is handed back
    atomic<bool> known_stuck{false};
    slot_state slot = slot_state::own;  // the pool's mutex guards it
    atomic<bool> known_unreported{false};
    handler_thread runner;
    std::size_t place = 0;          // in the pool's list of running jobs
    ref<active_job> next_in_table;  // the table's

  private:
    bool cancel_alone(cancel_reason why, time_point now) {
        if (!cancel.request(why)) return false;
        cancelled_alone_at_ = now;
        return true;
    }

    // A lease no beat could keep up is taken for one that can be; a backend that disagrees says so to the ACK.
    static std::chrono::milliseconds longer_than_least(std::chrono::milliseconds wanted) noexcept {
        constexpr std::chrono::milliseconds least{20};
        return wanted < least ? least : wanted;
    }

    const ref<all_jobs_cancel> all_jobs_;
    atomic<time_point> cancelled_alone_at_{never};
    atomic<bool> revoked_{false};  // and nobody was told
    atomic<bool> lost_{false};
    atomic<time_point> listed_at_{time_point()};  // never: the backend was asked about it
    atomic<settler> settler_{settler::nobody};
    atomic<bool> began_{false};
    atomic<time_point> lease_until_{time_point()};
};

// The jobs claimed and not settled, by id. Adding, finding and removing one take the same time however many there are.
class job_table {
  public:
    void add(const ref<active_job>& job) {
        const lock_guard held(mutex_);
        if (count_ >= buckets_.size()) grow();
        insert(job);
        ++count_;
    }
    void remove(const active_job& job) {
        const lock_guard held(mutex_);
        if (buckets_.empty()) return;
        ref<active_job>* at = &bucket_of(job.job.id);
        while (*at && at->get() != &job) at = &(*at)->next_in_table;
        if (!*at) return;
        *at = detail::exchange((*at)->next_in_table, {});
        --count_;
    }
    // More than one may have an id: one that is being reported, and the next claim of it.
    template <class Look>
    void each_of(const std::string& id, Look look) {
        const lock_guard held(mutex_);
        if (buckets_.empty()) return;
        for (active_job* each = bucket_of(id).get(); each != nullptr; each = each->next_in_table.get()) {
            if (each->job.id == id) look(*each);
        }
    }
    std::size_t size() const noexcept { return count_.load(memory_order::relaxed); }
    template <class Look>
    void each(Look look) const {
        const lock_guard held(mutex_);
        for (const ref<active_job>& first : buckets_) {
            for (active_job* job = first.get(); job != nullptr; job = job->next_in_table.get()) look(*job);
        }
    }
    // Allocates nothing under the mutex but for jobs that are claimed meanwhile, and nothing at all if `out` has room.
    void append_to(array<ref<active_job>>& out) const {
        out.reserve(size());
        each([&](active_job& job) { out.push_back(ref<active_job>(&job)); });
    }
    array<ref<active_job>> snapshot() const {
        array<ref<active_job>> out;
        append_to(out);
        return out;
    }

  private:
    ref<active_job>& bucket_of(const std::string& id) {
        return buckets_[std::hash<std::string>()(id) & (buckets_.size() - 1)];
    }
    void insert(ref<active_job> job) {
        ref<active_job>& first = bucket_of(job->job.id);
        job->next_in_table = detail::exchange(first, {});
        first = std::move(job);
    }
    void grow() {
        array<ref<active_job>> old(buckets_.empty() ? 16 : buckets_.size() * 2);
        detail::swap(buckets_, old);
        for (ref<active_job>& first : old) {
            while (first) {
                ref<active_job> job = detail::exchange(first, {});
                first = detail::exchange(job->next_in_table, {});
                insert(std::move(job));
            }
        }
    }

    mutable mutex mutex_;
    array<ref<active_job>> buckets_;  // a power of two, each a chain
    atomic<std::size_t> count_{0};
};

}  // namespace ojs::detail
