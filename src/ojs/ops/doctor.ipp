#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "../base/detail/text.hpp"
#include "../core/signals.ipp"
#include "../host/termination_mode.hpp"
#include "../net/http_client.hpp"
#include "../net/json_view.ipp"
#include "../server/detail/listener.ipp"
#include "../worker/http_transport.hpp"
#include "../worker/transport_scheme.ipp"
#include "detail/advice.ipp"
#include "detail/health.ipp"
#include "detail/pid1.ipp"
#include "doctor.hpp"
#include "signal_worker.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline void check_container(const container_probe& probe, const container_info& info, std::vector<finding>& out) {
    if (info.in_container)
        out.push_back({severity::info, "container", cat({"runs in a container (", info.platform->id, ")"}), ""});
    check_pid1(probe, info, out);
}

inline const char* effect_of_ignoring(int number) {
    if (number == SIGTSTP) return "the worker cannot be made quiet";
    if (number == SIGCONT) return "a quiet worker cannot be resumed";
    if (number == SIGTTIN) return "the worker cannot list its jobs in flight";
    return "this signal does not stop the worker";
}

inline void check_signals(const loop_options& options, std::vector<finding>& out) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    std::vector<int> handled = options.stop_signals;
    for (const int number : {SIGTSTP, SIGCONT, SIGTTIN}) handled.push_back(number);
    if (!options.termination_mode_file.empty()) handled.push_back(SIGUSR1);
    for (const int number : handled) {
        const std::string name = signal_name(number);
        struct sigaction action {};
        ::sigaction(number, nullptr, &action);
        if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) {
            // The platform sends the first stop signal; nohup ignores SIGHUP on purpose.
            const severity level = number == handled.front() ? severity::error
                                   : number == SIGHUP        ? severity::info
                                                             : severity::warning;
            out.push_back(
                {level, "signal-ignored",
                 cat({name, " was ignored when the process started (nohup, a shell's trap or &): ",
                      effect_of_ignoring(number)}),
                 cat({"start the worker without that, or as `env --default-signal=", name.substr(3), " ...`"})});
        }
        if (number != SIGHUP && action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL && !is_ours(action))
            out.push_back({severity::error, "signal-handled",
                           cat({name, " has a handler of this program or a library, so run() does not start"}),
                           "remove that handler, or use start() and request_stop()"});
        if (sigismember(&blocked, number) == 1)
            out.push_back({severity::warning, "signal-blocked",
                           cat({name,
                                " was blocked when the process started; the worker unblocks it, but programs "
                                "started before then begin with that signal blocked"}),
                           "reset the signal mask before exec() in the program that starts the worker"});
    }
}

inline result<http_response> http_get(result<http_client>& client, std::string target, time_point deadline) {
    if (!client) return client.error();
    return client->send({"GET", std::move(target), {}, ""}, {deadline});
}

// Shows the backend's own words, unless they are a page or repeat the token.
inline finding unusable_response(const http_response& response, const worker_options& options) {
    const std::string token = read_token(client_options(options)).value_or("");
    const std::string_view to = find_header(response.headers, "Location");
    std::string said = response.body.empty() ? "" : cat({": ", printable(response.body)});
    if (starts_with(response.body, "<") || (!token.empty() && has_part(response.body, token))) said.clear();
    const char* const no_login = token.empty() ? ": it requires a token, and none is set" : ": it refuses the token";
    constexpr const char* check_url = "check that OJS_URL names an Open Job Spec backend, with its base path";
    const std::tuple<int, std::string, const char*> rows[] = {
        {500, std::move(said), "check the backend and its store"},
        {404, "", check_url},
        {401, no_login, "set OJS_AUTH_TOKEN, or OJS_AUTH_TOKEN_FILE, to one the backend accepts"},
        {400, "", check_url},
        {300, cat({" with a redirect to ", printable(to.substr(0, to.find('?')))}),
         "set OJS_URL to that address: the worker follows no redirect"},
        {0, " with a body that is not JSON", check_url}};
    const auto* row = std::begin(rows);
    while (response.status < std::get<0>(*row)) ++row;
    const auto& [from, more, fix] = *row;
    return {severity::error, from == 401 ? "backend-token" : "backend-answer",
            cat({"the backend answers ", response.status, " to GET ", public_url(without_api_path(options.url)),
                 "/ojs/v1/health", more}),
            fix};
}

// By its statistics, which not every backend has. [HTTP 11.2]
inline void check_queue(const std::string& name, json_view queue, std::vector<finding>& out) {
    const json_view counts = queue.member("stats");
    const std::int64_t available = counts.member("available").integer().value_or(0);
    if (queue.member("status").string().value_or("") == "paused")
        out.push_back({severity::warning, "queue-paused",
                       cat({"queue '", printable(name), "' is paused: no worker gets its jobs"}),
                       "resume the queue at the backend"});
    else if (available > 0 && counts.member("active").integer().value_or(0) == 0 &&
             counts.member("throughput_per_second").number().value_or(1) <= 0)
        out.push_back({severity::warning, "queue-idle",
                       cat({"queue '", printable(name), "' has ", available, " jobs, and none has run for a minute"}),
                       "check that its workers run, and have handlers for these jobs"});
}

inline void check_backend(const worker_options& options, std::chrono::milliseconds timeout, std::vector<finding>& out) {
    const backend_url url = split_url(options);
    if (url.added != nullptr && url.added->inspect) {
        std::string fault = url.added->inspect(url.address);
        if (!fault.empty()) out.push_back({severity::error, "backend-unusable", std::move(fault), "correct OJS_URL"});
    }
    if (url.added != nullptr || !url.is_http()) return;
    const time_point deadline = deadline_after(timeout);
    result<http_client> client = make_backend_client(options.url, client_options(options));
    if (!client && client.error().code == errc::system)
        return out.push_back({severity::error, "backend-token", client.error().text,
                              "correct OJS_AUTH_TOKEN_FILE, or make the file readable for this user"});
    const result<http_response> response = http_get(client, "/ojs/v1/health", deadline);
    if (!response) {
        const bool is_absent = response.error().code != errc::bad_response;
        out.push_back({severity::error, is_absent ? "backend-unreachable" : "backend-answer",
                       cat({is_absent ? "the backend cannot be reached: " : "no Open Job Spec backend answers: ",
                            response.error().text}),
                       is_absent ? "check OJS_URL, and that the backend runs and can be reached from here"
                                 : "check that OJS_URL names an Open Job Spec backend"});
        return;
    }
    const bool is_usable = is_success(response->status) && (response->body.empty() || is_json(response->body));
    if (!is_usable) return out.push_back(unusable_response(*response, options));
    for (const std::string& name : options.queues) {
        const auto stats = http_get(client, cat({"/ojs/v1/queues/", path_segment(name), "/stats"}), deadline);
        if (stats && stats->status == 200) check_queue(name, json_view(stats->body), out);
    }
    const std::string store = json_view(response->body).member("backend").member("type").string().value_or("");
    if (is_listed(store, "redis postgres nats"))
        out.push_back({severity::info, "backend-checkpoints",
                       cat({"the OJS server on ", store,
                            " drops the checkpoint of a FAIL: an interrupted job begins again at its start"}),
                       "let the job save its progress elsewhere"});
}

// Whether another process of this program seems to run, and a worker answers at the address.
inline bool is_our_worker(const endpoint& where, std::chrono::milliseconds timeout) {
    const result<pid_t> other = find_other_process("");
    if (!other && other.error().code == errc::system) return false;  // surely not
    result<http_client> client = http_client::create(cat({where.unix_path.empty() ? "http://" : "", where.name}));
    const result<http_response> response = http_get(client, "/healthz", deadline_after(timeout));
    return response && !raw_member(response->body, "phase").empty();
}

inline void check_bind(const endpoint& where, std::chrono::milliseconds timeout, std::vector<finding>& out) {
    const result<unique_fd> listener = listen_socket(where);
    if (listener) {
        if (!where.unix_path.empty()) ::unlink(where.unix_path.c_str());
        return;
    }
    // In the container of a running worker, that worker holds the address.
    const bool runs = listener.error().code == errc::busy && is_our_worker(where, timeout);
    out.push_back({runs ? severity::info : severity::error, "health-bind", listener.error().text,
                   runs ? "" : "choose another address in OJS_HEALTH_ADDR, or stop the program that listens there"});
}

inline void check_health_server(const ops_options& options, const container_info& info,
                                std::chrono::milliseconds timeout, std::vector<finding>& out) {
    const result<endpoint> where = health_endpoint(options);
    if (!where) return;
    check_kubernetes_health(*where, info, out);
    if (where->name.empty()) return;
    if (options.control && options.token.empty() && where->unix_path.empty())
        out.push_back({severity::info, "health-control-token",
                       cat({"with control on and no token, every process that shares the network of ", where->name,
                            " can stop the worker"}),
                       "set OJS_HEALTH_TOKEN to prevent that"});
    check_bind(*where, timeout, out);
}

struct limit_check {
    decltype(RLIMIT_NOFILE) limit;
    const char* id;
    const char* resource;
    std::uint64_t base;  // needed in addition to the jobs
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

// Reports only limits that cannot suffice: each job needs at least one.
inline void check_limits(const loop_options& options, std::vector<finding>& out) {
    if (options.concurrency < 1) return;
    for (const limit_check& check : limit_checks) {
        rlimit found{};
        const std::uint64_t need = static_cast<std::uint64_t>(options.concurrency) + check.base;
        if (::getrlimit(check.limit, &found) != 0 || found.rlim_cur == RLIM_INFINITY ||
            static_cast<std::uint64_t>(found.rlim_cur) >= need)
            continue;
        out.push_back({severity::warning, check.id,
                       cat({"OJS_CONCURRENCY is ", options.concurrency, ", but the limit of ", check.resource, " is ",
                            static_cast<unsigned long long>(found.rlim_cur)}),
                       check.fix});
    }
}

// `check_more` checks what only a worker has.
template <class Check>
std::vector<finding> diagnose(const loop_options& options, const result<ops_options>& ops, result<void> valid,
                              const std::string& url_fix, std::chrono::milliseconds timeout,
                              const container_probe& where, Check check_more) {
    std::vector<finding> out;
    check_signals(options, out);  // first: before anything here changes the mask
    if (valid) valid = check_health(ops);
    if (!valid)
        out.push_back({severity::error, "options", valid.error().text,
                       url_fix.empty() ? "correct the option, or the variable that sets it" : url_fix});
    const container_info info = detect_container(where);
    check_settings(options, info, where, out);
    check_container(where, info, out);
    check_mode_file(options, out);
    check_more(out);
    if (ops) check_health_server(*ops, info, timeout, out);
    check_limits(options, out);
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<finding> check_budget(const worker_options& options,
                                                      std::chrono::milliseconds steps_timeout,
                                                      const container_info& info) {
    std::vector<finding> out;
    check_stop_budget(options, steps_timeout, info, out);
    check_heartbeat(options, out);
    return out;
}
}  // namespace detail

OJS_SHUTDOWN_INLINE std::vector<finding> doctor(const worker_options& options, const result<ops_options>& ops,
                                                detail::any_ms timeout, const detail::container_probe& where) {
    return detail::diagnose(options, ops, validate(options), detail::url_fix(options), timeout, where,
                            [&](std::vector<finding>& out) {
                                detail::check_heartbeat(options, out);
                                detail::check_backend(options, timeout, out);
                            });
}
OJS_SHUTDOWN_INLINE std::vector<finding> doctor(const loop_options& options, const result<ops_options>& ops,
                                                detail::any_ms timeout, const detail::container_probe& where) {
    const result<void> valid = detail::check_loop_options(options);
    return detail::diagnose(options, ops, valid, "", timeout, where, [](std::vector<finding>&) {});
}

OJS_SHUTDOWN_INLINE severity max_severity(const std::vector<finding>& findings) noexcept {
    severity out = severity::info;
    for (const finding& each : findings) out = std::max(out, each.severity);
    return out;
}

OJS_SHUTDOWN_INLINE std::string format_findings(const std::vector<finding>& findings) {
    std::string out;
    int counts[3] = {};
    for (const finding& each : findings) {
        ++counts[static_cast<std::size_t>(each.severity)];
        std::string level = to_string(each.severity);
        level.resize(9, ' ');
        detail::append(out, {level, each.id, ": ", each.problem, "\n"});
        if (!each.fix.empty()) detail::append(out, {"         fix: ", each.fix, "\n"});
    }
    detail::append(out, {counts[2], counts[2] == 1 ? " error, " : " errors, ", counts[1],
                         counts[1] == 1 ? " warning\n" : " warnings\n"});
    return out;
}
}  // namespace v0_1_0
}  // namespace ojs
