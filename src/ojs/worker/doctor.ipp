#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../base/detail/exchange.hpp"
#include "../base/detail/text.hpp"
#include "../core/signals.hpp"
#include "../host/termination_mode.hpp"
#include "../net/http_client.hpp"
#include "../net/json.ipp"
#include "../server/detail/listener.ipp"
#include "../system/signal_worker.ipp"
#include "budget.hpp"
#include "budget.ipp"
#include "doctor.hpp"
#include "engine/backend_url.ipp"
#include "transports/http.hpp"
#include "worker_options.ipp"

extern "C" char** environ;

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// ---- container ----

inline void check_container(const container_info& info, std::vector<finding>& out) {
    if (info.in_container) {
        std::string found;
        for (const container_evidence& each : info.evidence)
            append(found, {found.empty() ? "" : ", ", each.source});
        out.push_back({severity::info, "container",
                       cat({"runs in a container", info.runtime.empty() ? "" : cat({" (", info.runtime, ")"}),
                            ", as process ", info.pid, "; told by ", found}),
                       ""});
    }
    for (finding& each : check_pid1(info)) out.push_back(std::move(each));
}

// A probe of the kubelet comes from outside of the pod's network.
inline void check_kubernetes_health(const worker_options& options, const container_info& info,
                                    std::vector<finding>& out) {
    if (!info.in_container || info.runtime != "kubernetes") return;
    const result<endpoint> where = parse_listen_address(options.health_address);
    const bool none = options.health_address.empty();
    if (!none && (!where || !is_local(*where) || !where->unix_path.empty())) return;
    out.push_back({none ? severity::info : severity::warning, "health-kubernetes",
                   none ? std::string("no health address is set: the pod's probes would not be answered")
                        : cat({"the pod's probes do not reach ", where->name, ", which is loopback"}),
                   "for probes, set OJS_HEALTH_ADDR=0.0.0.0:8081, and let the liveness probe ask /livez"});
}

// ---- variables ----

// How many letters have to change to make one word of the other. Neither is longer than 64.
inline std::size_t edit_distance(std::string_view a, std::string_view b) noexcept {
    std::size_t row[65];
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = detail::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            const std::size_t longer = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = changed < longer ? changed : longer;
        }
    }
    return row[b.size()];
}

inline std::string_view nearest_variable(std::string_view name) noexcept {
    std::string_view nearest;
    std::size_t least = name.size() / 3 + 1;
    for (std::string_view rest = known_variables; !rest.empty();) {
        const std::string_view known = next_part(rest, " ");
        const std::size_t distance = edit_distance(name, known);
        if (distance < least) nearest = known;
        if (distance < least) least = distance;
    }
    return nearest;
}

// Kubernetes sets some for every service, which may well be called "ojs".
inline bool is_of_service(std::string_view name) noexcept {
    return name.find("_SERVICE_") != std::string_view::npos || name.find("_PORT") != std::string_view::npos;
}

// `variables` as in environ(7).
inline void check_variables(const char* const* variables, std::vector<finding>& out) {
    for (; variables != nullptr && *variables != nullptr; ++variables) {
        const std::string_view all = *variables;
        const std::string_view name = all.substr(0, all.find('='));
        if (name.substr(0, 4) != "OJS_" || name.size() > 64 || is_of_service(name)) continue;
        const std::string_view nearest = nearest_variable(name);
        if (nearest == name) continue;
        out.push_back(
            {severity::warning, "variable-unknown",
             cat({printable(name), " is set, but no such variable is read"}),
             nearest.empty() ? "see the list of variables, or unset it" : cat({"was ", nearest, " meant?"})});
    }
}

// ---- signals ----

// The effect of ignoring the signal.
inline const char* cost_of(int number) {
    if (number == SIGTSTP) return "the worker cannot be made quiet";
    if (number == SIGCONT) return "a quiet worker cannot be resumed";
    if (number == SIGTTIN) return "the worker cannot be asked for its jobs in flight";
    return "it does not stop the worker";
}

inline void check_signals(const worker_options& options, std::vector<finding>& out) {
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    std::vector<int> handled = options.stop_signals;
    for (const int number : {SIGTSTP, SIGCONT, SIGTTIN}) handled.push_back(number);
    if (!options.termination_mode_file.empty()) handled.push_back(SIGUSR1);
    for (const int number : handled) {
        const std::string name = signal_name(number);
        struct sigaction action {};
        ::sigaction(number, nullptr, &action);
        if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) {
            // The platform sends the first; nohup ignores SIGHUP on purpose.
            const bool is_main = number == handled.front();
            out.push_back({is_main            ? severity::error
                           : number == SIGHUP ? severity::info
                                              : severity::warning,
                           "signal-ignored",
                           cat({name, " was ignored when the process started (nohup, a shell's trap or &): ",
                                cost_of(number)}),
                           cat({"start the worker without that, or as `env --default-signal=", name.substr(3),
                                " ...`"})});
        }
        if (sigismember(&blocked, number) == 1) {
            out.push_back({severity::warning, "signal-blocked",
                           cat({name,
                                " was blocked when the process started; the worker unblocks it, but programs "
                                "started before that inherit it"}),
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
        out.push_back({level, id, cat({mode.message, so}),
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

inline result<http_response> ask(std::string_view url, const char* target, std::chrono::milliseconds timeout,
                                 http_client_options how = {}) {
    result<http_client> client = http_transport::make_client(url, std::move(how));
    if (!client) return client.error();
    http_request request;
    request.target = target;
    return client->send(request, {deadline_after(timeout), resend::if_unsent, nullptr});
}
inline result<http_response> ask_backend(const worker_options& options, std::chrono::milliseconds timeout) {
    http_client_options how;
    how.bearer_token = options.auth_token;
    how.headers = options.headers;
    how.https_stream = options.https_stream;
    return ask(options.url, "/ojs/v1/health", timeout, std::move(how));
}

// Looks only: making what is missing is for the worker.
inline void check_spool(const std::string& directory, std::vector<finding>& out) {
    if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0) return;
    const int failed = errno;
    const bool missing = failed == ENOENT;
    out.push_back(
        {missing ? severity::warning : severity::error, missing ? "spool-missing" : "spool-unusable",
         cat({"the spool directory ", printable(directory), " cannot be used: ", errno_text(failed)}),
         missing ? "the worker makes it if the directory above it is there"
                 : "let OJS_URL name a directory the worker may read and write"});
}

inline void check_backend(const worker_options& options, std::chrono::milliseconds timeout,
                          std::vector<finding>& out) {
    const result<backend_url> url = parse_backend_url(options.url, bool(options.https_stream));
    if (url && url->kind == backend_kind::memory) return;
    if (url && url->kind == backend_kind::spool) return check_spool(url->directory, out);
    const result<http_response> answer = ask_backend(options, timeout);
    if (!answer) {
        const bool is_absent = answer.error().code != errc::bad_answer;
        out.push_back(
            {severity::error, is_absent ? "backend-unreachable" : "backend-answer",
             cat({is_absent ? "the backend cannot be reached: " : "no Open Job Spec backend answers: ",
                  answer.error().text}),
             is_absent ? "check OJS_URL, and that the backend runs and can be reached from here"
                       : "check that OJS_URL names an Open Job Spec backend"});
    } else if (answer->status == 401 || answer->status == 403) {
        out.push_back({severity::error, "backend-token",
                       cat({"the backend answers ", answer->status,
                            options.auth_token.empty() ? ": it wants a token, and none is set"
                                                       : ": it does not accept the token"}),
                       "set OJS_AUTH_TOKEN to one the backend accepts"});
    } else if (answer->status >= 400) {
        out.push_back(
            {severity::warning, "backend-answer",
             cat({"the backend answers ", answer->status, " to GET /ojs/v1/health"}),
             "check that OJS_URL names an Open Job Spec backend, with its base path, and that it is well"});
    }
}

// ---- health server ----

inline void check_control(const worker_options& options, const endpoint& where, std::vector<finding>& out) {
    if (!options.health_control || !options.health_token.empty()) return;
    if (!is_local(where)) {
        out.push_back({severity::error, "health-control-open",
                       cat({"with control on and no token, anybody who reaches ", where.name,
                            " could stop the worker"}),
                       "set OJS_HEALTH_TOKEN, or give a loopback address or unix:/PATH in OJS_HEALTH_ADDR"});
    } else if (where.unix_path.empty()) {
        out.push_back({severity::info, "health-control-token",
                       cat({"with control on and no token, every process that shares the network of ",
                            where.name, " can stop the worker"}),
                       "set OJS_HEALTH_TOKEN if that is not meant"});
    }
}

// Whether this program runs a second time, as far as that can be seen, and a worker is what answers there.
inline bool is_our_worker(const endpoint& where, std::chrono::milliseconds timeout) {
    const result<pid_t> other = find_worker("");
    if (!other && other.error().code == errc::system) return false;  // surely not
    const result<http_response> answer =
        ask(cat({where.unix_path.empty() ? "http://" : "", where.name}), "/healthz", timeout);
    return answer && !raw_member(answer->body, "phase").empty();
}

inline void check_bind(const endpoint& where, std::chrono::milliseconds timeout, std::vector<finding>& out) {
    const result<unique_fd> listener = listen_socket(where);
    if (listener) {
        if (!where.unix_path.empty()) ::unlink(where.unix_path.c_str());
        return;
    }
    // From within the container of a running worker it is that worker which holds the address.
    const bool runs = listener.error().code == errc::busy && is_our_worker(where, timeout);
    out.push_back({runs ? severity::info : severity::error, "health-bind", listener.error().text,
                   runs ? "" : "choose another address in OJS_HEALTH_ADDR, or end what listens there"});
}

inline void check_health_server(const worker_options& options, std::chrono::milliseconds timeout,
                                std::vector<finding>& out) {
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
        out.push_back({severity::error, "health-address", cat({"OJS_HEALTH_ADDR: ", where.error().text}),
                       "write PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH"});
        return;
    }
    check_control(options, *where, out);
    check_bind(*where, timeout, out);
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
            static_cast<std::uint64_t>(found.rlim_cur) >= need)
            continue;
        out.push_back({severity::warning, check.id,
                       cat({"OJS_CONCURRENCY is ", options.concurrency, ", but the limit of ", check.what,
                            " is ", static_cast<unsigned long long>(found.rlim_cur)}),
                       check.fix});
    }
}

// What was set, and what was not, as far as that can be judged where it is.
inline void check_settings(const worker_options& options, const container_info& info,
                           const container_probe& where, std::chrono::milliseconds closing,
                           std::vector<finding>& out) {
    for (finding& each : check_budget(options, closing, info)) out.push_back(std::move(each));
    check_kubernetes_health(options, info, out);
    if (!where.environment) check_variables(environ, out);
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::vector<finding> doctor(const worker_options& options, const doctor_options& how) {
    std::vector<finding> out;
    detail::check_signals(options, out);  // first: nothing here may have changed the mask yet
    const result<void> valid = validate(options);
    if (!valid) {
        out.push_back({severity::error, "options", valid.error().text,
                       "correct the option, or the variable it comes from"});
    }
    const container_info info = detect_container(how.where);
    detail::check_settings(options, info, how.where, {}, out);
    detail::check_container(info, out);
    detail::check_mode_file(options, out);
    detail::check_backend(options, how.timeout, out);
    detail::check_health_server(options, how.timeout, out);
    detail::check_limits(options, out);
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<finding> startup_findings(const worker_options& options,
                                                          const container_probe& where,
                                                          std::chrono::milliseconds closing) {
    std::vector<finding> out;
    const container_info info = detect_container(where);
    detail::check_settings(options, info, where, closing, out);
    std::vector<finding> more = check_pid1(info);
    detail::check_mode_file(options, more);
    for (finding& each : more) {
        if (each.severity > severity::info) out.push_back(std::move(each));
    }
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
