// job_pool: the threads that run jobs and, one at a time, fetch them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "../../base/detail/clock.ipp"
#include "../jobs/cancel_calls.ipp"
#include "../jobs/fetcher.ipp"

namespace ojs::detail {

// When the next FETCH is due: at once while jobs arrive or there is news, then by the poll interval; after a
// failure, when its pause is over. The pool's mutex guards it.
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

    // After a FETCH that was sent when the news were `news`. False: it failed, which is logged.
    bool plan(const result<std::size_t>& got, std::uint64_t news) {
        const time_point now = steady_clock::now();
        if (backing_off_ && now < due_) return true;  // another FETCH, that overlapped with this one, failed
        backing_off_ = !got && got.error().code != errc::cancelled;
        if (backing_off_) {
            due_ = deadline_after(detail::max(got.error().retry_after, pauses_.next()));
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

// The threads that run jobs, at most `concurrency`, each with at most one job. They FETCH for themselves, and
// hand what they cannot run to others; so a busy worker changes threads rarely, and with one slot never.
class job_pool : public ref_counted {
  public:
    job_pool(ref<worker_context> context, array<ref<registered_handler>> handlers)
        : context_(std::move(context)),
          worker_(*context_),
          slots_(max_slots()),
          schedule_(worker_.options.poll_interval),
          threads(*this, in_handlers_, worker_),
          cancels(threads),
          reports(
              worker_, threads, [this] { slot_came_free(); },
              [this] { cancels.notify_all([this] { return jobs_in_handlers(); }); }),
          intake(worker_, std::move(handlers), group, reports) {}

    result<void> start() {
        unique_lock held(mutex_);
        return start_threads(held);
    }

    // Something a FETCH depends on has changed: the phase, or a slot that came free.
    void wake() {
        const unique_lock held(mutex_);
        schedule_.expect_work();
        lead_.notify_one();
    }
    // A FETCH that is due may begin now. One that has begun already is not repeated, as wake() would.
    void look_again() {
        const unique_lock held(mutex_);
        lead_.notify_one();
    }

    // The intake is closed: threads without a job end.
    void close() {
        const unique_lock held(mutex_);
        closed_ = true;
        lead_.notify_one();
        work_.notify_all();
    }

    // For the supervisor: after a shortage, starts one more thread when it is time. Returns the next time.
    time_point retry_threads(time_point now) {
        const time_point due = retry_at_;
        if (now < due) return due;
        unique_lock held(mutex_);
        retry_at_ = never;
        if (closed_ && ready_.empty()) return never;
        const bool started = start_threads(held).has_value();
        const bool all = started && ++slots_ >= max_slots();
        if (!all) retry_at_ = started ? now : now + retry_pause;
        if (all) log_slots(held, log_level::info, "threads can be created again");
        return retry_at_;
    }

    // Reports a stuck job; its slot stays taken. False: the handler was faster.
    bool report_stuck(const ref<active_job>& job) {
        verdict report = cut_short(worker_, *job, job->cancel.reason(), "");  // may throw: before it is taken
        if (!job->take()) return false;
        {
            const unique_lock held(mutex_);
            if (job->word.add(job_word::slot_kept, job_word::left)) ++kept_slots_;
        }
        reports.add(job, std::move(report));
        return true;
    }
    // Frees its slot for another thread.
    void replace_thread(active_job& job) {
        unique_lock held(mutex_);
        if (!job.word.has(job_word::slot_kept) || !job.word.add(job_word::slot_replaced, job_word::left))
            return;
        --kept_slots_;
        --job_threads_;
        schedule_.expect_work();
        lead_.notify_one();
        pass_lead(held);
    }

    // In the order of their claims.
    array<ref<active_job>> jobs_in_handlers() const {
        array<ref<active_job>> out;
        out.reserve(in_handlers_);  // outside the table's mutex
        worker_.jobs.each_with_thread([&](active_job& job) { out.push_back(ref<active_job>(&job)); });
        return out;
    }
    // Whether a handler is at work, or its thread has yet to leave the job; or only, whether one may be about
    // to leave: its job knows that it is cancelled, or its handler has returned. After the question, the
    // supervisor is woken when a thread has left its job.
    bool any_in_handler(bool returning) {
        left_asked_ = true;
        bool found = false;
        worker_.jobs.each_with_thread([&](const active_job& job) {
            found = found || !returning || job.cancel.token().seen() || job.word.has(job_word::returned);
        });
        return found;
    }

  private:
    // ---- starting threads: the mutex is held, and let go of meanwhile, as this can take long ----

    // One for each job; those without a thread are ready for others.
    result<void> start_threads(unique_lock& held, job_queue&& jobs = job_queue()) {
        std::size_t missing = jobs.empty() ? 1 : jobs.size();
        ref<start_gate> gate;
        if (missing > 1) attempt([&] { gate = make_ref<start_gate>(); });
        job_threads_ += missing;
        held.unlock();
        threads.join_ended();
        result<void> last;
        ref<active_job> job;
        for (; missing > 0 && last; missing -= last ? 1U : 0U) {
            job = jobs.empty() ? ref<active_job>() : jobs.pop();
            last = unless_out_of_memory([&] { return start_job_thread(job, gate); });
        }
        if (gate) gate->open();
        held.lock();
        job_threads_ -= missing;
        if (!last && job) ready_.push(std::move(job));
        ready_.append(jobs);
        return last;
    }

    result<void> start_job_thread(const ref<active_job>& job, const ref<start_gate>& gate) {
        thread_options options;
        options.stack_size = worker_.options.thread_stack_size;
        options.takes_signals = true;  // a handler may start programs, and those inherit the mask
        options.name = "ojs-job";
        return threads.start(options, [this, job, gate] {
            // A thread's first allocation may wait for a lock of all threads; not when thousands begin.
            void* volatile const first = std::malloc(1);  // volatile: or the compiler would leave it out
            std::free(first);
            if (gate) gate->pass();
            work(job);
        });
    }

    // Someone must lead while this thread is busy: an idle one, or a new one.
    void pass_lead(unique_lock& held) {
        if (leading_ || (closed_ && ready_.empty())) return;
        if (idle_ > 0) {
            work_.notify_one();
        } else if (job_threads_ < slots_) {
            add_helpers(held);
        }
    }

    // All ready jobs but one are for other threads.
    void invite_helpers(unique_lock& held) {
        std::size_t wanted = ready_.empty() ? 0 : ready_.size() - 1;
        for (std::size_t i = 0; i < idle_ && wanted > 0; ++i, --wanted) work_.notify_one();
        job_queue given;
        for (; wanted > 0 && job_threads_ + given.size() < slots_; --wanted) given.push(ready_.pop());
        if (!given.empty()) add_helpers(held, std::move(given));
    }

    // Where the system has no more threads, there are as many as it has for now.
    void add_helpers(unique_lock& held, job_queue&& jobs = job_queue()) {
        const result<void> added = start_threads(held, std::move(jobs));
        if (added) return;
        slots_ = job_threads_;
        retry_at_ = steady_clock::now() + retry_pause;
        worker_.supervisor.notify();
        log_slots(held, log_level::warn, "cannot create threads; concurrency lowered for now",
                  &added.error());
    }
    void log_slots(unique_lock& held, log_level level, const char* message, const error* why = nullptr) {
        const std::size_t slots = slots_;
        log_unlocked(held, [&] {
            std::vector<log_field> fields = {field("concurrency", slots)};
            if (why != nullptr) fields.push_back(field("error", why->text));
            worker_.log.write({level, message, std::move(fields), {}});
        });
    }
    // A log hook is the user's code.
    template <class Log>
    void log_unlocked(unique_lock& held, Log log) {
        held.unlock();
        attempt(log);
        held.lock();
    }

    // ---- a job thread ----

    // What it does until close(). One that starts with a job takes no lock for it: among handlers that keep
    // every processor busy, each wait for a lock can cost a turn of all of them.
    void work(ref<active_job> job) {
        for (;;) {
            if (job) run_to_end(job);
            unique_lock held(mutex_);
            if (job && !free_slot(*job)) return;
            job = next_job(held);
            if (!job) {
                held.unlock();
                return cancels.help_notify_all();
            }
            pass_lead(held);
        }
    }

    void run_to_end(const ref<active_job>& job) {
        const auto body = [&] {
            run_job(*job);
            const cancellable on(true);
            pthread_testcancel();  // a request that came too late for this job must not hit the next one
        };
        call_guarded(body, [&] { thread_lost(job); });
        leave(*job);
    }

    void run_job(active_job& job) {
        if (!job.begin_handler()) return;  // the stop was faster
        in_handlers_.fetch_add(1);
        if (job.timeout_at() < next_look.load()) worker_.supervisor.notify();
        verdict report = call_handler(job);
        job.end_handler();
        leave_forked_child();
        if (job.take()) return settle(worker_, job, std::move(report));
        if (job.known_stuck())
            log_job(worker_, job, log_level::warn, "a stuck handler has returned; its result is dropped",
                    report);
    }

    // Runs user code: whatever it throws is a FAIL.
    verdict call_handler(active_job& job) {
        try {
            return judge(worker_, job, job.call_handler(worker_));
        } catch (const std::exception& thrown) {
            return judge_thrown(job, thrown.what());
        } catch (...) {
            pass_on_thread_end();
            return judge_thrown(job, "the handler threw something that is not a std::exception");
        }
    }
    verdict judge_thrown(const active_job& job, std::string_view what) const {
        verdict report = failed({"handler_error", "out of memory", true, "{}"});  // too short to be allocated
        insist([&] { report = judge_exception(worker_, job, printable(what, 2000)); });
        return report;
    }

    // A handler called fork() and its child came back here. Two processes must not report one job.
    void leave_forked_child() const {
        constexpr std::string_view text =
            "error: a child made by fork() in a job handler returned from it; the child ends here\n";
        if (getpid() == worker_.owner) return;
        // Not by the log, whose mutex may be held. There is nothing to do where this fails.
        if (::write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(70);
        _exit(70);
    }

    // The handler ended its thread, by pthread_exit() or pthread_cancel(): its job and its part in the pool
    // pass to others.
    void thread_lost(const ref<active_job>& job) {
        leave_forked_child();
        job->end_handler();
        verdict report = judge_thrown(*job, "the handler ended its thread");
        if (job->began() && job->take()) reports.add(job, std::move(report));
        leave(*job);
        unique_lock held(mutex_);
        if (free_slot(*job)) --job_threads_;
        lead_.notify_one();
        pass_lead(held);
    }

    void leave(active_job& job) {
        if (!job.began()) return;
        worker_.jobs.leave(job);
        in_handlers_.fetch_sub(1);
        if (left_asked_ && left_asked_.exchange(false)) worker_.supervisor.notify();
    }
    // With the mutex held. False: another thread has the slot.
    bool free_slot(const active_job& job) {
        const bool replaced = job.word.has(job_word::slot_replaced);
        if (job.word.has(job_word::slot_kept) && !replaced) --kept_slots_;
        schedule_.expect_work();
        return !replaced;
    }

    // A report thread settled a job. In a stop, when nobody FETCHes any more, it waits for no lock.
    void slot_came_free() {
        if (!closed_.load(memory_order::relaxed)) wake();
    }

    // ---- what a thread without a job does next, with the mutex held ----

    // The next job to run, or none when the pool has closed. A thread FETCHes for the slots nobody asks for
    // yet; where that has to wait, one thread waits for the moment, the leader, and the others rest until they
    // are called.
    ref<active_job> next_job(unique_lock& held) {
        while (ready_.empty() && !closed_) {
            const bool may_fetch = worker_.stage.may_fetch() && worker_.beats.registration_tried();
            const std::size_t free = may_fetch ? free_slots() : 0;
            const time_point fetch_at = free > 0 ? schedule_.due() : never;
            if (steady_clock::now() >= fetch_at) {
                fetch(free, held);
            } else if (leading_) {
                ++idle_;
                work_.wait(held);
                --idle_;
            } else {
                leading_ = true;
                lead_.wait_until(held, fetch_at);
                leading_ = false;
            }
        }
        return ready_.empty() ? ref<active_job>() : ready_.pop();
    }

    // Slots without a job, for which no FETCH is in flight. Up to max_held held jobs take none.
    std::size_t free_slots() const noexcept {
        const std::size_t room = slots_ + detail::min(intake.held(), max_held);
        const std::size_t used = worker_.jobs.size() + asked_for_ + kept_slots_;
        return used < room ? detail::min(room - used, slots_) : 0;
    }
    std::size_t max_slots() const noexcept { return static_cast<std::size_t>(worker_.options.concurrency); }

    void fetch(std::size_t count, unique_lock& held) {
        const bool leads = !detail::exchange(leading_, true);
        const std::uint64_t news = schedule_.news();
        asked_for_ += count;
        held.unlock();
        job_queue runnable;
        const result<std::size_t> got = intake.fetch(count, runnable);
        held.lock();
        asked_for_ -= count;
        ready_.append(runnable);
        invite_helpers(held);
        const bool failed = !schedule_.plan(got, news);
        if (leads) leading_ = false;
        if (!leads) lead_.notify_one();  // what the leader waits for may have changed
        if (failed) log_unlocked(held, [&] { log_failure(got.error()); });
    }
    // An answer that was refused may have claimed jobs.
    void log_failure(const error& why) const {
        worker_.log.write(why.code == errc::bad_response ? log_level::error : log_level::warn, "FETCH failed",
                          {field("error", why.text)});
    }

    static constexpr std::chrono::milliseconds retry_pause{1000};
    static constexpr std::size_t max_held = 100;

    const ref<worker_context> context_;
    worker_context& worker_;
    atomic<std::size_t> in_handlers_{0};  // threads that have called a handler and not left its job
    atomic<bool> left_asked_{false};      // the supervisor waits for that
    mutex mutex_;                         // guards everything below but what is atomic
    condition work_;                      // resting threads: a ready job, the lead to take, or the end
    condition lead_;                      // the leader: a slot or a phase changed
    job_queue ready_;                     // to be run
    std::size_t slots_;                   // `concurrency`, or as many as there are threads for
    std::size_t asked_for_ = 0;           // by FETCHes under way
    std::size_t kept_slots_ = 0;          // by stuck handlers whose jobs are reported
    std::size_t job_threads_ = 0;
    std::size_t idle_ = 0;  // of them, those that rest
    bool leading_ = false;
    atomic<bool> closed_{false};          // set with the mutex held
    atomic<time_point> retry_at_{never};  // when to try for a thread that is missing
    fetch_schedule schedule_;

  public:
    const ref<job_group> group = make_ref<job_group>();
    // When the supervisor looks at the jobs next. It sets that before it walks through them, and again after:
    // so either it sees what others have set, or they see that it has to be woken.
    atomic<time_point> next_look{never};
    pool_threads threads;  // the supervisor is woken when they are over
    cancel_calls cancels;
    report_queue reports;
    fetcher intake;
};

}  // namespace ojs::detail
