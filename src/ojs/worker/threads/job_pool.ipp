// job_pool: the threads that run jobs and, one at a time, fetch them.
#pragma once

#include <cstdlib>

#include "../../base/detail/clock.ipp"
#include "../jobs/cancel_calls.ipp"
#include "../jobs/job_intake.ipp"
#include "../jobs/run_job.ipp"
#include "../jobs/running_jobs.ipp"

namespace ojs::detail {

// How many jobs a worker takes at a time: `concurrency`, or as many as it gets threads for. The pool's mutex guards all but
// retry_at().
class job_slots {
  public:
    explicit job_slots(worker_context& worker) : worker_(worker), count_(concurrency()) {}

    std::size_t count() const noexcept { return count_; }
    // Slots without a job, for which no FETCH is in flight. Up to max_held held jobs take none.
    std::size_t free() const noexcept {
        const std::size_t held = worker_.held_jobs;
        const std::size_t room = count_ + (held < max_held ? held : max_held);
        const std::size_t taken = worker_.jobs.size() + asked_for_ + kept_;
        return taken >= room ? 0 : room - taken < count() ? room - taken : count();
    }
    // keep(): the job of a stuck handler is reported. release(): the handler has returned, or is replaced.
    void keep() noexcept { ++kept_; }
    void release() noexcept { --kept_; }
    // For a FETCH under way, and after it.
    void ask_for(std::size_t more) noexcept { asked_for_ += more; }
    void answered(std::size_t fewer) noexcept { asked_for_ -= fewer; }

    // The system has no more threads than these, for now.
    void lower(std::size_t threads) {
        count_ = threads;
        retry_at_ = steady_clock::now() + pause;
        worker_.supervisor.notify();
    }
    void log_lowered(const error& why) const {
        worker_.log.write(log_level::warn, "cannot create threads; concurrency lowered for now",
                          {field("concurrency", count_.load()), field("error", why.text)});
    }
    // When to try for one more; time_point::max() where none is missing.
    time_point retry_at() const noexcept { return retry_at_; }
    void begin_retry() noexcept { retry_at_ = never; }
    // True: all threads are there again.
    bool end_retry(bool got_one, time_point now) {
        const bool all = got_one && ++count_ >= concurrency();
        if (!all) retry_at_ = got_one ? now : now + pause;
        return all;
    }
    void log_all_back() const {
        worker_.log.write(log_level::info, "threads can be created again",
                          {field("concurrency", count_.load())});
    }

  private:
    std::size_t concurrency() const noexcept { return static_cast<std::size_t>(worker_.options.concurrency); }

    static constexpr std::chrono::milliseconds pause{1000};
    static constexpr std::size_t max_held = 100;

    worker_context& worker_;
    atomic<std::size_t> count_;
    std::size_t asked_for_ = 0;  // by FETCHes under way
    std::size_t kept_ = 0;       // by stuck handlers whose jobs are reported
    atomic<time_point> retry_at_{never};
};

// When the next FETCH is due: at once while jobs arrive or there is news, then by the poll interval; after a failure, when its
// pause is over. The pool's mutex guards it.
class fetch_schedule {
  public:
    explicit fetch_schedule(std::chrono::milliseconds interval) : interval_(interval) {}

    time_point due() const noexcept { return due_; }

    // There may be work before that; not while the backend is failing.
    void expect_work() noexcept {
        ++news_;
        if (!backing_off_) due_ = time_point::min();
    }
    std::uint64_t news() const noexcept { return news_; }

    // After a FETCH that was sent when the news were `news`. False: it failed, and is to be told of.
    bool plan(const result<std::size_t>& got, std::uint64_t news) {
        const time_point now = steady_clock::now();
        if (backing_off_ && now < due_) return true;  // another FETCH, that overlapped with this one, failed
        backing_off_ = !got && got.error().code != errc::cancelled;
        if (backing_off_) {
            const std::chrono::milliseconds pause = pauses_.next();
            due_ = deadline_after(got.error().retry_after > pause ? got.error().retry_after : pause);
            return false;
        }
        pauses_.reset();
        const bool more_to_expect = news != news_ || (got && *got > 0);
        due_ = more_to_expect ? time_point::min() : now + interval_;
        return true;
    }

  private:
    const std::chrono::milliseconds interval_;
    time_point due_ = time_point::min();
    std::uint64_t news_ = 0;
    bool backing_off_ = false;
    backoff pauses_{std::chrono::milliseconds(100), std::chrono::milliseconds(10000)};
};

// The threads that run jobs, at most `concurrency`, each with at most one job. They FETCH for themselves, and hand what
// they cannot run to others; so a busy worker changes threads rarely, and with one slot never.
class job_pool : public ref_counted {
  public:
    job_pool(ref<worker_context> context, array<ref<registered_handler>> handlers)
        : context_(std::move(context)),
          worker_(*context_),
          running_(static_cast<std::size_t>(worker_.options.concurrency)),
          slots_(worker_),
          schedule_(worker_.options.poll_interval),
          threads_(*this, running_.count(), worker_.supervisor),
          cancels_(worker_, threads_),
          reports_(
              worker_, threads_, [this] { slot_came_free(); },
              [this] { cancels_.notify_all([this] { return jobs_in_handlers(); }); }),
          intake_(worker_, std::move(handlers), all_jobs_, reports_) {
        ready_.reserve(static_cast<std::size_t>(worker_.options.concurrency));
    }

    result<void> start() {
        lock_guard held(mutex_);
        return start_job_threads(held, {ref<active_job>()});
    }

    // Something a FETCH depends on has changed: the phase, or a slot that came free.
    void wake() {
        const lock_guard held(mutex_);
        schedule_.expect_work();
        lead_.notify_one();
    }

    // A FETCH that is due may begin now.
    void look_again() {
        const lock_guard held(mutex_);
        lead_.notify_one();
    }

    // The intake is closed: threads without a job end.
    void close() {
        const lock_guard held(mutex_);
        closed_ = true;
        lead_.notify_one();
        work_.notify_all();
    }

    // For the supervisor: after a shortage of threads, tries for one more when it is time. Returns when to try again.
    time_point retry_threads(time_point now) {
        if (now < slots_.retry_at()) return slots_.retry_at();
        const array<ref<active_job>> one = {ref<active_job>()};
        lock_guard held(mutex_);
        slots_.begin_retry();
        if (closed_ && ready_.empty()) return slots_.retry_at();
        if (slots_.end_retry(start_job_threads(held, one).has_value(), now))
            log_unlocked(held, [this] { slots_.log_all_back(); });
        return slots_.retry_at();
    }

    // Reports all jobs as interrupted, in the background, unless their handlers are faster.
    void interrupt_all(cancel_reason why) {
        all_jobs_->abandon();
        reports_.interrupt_all(why);
    }
    // A held job of an unknown type.
    void hand_back(const ref<active_job>& job) { intake_.hand_back(job); }

    // Reports a stuck job; its slot stays taken. False: the handler was faster.
    bool report_stuck(const ref<active_job>& job) {
        verdict report = cut_short(worker_, *job, job->cancel.reason(), "");  // may throw: before it is taken
        if (!job->take(settler::stop)) return false;
        {
            const lock_guard held(mutex_);
            if (job->slot == slot_state::own) {
                job->slot = slot_state::kept;
                slots_.keep();
            }
        }
        reports_.add(job, std::move(report));
        return true;
    }
    // Counts it as stuck until its handler returns. False: it has returned.
    bool mark_stuck(active_job& job) {
        const lock_guard held(mutex_);
        if (job.slot == slot_state::left) return false;
        if (!job.known_stuck.exchange(true)) worker_.tally.add_stuck(job.job.id);
        return true;
    }
    // Frees its slot for another thread.
    void replace_thread(active_job& job) {
        lock_guard held(mutex_);
        if (job.slot != slot_state::kept) return;
        job.slot = slot_state::replaced;
        slots_.release();
        --job_threads_;
        schedule_.expect_work();
        lead_.notify_one();
        pass_lead(held);
    }
    result<void> start_service(const char* name, function<void()> body) {
        return threads_.start_service(worker_.service_thread(name), std::move(body));
    }

    report_queue& reports() noexcept { return reports_; }
    // The supervisor is woken when they are over.
    pool_threads& threads() noexcept { return threads_; }
    // Cancels all jobs, by one store; false where they were before. And tells those who wait for that, beside the caller.
    bool cancel_all(cancel_reason why) { return all_jobs_->request(why, steady_clock::now()); }
    void tell_all_cancelled() { reports_.run_first(); }
    // The same for some.
    void run_cancel_callbacks(const array<ref<active_job>>& jobs) { cancels_.run(jobs); }

    next_look& looks() noexcept { return looks_; }
    // See running_jobs. The supervisor is woken when a thread has come home since it asked.
    array<ref<active_job>> jobs_in_handlers() {
        const lock_guard held(mutex_);
        return running_.all();
    }
    bool any_in_handler() {
        const lock_guard held(mutex_);
        return running_.any();
    }
    bool any_returning() {
        const lock_guard held(mutex_);
        return running_.any_returning();
    }

  private:
    // As many threads, each of which begins with its job, or with none. The mutex, which is held, is let go of meanwhile:
    // this takes its time among handlers that keep every processor busy. Jobs without a thread are ready for others.
    result<void> start_job_threads(lock_guard& held, const array<ref<active_job>>& jobs) {
        ref<start_gate> gate;
        if (jobs.size() > 1) attempt([&] { gate = make_ref<start_gate>(); });
        job_threads_ += jobs.size();
        for (const ref<active_job>& job : jobs) {
            if (job) running_.add(job);
        }
        held.unlock();
        threads_.join_ended();
        result<void> last;
        std::size_t started = 0;
        while (started < jobs.size() && (last = start_job_thread(jobs[started], gate))) ++started;
        if (gate) gate->open();
        held.lock();
        for (; started < jobs.size(); ++started) {
            --job_threads_;
            if (!jobs[started]) continue;
            running_.remove(*jobs[started]);
            ready_.push_back(jobs[started]);
        }
        return last;
    }

    result<void> start_job_thread(const ref<active_job>& job, const ref<start_gate>& gate) {
        thread_options options;
        options.stack_size = worker_.options.thread_stack_size;
        options.takes_signals = true;  // a handler may start programs, and those inherit the mask
        options.name = "ojs-job";
        return threads_.start(options, [this, job, gate] {
            // The first allocation of a thread may wait for a lock of all of them; not when thousands begin at once.
            void* volatile const first = std::malloc(1);  // volatile: or the compiler would leave it out
            std::free(first);
            if (gate) gate->pass();
            work(job);
        });
    }

    // What a job thread does until close(). One that starts with a job takes no lock for it: among handlers that keep
    // every processor busy, each wait for a lock can cost a turn of all of them.
    void work(ref<active_job> job) {
        for (;;) {
            if (job) run_to_end(job);
            lock_guard held(mutex_);
            if (job && !job_left(*job)) return;
            job = next_job(held);
            if (!job) {
                held.unlock();
                return cancels_.help_notify_all();
            }
            running_.add(job);
            pass_lead(held);
        }
    }

    void run_to_end(const ref<active_job>& job) {
        const auto body = [&] {
            run_job(worker_, *job, looks_);
            const cancellable on(true);
            pthread_testcancel();  // a request that came too late for this job must not hit the next one
        };
        call_guarded(body, [&] { thread_lost(job); });
    }

    // The handler ended its thread, by pthread_exit() or pthread_cancel(): its job and its part in the pool pass to others.
    void thread_lost(const ref<active_job>& job) {
        leave_forked_child(worker_);
        verdict report = failed({"handler_error", "thread ended", true, "{}"});
        attempt([&] { report = judge_exception(worker_, *job, "the handler ended its thread"); });
        if (job->take(settler::handler)) reports_.add(job, std::move(report));
        lock_guard held(mutex_);
        if (job_left(*job)) --job_threads_;
        lead_.notify_one();
        pass_lead(held);
    }

    // With the mutex held. False: another thread has the slot.
    bool job_left(active_job& job) {
        const slot_state slot = detail::exchange(job.slot, slot_state::left);
        if (slot == slot_state::kept) slots_.release();
        if (job.known_stuck) worker_.tally.remove_stuck(job.job.id);
        running_.remove(job);
        if (running_.was_asked()) worker_.supervisor.notify();
        schedule_.expect_work();  // its slot is free
        return slot != slot_state::replaced;
    }

    // A report thread settled a job. In a stop, when nobody FETCHes any more, it waits for no lock.
    void slot_came_free() {
        if (!closed_.load(memory_order::relaxed)) wake();
    }

    // What a thread without a job does next: the first that can be done. A thread FETCHes for the slots nobody asks for yet;
    // where that has to wait, one thread waits for the moment, the leader, and the others rest until they are called.
    enum class turn : std::uint8_t { run, end, fetch, lead, rest };
    turn choose(time_point fetch_at) const noexcept {
        if (!ready_.empty()) return turn::run;
        if (closed_) return turn::end;
        if (fetch_at != time_point::max() && steady_clock::now() >= fetch_at) return turn::fetch;
        return leading_ ? turn::rest : turn::lead;
    }

    // The next job to run, or none when the pool has closed.
    ref<active_job> next_job(lock_guard& held) {
        for (;;) {
            const std::size_t free = slots_.free();
            const time_point fetch_at = free > 0 && may_fetch() ? schedule_.due() : time_point::max();
            switch (choose(fetch_at)) {
                case turn::run: return take_ready();
                case turn::end: return {};
                case turn::fetch: fetch(free, held); break;
                case turn::lead: lead_until(fetch_at, held); break;
                case turn::rest: rest(held); break;
            }
        }
    }

    bool may_fetch() const noexcept {
        return worker_.stage.may_fetch() && worker_.beats.registration_tried();
    }
    ref<active_job> take_ready() {
        const ref<active_job> job = ready_.back();
        ready_.pop_back();
        return job;
    }
    void rest(lock_guard& held) {
        ++idle_;
        work_.wait(held);
        --idle_;
    }
    void lead_until(time_point when, lock_guard& held) {
        leading_ = true;
        lead_.wait_until(held, when);
        leading_ = false;
    }

    void fetch(std::size_t count, lock_guard& held) {
        const bool leads = !detail::exchange(leading_, true);
        const std::uint64_t news = schedule_.news();
        slots_.ask_for(count);
        held.unlock();
        array<ref<active_job>> runnable;
        const result<std::size_t> got = intake_.fetch(count, runnable);
        held.lock();
        slots_.answered(count);
        keep_ready(runnable);
        attempt([&] { invite_helpers(held); });
        const bool failed = !schedule_.plan(got, news);
        if (leads) leading_ = false;
        if (!leads) lead_.notify_one();  // what the leader waits for may have changed
        if (failed) log_unlocked(held, [&] { log_failure(got.error()); });
    }
    // A log hook is the user's code.
    template <class Log>
    void log_unlocked(lock_guard& held, Log log) {
        held.unlock();
        attempt(log);
        held.lock();
    }
    // In reverse: threads take from the back, in the backend's order. With the mutex held.
    void keep_ready(array<ref<active_job>>& runnable) {
        if (!insist([&] { ready_.reserve(ready_.size() + runnable.size()); }))
            return;  // the stop reports them
        for (; !runnable.empty(); runnable.pop_back()) ready_.push_back(std::move(runnable.back()));
    }
    // An answer that was refused may have claimed jobs.
    void log_failure(const error& why) const {
        worker_.log.write(why.code == errc::bad_answer ? log_level::error : log_level::warn, "FETCH failed",
                          {field("error", why.text)});
    }

    // Someone must lead while this thread is busy: an idle one, or a new one. With the mutex held, which is let go of for
    // a new one.
    void pass_lead(lock_guard& held) {
        if (leading_ || (closed_ && ready_.empty())) return;
        if (idle_ > 0) {
            work_.notify_one();
        } else if (job_threads_ < slots_.count()) {
            attempt([&] { add_helpers(held, {ref<active_job>()}); });
        }
    }

    // All ready jobs but one are for other threads.
    void invite_helpers(lock_guard& held) {
        std::size_t wanted = ready_.empty() ? 0 : ready_.size() - 1;
        for (std::size_t i = 0; i < idle_ && wanted > 0; ++i, --wanted) work_.notify_one();
        array<ref<active_job>> given;
        given.reserve(wanted);
        for (; wanted > 0 && job_threads_ + given.size() < slots_.count(); --wanted)
            given.push_back(take_ready());
        if (!given.empty()) add_helpers(held, given);
    }

    // Where the system has no more threads, there are as many as it has for now.
    void add_helpers(lock_guard& held, const array<ref<active_job>>& jobs) {
        const result<void> added = start_job_threads(held, jobs);
        if (added) return;
        slots_.lower(job_threads_);
        log_unlocked(held, [&] { slots_.log_lowered(added.error()); });
    }

    const ref<worker_context> context_;
    worker_context& worker_;
    const ref<all_jobs_cancel> all_jobs_ = make_ref<all_jobs_cancel>();
    next_look looks_{worker_.supervisor};
    mutex mutex_;
    condition work_;  // resting threads: a ready job, the lead to take, or the end
    condition lead_;  // the leader: a slot or a phase changed
    array<ref<active_job>> ready_;
    running_jobs running_;
    job_slots slots_;
    fetch_schedule schedule_;
    std::size_t job_threads_ = 0;
    std::size_t idle_ = 0;  // of them, those that rest
    bool leading_ = false;
    atomic<bool> closed_{false};  // set with the mutex held
    pool_threads threads_;
    cancel_calls cancels_;
    report_queue reports_;
    job_intake intake_;
};

}  // namespace ojs::detail
