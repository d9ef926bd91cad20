// Maps a request to its operation, and injects faults.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <string_view>

#include "backend.hpp"
#include "clock.hpp"
#include "json.hpp"

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
    {"GET", "/ojs/v1/queues", "list the queues that had a job", &list_queues},
    {"GET", "/ojs/v1/queues/{name}/stats", "how many jobs of a queue are in which state", &queue_stats},
    {"GET", "/ojs/v1/queues/{name}/events", "stream an event when jobs become available", &stream_queue_events},
    {"GET", "/ojs/v1/events", "list lifecycle events", &list_events},
    {"GET", "/ojs/v1/dead-letter", "list dead letters", &list_dead_letters},
    {"POST", "/ojs/v1/dead-letter/{id}/retry", "make a dead letter available again", &retry_dead_letter},
    {"DELETE", "/ojs/v1/dead-letter/{id}", "delete a dead letter", &remove_dead_letter},
    {"GET", "/ojs/v1/health", "whether jobs can be stored", &health},
    {"GET", "/ojs/manifest", "what this backend implements", &manifest},
    {"GET", "/dev/summary", "how many jobs are in which state; the workers", &show_summary},
    {"POST", "/dev/directive", "send quiet, terminate or running with the next heartbeat", &set_directive},
    {"POST", "/dev/faults", "inject faults, as --faults does", &set_faults},
    {"POST", "/dev/delay", "delay responses to workers", &set_delay},
    {"POST", "/dev/reset", "forget all jobs and workers", &reset},
};

bool has_begin(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }
bool has_end(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Matches `path` against `pattern`, and extracts what its {NAME} stands for.
bool fits(std::string_view path, std::string_view pattern, std::string_view& id) {
    const std::size_t at = pattern.find('{');
    if (at == pattern.npos) return path == pattern;
    const std::string_view rest = pattern.substr(pattern.find('}') + 1);
    const bool is_long_enough = path.size() > at + rest.size();
    if (!is_long_enough || !has_begin(path, pattern.substr(0, at)) || !has_end(path, rest)) return false;
    id = path.substr(at, path.size() - at - rest.size());
    return id.find('/') == id.npos;
}

bool is_worker_route(std::string_view path) { return has_begin(path, "/ojs/v1/workers/"); }

std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        std::uint64_t byte = 0;
        if (text[i] == '%' && i + 2 < text.size() && ojs::detail::parse_number(text.substr(i + 1, 2), 255, byte, 16)) {
            out += static_cast<char>(byte);
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

ojs::http_response run_route(backend& on, incoming& in) {
    bool is_known = false;
    for (const route& each : routes) {
        std::string_view id;
        if (!fits(in.path, each.path, id)) continue;
        // A fixed path goes before one with a {NAME}: "batch" is no id of a job.
        if (in.request.method == each.method) {
            in.id = percent_decoded(id);
            return each.run(on, in);
        }
        is_known = true;
    }
    if (is_known) throw refusal{405, "invalid_request", "method not allowed"};
    throw refusal{404, "not_found", "no such route"};
}

ojs::http_response list_routes(backend&, const incoming&) {
    ojs::http_response out;
    out.headers = {{"Content-Type", "text/plain; charset=utf-8"}};
    for (const route& each : routes)
        out.body += ojs::detail::cat({each.method, " ", each.path, "  ", each.purpose, "\n"});
    return out;
}

void require_saved(backend& on) {
    if (const auto saved = on.disk.save(); !saved)
        throw refusal{503, "backend_error", "not stored yet, but it may be in a moment: " + saved.error().text};
}

// No response is sent before its data is on disk; also a refusal depends on the store: an id is taken, or a job does not
// exist. Nothing changes while earlier changes cannot be written.
ojs::http_response respond(backend& on, incoming& in) {
    if (on.disk.is_failing() && in.request.method != "GET") require_saved(on);
    ojs::http_response out;
    try {
        out = run_route(on, in);
    } catch (const refusal& why) {
        out = error_response(why);
    }
    if (out.status > 0 && out.status < 500) require_saved(on);
    return out;
}

void record_fault(backend& on, const char* kind, const incoming& in) {
    json_object fields;
    fields.text("kind", kind).text("route", in.path);
    const json_view body(in.request.body);
    for (const char* key : {"worker_id", "job_id"}) {
        if (const auto known = body.member(key).string()) fields.text(key, *known);
    }
    const store::lock held(on.jobs.mutex());
    on.events.write("fault", fields);
}

// Faults and delays apply to the worker routes.
ojs::http_response respond_to_worker(backend& on, incoming& in) {
    const fault_plan plan = on.faults.next();
    if (plan.delay.count() > 0) record_fault(on, "delay", in);
    on.sleeps.pause(plan.delay);
    ojs::http_response out;
    if (plan.reset) {
        record_fault(on, "reset", in);
        out.status = 0;  // none
        return out;
    }
    if (plan.e500) {
        record_fault(on, "e500", in);
        throw refusal{500, "backend_error", "injected fault"};
    }
    in.lost = plan.lose;
    out = respond(on, in);
    if (plan.lose) record_fault(on, "lose", in);
    if (plan.lose) out.status = 0;
    on.sleeps.pause(milliseconds(on.delay_ms.load()));
    return out;
}

// "127.0.0.1:8080", "[::1]:8080", "localhost": a foreign name may resolve to this machine (DNS rebinding), and is then
// the page's own origin.
bool is_local(std::string_view host) {
    const bool is_bracketed = has_begin(host, "[");
    const std::string name(is_bracketed ? host.substr(1, host.find(']') - 1) : host.substr(0, host.find(':')));
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    return name == "localhost" || inet_pton(is_bracketed ? AF_INET6 : AF_INET, name.c_str(), bytes.data()) == 1;
}

// Any page in a developer's browser can make it send requests to any address on this machine.
void refuse_web_pages(const ojs::http_request& request) {
    for (const char* name : {"Origin", "Sec-Fetch-Site"}) {
        if (ojs::find_header(request.headers, name).data() != nullptr)
            throw refusal{403, "x_forbidden", "requests from web pages are not allowed"};
    }
    const std::string_view host = ojs::find_header(request.headers, "Host");
    if (host.data() != nullptr && !is_local(host))
        throw refusal{403, "x_forbidden", "the Host is neither an address nor localhost"};
}
}  // namespace

ojs::http_response json_response(int status, std::string body) {
    ojs::http_response out;
    out.status = status;
    out.headers = {{"Content-Type", "application/openjobspec+json"}, {"OJS-Version", "1.0"}};
    out.body = std::move(body);
    return out;
}

ojs::http_response error_response(const refusal& why) {
    json_object inner;
    inner.text("code", why.code).text("message", why.message).flag("retryable", why.status >= 500);
    if (*why.type != '\0') inner.text("type", why.type);
    inner.text("hint", "the message says what is wrong").text("docs_url", "https://github.com/openjobspec/spec");
    return json_response(why.status, json_object().raw("error", inner.str()).str());
}

ojs::http_response handle(backend& on, const ojs::http_request& request) {
    const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
    incoming in{request, monotonic_ns(), path, {}};
    ojs::http_response out;
    try {
        refuse_web_pages(request);
        out = is_worker_route(path) ? respond_to_worker(on, in) : respond(on, in);
    } catch (const refusal& why) {
        out = error_response(why);
    }
    return out;
}
}  // namespace dev_backend
