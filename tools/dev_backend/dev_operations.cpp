// The backend's state, and the routes for development.
#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"
#include "operations.hpp"

namespace dev_backend {

ojs::http_response health(backend& on, const incoming&) {
    const bool failing = on.disk && on.disk->is_failing();
    json_object storage;
    storage.text("type", on.disk ? "sqlite" : "memory").text("status", failing ? "failing" : "connected");
    if (failing) storage.text("error", on.disk->fault());
    const auto up = std::chrono::duration_cast<std::chrono::seconds>(ojs::steady_clock::now() - on.started);
    json_object out;
    out.text("status", failing ? "degraded" : "ok")
        .text("version", "1.0")
        .number("uptime_seconds", up.count());
    return json_response(failing ? 503 : 200, out.raw("backend", storage.str()).str());
}

ojs::http_response manifest(backend& on, const incoming&) {
    json_object implementation;
    implementation.text("name", "dev_backend").text("version", OJS_SHUTDOWN_VERSION).text("language", "c++");
    json_object able;
    for (const char* each :
         {"batch_enqueue", "dead_letter", "delayed_jobs", "job_ttl", "pause_resume", "priority_queues"}) {
        able.flag(each, true);
    }
    for (const char* each : {"cron_jobs", "rate_limiting", "schema_validation", "unique_jobs", "workflows"}) {
        able.flag(each, false);
    }
    json_object out;
    json_object shutdown;
    shutdown.text("name", "graceful-shutdown").text("uri", "urn:ojs:ext:graceful-shutdown");
    json_object extensions;
    extensions.raw("official", "[" + shutdown.text("version", "1.0.0-rc.1").str() + "]");
    out.text("specversion", "1.0").text("ojs_version", "1.0").raw("implementation", implementation.str());
    out.number("conformance_level", 1).raw("capabilities", able.str()).raw("extensions", extensions.str());
    return json_response(
        200, out.texts("protocols", {"http"}).text("backend", on.disk ? "sqlite" : "memory").str());
}

ojs::http_response readiness(backend& on, const incoming&) {
    if (on.is_ending) throw refusal{503, "backend_error", "this server is shutting down"};
    if (on.disk && on.disk->is_failing())
        throw refusal{503, "backend_error", "not stored: " + on.disk->fault()};
    return json_response(200, "{\"status\":\"ready\"}");
}

ojs::http_response show_summary(backend& on, const incoming&) {
    return json_response(200, summary(on));
}

std::string summary(backend& of) {
    const store::lock held(of.jobs.mutex());
    json_object workers;
    for (const auto& [id, each] : of.jobs.workers()) {
        json_object shown;
        shown.text("state", each->state).number("beats", each->beats).texts("last_active", each->last_active);
        const std::string key = ojs::json_quote(id);
        workers.raw(std::string_view(key).substr(1, key.size() - 2),
                    shown.raw("registration", each->registration).str());
    }
    const counts& counted = of.jobs.counted();
    json_object out;
    out.number("pushed", static_cast<std::int64_t>(of.jobs.pushed()));
    for (std::size_t i = 0; i < state_names.size(); ++i) out.number(state_names[i], counted.in_state[i]);
    out.number("requeued", counted.requeued)
        .number("expired", counted.expired)
        .number("conflicts", of.conflicts);
    return out.raw("workers", workers.str()).str();
}

ojs::http_response set_directive(backend& on, const incoming& in) {
    const json_members body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string directive = required_text(body, "directive");
    if (directive != "running" && directive != "quiet" && directive != "terminate") {
        refuse_shape("directive is none of running, quiet, terminate");
    }
    const std::vector<std::string> queues = texts_of(body["queues"]).value_or(std::vector<std::string>());
    if (!queues.empty() && directive != "quiet") refuse_shape("queues go with the directive quiet alone");
    const store::lock held(on.jobs.mutex());
    on.jobs.direct(worker_id, directive, queues);
    return json_response(200, "{}");
}

ojs::http_response set_faults(backend& on, const incoming& in) {
    const auto rates = parse_faults(text_or(parse_object(in.request.body), "faults", ""));
    if (!rates) refuse_shape("faults is not KIND:PERMILLE,... of delay, reset, e500, lose");
    on.faults.set(*rates);
    return json_response(200, "{}");
}

ojs::http_response set_delay(backend& on, const incoming& in) {
    const milliseconds asked =
        time_or(parse_object(in.request.body), "ms", milliseconds(1), milliseconds(0), milliseconds(0));
    on.delay_ms.store(std::min(asked, max_delay).count());
    return json_response(200, "{}");
}

ojs::http_response reset(backend& on, const incoming&) {
    on.jobs.clear();
    const store::lock held(on.jobs.mutex());
    on.conflicts = 0;
    return json_response(200, "{}");
}

}  // namespace dev_backend
