// health: the HTTP service on a worker's health address: probes, metrics and, if enabled, control.
#pragma once

#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/proc.ipp"
#include "../../host/container.hpp"
#include "../../server/detail/http_routes.ipp"
#include "../../server/detail/listener.ipp"
#include "../../server/http_server.hpp"
#include "advice.ipp"
#include "metrics.ipp"

namespace ojs::detail {
// When the process started, in milliseconds since 1970; 0: unknown.
inline std::int64_t process_start_ms() {
#if OJS_SHUTDOWN_USE_PROC && defined(CLOCK_BOOTTIME)
    const std::uint64_t ticks = read_stat("", "self").start_ticks;
    const long ticks_a_second = ::sysconf(_SC_CLK_TCK);
    if (ticks_a_second <= 0 || ticks == 0 || ticks > ~std::uint64_t{0} / 1000) return 0;
    timespec up{};
    clock_gettime(CLOCK_BOOTTIME, &up);
    const std::int64_t up_ms = static_cast<std::int64_t>(up.tv_sec) * 1000 + up.tv_nsec / 1000000;
    return wall_clock_ms() - up_ms +
           static_cast<std::int64_t>(ticks * 1000 / static_cast<std::uint64_t>(ticks_a_second));
#else
    return 0;
#endif
}

// As /readyz says.
inline bool is_ready(const machine_state& worker, phase now) noexcept {
    return now == phase::running && worker.is_connected;
}

inline void show_phase(metrics_page& page, const machine_state& worker, phase now) {
    page.family("ojs_worker_phase", "gauge", "1 for the current phase, 0 for the others.");
    for (int each = 0; each < phase_count; ++each) {
        const auto shown = static_cast<phase>(each);
        page.sample(shown == now ? 1 : 0, label("phase", to_string(shown)));
    }
    page.single("ojs_worker_ready", "gauge", "Whether the worker runs, and its backend has responded: as /readyz.",
                is_ready(worker, now) ? 1 : 0);
    page.single("ojs_workers_active", "gauge", "Running workers: 1 while this one fetches.",
                now == phase::running ? 1 : 0);
}

inline void show_active_jobs(metrics_page& page, const machine_state& worker, const label_names& queues,
                             std::size_t stuck) {
    array<unsigned long long> busy(queues.all.size());
    for (const ref<work>& each : worker.works()) ++busy[queues.index_of(each->job.queue)];
    page.family("ojs_workers_busy", "gauge", "Jobs claimed and not yet settled.");
    for (std::size_t i = 0; i < busy.size(); ++i) page.sample(busy[i], label("queue", queues.all[i]));
    page.single("ojs_worker_stuck_jobs", "gauge", "Cancelled jobs whose handlers have not returned for stuck_after.",
                stuck);
    page.single("ojs_worker_concurrency", "gauge", "Jobs the worker runs at the same time, at most.",
                worker.settings.concurrency);
}

inline void show_outcomes(metrics_page& page, const worker_report& so_far, std::uint64_t unreported) {
    page.single("ojs_worker_jobs_claimed_total", "counter", "Jobs received by FETCH.", so_far.claimed);
    page.family("ojs_worker_jobs_total", "counter", "Jobs claimed, by outcome.");
    page.sample(so_far.completed, label("outcome", "completed"));
    page.sample(so_far.failed, label("outcome", "failed"));
    page.sample(so_far.requeued, label("outcome", "requeued"));
    page.sample(so_far.gone, label("outcome", "gone"));
    page.sample(unreported, label("outcome", "unreported"));
    page.single("ojs_worker_jobs_interrupted_total", "counter", "Runs that the stop cut short.", so_far.interrupted);
}

inline void show_requests(metrics_page& page, const worker_metrics& metrics) {
    page.single("ojs_worker_backend_up", "gauge", "Whether the latest heartbeat or FETCH got a response; of a loop 1.",
                metrics.backend_up ? 1 : 0);
    page.family("ojs_worker_heartbeats_total", "counter", "Heartbeats, by result.");
    page.sample(read_counter(metrics.beats_ok), label("result", "ok"));
    page.sample(read_counter(metrics.beats_failed), label("result", "failed"));
    page.family("ojs_worker_fetches_total", "counter", "FETCHes, by result.");
    for (std::size_t i = 0; i < 3; ++i) {
        page.sample(read_counter(metrics.fetches[i]), label("result", fetch_status_names[i]));
    }
}

inline void show_duration(metrics_page& page, const char* name, const char* help, time_point from, time_point to) {
    histogram one;  // a worker drains once
    if (from != time_point() && to != time_point()) one.observe(stop_bounds, to - from);
    page.family(name, "histogram", help);
    page.samples(one, stop_bounds);
}

inline void show_stop(metrics_page& page, const machine_state& worker, const worker_metrics& metrics, phase now) {
    const time_point drain = metrics.entered_at(phase::draining);
    const time_point stop = metrics.entered_at(phase::stopping);
    show_duration(page, "ojs_worker_drain_duration_seconds", "From the start of the drain to its end.", drain, stop);
    show_duration(page, "ojs_worker_shutdown_duration_seconds", "From the start of the shutdown to the last heartbeat.",
                  drain == time_point() ? stop : drain, metrics.entered_at(phase::terminated));
    const time_point deadline = worker.phases.drain_deadline();
    std::chrono::milliseconds left = worker.settings.times.shutdown_grace_period;
    if (deadline != time_point::max()) {
        left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    }
    if (now >= phase::stopping || left.count() < 0) left = std::chrono::milliseconds(0);
    page.single("ojs_worker_grace_left_seconds", "gauge",
                "Rest of the grace period: all of it before a drain, 0 after it.",
                left == no_limit ? "+Inf" : seconds_text(static_cast<std::uint64_t>(left.count()) * 1000U));
}

inline std::string metrics_text(const machine_state& worker, const worker_metrics& metrics, std::int64_t process_start,
                                std::string_view spot_reclaim) {
    metrics_page page;
    const phase now = worker.phases.now();
    const worker_report so_far = worker.report();
    show_phase(page, worker, now);
    show_active_jobs(page, worker, metrics.jobs.queues, so_far.stuck.size());
    show_outcomes(page, so_far, worker.unreported());
    metrics.jobs.show(page);
    show_requests(page, metrics);
    show_stop(page, worker, metrics, now);
    if (!worker.settings.termination_mode_file.empty()) {
        page.family("ojs_worker_spot_reclaim", "gauge",
                    "1 while the termination-mode file says SPOT_RECLAIM, from before or after the start.");
        for (const char* state : {"left_over", "announced"})
            page.sample(spot_reclaim == state ? 1 : 0, label("state", state));
    }
    page.family("ojs_worker_build_info", "gauge", "Always 1; the label is the version of ojs_shutdown.");
    page.sample(1, label("version", OJS_SHUTDOWN_VERSION));
    page.single("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970.",
                seconds_text(static_cast<std::uint64_t>(process_start) * 1000U));
    return std::move(page.text);
}

inline bool is_visible_ascii(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// An empty name: none. Error: an invalid option.
inline result<endpoint> health_endpoint(const ops_options& options) {
    if (!is_visible_ascii(options.token))
        return invalid("token (OJS_HEALTH_TOKEN) must consist of visible ASCII characters");
    if (options.address.empty()) {
        if (!options.control) return endpoint();
        return invalid("control (OJS_HEALTH_CONTROL) is on, but there is no address (OJS_HEALTH_ADDR)");
    }
    result<endpoint> where = parse_listen_address(options.address);
    if (!where) return invalid(cat({"health address (OJS_HEALTH_ADDR): ", where.error().text}));
    if (options.control && options.token.empty() && !is_local(*where))
        return invalid(
            cat({"control (OJS_HEALTH_CONTROL) without a token (OJS_HEALTH_TOKEN) needs a health address "
                 "(OJS_HEALTH_ADDR) on loopback or unix:, not '",
                 where->name, "'"}));
    return where;
}
inline result<void> check_health(const result<ops_options>& options) {
    const result<endpoint> where = options ? health_endpoint(*options) : options.error();
    return where ? result<void>() : where.error();
}

inline bool is_loopback(const result<endpoint>& where) noexcept {
    return where && !where->host.empty() && is_local(*where);
}

// Thread-safe.
class health_service : public ref_counted {
  public:
    health_service(const ops_options& options, machine_ref worker, ref<worker_metrics> metrics)
        : worker_(std::move(worker)), metrics_(std::move(metrics)) {
        if (process_start_ == 0) process_start_ = wall_started_;
        guard_.on_loopback = is_loopback(health_endpoint(options));
        guard_.open = options.control;
        guard_.token = options.token;
    }

    http_response respond(const http_request& request) {
        struct route : http_route {
            http_response (health_service::*respond)(const http_request&);
        };
        static constexpr route routes[] = {
            {{"/healthz", {"GET", "HEAD"}, false}, &health_service::readiness},
            {{"/readyz", {"GET", "HEAD"}, false}, &health_service::readiness},
            {{"/livez", {"GET", "HEAD"}, false}, &health_service::liveness},
            {{"/metrics", {"GET", "HEAD"}, false}, &health_service::metrics},
            {{"/quiet", {"GET", "POST"}, true}, &health_service::quiet},
            {{"/resume", {"POST", nullptr}, true}, &health_service::resume},
            {{"/stop", {"POST", nullptr}, true}, &health_service::stop},
        };
        http_response refused;
        const int chosen = choose_route(routes, 7, guard_, request, refused);
        return chosen < 0 ? refused : (this->*routes[chosen].respond)(request);
    }

    // The worker has ended: wakes all waiting requests.
    void stop_waiting() noexcept {
        ended_.store(true, memory_order::release);
        metrics_->changes.notify();
    }

  private:
    static constexpr std::chrono::milliseconds supervisor_timeout{1000};
    static constexpr std::chrono::milliseconds max_wait{3600000};
    static constexpr std::chrono::milliseconds peer_check_interval{1000};
    // Well below the number of connections, so that probes always get one.
    static constexpr int max_waits = 4;

    std::string status_text(phase now) const {
        return cat({"{\"phase\":\"", to_string(now), "\",\"ready\":", is_ready(*worker_, now) ? "true" : "false",
                    ",\"active_jobs\":", worker_->active(), stuck_text(), ",\"since\":\"",
                    utc_text(wall_time(metrics_->since(now))), "\"}"});
    }
    // The first 20; empty: none.
    std::string stuck_text() const {
        std::string ids;
        const std::vector<std::string> stuck = worker_->report().stuck;
        for (std::size_t i = 0; i < stuck.size() && i < 20; ++i)
            append(ids, {i == 0 ? ",\"stuck_jobs\":[" : ",", json_quote(stuck[i])});
        return stuck.empty() ? ids : ids + "]";
    }
    // Computed from one fixed pair of clock readings, so that one moment always has one text.
    std::int64_t wall_time(time_point when) const {
        return wall_started_ + std::chrono::duration_cast<std::chrono::milliseconds>(when - started_).count();
    }
    bool ended() const noexcept { return ended_.load(memory_order::acquire); }

    // Whether SPOT_RECLAIM is in the termination-mode file, from before or after the start: a stop by signal obeys it.
    const char* read_spot_reclaim() const {
        const std::string& file = worker_->settings.termination_mode_file;
        const termination_mode mode = file.empty() ? termination_mode() : read_termination_mode(file);
        if (mode.evidence != termination_evidence::reclaim) return "";
        return mode.changed_ms <= wall_started_ ? "left_over" : "announced";
    }

    http_response readiness(const http_request&) {
        const phase now = worker_->phases.now();
        const char* const reclaim = read_spot_reclaim();
        std::string text = status_text(now);
        if (*reclaim != '\0') text.insert(text.size() - 1, cat({",\"spot_reclaim\":\"", reclaim, "\""}));
        return json_response(is_ready(*worker_, now) ? 200 : 503, std::move(text));
    }

    // Wakes the supervisor and waits for an iteration of its loop. A worker that ends meanwhile was alive.
    http_response liveness(const http_request&) {
        const std::uint64_t seen = metrics_->turns.load(memory_order::acquire);
        worker_->waker.notify();
        const bool alive = metrics_->changes.await(deadline_after(supervisor_timeout), [&] {
            return ended() || metrics_->turns.load(memory_order::acquire) != seen;
        });
        return json_response(alive ? 200 : 503, status_text(worker_->phases.now()));
    }

    http_response metrics(const http_request&) {
        http_response out;
        out.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
        out.body = metrics_text(*worker_, *metrics_, process_start_, read_spot_reclaim());
        return out;
    }

    bool apply(event asked) { return worker_->phases.apply(asked, cause_kind::rpc); }
    http_response show_change(int status, bool changed) const {
        return json_response(status,
                             cat({"{\"changed\":", changed ? "true" : "false", ",\"active_jobs\":", worker_->active(),
                                  ",\"phase\":\"", to_string(worker_->phases.now()), "\"}"}));
    }
    http_response resume(const http_request&) { return show_change(200, apply(event::resume_request)); }
    http_response stop(const http_request&) { return show_change(202, apply(event::stop_request)); }
    // With wait=TIME: 200 once nothing is in flight, else 503.
    http_response quiet(const http_request& request) {
        // An older browser marks a POST by Origin, but nothing tells the GET of a page from a program's.
        if (request.method == "GET" && guard_.on_loopback && guard_.token.empty())
            return json_error(403, "on loopback GET needs a bearer token (OJS_HEALTH_TOKEN): send POST");
        std::string_view text;
        const bool waits = find_parameter(request.target, "wait", text);
        const result<std::chrono::milliseconds> wait = waits ? parse_duration(text) : std::chrono::milliseconds(0);
        if (!wait) return json_error(400, cat({"wait: ", wait.error().text}));
        const bool changed = apply(event::quiet_request);
        if (!waits) return show_change(200, changed);
        if (waits_.fetch_add(1) < max_waits) await_idle(request, deadline_after(detail::min(*wait, max_wait)));
        waits_.fetch_sub(1);
        return show_change(worker_->is_drained() ? 200 : 503, changed);
    }
    // A disconnected client frees its slot within peer_check_interval.
    void await_idle(const http_request& request, time_point deadline) {
        const auto settled = [this] {
            return ended() || worker_->is_drained() || worker_->phases.now() == phase::running;
        };
        for (;;) {
            const time_point look = deadline_after(peer_check_interval);
            if (metrics_->changes.await(std::min(look, deadline), settled)) return;
            if (steady_clock::now() >= deadline || is_abandoned(request)) return;
        }
    }

    const machine_ref worker_;
    const ref<worker_metrics> metrics_;
    const time_point started_ = steady_clock::now();
    const std::int64_t wall_started_ = wall_clock_ms();  // of the same moment
    std::int64_t process_start_ = process_start_ms();
    http_guard guard_;
    atomic<bool> ended_{false};
    atomic<int> waits_{0};
};

inline bool is_kubernetes(const container_info& info) {
    return info.platform != nullptr && std::string_view(info.platform->id) == "kubernetes";
}

// The kubelet's probes come from outside the pod's network.
inline void check_kubernetes_health(const endpoint& where, const container_info& info, std::vector<finding>& out) {
    if (!is_kubernetes(info) || !where.unix_path.empty()) return;
    const char* const cluster = std::getenv("KUBERNETES_SERVICE_HOST");
    const bool is_ipv6 = cluster != nullptr && is_ip(AF_INET6, cluster);
    const bool is_narrow = is_ipv6 && is_ip(AF_INET, where.host);
    if (!where.name.empty() && !is_local(where) && !is_narrow) return;
    out.push_back({where.name.empty() ? severity::info : severity::warning, "health-kubernetes",
                   where.name.empty() ? "no health address is set: the pod's probes would fail"
                                      : cat({"the pod's probes cannot reach ", where.name, ", which is ",
                                             is_narrow ? "IPv4 in a cluster of IPv6" : "loopback"}),
                   "for probes, set OJS_HEALTH_ADDR=[::]:8081, and use /livez for the liveness probe"});
}

// Sleeps without requests.
inline result<http_server> serve_health(const ops_options& options, const machine_state& worker,
                                        ref<health_service> answers) {
    http_server_options limits;
    limits.limits.head = 8 * 1024;
    limits.limits.body = 1024;
    limits.max_connections = 16;
    limits.idle_timeout = std::chrono::seconds(1);  // silent clients must not block probes
    limits.request_timeout = std::chrono::seconds(2);
    result<http_server> server = http_server::start(
        options.address,
        [answers = std::move(answers)](const http_request& request) { return answers->respond(request); }, limits);
    if (!server) {
        return error{
            server.error().code, server.error().sys_errno,
            cat({"health address (OJS_HEALTH_ADDR) '", printable(options.address, 120), "': ", server.error().text})};
    }
    log_record listening{log_level::info,
                         "health server listening",
                         {field("address", server->address()), field("control", options.control ? "on" : "off")},
                         {}};
    listening.component = "server";
    worker.log.write(std::move(listening));
    return server;
}
}  // namespace ojs::detail
