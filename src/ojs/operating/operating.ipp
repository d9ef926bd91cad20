#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "../base/detail/text.hpp"
#include "../core/signals.ipp"
#include "../server/service_notifier.ipp"
#include "detail/health.ipp"
#include "detail/thread_stack.ipp"
#include "operating.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

class operating_part final : public worker_part {
  public:
    result<void> start(const running_worker_ref& worker) override {
        worker_ = worker;
        log_options log = worker->options().log;
        log.hook = [worker](const log_record& record) { worker->log(record); };
        log_ = logger(std::move(log), "worker");
        if (worker->owns_process()) service_.start(steady_clock::now());
        if (worker->options().health_address.empty()) return {};
        counted_ = make_ref<worker_metrics>(worker->options().queues, worker->job_types());
        answers_ = make_ref<health_answers>(worker, counted_);
        server_ = serve_health(*worker, answers_);
        return server_ ? result<void>() : server_.error();
    }

    void on_phase(const lifecycle_state& state) override {
        const phase before = detail::exchange(phase_, state.phase);
        if (counted_ && before != state.phase) counted_->phase_began(state.phase);
        if (before < phase::draining && state.phase >= phase::draining) {
            service_.stopping(service_text());
        } else {
            report_service();
        }
    }
    time_point on_tick(time_point now) override {
        if (counted_) counted_->note_turn();
        if (service_.active() && service_.tick(now, worker_->stop_deadline())) report_service();
        return service_.next_due();
    }
    std::string stack_of(pthread_t thread, time_point deadline) override {
        return capture_stack(thread, deadline);
    }

    void on_heartbeat(bool answered) override {
        if (counted_) count_one(answered ? counted_->beats_ok : counted_->beats_failed);
    }
    void on_fetch(fetch_status status) override {
        if (counted_) count_one(counted_->fetches[static_cast<std::size_t>(status)]);
    }
    void on_job_settled(const job_settlement& job) override {
        if (counted_) counted_->jobs.settled(job);
    }

    // Ends the waits for the worker, and lets answers under way be finished.
    void stop(time_point deadline) override {
        if (answers_) answers_->end_waits();
        if (server_) server_->stop(deadline);
        server_ = error{};
        answers_ = {};
        log_ = logger();
        worker_ = {};
    }

  private:
    void report_service() {
        if (service_.active()) service_.report(true, service_text());
    }
    std::string service_text() const {
        return cat({to_string(worker_->phase()), ", ", worker_->active_jobs(), " jobs in flight"});
    }

    running_worker_ref worker_;
    logger log_;
    service_report service_{log_};  // of the supervising thread
    phase phase_ = phase::running;  // the same
    ref<worker_metrics> counted_;   // none: no health server; set in start() only, as abandoned threads count
    ref<health_answers> answers_;
    result<http_server> server_ = error{};
};

// ---- as_init() ----

// Takes the status of every child that has ended. True once that of `program` is among them, in `status`.
inline bool reap(pid_t program, int& status) {
    bool ended = false;
    for (;;) {
        int each = 0;
        const pid_t child = ::waitpid(-1, &each, WNOHANG);
        if (child <= 0) return ended;
        if (child != program) continue;
        status = each;
        ended = true;
    }
}

[[noreturn]] inline void be_init(pid_t program, const sigset_t& all) {
#ifdef __linux__
    ::prctl(PR_SET_NAME, "ojs-init");  // what detect_container() knows it by
#endif
    int status = 0;
    while (!reap(program, status)) {
        int number = 0;
        // Not sigwaitinfo(), which not every system has.
        if (::sigwait(&all, &number) == 0 && number != SIGCHLD) ::kill(program, number);
    }
    ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

// So that Ctrl-C reaches the program once, not through us as well. SIGTTOU, which would stop it, is blocked.
inline void take_terminal() {
    if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
    ::setpgid(0, 0);
    ::tcsetpgrp(STDIN_FILENO, ::getpid());
}

}  // namespace detail

OJS_SHUTDOWN_INLINE worker_part_factory operating() {
    return {"operating", [] { return static_cast<worker_part*>(new detail::operating_part); },
            detail::check_health, detail::check_kubernetes_health};
}

OJS_SHUTDOWN_INLINE result<void> as_init(init_options options) {
    if (getpid() != 1 && !options.always) return {};
    // The child would lose its claim on them: a fork gives signals back.
    if (detail::process.claim.load() != 0) {
        return error{errc::busy, 0, "as_init() must come before signals::install()"};
    }
    sigset_t all;
    sigset_t previous;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &previous);
    struct sigaction usual {};
    struct sigaction on_child {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, &on_child);  // if it were ignored, there would be no statuses
    const pid_t program = ::fork();
    if (program > 0) detail::be_init(program, all);
    const int failed = errno;
    if (program == 0) detail::take_terminal();
    ::sigaction(SIGCHLD, &on_child, nullptr);
    ::sigprocmask(SIG_SETMASK, &previous, nullptr);
    if (program == 0) return {};
    return error{errc::system, failed,
                 detail::cat({"cannot start the program below PID 1: ", detail::errno_text(failed)})};
}

}  // namespace v0_1_0
}  // namespace ojs
