// The backend's state, events, and the routes for development.
#include <fcntl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "backend.hpp"
#include "json.hpp"

namespace dev_backend {
ojs::http_response health(backend& on, const incoming&) {
    const bool is_failing = on.disk.is_failing();
    const json_object out = json_object().text("status", is_failing ? "degraded" : "ok").text("version", "1.0");
    return json_response(is_failing ? 503 : 200, out.open_text() + "}");
}

ojs::http_response manifest(backend& on, const incoming&) {
    json_object implementation;
    implementation.text("name", "dev_backend").text("version", OJS_SHUTDOWN_VERSION).text("language", "c++");
    json_object able;
    for (const char* each : {"batch_enqueue", "dead_letter", "delayed_jobs", "job_ttl", "priority_queues"})
        able.flag(each, true);
    for (const char* each :
         {"cron_jobs", "pause_resume", "rate_limiting", "schema_validation", "unique_jobs", "workflows"})
        able.flag(each, false);
    json_object out;
    json_object shutdown;
    shutdown.text("name", "graceful-shutdown").text("uri", "urn:ojs:ext:graceful-shutdown");
    json_object extensions;
    extensions.raw("official", "[" + shutdown.text("version", "1.0.0-rc.1").str() + "]");
    out.text("specversion", "1.0").text("ojs_version", "1.0").raw("implementation", implementation.str());
    out.number("conformance_level", 1).raw("capabilities", able.str()).raw("extensions", extensions.str());
    return json_response(200,
                         out.texts("protocols", {"http"}).text("backend", on.disk.is_open() ? "file" : "memory").str());
}

namespace {
// Of a query; empty: absent.
std::string_view parameter(std::string_view target, std::string_view name) {
    for (std::size_t at = target.find('?'); at != target.npos; at = target.find('&', at + 1)) {
        std::string_view each = target.substr(at + 1);
        each = each.substr(0, each.find('&'));
        if (each.size() > name.size() && each.substr(0, name.size()) == name && each[name.size()] == '=')
            return each.substr(name.size() + 1);
    }
    return {};
}

// Separated by commas.
std::vector<std::string> texts_parameter(std::string_view target, std::string_view name) {
    std::vector<std::string> out;
    for (std::string_view left = parameter(target, name); !left.empty();) {
        const std::size_t comma = std::min(left.find(','), left.size());
        out.emplace_back(left.substr(0, comma));
        left.remove_prefix(std::min(comma + 1, left.size()));
    }
    return out;
}
}  // namespace

ojs::http_response list_events(backend& on, const incoming& in) {
    std::uint64_t limit = 100;
    const std::string_view text = parameter(in.request.target, "limit");
    if (!text.empty() && !ojs::detail::parse_number(text, 1000, limit))
        refuse_shape("limit is not a number up to 1000");
    const store::lock held(on.jobs.mutex());
    return json_response(200, on.jobs.feed().list(texts_parameter(in.request.target, "types"),
                                                  texts_parameter(in.request.target, "queues"), limit));
}

ojs::http_response stream_queue_events(backend& on, const incoming& in) {
    // A copy of the descriptor: the server closes its own, because the response is dropped.
    const int served = static_cast<const ojs::detail::served_request&>(in.request).socket;
    ojs::detail::unique_fd socket(::fcntl(served, F_DUPFD_CLOEXEC, 0));
    const std::string head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
        "OJS-Version: 1.0\r\nConnection: close\r\n\r\n";
    if (!socket || !on.streams.subscribe(std::move(socket), in.id, head))
        throw refusal{503, "backend_error", "too many subscribers, or this server is shutting down"};
    ojs::http_response out;
    out.status = 0;
    return out;
}

ojs::http_response show_summary(backend& on, const incoming&) {
    const store::lock held(on.jobs.mutex());
    json_object out;
    out.number("pushed", static_cast<std::int64_t>(on.jobs.pushed())).number("requeued", on.jobs.requeued());
    for (std::size_t i = 0; i < state_names.size(); ++i)
        out.number(state_names[i], on.jobs.count_in(static_cast<job_state>(i)));
    json_object shown;
    for (const auto& [id, each] : on.jobs.workers()) {
        const std::string key = ojs::json_quote(id);
        const std::string_view inner = std::string_view(key).substr(1, key.size() - 2);
        shown.raw(inner, json_object().text("state", each.state).str());
    }
    return json_response(200, out.raw("workers", shown.str()).str());
}

ojs::http_response set_directive(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string directive = required_text(body, "directive");
    if (directive != "running" && directive != "quiet" && directive != "terminate") {
        refuse_shape("directive is none of running, quiet, terminate");
    }
    const store::lock held(on.jobs.mutex());
    on.jobs.direct(worker_id, directive);
    return json_response(200, "{}");
}

ojs::http_response set_faults(backend& on, const incoming& in) {
    const auto rates = parse_faults(text_or(parse_object(in.request.body), "faults", ""));
    if (!rates) refuse_shape("faults is not KIND:PERMILLE,... of delay, reset, e500, lose");
    on.faults.set(*rates);
    return json_response(200, "{}");
}

ojs::http_response set_delay(backend& on, const incoming& in) {
    const milliseconds asked = time_or(parse_object(in.request.body), "ms", milliseconds(1), milliseconds(0));
    on.delay_ms = std::min(asked, milliseconds(60000)).count();
    return json_response(200, "{}");
}

ojs::http_response reset(backend& on, const incoming&) {
    on.jobs.clear();
    return json_response(200, "{}");
}
}  // namespace dev_backend
