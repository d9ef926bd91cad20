// What workers send: FETCH, ACK, FAIL, heartbeats.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "clock.hpp"
#include "json.hpp"

namespace dev_backend {
ojs::http_response fetch(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    const auto queues = texts_of(member(body, "queues"));
    if (!queues || queues->empty()) refuse_shape("queues is missing, empty or not an array of strings");
    const std::int64_t count = integer_or(body, "count", 1, 1);
    const milliseconds lease = time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(0));

    const store::lock held(on.jobs.mutex());
    worker& by = on.jobs.find_worker(text_or(body, "worker_id", ""));
    json_object event;
    event.text("worker_id", by.id).texts("queues", *queues).number("count", count);
    event.number("recv_mono_ns", in.received_ns);
    if (by.state != "running") {
        on.events.write("refused_fetch", event.text("state", by.state));
        return json_response(200, "{\"jobs\":[]}");
    }
    std::vector<std::string_view> ids;
    std::string out = "{\"jobs\":[";
    for (const job* each : on.jobs.claim(by, *queues, static_cast<std::size_t>(count), lease)) {
        if (out.back() != '[') out += ',';
        out = open_envelope(*each, std::move(out)).str();
        ids.push_back(each->id);
    }
    event.texts("jobs", ids);
    if (in.lost) event.flag("lost", true);
    on.events.write("fetch", event);
    return json_response(200, out + "]}");
}

// ---- reports ----

namespace {
// Lets `apply(job, event)` change the job `id` that the sender holds, and records the request in any case.
template <class Apply>
ojs::http_response report(backend& on, const char* event, const incoming& in, const std::string& id, Apply apply) {
    json_object fields;
    fields.text("job_id", id);
    const std::string from = in.worker_id();
    if (!from.empty()) fields.text("from", from);
    const store::lock held(on.jobs.mutex());
    ojs::http_response out;
    try {
        job& of = on.jobs.find(id);
        if (of.owner != nullptr) fields.text("worker_id", of.owner->id);
        if (!from.empty() && of.owner != nullptr && of.owner->id != from)  // a late request
            throw refusal{409, "conflict", "another worker holds the job"};
        if (of.state != job_state::active)
            throw refusal{409, "conflict", std::string("the job is not active but ") + name_of(of.state)};
        out = json_response(200, apply(of, fields));
    } catch (const refusal& why) {
        out = error_response(why);
    }
    fields.number("status", out.status).number("recv_mono_ns", in.received_ns);
    if (in.lost) fields.flag("lost", true);
    on.events.write(event, fields);
    return out;
}

std::string settled(const job& of) {
    json_object out;
    out.flag("acknowledged", true).text("id", of.id).text("job_id", of.id);
    out.text("state", name_of(of.state));
    out.number("attempt", of.attempt).number("max_attempts", of.retry.max_attempts);
    if (has_ended(of.state)) out.text("completed_at", iso_time(of.ended_ms));
    if (of.state == job_state::discarded) out.text("discarded_at", iso_time(of.ended_ms));
    if (of.state == job_state::retryable) {
        out.number("retry_delay_ms", of.retry_delay.count());
        out.text("next_attempt_at", iso_time(wall_ms() + of.retry_delay.count()));
    }
    return out.str();
}

// The error's name in a retry policy: its type, else its details.error_class, else its code.
std::string type_of(json_view error) {
    const auto error_class = error.member("details").member("error_class").string();
    return text_or(error, "type", error_class.value_or(text_or(error, "code", "")));
}
}  // namespace

ojs::http_response ack(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    return report(on, "ack", in, required_text(body, "job_id"), [&](job& done, json_object& event) {
        std::string result(member(body, "result").text());
        if (!result.empty()) event.raw("result", result);
        on.jobs.complete(done, std::move(result));
        return settled(done);
    });
}

ojs::http_response nack(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    const json_view error = object_or_none(body, "error");
    if (!error) refuse_shape("error is missing");
    const std::string code = required_text(error, "code");
    const std::string type = type_of(error);
    // An interruption is not the job's fault, whatever the worker reports. [GS 6]
    const bool is_interruption = code == "ShutdownError" || type == "ShutdownError";
    const bool retryable = flag_or(error, "retryable", true) || is_interruption;
    const bool requeue = flag_or(body, "requeue", false);
    const std::string_view checkpoint = object_or_none(body, "meta").member("checkpoint").text();
    return report(on, "nack", in, required_text(body, "job_id"), [&](job& failed, json_object& event) {
        event.text("code", code).text("type", text_or(error, "type", ""));
        event.text("message", text_or(error, "message", "")).flag("retryable", retryable).flag("requeue", requeue);
        if (const json_view details = error.member("details")) event.raw("details", details.text());
        if (!checkpoint.empty()) {
            event.raw("checkpoint", checkpoint);
            on.jobs.set_checkpoint(failed, checkpoint);
        }
        std::string source(error.text());
        if (!member(error, "type")) source = with_raw_member(source, "type", ojs::json_quote(type));
        on.jobs.fail(failed, {source, type, retryable, requeue});
        event.text("state", name_of(failed.state));
        return settled(failed);
    });
}

// ---- heartbeats ----

ojs::http_response heartbeat(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string state = text_or(body, "state", "running");
    const milliseconds lease = time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(0));
    auto active = texts_of(member(body, "active_jobs"));
    if (!active) active = texts_of(member(body, "active_job_ids"));  // active_jobs was a count
    if (!active) active.emplace();

    const store::lock held(on.jobs.mutex());
    worker& from = on.jobs.find_worker(worker_id);
    from.state = state;
    for (const job* each : from.jobs) {
        if (!each->test_directive.empty()) from.directive = each->test_directive;
    }
    json_object event;
    event.text("worker_id", worker_id).text("state", state).texts("active", *active);
    event.number("recv_mono_ns", in.received_ns);
    if (in.lost) event.flag("lost", true);
    on.events.write("beat", event);
    const std::vector<std::string> extended = on.jobs.extend_leases(from, *active, lease);
    if (state == "terminate" || state == "terminated") {
        on.jobs.say_goodbye(from);
    } else {
        on.jobs.expect_heartbeat_by(from, ojs::steady_clock::now() + on.options.dead_after);
    }
    json_object out;
    out.flag("acknowledged", true).text("state", from.directive).texts("jobs_extended", extended);
    return json_response(200, out.text("server_time", iso_time()).str());
}

// For load balancers and probes: 200 while the worker takes jobs, else 503.
ojs::http_response worker_health(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const auto found = on.jobs.workers().find(in.id);
    if (found == on.jobs.workers().end()) throw refusal{404, "not_found", "no such worker"};
    const worker& of = found->second;
    json_object out;
    out.text("worker_id", of.id).text("state", of.state);
    out.number("active_jobs", static_cast<std::int64_t>(of.jobs.size()));
    return json_response(of.state == "running" ? 200 : 503, out.str());
}
}  // namespace dev_backend
