#include "routes.hpp"

#include <array>
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
    const char* path;
    ojs::http_response (*run)(backend&, const incoming&);
};

constexpr std::array<route, 12> routes = {{
    {"POST", "/ojs/v1/workers/fetch", &fetch},
    {"POST", "/ojs/v1/workers/ack", &ack},
    {"POST", "/ojs/v1/workers/nack", &nack},
    {"POST", "/ojs/v1/workers/heartbeat", &heartbeat},
    {"POST", "/ojs/v1/jobs", &push},
    {"POST", "/ojs/v1/jobs/batch", &push_batch},
    {"GET", "/ojs/v1/health", &health},
    {"GET", "/ojs/manifest", &manifest},
    {"GET", "/dev/summary", &show_summary},
    {"POST", "/dev/directive", &set_directive},
    {"POST", "/dev/faults", &set_faults},
    {"POST", "/dev/delay", &set_delay},
}};

constexpr std::string_view job_path = "/ojs/v1/jobs/";

bool is_worker_route(std::string_view path) {
    constexpr std::string_view all = "/ojs/v1/workers/";
    return path.substr(0, all.size()) == all;
}

// The id in the path of a checkpoint; empty for any other path.
std::string checkpoint_owner(std::string_view path) {
    constexpr std::string_view end = "/checkpoint";
    if (path.size() <= job_path.size() + end.size() || path.substr(0, job_path.size()) != job_path) return {};
    if (path.substr(path.size() - end.size()) != end) return {};
    path.remove_prefix(job_path.size());
    return std::string(path.substr(0, path.size() - end.size()));
}

// --strict and --count-heartbeats.
void require_form(backend& on, const incoming& in, std::string_view path) {
    if (!on.options.strict && !on.options.count_heartbeats) return;
    const picojson::value body = parse_object(in.request.body);
    std::string fault = on.options.strict ? schemas::fault_of_request(path, body) : "";
    if (on.options.count_heartbeats && path == "/ojs/v1/workers/heartbeat") {
        const picojson::value* active = member(body, "active_jobs");
        if (active == nullptr || !active->is<double>()) fault = "active_jobs is not a number";
    }
    if (fault.empty()) return;
    const store::lock held(on.jobs.mutex());
    on.events.write("refused_form",
                    json_object().text("route", path).text("why", fault).raw("body", in.request.body));
    throw refusal{400, "INVALID_PAYLOAD", fault};
}

ojs::http_response checkpoint(backend& on, const incoming& in, const std::string& id) {
    if (in.request.method == "POST") return save_checkpoint(on, in, id);
    if (in.request.method == "GET") return load_checkpoint(on, id);
    if (in.request.method == "DELETE") return drop_checkpoint(on, id);
    throw refusal{405, "INVALID_PAYLOAD", "method not allowed"};
}

ojs::http_response dispatch(backend& on, const incoming& in, std::string_view path) {
    try {
        if (is_worker_route(path)) require_form(on, in, path);
        bool known = false;
        for (const route& each : routes) {
            if (path != each.path) continue;
            if (in.request.method == each.method) return each.run(on, in);
            known = true;
        }
        const std::string owner = checkpoint_owner(path);
        if (!owner.empty() && !on.options.no_checkpoints) return checkpoint(on, in, owner);
        if (!known && owner.empty() && path.substr(0, job_path.size()) == job_path) {
            const std::string id(path.substr(job_path.size()));
            if (in.request.method == "GET") return info(on, id);
            if (in.request.method == "DELETE") return cancel(on, id);
            known = true;
        }
        if (known) throw refusal{405, "INVALID_PAYLOAD", "method not allowed"};
        throw refusal{404, "NOT_FOUND", "no such route"};
    } catch (const refusal& why) {
        return error_answer(why);
    }
}

void record_fault(backend& on, const char* kind, const incoming& in, std::string_view path) {
    json_object fields;
    fields.text("kind", kind).text("route", path);
    try {
        const picojson::value body = parse_object(in.request.body);
        for (const char* key : {"worker_id", "job_id"}) {
            const std::string known = text_or(body, key, "");
            if (!known.empty()) fields.text(key, known);
        }
    } catch (const refusal&) {  // a bad body: then they are not known
    }
    const store::lock held(on.jobs.mutex());
    on.events.write("fault", fields);
}

// The worker routes and checkpoints are where --faults and --delay apply.
ojs::http_response handle_worker(backend& on, incoming in, std::string_view path) {
    const fault_plan plan = on.faults.next();
    if (plan.delay.count() > 0) record_fault(on, "delay", in, path);
    on.sleeps.pause(plan.delay);
    ojs::http_response out;
    if (plan.reset) {
        record_fault(on, "reset", in, path);
        out.drop = true;
        return out;
    }
    if (plan.e500) {
        record_fault(on, "e500", in, path);
        return error_answer({500, "BACKEND_ERROR", "injected fault"});
    }
    in.lost = plan.lose;
    out = dispatch(on, in, path);
    if (plan.lose) record_fault(on, "lose", in, path);
    out.drop = plan.lose;
    on.sleeps.pause(milliseconds(on.delay_ms.load()));
    return out;
}

}  // namespace

ojs::http_response handle(backend& on, const ojs::http_request& request) {
    const incoming in{request, monotonic_ns()};
    const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
    try {
        refuse_web_pages(request);
    } catch (const refusal& why) {
        return error_answer(why);
    }
    if (is_worker_route(path) || !checkpoint_owner(path).empty()) return handle_worker(on, in, path);
    return dispatch(on, in, path);
}

}  // namespace dev_backend
