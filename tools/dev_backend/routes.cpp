#include "routes.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "clock.hpp"
#include "json.hpp"
#include "operations.hpp"
#include "schemas.hpp"
#include "web_pages.hpp"

namespace dev_backend {

namespace {

struct route {
    const char* method;
    const char* path;     // {NAME} is any text without a slash
    const char* purpose;  // one phrase, for list_routes()
    ojs::http_response (*run)(backend&, const incoming&);
};

ojs::http_response list_routes(backend& on, const incoming& in);

constexpr route routes[] = {
    {"GET", "/", "this list", &list_routes},
    {"POST", "/ojs/v1/workers/fetch", "claim jobs", &fetch},
    {"POST", "/ojs/v1/workers/ack", "report that a job is done", &ack},
    {"POST", "/ojs/v1/workers/nack", "report that a job failed, or requeue it", &nack},
    {"POST", "/ojs/v1/workers/heartbeat", "renew leases, receive directives", &heartbeat},
    {"POST", "/ojs/v1/workers/beat", "another path for heartbeats", &heartbeat},
    {"GET", "/ojs/v1/workers/{id}/health", "a worker's state", &worker_health},
    {"POST", "/ojs/v1/jobs", "enqueue a job", &push},
    {"POST", "/ojs/v1/jobs/batch", "enqueue jobs: all or none", &push_batch},
    {"GET", "/ojs/v1/jobs/{id}", "show a job", &info},
    {"DELETE", "/ojs/v1/jobs/{id}", "cancel a job", &cancel},
    {"POST", "/ojs/v1/jobs/{id}/activate", "make a pending job available", &activate},
    {"POST", "/ojs/v1/jobs/{id}/checkpoint", "save a checkpoint", &save_checkpoint},
    {"GET", "/ojs/v1/jobs/{id}/checkpoint", "show the checkpoint", &load_checkpoint},
    {"DELETE", "/ojs/v1/jobs/{id}/checkpoint", "delete the checkpoint", &drop_checkpoint},
    {"GET", "/ojs/v1/queues", "list queues", &list_queues},
    {"GET", "/ojs/v1/queues/{name}/events", "stream an event when jobs become available",
     &stream_queue_events},
    {"POST", "/ojs/v1/queues/{name}/pause", "stop claims from a queue", &pause_queue},
    {"POST", "/ojs/v1/queues/{name}/resume", "allow claims again", &resume_queue},
    {"GET", "/ojs/v1/events", "list lifecycle events", &list_events},
    {"GET", "/ojs/v1/dead-letter", "list dead letters", &list_dead_letters},
    {"POST", "/ojs/v1/dead-letter/{id}/retry", "make a dead letter available again", &retry_dead_letter},
    {"DELETE", "/ojs/v1/dead-letter/{id}", "delete a dead letter", &remove_dead_letter},
    {"GET", "/ojs/v1/admin/jobs", "list jobs", &list_jobs},
    {"GET", "/ojs/v1/admin/workers", "list workers", &list_workers},
    {"GET", "/ojs/v1/admin/workers/{id}", "show a worker", &show_worker},
    {"POST", "/ojs/v1/admin/workers/{id}/quiet", "quiet a worker with its next heartbeat", &quiet_worker},
    {"GET", "/ojs/v1/health", "whether jobs can be stored", &health},
    {"GET", "/ojs/manifest", "what this backend implements", &manifest},
    {"GET", "/readyz", "503 while the store fails, and in the shutdown", &readiness},
    {"GET", "/dev/summary", "how many jobs are in which state; the workers", &show_summary},
    {"POST", "/dev/directive", "send quiet, terminate or running with the next heartbeat", &set_directive},
    {"POST", "/dev/faults", "inject faults, as --faults does", &set_faults},
    {"POST", "/dev/delay", "delay responses, as --delay does", &set_delay},
    {"POST", "/dev/reset", "forget all jobs and workers", &reset},
};

// Levels of the binding that this backend lacks.
constexpr std::array<std::string_view, 3> unsupported = {"/ojs/v1/cron", "/ojs/v1/workflows",
                                                         "/ojs/v1/schemas"};

bool begins_with(std::string_view text, std::string_view begin) {
    return text.substr(0, begin.size()) == begin;
}
bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Matches `path` against `pattern`, and extracts what its {NAME} stands for.
bool fits(std::string_view path, std::string_view pattern, std::string_view& id) {
    const std::size_t at = pattern.find('{');
    if (at == pattern.npos) return path == pattern;
    const std::string_view rest = pattern.substr(pattern.find('}') + 1);
    if (path.size() <= at + rest.size() || !begins_with(path, pattern.substr(0, at)) ||
        !ends_with(path, rest)) {
        return false;
    }
    id = path.substr(at, path.size() - at - rest.size());
    return id.find('/') == id.npos;
}

bool is_checkpoint_route(std::string_view path) {
    std::string_view id;
    return fits(path, "/ojs/v1/jobs/{id}/checkpoint", id);
}

bool is_worker_route(std::string_view path) {
    return begins_with(path, "/ojs/v1/workers/");
}

// --strict and --count-heartbeats.
void require_form(backend& on, const incoming& in, std::string_view path) {
    if (!on.options.strict && !on.options.count_heartbeats) return;
    const json_members body = parse_object(in.request.body);
    std::string fault;
    if (on.options.strict)
        fault = schemas::fault_of_request(path, *json_view(in.request.body).as<picojson::value>());
    if (on.options.count_heartbeats && path == "/ojs/v1/workers/heartbeat" && !number_of(body["active_jobs"]))
        fault = "active_jobs is not a number";
    if (fault.empty()) return;
    const store::lock held(on.jobs.mutex());
    on.events.write("refused_form",
                    on.events.fields().text("route", path).text("why", fault).raw("body", in.request.body));
    throw refusal{400, "invalid_payload", fault};
}

ojs::http_response run_route(backend& on, incoming& in) {
    bool known = false;
    for (const route& each : routes) {
        std::string_view id;
        if (!fits(in.path, each.path, id)) continue;
        // A fixed path goes before one with a {NAME}: "batch" is no id of a job.
        if (in.request.method == each.method) {
            in.id = percent_decoded(id);
            if (!ojs::detail::is_utf8(in.id)) refuse_shape("the id in the path is not UTF-8");
            return each.run(on, in);
        }
        known = true;
    }
    if (known) throw refusal{405, "invalid_request", "method not allowed"};
    const auto is_here = [&](std::string_view each) { return begins_with(in.path, each); };
    if (std::any_of(unsupported.begin(), unsupported.end(), is_here)) {
        throw refusal{422, "unsupported", "this backend implements level 1 only"};
    }
    throw refusal{404, "not_found", "no such route"};
}

void append_padded(std::string& out, std::string_view text, std::size_t width) {
    out.append(text).append(width - std::min(width, text.size()) + 1, ' ');
}

ojs::http_response list_routes(backend&, const incoming&) {
    std::size_t width = 0;
    for (const route& each : routes) width = std::max(width, std::string_view(each.path).size());
    ojs::http_response out;
    out.headers = {{"Content-Type", "text/plain; charset=utf-8"}, {"OJS-Version", "1.0"}};
    for (const route& each : routes) {
        append_padded(out.body, each.method, std::string_view("DELETE").size());
        append_padded(out.body, each.path, width);
        out.body.append(each.purpose) += '\n';
    }
    return out;
}

constexpr std::size_t max_request_body = 8 * 1024 * 1024;

// Rejects changes while earlier ones cannot be written.
ojs::http_response dispatch(backend& on, incoming& in) {
    try {
        if (on.disk && on.disk->is_failing() && in.request.method != "GET") {
            throw refusal{503, "backend_error", "not stored: " + on.disk->fault()};
        }
        if (in.request.body.size() > max_request_body)
            throw refusal{413, "invalid_payload", "the request is larger than 8 MiB"};
        if (is_worker_route(in.path) && in.request.method == "POST") require_form(on, in, in.path);
        if (on.options.no_checkpoints && is_checkpoint_route(in.path)) {
            throw refusal{404, "not_found", "no such route"};
        }
        return run_route(on, in);
    } catch (const refusal& why) {
        return error_answer(why, in);
    }
}

// A refusal also depends on the store: an id is taken, or a job does not exist.
ojs::http_response answer_on_disk(backend& on, incoming& in) {
    ojs::http_response out = dispatch(on, in);
    if (!on.disk || out.status >= 500 || out.drop) return out;
    try {
        on.disk->wait();
    } catch (const refusal& why) {
        return error_answer(why, in);
    }
    return out;
}

void record_fault(backend& on, const char* kind, const incoming& in, std::string_view path) {
    json_object fields = on.events.fields();
    fields.text("kind", kind).text("route", path);
    try {
        const json_members body = parse_object(in.request.body);
        for (const char* key : {"worker_id", "job_id"}) {
            const std::string known = text_or(body, key, "");
            if (!known.empty()) fields.text(key, known);
        }
    } catch (const refusal&) {  // an invalid body: they are unknown
    }
    const store::lock held(on.jobs.mutex());
    on.events.write("fault", fields);
}

// --faults and --delay apply to the worker routes and checkpoints.
ojs::http_response handle_worker(backend& on, incoming& in) {
    const fault_plan plan = on.faults.next();
    if (plan.delay.count() > 0) record_fault(on, "delay", in, in.path);
    on.sleeps.pause(plan.delay);
    ojs::http_response out;
    if (plan.reset) {
        record_fault(on, "reset", in, in.path);
        out.drop = true;
        return out;
    }
    if (plan.e500) {
        record_fault(on, "e500", in, in.path);
        return error_answer({500, "backend_error", "injected fault"}, in);
    }
    in.lost = plan.lose;
    out = answer_on_disk(on, in);
    if (plan.lose) record_fault(on, "lose", in, in.path);
    out.drop = plan.lose;
    on.sleeps.pause(milliseconds(on.delay_ms.load()));
    return out;
}

std::string hex(std::uint64_t number) {
    std::array<char, 16> text{};
    return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number, 16).ptr};
}

// The client's own id if it is valid in a header, so that clients can match responses.
std::string request_id_of(const ojs::http_request& request) {
    const std::string_view given = ojs::find_header(request.headers, "X-Request-Id");
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
    if (!given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), is_plain)) {
        return std::string(given);
    }
    static std::atomic<std::uint64_t> last{0};
    return "req_" + hex(static_cast<std::uint64_t>(wall_ms())) + "-" + hex(++last);
}

void require_version(const ojs::http_request& request) {
    const std::string_view version = ojs::find_header(request.headers, "OJS-Version");
    if (version.empty() || version == "1" || begins_with(version, "1.")) return;
    throw refusal{422, "unsupported", "this backend speaks version 1.0"};
}

}  // namespace

ojs::http_response handle(backend& on, const ojs::http_request& request) {
    const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
    incoming in{request, monotonic_ns(), request_id_of(request), path, {}};
    ojs::http_response out;
    try {
        refuse_web_pages(request);
        require_version(request);
        const bool by_worker = is_worker_route(path) || is_checkpoint_route(path);
        out = by_worker ? handle_worker(on, in) : answer_on_disk(on, in);
    } catch (const refusal& why) {
        out = error_answer(why, in);
    }
    out.headers.push_back({"X-Request-Id", in.request_id});
    return out;
}

}  // namespace dev_backend
