// active_job: a claimed job until it is reported and its handler has returned, and the table of all of them.
#pragma once

#include <pthread.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/drain_barrier.hpp"
#include "../job_context.hpp"
#include "job_word.ipp"

namespace ojs::detail {

struct registered_handler : ref_counted {
    std::string type;
    job_handler call;
    handler_options options;
    atomic<bool> warned_too_long{false};  // the log says that its jobs may outlast the grace period
};

inline ref<registered_handler> find_handler(const array<ref<registered_handler>>& handlers,
                                            const std::string& type) {
    for (const ref<registered_handler>& each : handlers) {
        if (each->type == type) return each;
    }
    return {};
}

inline constexpr time_point never = time_point::max();

// What the jobs of a worker share: one store cancels all of them.
class job_group : public cancel_group {
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

    // Guards checkpoints, and what a thread waits for that finds another one's fact in a job's word.
    mutex guard;
    condition changed;

  private:
    atomic<bool> abandoned_{false};
    atomic<time_point> at_{never};
};

// Shared by the thread that runs it, the table and the stop.
class active_job : public ref_counted {
  public:
    // `usual_lease` is how long the claim holds, unless the job itself says.
    active_job(ojs::job&& claimed, time_point when, std::chrono::milliseconds usual_lease,
               ref<registered_handler> its_handler, ref<job_group> group)
        : cancel(group->member()),
          job(std::move(claimed)),
          claimed_at(when),
          lease(detail::max(min_lease,
                            job.visibility_timeout.count() > 0 ? job.visibility_timeout : usual_lease)),
          handler(std::move(its_handler)),
          group_(std::move(group)) {
        extend_lease(when);
    }

    // The one settlement: true for one caller ever, who reports the job.
    bool take() noexcept { return word.take(); }
    bool taken() const noexcept { return word.has(job_word::taken); }
    // A stop abandons all jobs at once, and then reports one after the other, unless a handler is faster.
    bool abandoned() const noexcept { return taken() || group_->abandoned(); }

    void extend_lease(time_point from) noexcept {
        const time_point until = from + lease;
        time_point had = lease_until_.load(memory_order::relaxed);
        while (had < until && !lease_until_.compare_exchange_weak(had, until, memory_order::relaxed)) {
        }
    }
    time_point lease_until() const noexcept { return lease_until_.load(memory_order::relaxed); }
    bool lease_expired(time_point now) const noexcept { return now >= lease_until(); }

    // On the thread that is about to call the handler. False: the stop was faster. The clock of the job's own
    // timeout starts here, not with the claim.
    bool begin_handler() noexcept {
        thread_ = pthread_self();
        if (group_->abandoned() || !word.begin()) return false;
        if (job.timeout.count() > 0) due_at_ = deadline_after(job.timeout);
        return true;
    }
    outcome call_handler(worker_context& worker) {
        job_context context(worker, *this, job);
        const cancellable on(true);
        return handler->call(context);
    }
    // Returns when nobody uses the thread, see with_thread().
    void end_handler() noexcept {
        word.add(job_word::returned);
        await_none(job_word::pinned, never);
    }
    bool began() const noexcept { return word.has(job_word::began); }
    // Calls `use` with the thread that is in the handler, and keeps it there meanwhile.
    template <class Use>
    void with_thread(Use use) noexcept {
        if (!word.in_handler() || !word.add(job_word::pinned, job_word::returned)) return;
        use(thread_);
        let_go(job_word::pinned);
    }

    // When a job without a handler is handed back; when one with a handler is cancelled for its timeout.
    void hold_until(time_point when) noexcept { due_at_ = when; }
    time_point held_until() const noexcept { return handler ? never : due_at_.load(); }
    time_point timeout_at() const noexcept { return handler ? due_at_.load() : never; }
    // True once: its time is over, and it is cancelled for that.
    bool cancel_if_timed_out(time_point now) {
        if (now < timeout_at()) return false;
        due_at_ = never;
        return cancel_alone(cancel_reason::timeout, now);
    }
    // From any thread: the backend has cancelled it. True if that is news: wake the supervisor then.
    bool revoke() {
        if (taken() || !cancel_alone(cancel_reason::revoked, steady_clock::now())) return false;
        return word.add(job_word::revoked);
    }
    // revoke(), and another worker may have the job: nothing is reported for it.
    bool lose() {
        word.add(job_word::lost);
        return revoke();
    }
    bool lost() const noexcept { return word.has(job_word::lost); }
    // For the supervisor, true once.
    bool was_revoked() noexcept {
        const bool news = word.has(job_word::revoked);
        if (news) word.remove(job_word::revoked);
        return news;
    }
    // For its own timeout or by the backend, not by a stop.
    bool cancelled_alone() const noexcept {
        const cancel_reason why = cancel.reason();
        return why == cancel_reason::timeout || why == cancel_reason::revoked;
    }
    // When it was cancelled, alone or with all others; or never.
    time_point cancelled_at() const noexcept {
        return detail::min(cancelled_alone_at_.load(memory_order::relaxed), group_->at());
    }
    bool known_stuck() const noexcept { return word.has(job_word::stuck); }
    // Until its handler returns. False: it has returned.
    bool mark_stuck() noexcept {
        return word.add(job_word::stuck, job_word::left) || !word.has(job_word::left);
    }

    // The answer to a heartbeat sent at `sent` lists it in jobs_extended.
    void note_listed(time_point sent) noexcept { listed_at_ = sent; }
    // Whether that answer omits it, and the backend was not asked about it since it was last listed. The
    // answer to a beat from before the question may come after it.
    bool is_missing(time_point sent) const noexcept {
        const time_point listed = listed_at_;
        return !taken() && listed < sent && asked_at_.load() <= listed;
    }
    void note_asked() noexcept { asked_at_ = steady_clock::now(); }

    // Threads of a handler take turns to talk to the backend about a checkpoint, and none begins once the job
    // is taken: so a checkpoint never overtakes the FAIL or follows the last heartbeat. False: the job is
    // being reported.
    bool begin_turn() noexcept {
        unique_lock held(group_->guard);
        while (!word.add(job_word::in_turn, job_word::taken)) {
            if (taken()) return false;
            group_->changed.wait(held);
        }
        return true;
    }
    void end_turn() noexcept { let_go(job_word::in_turn); }
    // For the thread that has taken the job.
    void await_turn(time_point deadline) noexcept { await_none(job_word::in_turn, deadline); }
    // In a turn. False: the job is being reported, without this.
    bool keep_checkpoint(std::string state) {
        word.add(job_word::kept);  // first: from now on, who has taken the job looks for it
        const unique_lock held(group_->guard);
        if (taken()) return false;
        detail::swap(kept_, state);
        return true;
    }
    std::string kept_checkpoint() const {
        if (!word.has(job_word::kept)) return {};  // without the lock, which all jobs share
        const unique_lock held(group_->guard);
        return kept_;
    }
    // In a turn: what an earlier run has left with the backend.
    void note_found(std::string state) noexcept {
        found_.swap(state);
        word.add(job_word::asked);
    }
    std::string found_checkpoint() const { return word.has(job_word::asked) ? found_ : std::string(); }

    cancel_source cancel;  // first: if it throws, `claimed` is not moved from
    const ojs::job job;
    const time_point claimed_at;
    const std::chrono::milliseconds lease;  // how long the claim holds without a heartbeat
    const ref<registered_handler> handler;  // none: no handler of that type
    drain_barrier::ticket ticket;           // held until settled
    job_word word;

  private:
    friend class job_queue;
    friend class job_table;

    bool cancel_alone(cancel_reason why, time_point now) {
        if (!cancel.request(why)) return false;
        cancelled_alone_at_.store(now, memory_order::relaxed);
        return true;
    }
    void await_none(job_word::facts one, time_point deadline) noexcept {
        if (!word.has(one)) return;
        unique_lock held(group_->guard);
        group_->changed.notify_all();  // who waits for a turn finds that the job is taken
        while (word.has(one) && group_->changed.wait_until(held, deadline)) {
        }
    }
    void let_go(job_word::facts one) noexcept {
        const unique_lock held(group_->guard);
        word.remove(one);
        group_->changed.notify_all();
    }
    // A shorter lease no beat could keep up. A backend that insists on it says so to the ACK.
    static constexpr std::chrono::milliseconds min_lease{20};

    const ref<job_group> group_;
    pthread_t thread_{};  // that began
    std::string kept_;    // JSON of this run; empty: nothing saved
    std::string found_;   // JSON of an earlier run
    atomic<time_point> lease_until_{time_point()};
    atomic<time_point> due_at_{never};
    atomic<time_point> cancelled_alone_at_{never};
    atomic<time_point> listed_at_{time_point()};
    atomic<time_point> asked_at_{time_point()};  // whether it is still this worker's
    ref<active_job> next_in_queue_;
    active_job* next_in_bucket_ = nullptr;  // these are the table's
    active_job* before_ = nullptr;
    active_job* after_ = nullptr;
};

// Jobs in line. It takes no memory, so that no claimed job is lost for want of it.
class job_queue {
  public:
    job_queue() = default;
    job_queue(const job_queue&) = delete;
    job_queue& operator=(const job_queue&) = delete;
    ~job_queue() {
        while (!empty()) pop();  // one by one: a chain of destructors could need much stack
    }

    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }
    void push(ref<active_job> job) noexcept {
        active_job* const added = job.get();
        (empty() ? first_ : last_->next_in_queue_) = std::move(job);
        last_ = added;
        ++size_;
    }
    // Not of an empty one.
    ref<active_job> pop() noexcept {
        ref<active_job> job = std::move(first_);
        first_ = std::move(job->next_in_queue_);
        --size_;
        return job;
    }
    void append(job_queue& others) noexcept {
        while (!others.empty()) push(others.pop());
    }

  private:
    ref<active_job> first_;
    active_job* last_ = nullptr;  // where there is one
    std::size_t size_ = 0;
};

// The claimed jobs in their order, each until it is reported and no thread uses it. Thread-safe; every
// function given to it is called under its mutex. Adding, finding and removing one hardly takes longer the
// more there are.
class job_table {
  public:
    job_table() = default;
    job_table(const job_table&) = delete;
    job_table& operator=(const job_table&) = delete;
    ~job_table() {
        while (first_ != nullptr) drop(*first_);
    }

    void add(active_job& job) noexcept {
        const unique_lock held(mutex_);
        job.retain();
        job.before_ = last_;
        (last_ == nullptr ? first_ : last_->after_) = &job;
        last_ = &job;
        job.next_in_bucket_ = detail::exchange(bucket_of(job.job.id), &job);
        unsettled_.fetch_add(1, memory_order::relaxed);
    }
    // Each once, while the caller holds a reference: what became of the job was reported, and its thread uses
    // it no more.
    void end_report(active_job& job) noexcept {
        unsettled_.fetch_sub(1, memory_order::relaxed);
        if (job.word.end_report()) remove(job);
    }
    void leave(active_job& job) noexcept {
        if (job.word.leave()) remove(job);
    }

    // The jobs not yet reported.
    std::size_t size() const noexcept { return unsettled_.load(memory_order::relaxed); }
    template <class Look>
    void each(Look look) const {
        each_if([](const active_job& job) { return !job.word.has(job_word::reported); }, look);
    }
    array<ref<active_job>> snapshot(job_word::facts without = 0) const {
        array<ref<active_job>> out;
        out.reserve(size());  // outside the mutex: among busy handlers an allocation can take long
        each([&](active_job& job) {
            if (!job.word.has(without)) out.push_back(ref<active_job>(&job));
        });
        return out;
    }
    // More than one may have an id: one that is being reported, and the next claim of it.
    template <class Look>
    void each_of(const std::string& id, Look look) {
        const unique_lock held(mutex_);
        for (active_job* each = bucket_of(id); each != nullptr; each = each->next_in_bucket_) {
            if (each->job.id == id && !each->word.has(job_word::reported)) look(*each);
        }
    }
    // Those a thread uses, reported or not.
    template <class Look>
    void each_with_thread(Look look) const {
        each_if([](const active_job& job) { return job.word.has_thread(); }, look);
    }
    std::vector<std::string> stuck_ids() const {
        std::vector<std::string> out;
        each_with_thread([&](const active_job& job) {
            if (job.known_stuck()) out.push_back(job.job.id);
        });
        return out;
    }

    // For a stop, which begins one walk: takes the next job that nobody has taken. None: all are.
    void begin_taking() noexcept {
        const unique_lock held(mutex_);
        untaken_ = first_;
    }
    ref<active_job> take_next() noexcept {
        const unique_lock held(mutex_);
        while (untaken_ != nullptr) {
            active_job* const job = detail::exchange(untaken_, untaken_->after_);
            if (job->take()) return ref<active_job>(job);
        }
        return {};
    }

  private:
    template <class Wanted, class Look>
    void each_if(Wanted wanted, Look look) const {
        const unique_lock held(mutex_);
        for (active_job* job = first_; job != nullptr; job = job->after_) {
            if (wanted(*job)) look(*job);
        }
    }
    active_job*& bucket_of(const std::string& id) noexcept {
        return buckets_[std::hash<std::string>()(id) % bucket_count];
    }
    void remove(active_job& job) noexcept {
        const unique_lock held(mutex_);
        drop(job);
    }
    // With the mutex held.
    void drop(active_job& job) noexcept {
        active_job** place = &bucket_of(job.job.id);
        while (*place != &job) place = &(*place)->next_in_bucket_;
        *place = job.next_in_bucket_;
        if (untaken_ == &job) untaken_ = job.after_;
        (job.before_ == nullptr ? first_ : job.before_->after_) = job.after_;
        (job.after_ == nullptr ? last_ : job.after_->before_) = job.before_;
        job.release();
    }

    static constexpr std::size_t bucket_count = 1024;

    mutable mutex mutex_;
    active_job* first_ = nullptr;  // a list in the order of claims; each member is held
    active_job* last_ = nullptr;
    active_job* untaken_ = nullptr;
    active_job* buckets_[bucket_count] = {};
    atomic<std::size_t> unsettled_{0};
};

}  // namespace ojs::detail
