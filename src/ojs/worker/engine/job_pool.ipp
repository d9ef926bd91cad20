// job_pool: the threads that run jobs and, one at a time, fetch them.
#pragma once

#include <sched.h>

#include <cstdlib>
#include <exception>

#include "../../base/detail/array.hpp"
#include "../../base/detail/exchange.hpp"
#include "../../system/detail/thread_stack.hpp"
#include "settlement.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The threads that run jobs, at most `concurrency`, each with at most one job. They FETCH for themselves, and hand what
// they cannot run to others; so a busy worker changes threads rarely, and with one slot never.
class job_pool : public ref_counted {
  public:
    job_pool(ref<worker_context> context, array<ref<registered_handler>> handlers)
        : context_(std::move(context)),
          worker_(*context_),
          handlers_(std::move(handlers)),
          slots_(concurrency()),
          reports_(worker_, [this] { slot_came_free(); }) {}

    result<void> start() {
        lock_guard held(mutex_);
        return start_job_threads(held, {ref<active_job>()});
    }

    // Something a FETCH depends on has changed: the phase, or a slot that came free.
    void wake() {
        const lock_guard held(mutex_);
        expect_work();
        lead_.notify_one();
    }

    // A FETCH that is due may begin now.
    void look_again() {
        const lock_guard held(mutex_);
        lead_.notify_one();
    }

    // The same as wake() for a job that a report thread settled. In a stop, when nobody FETCHes any more, it waits for no lock.
    void slot_came_free() {
        if (!closed_.load(std::memory_order_relaxed)) wake();
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
        if (now.time_since_epoch().count() < retry_at_.load()) return retry_at();
        lock_guard held(mutex_);
        retry_at_.store(never);
        if (closed_) return retry_at();
        if (!start_job_threads(held, {ref<active_job>()})) {
            retry_at_.store((now + shortage_pause).time_since_epoch().count());
        } else if (++slots_ < concurrency()) {
            retry_at_.store(now.time_since_epoch().count());
        } else {
            worker_.log.write(log_level::info, "threads are to be had again", {field("concurrency", slots_)});
        }
        return retry_at();
    }

    // Reports a job the caller has taken, on a thread beside those that run jobs.
    void report(ref<active_job> job, verdict report) {
        if (reports_.add(std::move(job), std::move(report))) start_report_thread();
    }

    // Reports these as interrupted, on threads of their own, unless their handlers are faster.
    void interrupt(const array<ref<active_job>>& jobs, cancel_reason why) {
        worker_.all_jobs->abandon();
        if (reports_.interrupt(jobs, why)) start_report_thread();
    }

    // Handlers may be busy without an end: from now on they run below what reports them, where they are more than there
    // are processors. Allocates nothing: until it is done, the allocator's locks are theirs as well.
    void lower_handlers() {
        const lock_guard held(mutex_);
        if (static_cast<long>(running_.size()) <= ::sysconf(_SC_NPROCESSORS_ONLN)) return;
        const ahead_of_all here;  // they are thousands perhaps, each with as many turns as this thread
        for (const ref<active_job>& job : running_) job->lower_handler();
    }

    // After all jobs were cancelled by one store: ends their waits and calls their callbacks, beside the caller.
    void tell_all_cancelled() {
        const ref<job_pool> self(this);
        // Only a handler that has begun can wait or be called back; and those that waited first are woken first, which
        // spares the system to search for each among all that wait.
        const auto tell = [self] {
            const array<ref<active_job>> jobs = self->jobs_in_handlers();
            array<ref<active_job>> held_up;  // by a handler that may wait long for a processor
            for (const ref<active_job>& job : jobs) {
                if (!job->cancel.try_end_waits()) held_up.push_back(job);
            }
            const ref<callback_round> round = callbacks_of(jobs);
            const bool beside_us = round->jobs.empty() || self->add_callback_thread(round);
            for (const ref<active_job>& job : held_up) job->cancel.end_waits();
            if (!beside_us) self->call_back(*round);
        };
        if (!add_thread("ojs-cancel", tell)) tell();
    }

    // Calls back those who asked to be told, beside the caller: what they do is not ours to know.
    void run_cancel_callbacks(const array<ref<active_job>>& jobs) {
        const ref<callback_round> round = callbacks_of(jobs);
        if (round->jobs.empty() || add_callback_thread(round)) return;
        call_back(*round);  // for want of threads; a job that is never told might wait for ever
    }

    // True once every report is made and every thread has ended, which joins them. False at the deadline, or when only
    // handlers are left.
    bool end_threads(time_point deadline) {
        reports_.close();
        lock_guard held(mutex_);
        while (live_ > running_.size()) {
            if (!ended_.wait_until(held, deadline)) break;
        }
        if (live_ > 0) return false;
        held.unlock();
        join_ended();
        return true;
    }

    // Leaves threads that do not come back to themselves; each holds what it uses.
    void abandon_threads() {
        const lock_guard held(mutex_);
        abandoned_ = true;
        for (const ref<pool_thread>& each : threads_) each->handle.detach();
        threads_.clear();
        for (; gone_; gone_ = detail::exchange(gone_->next_gone, {})) gone_->handle.detach();
    }

    array<ref<active_job>> jobs_in_handlers() {
        const lock_guard held(mutex_);
        return running_;
    }
    // Whether a handler is at work, or its thread not yet home; and whether one of them may be about to be: it knows of its
    // cancellation, or the handler has returned and what is left to do is ours. The supervisor is woken when one has come
    // home since it asked.
    bool any_in_handler() {
        const lock_guard held(mutex_);
        tells_returns_ = true;
        return !running_.empty();
    }
    bool any_returning() {
        const lock_guard held(mutex_);
        tells_returns_ = true;
        for (const ref<active_job>& each : running_) {
            if (each->cancel.token().seen() || !each->runner.is_inside()) return true;
        }
        return false;
    }

    // Where the thread of a job is, as far as the platform tells; empty if it has none.
    std::string stack_of(active_job& job, time_point deadline) {
        std::string stack;
        job.runner.use([&](pthread_t thread) { stack = capture_stack(thread, deadline); });
        return stack;
    }

  private:
    // Threads that begin together: whoever starts them does not compete with those it has started.
    class start_gate : public ref_counted {
      public:
        start_gate() noexcept { pthread_rwlock_wrlock(&lock_); }
        ~start_gate() { pthread_rwlock_destroy(&lock_); }

        void open() noexcept { pthread_rwlock_unlock(&lock_); }  // by the thread that made it
        void pass() noexcept {
            pthread_rwlock_rdlock(&lock_);
            pthread_rwlock_unlock(&lock_);
        }

      private:
        pthread_rwlock_t lock_ = PTHREAD_RWLOCK_INITIALIZER;
    };

    // Jobs whose callbacks are to be called. One that takes its time holds up none but its thread.
    struct callback_round : ref_counted {
        array<ref<active_job>> jobs;
        std::atomic<std::size_t> next{0};
        std::atomic<int> free_threads{0};  // not in a callback
    };

    static ref<callback_round> callbacks_of(const array<ref<active_job>>& jobs) {
        const ref<callback_round> round = make_ref<callback_round>();
        for (const ref<active_job>& job : jobs) {
            if (job->cancel.callbacks_due()) round->jobs.push_back(job);
        }
        return round;
    }

    // Listed while it lives, and moved to those that ended by itself.
    struct pool_thread : ref_counted {
        thread handle;
        std::size_t place = 0;
        bool ended = false;
        ref<pool_thread> next_gone;
    };

    // As many threads, each of which begins with its job, or with none. The mutex, which is held, is let go of meanwhile:
    // this takes its time among handlers that keep every processor busy. Jobs without a thread are ready for others.
    result<void> start_job_threads(lock_guard& held, const array<ref<active_job>>& jobs) {
        job_threads_ += jobs.size();
        for (const ref<active_job>& job : jobs) {
            if (job) enlist(running_, job);
        }
        held.unlock();
        join_ended();
        const ref<start_gate> gate = jobs.size() > 1 ? make_ref<start_gate>() : ref<start_gate>();
        result<void> last;
        std::size_t started = 0;
        while (started < jobs.size() && (last = start_job_thread(jobs[started], gate))) ++started;
        if (gate) gate->open();
        held.lock();
        for (; started < jobs.size(); ++started) {
            --job_threads_;
            if (!jobs[started]) continue;
            strike(running_, *jobs[started]);
            ready_.push_back(jobs[started]);
        }
        return last;
    }

    result<void> start_job_thread(const ref<active_job>& job, const ref<start_gate>& gate) {
        thread_options options;
        options.stack_size = worker_.options.thread_stack_size;
        options.takes_signals = true;  // a handler may start programs, and those inherit the mask
        options.name = "ojs-job";
        const ref<job_pool> self(this);
        const ref<pool_thread> entry = make_ref<pool_thread>();
        pool_thread* const own = entry.get();
        result<thread> started = start_thread(*entry, options, [self, own, job, gate] {
            // The first allocation of a thread may wait for a lock of all of them; not when thousands begin at once.
            void* volatile const first = std::malloc(1);  // volatile: or the compiler would leave it out
            std::free(first);
            if (gate) gate->pass();
            self->work(*own, job);
        });
        if (!started) return started.error();
        const lock_guard held(mutex_);
        keep(entry, std::move(*started));
        return {};
    }

    result<void> add_thread(const char* name, function<void()> body) {
        const ref<pool_thread> entry = make_ref<pool_thread>();
        const ref<job_pool> self(this);
        pool_thread* const own = entry.get();
        const auto work = [self, own, body = std::move(body)] {
            body();
            self->join_ended();
            const lock_guard held(self->mutex_);
            self->thread_ended(*own);
        };
        result<thread> started = start_thread(*entry, worker_.service_thread(name), work);
        if (!started) return started.error();
        const lock_guard held(mutex_);
        keep(entry, std::move(*started));
        return {};
    }

    // Each starts two more where there is work for them, so that a stop does not wait for one thread to start them all.
    void start_report_thread() {
        const ref<job_pool> self(this);
        const auto work = [self] {
            for (int i = 0; i < 2 && self->reports_.wants_more(); ++i) self->start_report_thread();
            self->reports_.work();
        };
        if (!add_thread("ojs-report", work)) reports_.no_thread();
    }

    bool add_callback_thread(const ref<callback_round>& round) {
        const ref<job_pool> self(this);
        round->free_threads.fetch_add(1);
        const result<void> added = add_thread("ojs-cancel", [self, round] {
            set_thread_nice(self->nice_);  // they are the user's, whoever starts this
            sched_yield();  // who started this is about to call one itself, and if that is quick, goes on with the others
            self->call_back(*round);
        });
        if (!added) round->free_threads.fetch_sub(1);
        return added.has_value();
    }

    void call_back(callback_round& round) {
        for (std::size_t i; (i = round.next.fetch_add(1)) < round.jobs.size();) {
            const ref<active_job> job = round.jobs[i];
            const bool last_free = round.free_threads.fetch_sub(1) <= 1;
            if (last_free && i + 1 < round.jobs.size()) add_callback_thread(ref<callback_round>(&round));
            // One that ends its thread must not keep the others from being called.
            call_guarded([&] { job->cancel.run_callbacks(); },
                         [&] {
                             run_cancel_callbacks({job});
                             round.free_threads.fetch_add(1);
                             call_back(round);
                         });
            round.free_threads.fetch_add(1);
        }
    }

    // `body` ends with thread_ended(), unless it is unwound by the end of its thread.
    result<thread> start_thread(pool_thread& entry, thread_options options, function<void()> body) {
        live_.fetch_add(1);
        const ref<job_pool> self(this);
        pool_thread* const own = &entry;  // no reference: a thread cannot join itself
        result<thread> started = thread::start(
            [self, body, own] {
                call_guarded(body, [&] {
                    const lock_guard held(self->mutex_);
                    self->thread_ended(*own);
                });
            },
            options);
        if (!started) live_.fetch_sub(1);
        return started;
    }

    // With the mutex held. The thread may have ended meanwhile.
    void keep(const ref<pool_thread>& entry, thread handle) {
        if (abandoned_) return handle.detach();
        entry->handle = std::move(handle);
        if (entry->ended) {
            to_be_joined(*entry);
        } else {
            enlist(threads_, entry);
        }
    }
    void to_be_joined(pool_thread& entry) {
        entry.next_gone = std::move(gone_);
        gone_ = ref<pool_thread>(&entry);
    }

    // With the mutex held.
    void thread_ended(pool_thread& entry) {
        if (live_.fetch_sub(1) <= running_.size() + 1) ended_.notify_all();
        if (abandoned_) return;
        entry.ended = true;
        if (!entry.handle.joinable()) return;  // it is about to be kept
        to_be_joined(entry);
        strike(threads_, entry);
    }

    // A thread nobody joins keeps its stack. These have nothing left to do but to end; what the C library does for that may
    // still wait for a lock among thousands of busy threads, so nobody calls this who has to report something first.
    void join_ended() {
        ref<pool_thread> ended;
        {
            const lock_guard held(mutex_);
            ended = std::move(gone_);
        }
        while (ended) ended = detail::exchange(ended->next_gone, {});
    }

    // Lists whose members know their place: striking one takes the same time however long they are.
    template <class T>
    static void enlist(array<ref<T>>& list, const ref<T>& member) {
        member->place = list.size();
        list.push_back(member);
    }
    template <class T>
    static void strike(array<ref<T>>& list, const T& member) {
        const std::size_t place = member.place;
        list.back()->place = place;
        detail::swap(list[place], list.back());
        list.pop_back();
    }

    time_point retry_at() const noexcept { return time_point(steady_clock::duration(retry_at_.load())); }

    // What a job thread does until close(). One that starts with a job takes no lock for it: among handlers that keep
    // every processor busy, each wait for a lock can cost a turn of all of them.
    void work(pool_thread& own, ref<active_job> job) {
        for (;;) {
            if (job) run_to_end(job);
            lock_guard held(mutex_);
            if (job) job_left(*job);
            job = next_job(held);
            if (!job) return thread_ended(own);
            enlist(running_, job);
            pass_lead(held);
        }
    }

    // With the mutex held.
    void job_left(const active_job& job) {
        strike(running_, job);
        if (detail::exchange(tells_returns_, false)) worker_.supervisor.notify();
        expect_work();  // its slot is free
    }

    void run_to_end(const ref<active_job>& job) {
        const auto body = [&] {
            run(*job);
            const cancellable on(true);
            pthread_testcancel();  // a request that came too late for this job must not hit the next one
        };
        call_guarded(body, [&] { thread_lost(job); });
    }

    // The handler ended its thread, by pthread_exit() or pthread_cancel(): its job and its part in the pool pass to others.
    void thread_lost(const ref<active_job>& job) {
        if (getpid() != worker_.owner) leave_forked_child();
        if (job->take(settler::handler)) report(job, judge_exception(*job, "the handler ended its thread"));
        lock_guard held(mutex_);
        job_left(*job);
        --job_threads_;
        lead_.notify_one();
        pass_lead(held);
    }

    // The next job to run, or none when the pool has closed. A thread FETCHes for the slots nobody asks for yet; where
    // that has to wait, one thread waits for the moment, the leader, and the others wait for it.
    ref<active_job> next_job(lock_guard& held) {
        for (;;) {
            if (!ready_.empty()) {
                const ref<active_job> job = ready_.back();
                ready_.pop_back();
                return job;
            }
            if (closed_) return {};
            const std::size_t free = free_slots();
            const bool may_fetch = free > 0 && worker_.may_fetch() && worker_.registration_tried.load();
            const bool now = may_fetch && steady_clock::now() >= next_fetch_;
            if (leading_ && !now) {
                ++idle_;
                work_.wait(held);
                --idle_;
                continue;
            }
            const bool leads = !detail::exchange(leading_, true);
            if (now) {
                fetch(held, free);
            } else {
                lead_.wait_until(held, may_fetch ? next_fetch_ : time_point::max());
            }
            if (leads) leading_ = false;
            if (!leads) lead_.notify_one();  // what the leader waits for may have changed
        }
    }

    std::size_t free_slots() const {
        const std::size_t taken = worker_.jobs.size() + asked_for_;
        return taken < slots_ ? slots_ - taken : 0;
    }

    // There may be work before the time set for the next FETCH; not while the backend is failing.
    void expect_work() {
        ++news_;
        if (!backing_off_) next_fetch_ = time_point::min();
    }

    // Someone must lead while this thread is busy: an idle one, or a new one. With the mutex held, which is let go of for
    // a new one.
    void pass_lead(lock_guard& held) {
        if (leading_ || closed_) return;
        if (idle_ > 0) {
            work_.notify_one();
        } else if (job_threads_ < slots_) {
            add_helpers(held, {ref<active_job>()});
        }
    }

    std::size_t concurrency() const noexcept { return static_cast<std::size_t>(worker_.options.concurrency); }

    // Where the system has no more threads, there are as many as it has for now.
    void add_helpers(lock_guard& held, const array<ref<active_job>>& jobs) {
        const result<void> added = start_job_threads(held, jobs);
        if (!added) note_shortage(added.error());
    }

    void note_shortage(const error& why) {
        slots_ = job_threads_;
        retry_at_.store((steady_clock::now() + shortage_pause).time_since_epoch().count());
        worker_.supervisor.notify();
        worker_.log.write(log_level::warn, "no more threads to be had; concurrency lowered for now",
                          {field("concurrency", slots_), field("error", why.text)});
    }

    void fetch(lock_guard& held, std::size_t count) {
        const std::uint64_t news = news_;
        asked_for_ += count;
        held.unlock();
        array<ref<active_job>> runnable;
        const result<std::size_t> got = claim(count, runnable);
        held.lock();
        asked_for_ -= count;
        // Taken from the back, so that the backend's order is kept.
        for (; !runnable.empty(); runnable.pop_back()) ready_.push_back(std::move(runnable.back()));
        invite_helpers(held);
        plan_next_fetch(got, news != news_);
    }

    // One FETCH. Returns how many jobs came, and in `runnable` those to run; the others are being reported.
    result<std::size_t> claim(std::size_t count, array<ref<active_job>>& runnable) {
        drain_barrier::ticket ticket = worker_.claims.enter();
        if (!ticket) return error{errc::cancelled, 0, "the intake is closed"};
        const time_point sent = steady_clock::now();
        const std::uint32_t version = worker_.queues.version();
        worker_identity some;
        fetch_request request;
        request.worker = asking_identity(some);
        if (request.worker->queues.empty()) {
            worker_.leave(ticket);
            return std::size_t{0};
        }
        request.count = count;
        request.still_wanted = [this, version] {
            return worker_.may_fetch() && worker_.queues.version() == version;
        };
        result<std::vector<job>> answer = worker_.call([&](ojs::transport& transport) {
            return transport.fetch(request, sent + worker_.options.request_timeout);
        });
        const bool sent_at_all = answer || answer.error().code != errc::cancelled;
        const std::size_t came = answer ? accept(std::move(*answer), sent, ticket, runnable) : 0;
        if (sent_at_all) {
            worker_.note_fetch(!answer ? fetch_end::failed : came > 0 ? fetch_end::jobs : fetch_end::empty);
        }
        worker_.leave(ticket);
        if (!answer) return answer.error();
        return came;
    }

    // As which the worker asks: with the queues that are open, `some` of them where any was ever quieted.
    const worker_identity* asking_identity(worker_identity& some) const {
        if (!worker_.queues.ever_used()) return &worker_.identity;
        some = worker_.identity;
        some.queues = worker_.queues.open();
        return &some;
    }

    void plan_next_fetch(const result<std::size_t>& got, bool had_news) {
        const time_point now = steady_clock::now();
        if (backing_off_ && now < next_fetch_)
            return;  // another FETCH, that overlapped with this one, failed
        backing_off_ = !got && got.error().code != errc::cancelled;
        if (backing_off_) {
            const std::chrono::milliseconds pause = pauses_.next();
            next_fetch_ = now + (got.error().retry_after > pause ? got.error().retry_after : pause);
            // An answer that was refused may have claimed jobs.
            const log_level level = got.error().code == errc::bad_answer ? log_level::error : log_level::warn;
            worker_.log.write(level, "FETCH failed", {field("error", got.error().text)});
            return;
        }
        pauses_.reset();
        const bool more_to_expect = had_news || (got && *got > 0);
        next_fetch_ = more_to_expect ? time_point::min() : now + worker_.options.poll_interval;
    }

    // All ready jobs but one are for other threads.
    void invite_helpers(lock_guard& held) {
        std::size_t wanted = ready_.empty() ? 0 : ready_.size() - 1;
        for (std::size_t i = 0; i < idle_ && wanted > 0; ++i, --wanted) work_.notify_one();
        array<ref<active_job>> given;
        for (; wanted > 0 && job_threads_ + given.size() < slots_; --wanted) {
            given.push_back(std::move(ready_.back()));
            ready_.pop_back();
        }
        if (!given.empty()) add_helpers(held, given);
    }

    // Claimed jobs become active ones, ready to run or reported at once. Returns how many there were.
    std::size_t accept(std::vector<job> claimed, time_point sent, const drain_barrier::ticket& ticket,
                       array<ref<active_job>>& runnable) {
        std::size_t came = 0;
        for (job& each : claimed) {
            if (each.id.empty()) {
                name_unreportable(each);
                continue;
            }
            // The number 7 is not the job "7" that may run here.
            if (each.id_json.empty() && renews_running_job(each.id, sent)) continue;
            ++came;
            ref<active_job> job = make_ref<active_job>(std::move(each), sent,
                                                       worker_.options.visibility_timeout, worker_.all_jobs);
            job->ticket = ticket.split();
            job->handler = find_handler(job->job.type);
            worker_.jobs.add(job);
            worker_.beats.cover(sent, job->lease);
            worker_.claimed.fetch_add(1, std::memory_order_relaxed);
            log_job(worker_, *job, log_level::debug, "job fetched");
            if (worker_.past_intake()) {
                report_unstarted(job, handed_back(worker_));
            } else if (!job->job.malformed.empty()) {
                report_unstarted(job, failed({"invalid_payload", job->job.malformed, false, "{}"}));
            } else if (!job->handler) {
                report_unstarted(
                    job,
                    failed({"unsupported",
                            cat({"no handler is registered for job type '", printable(job->job.type), "'"}),
                            false, "{}"}));
            } else {
                warn_if_too_long(*job);
                runnable.push_back(job);
            }
        }
        return came;
    }

    // A job that may be interrupted by any stop, as its own time is longer than the grace period; once a type. [GS 6.2, 7.2]
    void warn_if_too_long(const active_job& job) {
        const std::chrono::milliseconds grace = worker_.options.shutdown_grace_period;
        if (job.job.timeout <= grace || job.handler->options.long_running) return;
        if (job.handler->told_too_long.exchange(true)) return;
        worker_.log.write(
            log_level::warn, "jobs of this type may take longer than the grace period",
            {field("job_type", printable(job.job.type)), field("timeout_ms", job.job.timeout.count()),
             field("grace_period", format_duration(grace)),
             field("fix",
                   "raise the grace period and the container's, or register it as "
                   "long_running and save checkpoints")});
    }

    // Without an id nobody can be told about it; it comes back after its visibility timeout.
    void name_unreportable(const job& claimed) {
        const std::string why = claimed.malformed.empty() ? "the job has no id" : claimed.malformed;
        worker_.claimed.fetch_add(1, std::memory_order_relaxed);
        worker_.mark_nameless(why);
        worker_.log.write(log_level::error, "job could not be reported",
                          {field("job_type", printable(claimed.type)), field("error", why)});
    }

    // A job whose claim had run out and that came to us again while it still runs here: running it twice helps nobody.
    bool renews_running_job(const std::string& id, time_point sent) {
        const ref<active_job> known = worker_.jobs.find_open(id);
        if (!known) return false;
        known->extend_lease(sent);
        worker_.log.write(log_level::warn, "a job that runs here was claimed again", {field("job_id", id)});
        return true;
    }

    void report_unstarted(const ref<active_job>& job, verdict report) {
        if (job->take(settler::handler)) this->report(job, std::move(report));
    }

    ref<registered_handler> find_handler(const std::string& type) const {
        for (const ref<registered_handler>& each : handlers_) {
            if (each->type == type) return each;
        }
        return {};
    }

    void run(active_job& job) {
        if (job.taken()) return;  // the stop was faster
        job.handler_begins();
        worker_.look_at_jobs_by(job.timeout_at);
        verdict report = call(job);
        if (getpid() != worker_.owner) leave_forked_child();
        if (job.take(settler::handler)) settle(worker_, job, std::move(report));
    }

    // Runs user code: whatever it throws is a FAIL.
    verdict call(active_job& job) {
        try {
            const handler_thread::inside here(job.runner);
            if (job.taken()) return {};  // the stop came between, and may no longer wait for its handler
            return judge(worker_, job, worker_context::call_handler(worker_, job));
        } catch (const std::exception& thrown) {
            return judge_exception(job, printable(thrown.what(), 2000));
        } catch (...) {
            pass_on_thread_end();
            return judge_exception(job, "the handler threw something that is not a std::exception");
        }
    }

    // Throwing is also a way to return on cancellation.
    verdict judge_exception(const active_job& job, std::string message) const {
        const cancel_token token = job.cancel.token();
        if (token.seen()) return cut_short(worker_, job, token.reason(), message);
        return failed({"handler_error", std::move(message), true, "{}"});
    }

    // A handler called fork() and its child came back here. Two processes must not report one job.
    [[noreturn]] static void leave_forked_child() {
        constexpr std::string_view text =
            "error: a child made by fork() in a job handler returned from it; the child ends here\n";
        if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
            _exit(70);  // not by the log, whose mutex may be held
        _exit(70);
    }

    static constexpr std::chrono::milliseconds shortage_pause{1000};

    const ref<worker_context> context_;
    worker_context& worker_;
    const array<ref<registered_handler>> handlers_;
    const int nice_ = thread_nice();  // of who starts the worker
    mutex mutex_;
    condition work_;   // idle threads: a ready job, the lead to take, or the end
    condition lead_;   // the leader: a slot or a phase changed
    condition ended_;  // a thread ended
    array<ref<active_job>> ready_;
    array<ref<active_job>> running_;
    array<ref<pool_thread>> threads_;
    ref<pool_thread> gone_;             // those that ended, to be joined: a list
    std::atomic<std::size_t> live_{0};  // threads that have not ended
    std::size_t job_threads_ = 0;       // of them, those that run jobs
    std::size_t idle_ = 0;
    std::size_t slots_;  // jobs at a time: the concurrency, or as many as there are threads
    std::atomic<steady_clock::rep> retry_at_{never};
    std::size_t asked_for_ = 0;  // by FETCHes under way
    std::uint64_t news_ = 0;     // see expect_work()
    bool leading_ = false;
    std::atomic<bool> closed_{false};  // set with the mutex held
    bool abandoned_ = false;
    bool tells_returns_ = false;
    bool backing_off_ = false;
    time_point next_fetch_ = time_point::min();
    backoff pauses_{std::chrono::milliseconds(100), std::chrono::milliseconds(10000)};
    report_queue reports_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
