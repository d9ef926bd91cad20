// active_job: a claimed job until it is reported and its handler has returned; the table of these jobs.
#pragma once

#include <pthread.h>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/log.hpp"
#include "../../core/drain_barrier.hpp"
#include "../../net/json_view.hpp"
#include "../job_context.hpp"
#include "../transport.hpp"
#include "job_flags.ipp"

namespace ojs::detail {

struct registered_handler : ref_counted {
    std::string type;
    job_handler call;
    handler_options options;
};

inline ref<registered_handler> find_handler(const array<ref<registered_handler>>& handlers,
                                            const std::string& type) {
    for (const ref<registered_handler>& handler : handlers) {
        if (handler->type == type) return handler;
    }
    return {};
}

// 0: the backend does not say.
inline std::int64_t attempt_of(const job& claimed) noexcept {
    const bool says = claimed.envelope_json.empty() || !raw_member(claimed.envelope_json, "attempt").empty();
    return says ? claimed.attempt : 0;
}

// How a job was reported. `interrupted`: its run; the job is then requeued, or failed if that uses up an attempt.
// `requeued`: it never ran. `gone`: the backend had reassigned it. `unreported`: listed by name.
enum class job_status : std::uint8_t { completed, failed, interrupted, requeued, gone, unreported };
inline constexpr const char* status_messages[] = {"job completed", "job failed", "job interrupted",
                                                  "job requeued"};

// What to report about a job, an ACK or a FAIL, and what became of it.
struct job_report {
    bool ack = false;
    std::string result_json;                    // ACK
    job_error failure;                          // FAIL
    std::string checkpoint;                     // FAIL: JSON; empty: none
    bool requeue = false;                       // FAIL
    job_status status = job_status::completed;  // of the run
    log_level level = log_level::debug;
    cancel_reason reason = cancel_reason::none;
    int signal = 0;                                // that caused an interruption
    settle_result response = settle_result::gone;  // the backend's
    job_status ended = job_status::unreported;     // how the claim ended

    // An error: no response settles the job.
    void note_response(const result<settle_result>& got) noexcept {
        if (!got) return;
        response = *got;
        const job_status requested = status != job_status::interrupted ? status
                                     : requeue                         ? job_status::requeued
                                                                       : job_status::failed;
        ended = response == settle_result::gone ? job_status::gone : requested;
    }
    bool accepted() const noexcept { return response != settle_result::gone; }
};

// Guards what the threads of a worker share. Held briefly, and never during a request, a callback or a log line. A child
// of fork() must not wait for it: another thread of the parent may hold it at the fork.
struct state_lock {
    mutex guard;
    condition changed;   // wakes threads that wait for a response, a checkpoint or the next try of a report
    condition beat_due;  // wakes the threads that send heartbeats
};

// Shared by the jobs of a worker: one store cancels all of them.
class job_cancel_group : public cancel_group, public state_lock {
  public:
    // False: they were already cancelled.
    bool request(cancel_reason reason, time_point now) noexcept {
        time_point expected = never;
        cancelled_at_.compare_exchange_strong(expected, now);
        return cancel_group::request(reason);
    }
    time_point cancelled_at() const noexcept {
        return cancelled_at_.load(memory_order::relaxed);
    }  // or never

    // From then on jobs are reported without their handlers.
    void abandon() noexcept { abandoned_.store(true, memory_order::release); }
    bool abandoned() const noexcept { return abandoned_.load(memory_order::acquire); }

  private:
    atomic<bool> abandoned_{false};
    atomic<time_point> cancelled_at_{never};
};

// Shared by the thread that runs it, the table and the supervisor.
class active_job : public ref_counted {
  public:
    // `default_lease` is for jobs without a visibility timeout.
    active_job(ojs::job&& claimed, time_point claimed_since, const lease_time& leased_since,
               std::chrono::milliseconds default_lease, ref<registered_handler> registered,
               ref<job_cancel_group> group)
        : cancel(group->member()),
          job(std::move(claimed)),
          claimed_at(claimed_since),
          lease(detail::max(min_lease,
                            job.visibility_timeout.count() > 0 ? job.visibility_timeout : default_lease)),
          handler(std::move(registered)),
          group_(std::move(group)) {
        extend_lease(leased_since);
    }

    // True for one caller, which then reports the job.
    bool take() noexcept { return flags.take(); }
    bool taken() const noexcept { return flags.has(job_flags::taken); }
    // A stop abandons all jobs at once and then reports them one by one, unless a handler is faster.
    bool abandoned() const noexcept { return taken() || group_->abandoned(); }

    void extend_lease(const lease_time& from) noexcept {
        std::chrono::milliseconds expected = leased_at_.load(memory_order::relaxed);
        while (expected < from.boot) {
            if (!leased_at_.compare_exchange_weak(expected, from.boot, memory_order::relaxed)) continue;
            return leased_at_wall_.store(from.wall, memory_order::relaxed);
        }
    }
    // Then the claim is confirmed before it is used.
    bool lease_expired(const lease_time& now) const noexcept {
        return now.boot - leased_at_.load(memory_order::relaxed) >= lease ||
               now.wall - leased_at_wall_.load(memory_order::relaxed) >= lease;
    }

    // The backend has handed it out to this worker once more. True: this run, and its report, are for the new claim.
    // False: the new claim is another job. A FAIL that may have arrived is not repeated: it would end the new claim.
    // The state's guard is held. Takes the text of the claim.
    bool claim_again(ojs::job& claimed, const lease_time& from) noexcept {
        const std::int64_t attempt = attempt_of(claimed);
        if (attempt != 0 && attempt < latest_attempt()) return true;  // the response is older than this claim
        if (flags.has(job_flags::fail_sent)) flags.add(job_flags::superseded);
        if (!flags.add_unless(job_flags::claimed_again, job_flags::superseded)) return false;
        latest_claim_.swap(claimed.claim);
        latest_attempt_ = attempt;
        claim_number_.fetch_add(1);
        extend_lease(from);
        flags.remove(job_flags::reassigned);
        return true;
    }
    bool was_claimed_again() const noexcept { return latest_attempt_.load() != as_claimed; }
    std::int64_t latest_attempt() const noexcept {  // 0: unknown
        return was_claimed_again() ? latest_attempt_.load() : attempt_of(job);
    }
    std::string latest_claim() const {
        if (job.claim.empty()) return {};
        const unique_lock held(group_->guard);
        return latest_claim_.empty() ? job.claim : latest_claim_;
    }
    bool is_superseded() const noexcept { return flags.has(job_flags::superseded); }
    // Called by the thread that reports it. False: it was claimed again meanwhile, so the report is still due.
    bool end_claim() noexcept { return flags.add_unless(job_flags::superseded, job_flags::claimed_again); }

    // Called on the handler's thread; starts the job's own timeout. False: the stop was faster.
    bool begin_handler() noexcept {
        thread_ = pthread_self();
        if (group_->abandoned() || !flags.begin()) return false;
        if (job.timeout.count() > 0) due_at_ = deadline_after(job.timeout);
        return true;
    }
    outcome call_handler(worker_context& worker) {
        job_context context(worker, *this, job);
        return handler->call(context);
    }
    // Waits until no with_thread() uses the thread.
    void end_handler() noexcept {
        flags.add(job_flags::returned);
        await_removed(job_flags::pinned, never);
    }
    bool began() const noexcept { return flags.has(job_flags::began); }
    // The calling thread is in its handler.
    bool is_here() const noexcept { return flags.in_handler() && pthread_equal(thread_, pthread_self()); }
    // Calls `use` with the thread that is in the handler, and keeps it from leaving the job meanwhile.
    template <class Use>
    void with_thread(Use use) noexcept {
        if (!flags.in_handler() || !flags.add(job_flags::pinned, job_flags::returned)) return;
        use(thread_);
        remove_and_notify(job_flags::pinned);
    }

    // due_at_ is when a job without a handler is requeued, and when one with a handler times out.
    void set_hand_back_at(time_point due) noexcept { due_at_ = due; }
    time_point hand_back_at() const noexcept { return handler ? never : due_at_.load(); }
    time_point timeout_at() const noexcept { return handler ? due_at_.load() : never; }
    // True once: it has just been cancelled because of its timeout.
    bool cancel_if_timed_out(time_point now) {
        if (now < timeout_at()) return false;
        due_at_ = never;
        return cancel_alone(cancel_reason::timeout, now);
    }
    // The backend has cancelled it. True the first time: the caller then wakes the supervisor. Thread-safe.
    bool revoke() {
        if (taken() || !cancel_alone(cancel_reason::revoked, steady_clock::now())) return false;
        return flags.add(job_flags::revoked);
    }
    std::uint32_t claim_number() const noexcept { return claim_number_; }
    // No query confirms the claim of that number: another worker may have the job, so nothing is reported for it.
    // False: it was claimed again meanwhile.
    bool mark_lost(std::uint32_t claim) noexcept {
        if (claim_number_ != claim) return false;
        flags.add(job_flags::reassigned);
        if (claim_number_ == claim) return true;
        flags.remove(job_flags::reassigned);
        return false;
    }
    bool is_reassigned() const noexcept { return flags.has(job_flags::reassigned); }
    // For the supervisor, true once.
    bool take_revoked() noexcept {
        const bool revoked = flags.has(job_flags::revoked);
        if (revoked) flags.remove(job_flags::revoked);
        return revoked;
    }
    // For its own timeout or by the backend, not by a stop.
    bool cancelled_alone() const noexcept {
        const cancel_reason reason = cancel.reason();
        return reason == cancel_reason::timeout || reason == cancel_reason::revoked;
    }
    // When it was cancelled, alone or with all others; `never` if it was not.
    time_point cancelled_at() const noexcept {
        return detail::min(cancelled_alone_at_.load(memory_order::relaxed), group_->cancelled_at());
    }
    bool is_stuck() const noexcept { return flags.has(job_flags::stuck); }
    // False: its handler has returned.
    bool mark_stuck() noexcept {
        return flags.add(job_flags::stuck, job_flags::left) || !flags.has(job_flags::left);
    }

    // The response to a heartbeat sent at `sent` lists it in jobs_extended.
    void note_listed(time_point sent) noexcept { listed_at_ = sent; }
    bool was_listed(time_point sent) const noexcept { return listed_at_.load() >= sent; }
    // That response omits it, and no claim query was sent since it was last listed. The response to an earlier
    // heartbeat may arrive after the query.
    bool is_missing(time_point sent) const noexcept {
        const time_point listed = listed_at_;
        return !taken() && listed < sent && queried_at_.load() <= listed;
    }
    // False: another thread has sent that query.
    bool begin_query() noexcept {
        if (queried_at_.load() > listed_at_.load()) return false;
        queried_at_ = steady_clock::now();
        return true;
    }

    // One thread of a handler at a time sends checkpoint requests, and none once the job is taken: a checkpoint
    // never overtakes the FAIL or follows the last heartbeat. False: the job is being reported.
    bool lock_checkpoint() noexcept {
        unique_lock held(group_->guard);
        while (!flags.add(job_flags::checkpoint_locked, job_flags::taken)) {
            if (taken()) return false;
            group_->changed.wait(held);
        }
        return true;
    }
    void unlock_checkpoint() noexcept { remove_and_notify(job_flags::checkpoint_locked); }
    // For the thread that has taken the job.
    void await_checkpoint_unlock(time_point deadline) noexcept {
        await_removed(job_flags::checkpoint_locked, deadline);
    }
    // While locked. False: the job is being reported without this checkpoint.
    bool set_checkpoint(std::string state) {
        flags.add(job_flags::checkpoint_saved);  // first: the thread that takes the job then looks for it
        const unique_lock held(group_->guard);
        if (taken()) return false;
        detail::swap(saved_, state);
        return true;
    }
    std::string saved_checkpoint() const {
        if (!flags.has(job_flags::checkpoint_saved)) return {};  // without the mutex, which all jobs share
        const unique_lock held(group_->guard);
        return saved_;
    }
    // While locked: the checkpoint of an earlier run, from the backend.
    void set_loaded_checkpoint(std::string state) noexcept {
        loaded_.swap(state);
        flags.add(job_flags::checkpoint_loaded);
    }
    std::string loaded_checkpoint() const {
        return flags.has(job_flags::checkpoint_loaded) ? loaded_ : std::string();
    }

    cancel_source cancel;  // first: if it throws, `claimed` is not moved from
    const ojs::job job;
    const time_point claimed_at;
    const std::chrono::milliseconds lease;  // how long the claim holds without a heartbeat
    const ref<registered_handler> handler;  // null: none for its type
    drain_barrier::ticket ticket;           // held until settled
    job_report report;                      // to send, while it is queued in call_threads
    job_flags flags;
    ref<active_job> next_to_run;  // these are the queues'
    ref<active_job> next_to_report;

  private:
    bool cancel_alone(cancel_reason reason, time_point now) {
        if (!cancel.request(reason)) return false;
        cancelled_alone_at_.store(now, memory_order::relaxed);
        return true;
    }
    void await_removed(job_flags::flag_set one, time_point deadline) noexcept {
        if (!flags.has(one)) return;
        unique_lock held(group_->guard);
        group_->changed.notify_all();  // lock_checkpoint() returns if the job is taken
        while (flags.has(one) && group_->changed.wait_until(held, deadline)) {
        }
    }
    void remove_and_notify(job_flags::flag_set one) noexcept {
        const unique_lock held(group_->guard);
        flags.remove(one);
        group_->changed.notify_all();
    }
    // Heartbeats cannot renew a shorter lease in time. If the backend enforces one, its ACK response shows it.
    static constexpr std::chrono::milliseconds min_lease{20};

    const ref<job_cancel_group> group_;
    pthread_t thread_{};  // of the handler
    std::string saved_;   // JSON of this run; empty: nothing saved
    std::string loaded_;  // JSON of an earlier run
    static constexpr std::int64_t as_claimed = -1;
    atomic<std::int64_t> latest_attempt_{as_claimed};
    atomic<std::uint32_t> claim_number_{0};  // of claim_again()
    std::string latest_claim_;               // guarded; empty: that of `job`
    atomic<std::chrono::milliseconds> leased_at_{std::chrono::milliseconds(0)};
    atomic<std::chrono::milliseconds> leased_at_wall_{std::chrono::milliseconds(0)};
    atomic<time_point> due_at_{never};
    atomic<time_point> cancelled_alone_at_{never};
    atomic<time_point> listed_at_{time_point()};
    atomic<time_point> queried_at_{time_point()};
};

// A first-in, first-out list of jobs. It allocates nothing, so no claimed job is lost for lack of memory.
template <ref<active_job> active_job::*Next>
class linked_jobs {
  public:
    linked_jobs() = default;
    linked_jobs(const linked_jobs&) = delete;
    linked_jobs& operator=(const linked_jobs&) = delete;
    ~linked_jobs() {
        while (!empty()) pop();  // one by one: nested destructors could overflow the stack
    }

    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }
    const active_job& front() const noexcept { return *first_; }  // must not be empty
    void push(ref<active_job> job) noexcept {
        active_job* const added = job.get();
        (empty() ? first_ : last_->*Next) = std::move(job);
        last_ = added;
        ++size_;
    }
    ref<active_job> pop() noexcept {  // must not be empty
        ref<active_job> job = std::move(first_);
        first_ = std::move((*job).*Next);
        --size_;
        return job;
    }
    template <class Visit>
    void for_each(Visit visit) const {
        for (const ref<active_job>* at = &first_; *at; at = &((**at).*Next)) visit(*at);
    }
    bool has(const std::string& id) const noexcept {
        bool found = false;
        for_each([&](const ref<active_job>& job) { found = found || job->job.id == id; });
        return found;
    }
    void append(linked_jobs& others) noexcept {
        while (!others.empty()) push(others.pop());
    }

  private:
    ref<active_job> first_;
    active_job* last_ = nullptr;  // valid unless empty
    std::size_t size_ = 0;
};

using job_queue = linked_jobs<&active_job::next_to_run>;
using report_queue = linked_jobs<&active_job::next_to_report>;  // its jobs may be in a job_queue, too

// The claimed jobs in the order of their claims, each until it is reported and no thread uses it. Thread-safe;
// visitors are called with the guard held.
class job_table {
  public:
    explicit job_table(mutex& guard) : mutex_(guard) {}

    // All or, if it throws, none.
    void add(const job_queue& jobs) {
        const unique_lock held(mutex_);
        jobs_.reserve(jobs_.size() + jobs.size());
        jobs.for_each([this](const ref<active_job>& job) { jobs_.push_back(job); });
        unsettled_.fetch_add(jobs.size(), memory_order::relaxed);
    }
    // Each is called once, by a holder of a reference: after the report, and, with the guard held, when the thread no
    // longer uses the job.
    void end_report(active_job& job) noexcept {
        unsettled_.fetch_sub(1, memory_order::relaxed);
        if (!job.flags.end_report()) return;
        const unique_lock held(mutex_);
        remove(job);
    }
    void end_handler_use(active_job& job) noexcept {
        if (job.flags.leave()) remove(job);
    }

    // The number of unreported jobs.
    std::size_t size() const noexcept { return unsettled_.load(memory_order::relaxed); }
    template <class Visit>
    void for_each(Visit visit) const {
        for_each_if([](const active_job& job) { return !job.flags.has(job_flags::reported); }, visit);
    }
    array<ref<active_job>> snapshot(job_flags::flag_set without = 0) const {
        array<ref<active_job>> out;
        out.reserve(size());  // without the guard: an allocation can be slow while handlers are busy
        for_each([&](active_job& job) {
            if (!job.flags.has(without)) out.push_back(ref<active_job>(&job));
        });
        return out;
    }
    // Moves those that are in progress here, and are now for the new claims, to the end. Returns the number of others.
    std::size_t claim_again(std::vector<ojs::job>& claimed, const lease_time& from) noexcept {
        const unique_lock held(mutex_);
        std::size_t others = 0;
        for (ojs::job& candidate : claimed) {
            bool known = false;
            for (const ref<active_job>& job : jobs_) {
                if (!job->flags.has(job_flags::reported) && job->job.id == candidate.id)
                    known = job->claim_again(candidate, from) || known;
            }
            if (known) continue;
            ojs::job& place = claimed[others++];
            if (&place != &candidate) swap(place, candidate);
        }
        return others;
    }
    // Visits unreported jobs with this id, holding the mutex. There can be two: one being reported, and its next claim.
    template <class Visit>
    void for_each_with_id(const std::string& id, Visit visit) const {
        for_each([&](active_job& job) {
            if (job.job.id == id) visit(job);
        });
    }
    // The jobs that a thread uses, reported or not.
    template <class Visit>
    void for_each_with_thread(Visit visit) const {
        for_each_if([](const active_job& job) { return job.flags.has_thread(); }, visit);
    }
    std::vector<std::string> stuck_ids() const {
        std::vector<std::string> out;
        for_each_with_thread([&](const active_job& job) {
            if (job.is_stuck()) out.push_back(job.job.id);
        });
        return out;
    }

    // For a stop, with the guard held: takes a job that is not taken yet; null: none is left.
    ref<active_job> take_next() noexcept {
        for (const ref<active_job>& job : jobs_) {
            if (job->take()) return job;
        }
        return {};
    }

  private:
    template <class Condition, class Visit>
    void for_each_if(Condition condition, Visit visit) const {
        const unique_lock held(mutex_);
        for (const ref<active_job>& job : jobs_) {
            if (condition(*job)) visit(*job);
        }
    }
    void remove(active_job& job) noexcept {
        std::size_t i = 0;
        while (jobs_[i].get() != &job) ++i;
        jobs_.remove(i);
    }

    mutex& mutex_;
    array<ref<active_job>> jobs_;
    atomic<std::size_t> unsettled_{0};
};

}  // namespace ojs::detail
