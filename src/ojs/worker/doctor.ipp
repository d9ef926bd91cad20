#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../base/text.hpp"
#include "../core/peer.ipp"
#include "../core/signals.hpp"
#include "../core/termination_mode.hpp"
#include "../net/http_client.hpp"
#include "../net/socket.hpp"
#include "budget.hpp"
#include "doctor.hpp"
#include "transports/http.hpp"
#include "worker_options.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// ---- container ----

inline void check_container(const worker_options& options, const container_info& info,
                            std::vector<finding>& out) {
    if (info.in_container) {
        std::string found;
        for (const container_evidence& each : info.evidence)
            append(found, found.empty() ? "" : ", ", each.source);
        out.push_back({severity::info, "container",
                       cat("runs in a container", info.runtime.empty() ? "" : cat(" (", info.runtime, ")"),
                           ", as process ", info.pid, "; told by ", found),
                       ""});
    }
    if (info.in_container && options.container_grace_period <= std::chrono::milliseconds::zero()) {
        out.push_back({severity::warning, "budget-unknown",
                       cat("nobody said what the container grants between SIGTERM and SIGKILL (docker: 10s, "
                           "Kubernetes: "
                           "30s, unless set), so the grace period of ",
                           format_duration(options.shutdown_grace_period), " cannot be checked"),
                       "set OJS_CONTAINER_GRACE_PERIOD to it"});
    }
    for (finding& each : check_pid1(info)) out.push_back(std::move(each));
}

// ---- signals ----

struct signal_check {
    int number;
    severity when_ignored;
    const char* cost;  // what is lost with it
};
inline constexpr signal_check signal_checks[] = {
    {SIGTERM, severity::error, "the worker cannot be asked to stop, only killed"},
    {SIGINT, severity::warning, "Ctrl-C does not stop the worker"},
    {SIGTSTP, severity::warning, "the worker cannot be made quiet"},
    {SIGCONT, severity::warning, "a quiet worker cannot be resumed"},
};

inline void check_signals(std::vector<finding>& out) {
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const signal_check& check : signal_checks) {
        const std::string name = signal_name(check.number);
        struct sigaction action {};
        ::sigaction(check.number, nullptr, &action);
        if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) {
            out.push_back({check.when_ignored, "signal-ignored",
                           cat(name, " was ignored when the process started (nohup, a shell's trap or &): ",
                               check.cost),
                           cat("start the worker without that, or as `env --default-signal=", name.substr(3),
                               " ...`")});
        }
        if (sigismember(&blocked, check.number) == 1) {
            out.push_back({severity::warning, "signal-blocked",
                           cat(name,
                               " was blocked when the process started; the worker unblocks it, but programs "
                               "started before that inherit it"),
                           "let what starts the worker reset its signal mask before exec"});
        }
    }
}

// ---- mode file ----

// What the file says before any stop. It may be written later, so that none is no fault yet.
inline void check_mode_file(const worker_options& options, std::vector<finding>& out) {
    if (options.termination_mode_file.empty()) return;
    const termination_mode mode = read_termination_mode(options.termination_mode_file);
    const auto add = [&](severity level, const char* id, std::string_view so) {
        out.push_back({level, id, cat(mode.message, so),
                       "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts"});
    };
    switch (mode.evidence) {
        case termination_evidence::normal: return;
        case termination_evidence::missing:
            return add(severity::info, "mode-file-missing",
                       ": without it every stop hands jobs back at once");
        case termination_evidence::reclaim:
            return add(severity::warning, "mode-file-stale", ": left over from an earlier stop?");
        case termination_evidence::unreadable: return add(severity::error, "mode-file-unreadable", "");
        case termination_evidence::other: return add(severity::warning, "mode-file-content", "");
    }
}

// ---- backend ----

inline result<http_response> ask_backend(const worker_options& options, std::chrono::milliseconds timeout) {
    http_client_options how;
    how.bearer_token = options.auth_token;
    how.headers = options.headers;
    result<http_client> client = http_transport::make_client(options.url, std::move(how));
    if (!client) return client.error();
    http_request request;
    request.target = "/ojs/v1/health";
    return client->send(request, {deadline_after(timeout), resend::if_unsent, nullptr});
}

// Looks only: making what is missing is for the worker.
inline void check_spool(const worker_options& options, std::vector<finding>& out) {
    const std::string directory = options.url.substr(spool_scheme.size());
    if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0) return;
    const int failed = errno;
    const bool missing = failed == ENOENT;
    out.push_back({missing ? severity::warning : severity::error,
                   missing ? "spool-missing" : "spool-unusable",
                   cat("the spool directory ", printable(directory), " cannot be used: ", errno_text(failed)),
                   missing ? "the worker makes it if the directory above it is there"
                           : "let OJS_URL name a directory the worker may read and write"});
}

inline void check_backend(const worker_options& options, std::chrono::milliseconds timeout,
                          std::vector<finding>& out) {
    if (options.url == "memory:") return;
    if (is_spool_url(options.url)) return check_spool(options, out);
    const result<http_response> answer = ask_backend(options, timeout);
    if (!answer) {
        const bool is_absent = answer.error().code != errc::bad_answer;
        out.push_back(
            {severity::error, is_absent ? "backend-unreachable" : "backend-answer",
             cat(is_absent ? "the backend cannot be reached: " : "no Open Job Spec backend answers: ",
                 answer.error().text),
             is_absent ? "check OJS_URL, and that the backend runs and can be reached from here"
                       : "check that OJS_URL names an Open Job Spec backend"});
    } else if (answer->status == 401 || answer->status == 403) {
        out.push_back({severity::error, "backend-token",
                       cat("the backend answers ", answer->status,
                           options.auth_token.empty() ? ": it wants a token, and none is set"
                                                      : ": it does not accept the token"),
                       "set OJS_AUTH_TOKEN to one the backend accepts"});
    } else if (answer->status >= 400) {
        out.push_back(
            {severity::warning, "backend-answer",
             cat("the backend answers ", answer->status, " to GET /ojs/v1/health"),
             "check that OJS_URL names an Open Job Spec backend, with its base path, and that it is well"});
    }
}

// ---- health server ----

inline bool is_private(const endpoint& where) {
    return !where.unix_path.empty() || where.host.compare(0, 4, "127.") == 0 || where.host == "::1";
}

inline void check_control(const worker_options& options, const endpoint& where, std::vector<finding>& out) {
    if (!options.health_control || !options.health_token.empty()) return;
    if (!is_private(where)) {
        out.push_back(
            {severity::error, "health-control-open",
             cat("with control on and no token, anybody who reaches ", where.name, " could stop the worker"),
             "set OJS_HEALTH_TOKEN, or give a loopback address or unix:/PATH in OJS_HEALTH_ADDR"});
    } else if (where.unix_path.empty()) {
        out.push_back({severity::info, "health-control-token",
                       cat("with control on and no token, every process that shares the network of ",
                           where.name, " can stop the worker"),
                       "set OJS_HEALTH_TOKEN if that is not meant"});
    }
}

inline void check_bind(const endpoint& where, std::vector<finding>& out) {
    const result<unique_fd> listener = listen_socket(where);
    if (listener) {
        if (!where.unix_path.empty()) ::unlink(where.unix_path.c_str());
        return;
    }
    // From within the container of a running worker it is that worker which holds the address.
    const bool runs = listener.error().code == errc::busy && find_worker("");
    out.push_back({runs ? severity::info : severity::error, "health-bind", listener.error().text,
                   runs ? "" : "choose another address in OJS_HEALTH_ADDR, or end what listens there"});
}

inline void check_health_server(const worker_options& options, std::vector<finding>& out) {
    if (options.health_address.empty()) {
        if (options.health_control) {
            out.push_back({severity::warning, "health-control-unused",
                           "OJS_HEALTH_CONTROL is on, but there is no health address",
                           "set OJS_HEALTH_ADDR"});
        }
        return;
    }
    const result<endpoint> where = parse_listen_address(options.health_address);
    if (!where) {
        out.push_back({severity::error, "health-address", cat("OJS_HEALTH_ADDR: ", where.error().text),
                       "write PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH"});
        return;
    }
    check_control(options, *where, out);
    check_bind(*where, out);
}

// ---- limits ----

struct limit_check {
    decltype(RLIMIT_NOFILE) limit;
    const char* id;
    const char* what;    // what runs out
    std::uint64_t base;  // what the worker needs beside the jobs
    const char* fix;
};
inline constexpr limit_check limit_checks[] = {
    {RLIMIT_NOFILE, "limit-files", "open files (a connection each, and what the job opens)", 32,
     "raise it (ulimit -n, --ulimit nofile=...), or lower OJS_CONCURRENCY"},
#ifdef RLIMIT_NPROC
    {RLIMIT_NPROC, "limit-threads", "processes and threads of this user (a thread each)", 16,
     "raise it (ulimit -u, --ulimit nproc=...), or lower OJS_CONCURRENCY"},
#endif
};

// Only what cannot work: at least one a job.
inline void check_limits(const worker_options& options, std::vector<finding>& out) {
    if (options.concurrency < 1) return;
    for (const limit_check& check : limit_checks) {
        rlimit found{};
        const std::uint64_t need = static_cast<std::uint64_t>(options.concurrency) + check.base;
        if (::getrlimit(check.limit, &found) != 0 || found.rlim_cur == RLIM_INFINITY ||
            found.rlim_cur >= need)
            continue;
        out.push_back({severity::warning, check.id,
                       cat("OJS_CONCURRENCY is ", options.concurrency, ", but the limit of ", check.what,
                           " is ", static_cast<unsigned long long>(found.rlim_cur)),
                       check.fix});
    }
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::vector<finding> doctor(const worker_options& options, const doctor_options& how) {
    std::vector<finding> out;
    detail::check_signals(out);  // first: nothing here may have changed the mask yet
    const result<void> valid = validate(options);
    if (!valid) {
        out.push_back({severity::error, "options", valid.error().text,
                       "correct the option, or the variable it comes from"});
    }
    for (finding& each : check_budget(options)) out.push_back(std::move(each));
    detail::check_container(options, detect_container(how.where), out);
    detail::check_mode_file(options, out);
    detail::check_backend(options, how.timeout, out);
    detail::check_health_server(options, out);
    detail::check_limits(options, out);
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<finding> startup_findings(const worker_options& options,
                                                          const container_probe& where) {
    std::vector<finding> out;
    for (finding& each : check_budget(options)) out.push_back(std::move(each));
    std::vector<finding> more = check_pid1(detect_container(where));
    detail::check_mode_file(options, more);
    for (finding& each : more) {
        if (each.severity > severity::info) out.push_back(std::move(each));
    }
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
