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
#include "detail/exit_notice.ipp"
#include "detail/health.ipp"
#include "detail/startup_findings.ipp"
#include "ops.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class ops_extension final : public worker_extension {
  public:
    explicit ops_extension(const ops_options& options) : options_(options) {}

    result<void> start(const machine_ref& worker) override {
        worker_ = worker;
        watch_exit(worker);
        log_options log = worker->settings.log;
        log.hook = [worker](const log_record& record) { worker->log.write(record); };
        log_ = logger(std::move(log), "worker");
        if (worker->owns_process) service_.start(steady_clock::now());
        if (options_.address.empty()) return {};
        metrics_ = make_ref<worker_metrics>(worker->identity.queues, worker->job_types);
        metrics_->backend_up = worker->is_connected.load();
        health_ = make_ref<health_service>(options_, worker, metrics_);
        server_ = serve_health(options_, *worker, health_);
        return server_ ? result<void>() : server_.error();
    }

    void on_phase(const lifecycle_state& state) override {
        if (!detail::exchange(has_begun_, true) && log_.enabled(log_level::warn)) warn_at_start();
        const phase before = detail::exchange(phase_, state.phase);
        if (metrics_ && before != state.phase) metrics_->on_phase(state.phase);
        if (before < phase::draining && state.phase >= phase::draining) {
            service_.stopping(service_text());
        } else {
            report_service();
        }
    }
    time_point on_tick(time_point now) override {
        if (metrics_) metrics_->on_supervisor_turn();
        if (service_.active() && service_.tick(now, stop_deadline())) report_service();
        return service_.next_due();
    }
    void on_heartbeat(bool answered) override {
        if (!metrics_) return;
        count_one(answered ? metrics_->beats_ok : metrics_->beats_failed);
        metrics_->backend_up = answered;
    }
    void on_fetch(fetch_status status) override {
        if (!metrics_) return;
        count_one(metrics_->fetches[static_cast<std::size_t>(status)]);
        metrics_->backend_up = status != fetch_status::failed;
    }
    void on_job_settled(const job_settlement& job) override {
        if (metrics_) metrics_->jobs.settled(job);
    }

    // Wakes requests that wait for the worker, and lets their responses be sent.
    void stop(time_point deadline) override {
        if (health_) health_->stop_waiting();
        if (server_) server_->stop(deadline);
        server_ = error{};
        health_ = {};
        log_ = logger();
        if (worker_) unwatch_exit(worker_);
        worker_ = {};
    }

  private:
    void warn_at_start() {
        std::vector<finding> all = startup_findings(worker_->settings);
        if (const result<endpoint> where = health_endpoint(options_))
            check_kubernetes_health(*where, detect_container(), all);
        for (const finding& each : all)
            log_.write(each.severity == severity::info ? log_level::info : log_level::warn, each.problem,
                       {field("finding", each.id), field("fix", each.fix)});
        const std::string missing = missing_handlers(worker_->job_types);
        if (!missing.empty() && !worker_->job_types.empty())
            log_.write(log_level::warn, "OJS_JOB_TYPES lists job types that have no handler",
                       {field("job_types", missing)});
    }
    // When the complete stop ends: drain, stop_timeout and steps of on_shutdown(). max(): no drain, or one without limit.
    time_point stop_deadline() const noexcept {
        if (worker_->steps_timeout == no_limit) return never;
        const time_point drained = worker_->phases.drain_deadline();
        const auto rest =
            saturated<steady_clock::duration>(capped_sum(worker_->settings.times.stop_timeout, worker_->steps_timeout));
        return drained < never - rest ? drained + rest : never;
    }
    void report_service() {
        if (service_.active()) service_.report(true, service_text());
    }
    std::string service_text() const {
        return cat({to_string(worker_->phases.now()), ", ", worker_->active(), " jobs in flight"});
    }

    const ops_options options_;
    machine_ref worker_;
    bool has_begun_ = false;  // for the supervising thread
    logger log_;
    service_report service_{log_};  // for the supervising thread
    phase phase_ = phase::running;  // likewise
    ref<worker_metrics> metrics_;   // null: no health server. Set by start() only: abandoned threads use it
    ref<health_service> health_;
    result<http_server> server_ = error{};
};

// ---- run_as_init() ----

// Reaps every child that has ended. True once `program` is among them; `status` is then its status.
inline bool reap_all(pid_t program, int& status) {
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

// Waits for one of these blocked signals. A reclaim comes before a stop signal that is pending with it.
inline int take_signal(sigset_t all) {
    sigset_t pending;
    if (::sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1) {
        sigemptyset(&all);
        sigaddset(&all, SIGUSR1);
    }
    int number = 0;
    // Not sigwaitinfo(), which not every system has.
    return ::sigwait(&all, &number) == 0 ? number : SIGCHLD;
}

[[noreturn]] inline void run_as_init(pid_t program, const sigset_t& all) {
#ifdef __linux__
    ::prctl(PR_SET_NAME, "ojs-init");  // detect_container() recognises this name
#endif
    int status = 0;
    while (!reap_all(program, status)) {
        const int number = take_signal(all);
        if (number != SIGCHLD) ::kill(program, number);
    }
    ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

// So that Ctrl-C reaches the program once, and not through us as well. SIGTTOU, which would stop it, is blocked.
inline void take_terminal() {
    if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
    ::setpgid(0, 0);
    ::tcsetpgrp(STDIN_FILENO, ::getpid());
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<ops_options> ops_options::from_environment(const environment_lookup& lookup) {
    ops_options out;
    detail::option_visitor read(lookup);
    detail::visit_ops_options(out, read);
    return read.status ? result<ops_options>(std::move(out)) : read.status.error();
}

namespace detail {
inline worker_extension_factory make_ops(const result<ops_options>& options) {
    return {"ops", [options] { return static_cast<worker_extension*>(new ops_extension(*options)); },
            [options](const loop_options&) { return check_health(options); }};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE detail::worker_extension_factory ops() { return detail::make_ops(ops_options::from_environment()); }
OJS_SHUTDOWN_INLINE detail::worker_extension_factory ops(ops_options options) {
    return detail::make_ops(std::move(options));
}

OJS_SHUTDOWN_INLINE result<void> run_as_init(init_options options) {
    if (getpid() != 1 && !options.always) return {};
    // A fork uninstalls the handlers in the child.
    if (detail::process.owner != 0) {
        return error{errc::busy, 0, "run_as_init() must come before signals::install()"};
    }
    sigset_t all;
    sigset_t previous;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &previous);
    struct sigaction usual {};
    struct sigaction on_child {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, &on_child);  // ignored, it would discard the statuses
    const pid_t program = ::fork();
    if (program > 0) detail::run_as_init(program, all);
    const int failed = errno;
    if (program == 0) detail::take_terminal();
    ::sigaction(SIGCHLD, &on_child, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    if (program == 0) return {};
    return error{errc::system, failed,
                 detail::cat({"as PID 1, cannot fork the program: ", detail::errno_text(failed)})};
}
}  // namespace v0_1_0
}  // namespace ojs
