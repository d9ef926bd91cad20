// job_pool: the threads that run and fetch jobs.
#pragma once

#include "../../base/detail/clock.ipp"
#include "fetcher.ipp"
#include "heartbeat.ipp"

namespace ojs::detail {

inline constexpr backoff_range fetch_backoff = {std::chrono::milliseconds(100),
                                                std::chrono::milliseconds(10000)};

struct poll_intervals {
    std::chrono::milliseconds usual;
    std::chrono::milliseconds rare;  // for a job whose announcement is lost
};

// The pause after a FETCH that found nothing. Soon after a job, the next is likely.
inline std::chrono::milliseconds empty_pause(steady_clock::duration since_job, bool is_work_announced,
                                             const poll_intervals& intervals) noexcept {
    const bool is_idle = since_job > std::chrono::minutes(1);
    if (is_idle && is_work_announced) return intervals.rare;
    if (is_idle || is_work_announced) return intervals.usual;
    const auto eighth = std::chrono::duration_cast<std::chrono::milliseconds>(since_job / 8);
    return detail::min(intervals.usual, detail::max(std::chrono::milliseconds(10),
                                                    detail::min(eighth, std::chrono::milliseconds(250))));
}

// When the next FETCH is due: at once while jobs arrive or are expected, then after a pause; after a failure, when its
// back-off ends. Guarded by the pool's mutex.
class fetch_schedule {
  public:
    explicit fetch_schedule(const poll_intervals& intervals) : intervals_(intervals) {}

    time_point due() const noexcept { return due_; }

    // There may be work earlier. Ignored while the backend fails.
    void note_work_hint() noexcept {
        ++hints_;
        if (!backing_off_) due_ = time_point::min();
    }
    std::uint64_t hints() const noexcept { return hints_; }

    // After a FETCH that was sent when hints() was `seen_hints`. False: it failed and is to be logged.
    bool schedule_next(const result<std::size_t>& fetched, std::uint64_t seen_hints, bool is_work_announced,
                       time_point now) {
        if (backing_off_ && now < due_) return true;  // a FETCH that overlapped with this one failed
        backing_off_ = !fetched && fetched.error().code != errc::cancelled;
        if (backing_off_) {
            due_ = deadline_after(backoff_.next(fetched.error().retry_after));
            return false;
        }
        backoff_.reset();
        const bool more_expected = seen_hints != hints_ || (fetched && *fetched > 0);
        if (fetched && *fetched > 0) latest_job_at_ = now;
        due_ = more_expected ? time_point::min()
                             : now + empty_pause(now - latest_job_at_, is_work_announced, intervals_);
        return true;
    }

  private:
    const poll_intervals intervals_;
    time_point due_ = time_point::min();
    time_point latest_job_at_ = time_point();  // the start of the clock: none
    std::uint64_t hints_ = 0;
    bool backing_off_ = false;
    backoff backoff_{fetch_backoff};
};

// How many jobs a FETCH asks for: fewer after one that may have claimed jobs whose response was lost, because each loss
// uses up an attempt of all of them. Guarded by the pool's mutex. [WIRE 7]
class fetch_limit {
  public:
    std::size_t max_count() const noexcept { return limit_; }

    // `extent`: of the least complete of the jobs.
    void note(std::size_t asked, const result<std::size_t>& fetched, job_extent extent,
              time_point now) noexcept {
        if (!fetched && !may_have_claimed(fetched.error().code)) return;
        if (fetched && extent == job_extent::complete) {
            const std::size_t ceiling = now < failed_at_ + retry_interval ? ceiling_ : none;
            if (*fetched >= asked && asked >= limit_) limit_ = detail::min(asked * 2, ceiling);
            return;
        }
        // One job may make every response unusable: its neighbours are not fetched with it again.
        const bool one_by_one =
            fetched ? extent == job_extent::too_large : fetched.error().code == errc::bad_response;
        limit_ = one_by_one ? 1 : detail::max<std::size_t>(asked / 2, 1);
        // Where one job alone failed, the number was not the cause. Otherwise as many are not asked for soon.
        ceiling_ = asked == 1 ? none : one_by_one ? 1 : asked - 1;
        failed_at_ = now;
    }

  private:
    static constexpr std::size_t none = ~std::size_t{0} / 2;
    static constexpr std::chrono::minutes retry_interval{1};

    static bool may_have_claimed(errc code) noexcept {
        return code == errc::timed_out || code == errc::disconnected || code == errc::bad_response ||
               code == errc::system;
    }

    std::size_t limit_ = none;
    std::size_t ceiling_ = none;  // of limit_, for retry_interval
    time_point failed_at_ = time_point();
};

// How many threads run jobs, and how many FETCHes are in flight at most. While jobs take little time, few threads finish
// them sooner than many, which compete for processors and each send a FETCH for one job. Guarded by the pool's mutex.
class pool_pace {
  public:
    explicit pool_pace(std::size_t slots) : few_(slots >= 32 ? 8 : 0) {}

    bool may_be_few() const noexcept { return few_ > 0; }
    bool is_few() const noexcept { return is_few_; }
    // How many more threads may run.
    std::size_t room(std::size_t running) const noexcept {
        const std::size_t most = is_few_ ? few_ : none;
        return most - detail::min(most, running);
    }
    // Where there are few slots, a thread that waits for another's FETCH costs more than one of its own.
    std::size_t max_fetches() const noexcept { return is_few_ ? 1 : may_be_few() ? 4 : none; }

    // `took`: of a job with its report. Follows the shortest: others include waits for a processor.
    void note_job(steady_clock::duration took) noexcept {
        took = detail::min<steady_clock::duration>(took, std::chrono::milliseconds(100));
        job_time_ = took < job_time_ ? took : job_time_ + (took - job_time_) / 64;
    }
    // After each FETCH.
    void update(time_point now) noexcept {
        is_few_ = few_ > 0 && job_time_ < std::chrono::microseconds(200) && now >= all_until_;
    }
    // Few threads are too few: nothing moved, or a job waits too long.
    void note_stall(time_point now) noexcept {
        all_until_ = now + std::chrono::milliseconds(500);
        is_few_ = false;
    }

  private:
    static constexpr std::size_t none = ~std::size_t{0};
    const std::size_t few_;
    steady_clock::duration job_time_ = std::chrono::milliseconds(100);
    time_point all_until_ = time_point::min();
    bool is_few_ = false;
};

// What a thread without a job does next.
enum class pool_action : std::uint8_t {
    run,    // the next ready job
    fetch,  // for the free slots
    lead,   // wait until a FETCH is due, or a change; watch that ready jobs are run
    idle,   // wait for a ready job or the lead
    end
};
struct pool_facts {
    bool closed = false;
    bool has_ready = false;
    bool has_leader = false;
    bool fetch_is_due = false;
    bool is_crowded = false;  // enough threads run
    bool is_low = false;      // other threads will soon have run all ready jobs
};
inline pool_action plan_thread(const pool_facts& pool) noexcept {
    if (pool.fetch_is_due && !pool.closed && (!pool.has_ready || pool.is_low)) return pool_action::fetch;
    if (pool.has_ready && (pool.closed || !pool.is_crowded)) return pool_action::run;
    if (pool.closed) return pool_action::end;
    return pool.has_leader ? pool_action::idle : pool_action::lead;
}

// At most `concurrency` threads, each with at most one job. A thread fetches jobs itself and hands those it cannot
// run to others, so that a busy worker rarely switches threads.
class job_pool : public ref_counted {
  public:
    job_pool(ref<worker_context> context, array<ref<registered_handler>> handlers)
        : context_(std::move(context)),
          worker_(*context_),
          slots_(max_slots()),
          schedule_({worker_.options.poll_interval,
                     detail::max(worker_.options.poll_interval, worker_.options.heartbeat_interval)}),
          pace_(max_slots()),
          threads(*this, worker_),
          calls(worker_, threads,
                [this] {
                    if (worker_.stage.may_fetch()) wake();
                }),
          beats(worker_, threads, calls),
          job_fetcher(worker_, std::move(handlers), calls) {}

    result<void> start() {
        result<void> started = beats.start();
        if (started) started = calls.start();
        unique_lock held(mutex_);
        return started ? start_thread(held) : started;
    }

    // Call after a change that a FETCH depends on: the phase, or a free slot.
    void wake() {
        const unique_lock held(mutex_);
        schedule_.note_work_hint();
        leader_wakeup_.notify_one();
    }
    // Lets a FETCH that is due begin. Unlike wake(), causes no FETCH after one that is in flight.
    void retry_fetch() {
        const unique_lock held(mutex_);
        leader_wakeup_.notify_one();
    }

    // Ends the threads without a job.
    void close() {
        const unique_lock held(mutex_);
        closed_ = true;
        leader_wakeup_.notify_one();
        idle_wakeup_.notify_all();
    }

    // For the supervisor: starts one more missing thread when that is due. Returns the next due time.
    time_point retry_threads(time_point now) {
        const time_point due = retry_at_;
        if (now < due) return due;
        unique_lock held(mutex_);
        retry_at_ = never;
        if (closed_ && ready_.empty()) return never;
        const bool started = start_thread(held).has_value();
        const bool is_complete = started && ++slots_ >= max_slots();
        if (!is_complete) retry_at_ = started ? now : now + retry_interval;
        if (is_complete) log_slots(held, log_level::info, "threads can be created again");
        return retry_at_;
    }

    // Reports a stuck job; its slot stays taken. False: the handler was faster.
    bool report_stuck(const ref<active_job>& job) {
        job_report report =
            cut_short(worker_, *job, job->cancel.reason(), "");  // first, because it may throw
        if (!job->take()) return false;
        {
            const unique_lock held(mutex_);
            if (job->flags.add(job_flags::slot_kept, job_flags::left)) ++kept_slots_;
        }
        calls.report(job, std::move(report));
        return true;
    }
    void replace_thread(active_job& job) {
        unique_lock held(mutex_);
        if (!job.flags.has(job_flags::slot_kept) || !job.flags.add(job_flags::slot_replaced, job_flags::left))
            return;
        --kept_slots_;
        --job_threads_;
        --running_;
        schedule_.note_work_hint();
        leader_wakeup_.notify_one();
        ensure_leader(held);
    }

    // After one store has cancelled all jobs. Only running handlers can have waits or callbacks.
    void deliver_cancellation() {
        const auto deliver = [this] {
            retry_allocation([this] { calls.deliver_cancellation(jobs_with_thread()); });
        };
        if (!calls.run(deliver)) deliver();
    }
    // In the order of their claims; with those whose handler returned, but whose thread still reports.
    array<ref<active_job>> jobs_with_thread() const {
        array<ref<active_job>> out;
        out.reserve(worker_.in_handlers);  // without the guard
        worker_.jobs.for_each_with_thread([&](active_job& job) { out.push_back(ref<active_job>(&job)); });
        return out;
    }
    // Whether a thread has not left its job. With `returning`: only jobs that saw their cancellation, or whose handler
    // returned, count. Also lets the next thread that leaves wake the supervisor.
    bool has_busy_threads(bool returning) {
        leave_awaited_ = true;
        bool found = false;
        worker_.jobs.for_each_with_thread([&](const active_job& job) {
            found = found || !returning || job.cancel.token().seen() || job.flags.has(job_flags::returned);
        });
        return found;
    }

  private:
    // ---- starting threads: the guard is held, and unlocked meanwhile, because this can be slow ----

    // A thread that starts with a job takes no lock for it: while handlers keep every processor busy, each wait for a lock
    // can cost a time slice of all of them.
    result<void> start_thread(unique_lock& held, ref<active_job> job = {}, const ref<start_gate>& gate = {}) {
        thread_options options;
        options.stack_size = worker_.options.thread_stack_size;
        options.takes_signals = true;  // a handler may start programs, and those inherit the mask
        options.name = "ojs-job";
        ++job_threads_;
        if (job) note_popped();
        held.unlock();
        threads.join_ended();
        result<void> started = threads.start(options, [this, job, gate] {
            if (gate) gate->pass();
            work(job);
        });
        held.lock();
        if (started) return started;
        --job_threads_;
        if (job) --running_;
        if (job) ready_.push(std::move(job));
        return started;
    }

    // If no thread leads, wakes an idle one or starts one, which may unlock the guard meanwhile.
    void ensure_leader(unique_lock& held) {
        if (leading_ || (closed_ && ready_.empty())) return;
        if (idle_ > 0) return idle_wakeup_.notify_one();
        if (job_threads_ >= slots_) return;
        const result<void> added = start_thread(held);
        if (!added) reduce_slots(held, added.error());
    }

    // Hands all ready jobs but one to other threads.
    void hand_out_jobs(unique_lock& held) {
        const std::size_t ready = ready_.empty() ? 0 : ready_.size() - 1;
        const std::size_t room = pace_.room(running_ + 1);
        for (std::size_t i = 0; i < detail::min(detail::min(ready, room), idle_); ++i)
            idle_wakeup_.notify_one();
        ref<start_gate> gate;
        if (detail::min(ready_.size(), room) > idle_ + 2)
            attempt_unlocked(held, [&] { gate = make_ref<start_gate>(); });
        result<void> added;
        while (added && ready_.size() > idle_ + 1 && job_threads_ < slots_ &&
               pace_.room(running_ + idle_ + 1) > 0)
            added = start_thread(held, ready_.pop(), gate);
        if (gate) gate->open();
        if (!added) reduce_slots(held, added.error());
    }
    // The system has no more threads for now.
    void reduce_slots(unique_lock& held, const error& failure) {
        slots_ = job_threads_;
        retry_at_ = steady_clock::now() + retry_interval;
        worker_.supervisor.notify();
        log_slots(held, log_level::warn, "cannot create threads; concurrency reduced for now", &failure);
    }
    void log_slots(unique_lock& held, log_level level, const char* message, const error* failure = nullptr) {
        const std::size_t slots = slots_;
        attempt_unlocked(held, [&] {
            std::vector<log_field> fields = {field("concurrency", slots)};
            if (failure != nullptr) fields.push_back(field("error", failure->text));
            worker_.log.write({level, message, std::move(fields), {}});
        });
    }
    // For logging, because a log hook is user code, and for other locks.
    template <class Body>
    static void attempt_unlocked(unique_lock& held, Body body) {
        held.unlock();
        attempt(body);
        held.lock();
    }

    // ---- a job thread ----

    void work(ref<active_job> job) {
        bool is_timed = false;
        for (;;) {
            const time_point began = is_timed ? steady_clock::now() : time_point();
            const ref<active_job> done = std::move(job);  // freed without the guard
            if (done) run_job(*done);
            unique_lock held(mutex_);
            if (is_timed) pace_.note_job(steady_clock::now() - began);
            if (done && !leave(*done)) return;
            job = next_job(held);
            if (!job) return;
            is_timed = pace_.may_be_few() && detail::exchange(times_next_, false);
            note_popped();
            ensure_leader(held);
        }
    }
    void note_popped() noexcept {
        ++running_;
        ++moves_;
    }

    void run_job(active_job& job) {
        if (!confirm_before_start(worker_, job)) return hand_back(job);
        if (!job.begin_handler()) return;  // the stop was faster
        worker_.in_handlers.fetch_add(1);
        if (job.timeout_at() < next_check.load()) worker_.supervisor.notify();
        job_report report = call_handler(job);
        exit_if_forked(worker_.backend.owner);
        job.end_handler();
        if (job.take()) return settle(worker_, job, std::move(report));
        if (job.is_stuck())
            log_job(worker_, job, log_level::warn, "a stuck handler has returned; its result is dropped",
                    report);
    }

    void hand_back(active_job& job) {
        if (job.take()) settle(worker_, job, unstarted(worker_));
    }

    job_report call_handler(active_job& job) {
        try {
            return returned(worker_, job, job.call_handler(worker_));
        } catch (...) {
            return report_thrown(job);
        }
    }
    job_report report_thrown(const active_job& job) const {
        job_report report =
            failed({"handler_error", "out of memory", true, "{}"});  // too short to be allocated
        retry_allocation([&] { report = thrown(worker_, job, printable(thrown_text(), 2000)); });
        return report;
    }

    // With the mutex held. False: another thread has the slot.
    bool leave(active_job& job) {
        if (job.began()) {
            worker_.jobs.end_handler_use(job);
            worker_.in_handlers.fetch_sub(1);
            if (leave_awaited_ && leave_awaited_.exchange(false)) worker_.supervisor.notify();
        }
        const bool replaced = job.flags.has(job_flags::slot_replaced);
        if (job.flags.has(job_flags::slot_kept) && !replaced) --kept_slots_;
        if (!replaced) --running_;
        schedule_.note_work_hint();
        return !replaced;
    }

    // ---- a thread without a job: the mutex is held ----

    // Returns the next job to run, or null when the pool is closed.
    ref<active_job> next_job(unique_lock& held) {
        for (;;) {
            const bool may_fetch = worker_.stage.may_fetch() && worker_.beats.registration_tried() &&
                                   fetching_ < pace_.max_fetches();
            const std::size_t free = may_fetch ? free_slots() : 0;
            const time_point fetch_at = free > 0 ? schedule_.due() : never;
            const bool is_due =
                fetch_at == time_point::min() || (free > 0 && steady_clock::now() >= fetch_at);
            switch (plan_thread({closed_, !ready_.empty(), leading_, is_due, pace_.room(running_) == 0,
                                 pace_.room(running_ + 1) == 0 && free * 2 >= slots_})) {
                case pool_action::run: return ready_.pop();
                case pool_action::fetch: fetch(detail::min(free, limit_.max_count()), held); break;
                case pool_action::lead: lead_until(fetch_at, held); break;
                case pool_action::idle: idle(held); break;
                case pool_action::end: return {};
            }
        }
    }
    void lead_until(time_point fetch_at, unique_lock& held) {
        const std::chrono::milliseconds interval(ready_.empty() ? 20 : 1);  // a FETCH may take longer
        const bool watches = pace_.is_few() && (fetching_ > 0 || !ready_.empty());
        const time_point check_at = watches ? steady_clock::now() + interval : never;
        const std::uint64_t moves = moves_;
        leading_ = true;
        leader_wakeup_.wait_until(held, detail::min(fetch_at, check_at));
        leading_ = false;
        if (watches) check_pace(moves, check_at, held);
    }
    void check_pace(std::uint64_t moves, time_point check_at, unique_lock& held) {
        const time_point now = steady_clock::now();
        const bool is_stalled = moves == moves_ && now >= check_at;
        const bool is_late =
            !ready_.empty() && now - ready_.front().claimed_at > std::chrono::milliseconds(10);
        if (!is_stalled && !is_late) return;
        pace_.note_stall(now);
        hand_out_jobs(held);
    }
    void idle(unique_lock& held) {
        ++idle_;
        idle_wakeup_.wait(held);
        --idle_;
    }

    // The slots without a job or a FETCH. Up to max_held held jobs take no slot.
    std::size_t free_slots() const noexcept {
        const std::size_t room = slots_ + detail::min(job_fetcher.held_jobs(), max_held);
        const std::size_t used = worker_.jobs.size() + requested_ + kept_slots_;
        return used < room ? detail::min(room - used, slots_) : 0;
    }
    std::size_t max_slots() const noexcept { return static_cast<std::size_t>(worker_.options.concurrency); }

    void fetch(std::size_t count, unique_lock& held) {
        // Where only one FETCH may be in flight, another thread watches it, if any may be free soon.
        const bool leads = !leading_ && (!pace_.is_few() || running_ == 0);
        if (leads) leading_ = true;
        const std::uint64_t seen_hints = schedule_.hints();
        requested_ += count;
        ++fetching_;
        ensure_leader(held);
        const cancel_token until = worker_.fetching.token();
        held.unlock();
        job_queue runnable;
        job_extent extent = job_extent::complete;
        const result<std::size_t> fetched = job_fetcher.fetch(count, until, runnable, extent);
        held.lock();
        requested_ -= count;
        const bool others_wait =
            fetching_-- == pace_.max_fetches() && !pace_.is_few();  // the leader may be in a FETCH
        ++moves_;
        times_next_ = true;
        const time_point now = steady_clock::now();
        pace_.update(now);
        limit_.note(count, fetched, extent, now);
        ready_.append(runnable);
        hand_out_jobs(held);
        const bool failed =
            !schedule_.schedule_next(fetched, seen_hints, job_fetcher.is_work_announced(), now);
        if (leads) leading_ = false;
        if (!leads) leader_wakeup_.notify_one();  // the due time may have changed
        if (others_wait) idle_wakeup_.notify_one();
        if (failed) attempt_unlocked(held, [&] { log_failure(fetched.error()); });
    }
    // A bad response is an error, because it may have claimed jobs.
    void log_failure(const error& failure) const {
        worker_.log.write(failure.code == errc::bad_response ? log_level::error : log_level::warn,
                          "FETCH failed", {field("error", failure.text)});
    }

    static constexpr std::chrono::milliseconds retry_interval{1000};
    static constexpr std::size_t max_held = 100;

    const ref<worker_context> context_;
    worker_context& worker_;
    atomic<bool> leave_awaited_{false};   // the supervisor waits for a thread to leave its job
    mutex& mutex_ = worker_.state.guard;  // of the non-atomic members below
    condition idle_wakeup_;               // for idle threads: a ready job, the lead, or the end
    condition leader_wakeup_;             // for the leader: a slot or the phase changed
    job_queue ready_;                     // to be run
    std::size_t slots_;                   // `concurrency`, or fewer if threads are missing
    std::size_t requested_ = 0;           // by FETCHes in flight
    std::size_t kept_slots_ = 0;          // by stuck handlers whose jobs are reported
    std::size_t job_threads_ = 0;
    std::size_t idle_ = 0;      // of these, waiting for work
    std::size_t running_ = 0;   // of these, with a job
    std::size_t fetching_ = 0;  // FETCHes in flight
    std::uint64_t moves_ = 0;   // jobs begun and FETCHes ended
    bool times_next_ = false;   // the next job is timed
    bool leading_ = false;
    bool closed_ = false;
    atomic<time_point> retry_at_{never};  // when to start a missing thread
    fetch_schedule schedule_;
    pool_pace pace_;
    fetch_limit limit_;

  public:
    // When the supervisor next checks the jobs. It sets this before and after it visits them: either it sees what
    // other threads have set, or those see that they must wake it.
    atomic<time_point> next_check{never};
    pool_threads threads;
    call_threads calls;
    heartbeat beats;
    fetcher job_fetcher;
};

}  // namespace ojs::detail
