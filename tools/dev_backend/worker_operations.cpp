// FETCH, ACK, FAIL, BEAT.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "json.hpp"
#include "operations.hpp"

namespace dev_backend {

namespace {

// Adds the last checkpoint, as the durable-execution extension has it.
std::string claimed_envelope(const job& claimed, bool with_checkpoint) {
    if (!with_checkpoint || !claimed.has_checkpoint) return envelope(claimed);
    const std::string state = json_object().raw("state", checkpoint_of(claimed)).str();
    return json_object::continued(open_envelope(claimed)).raw("checkpoint", state).str();
}

}  // namespace

ojs::http_response fetch(backend& on, const incoming& in) {
    const picojson::value body = parse_object(in.request.body);
    const auto queues = texts_of(body, "queues");
    if (!queues || queues->empty()) refuse_shape("queues is missing, empty or not an array of strings");
    const std::int64_t count = integer_or(body, "count", 1, 1);
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(0));
    const std::string worker_id = text_or(body, "worker_id", "");

    const store::lock held(on.jobs.mutex());
    const worker& by = on.jobs.find_worker(worker_id);
    json_object event;
    event.text("worker_id", worker_id).texts("queues", *queues).number("count", count);
    event.number("recv_mono_ns", in.received_ns);
    if (by.state != "running") {
        on.events.write("refused_fetch", event.text("state", by.state));
        return json_response(200, "{\"jobs\":[]}");
    }
    std::vector<std::string> ids;
    std::string out = "{\"jobs\":[";
    for (const job* each : on.jobs.claim(worker_id, *queues, static_cast<std::size_t>(count), lease)) {
        if (out.back() != '[') out += ',';
        out += claimed_envelope(*each, !on.options.no_checkpoints);
        ids.push_back(each->id);
    }
    event.texts("jobs", ids);
    if (in.lost) event.flag("lost", true);
    on.events.write("fetch", event);
    return json_response(200, out + "]}");
}

namespace {

// Lets `apply(body, job, event)` settle the active job, and records the request in any case.
template <class Settle>
ojs::http_response settle(backend& on, const char* event, const incoming& in, Settle apply) {
    json_object fields;
    const std::string from(ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    if (!from.empty()) fields.text("from", from);
    ojs::http_response out;
    store::lock held(on.jobs.mutex(), std::defer_lock);
    try {
        const picojson::value body = parse_object(in.request.body);
        const std::string id = required_text(body, "job_id");
        fields.text("job_id", id);
        held.lock();
        const job& found = on.jobs.find(id);
        if (found.owner != nullptr) fields.text("worker_id", found.owner->id);
        require_holder(found, from);
        out = apply(body, found, fields);
    } catch (const refusal& why) {
        out = error_answer(why, in);
    }
    if (!held.owns_lock()) held.lock();
    if (out.status == 409) ++on.conflicts;
    fields.number("status", out.status).number("recv_mono_ns", in.received_ns);
    if (in.lost) fields.flag("lost", true);
    on.events.write(event, fields);
    return out;
}

std::string settled_answer(const job& settled) {
    json_object out;
    out.flag("acknowledged", true).text("id", settled.id).text("job_id", settled.id);
    out.text("state", name_of(settled.state));
    out.number("attempt", settled.attempt).number("max_attempts", settled.retry.max_attempts);
    if (has_ended(settled.state)) out.text("completed_at", iso_time(settled.ended_ms));
    if (settled.state == job_state::discarded) out.text("discarded_at", iso_time(settled.ended_ms));
    if (settled.state == job_state::retryable) {
        out.number("retry_delay_ms", settled.retry_delay.count());
        out.text("next_attempt_at", iso_time(wall_ms() + settled.retry_delay.count()));
    }
    return out.str();
}

// The error's name in a retry policy: its type, else its details.error_class or the like, else its code.
std::string type_of(const picojson::value& error) {
    const picojson::value* details = member(error, "details");
    const picojson::value* error_class = details == nullptr ? nullptr : member(*details, "error_class");
    const bool has_class = error_class != nullptr && error_class->is<std::string>();
    return text_or(error, "type", has_class ? error_class->get<std::string>() : text_or(error, "code", ""));
}

bool is_interruption(const picojson::value& error) {
    return text_or(error, "code", "") == "ShutdownError" || text_or(error, "type", "") == "ShutdownError";
}

bool says_goodbye(const std::string& state) {
    return state == "terminate" || state == "terminated";
}

}  // namespace

ojs::http_response ack(backend& on, const incoming& in) {
    return settle(on, "ack", in, [&](const picojson::value& body, const job& done, json_object& event) {
        std::string result;
        if (member(body, "result") != nullptr) {
            result = source_of(in.request.body, "result");
            event.raw("result", result);
        }
        require_active(done);
        on.jobs.complete(done.id, std::move(result));
        return json_response(200, settled_answer(done));
    });
}

ojs::http_response nack(backend& on, const incoming& in) {
    return settle(on, "nack", in, [&](const picojson::value& body, const job& failed, json_object& event) {
        const picojson::value* error = member(body, "error");
        if (error == nullptr || !error->is<picojson::object>())
            refuse_shape("error is missing or not an object");
        std::string source(source_of(in.request.body, "error"));
        if (member(*error, "type") == nullptr) source = with_member(source, "type", quote(type_of(*error)));
        // An interruption is not the job's fault, whatever the worker reports. [GS 6]
        const bool retryable = flag_or(*error, "retryable", true) || is_interruption(*error);
        const bool requeue = flag_or(body, "requeue", false);
        event.text("code", required_text(*error, "code")).text("type", text_or(*error, "type", ""));
        event.text("message", text_or(*error, "message", ""))
            .flag("retryable", retryable)
            .flag("requeue", requeue);
        if (member(*error, "details") != nullptr) event.raw("details", source_of(source, "details"));
        std::string state;
        if (const picojson::value* meta = member(body, "meta")) {
            if (!meta->is<picojson::object>()) refuse_shape("meta is not an object");
            state = source_of(source_of(in.request.body, "meta"), "checkpoint");
            if (!state.empty()) event.raw("checkpoint", state);
        }
        require_active(failed);
        if (state.size() > on.options.max_checkpoint)
            throw refusal{413, "invalid_payload", "the checkpoint is too large"};
        if (!state.empty()) on.jobs.keep_checkpoint(failed.id, state);
        const job_state next = on.jobs.fail(
            failed.id, {source, type_of(*error), text_or(*error, "code", ""), retryable, requeue});
        event.text("state", name_of(next));
        return json_response(200, settled_answer(failed));
    });
}

ojs::http_response heartbeat(backend& on, const incoming& in) {
    const picojson::value body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string state = text_or(body, "state", "running");
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(0));
    auto active = texts_of(body, "active_jobs");
    if (!active) active = texts_of(body, "active_job_ids");  // active_jobs was a count

    const store::lock held(on.jobs.mutex());
    const worker& from =
        on.jobs.note({worker_id, state, in.request.body, active.value_or(std::vector<std::string>())});
    json_object event;
    event.text("worker_id", worker_id).text("state", state).texts("active", from.last_active);
    event.flag("says_state", member(body, "state") != nullptr);
    event.number("recv_mono_ns", in.received_ns);
    if (in.lost) event.flag("lost", true);
    on.events.write("beat", event);
    const std::vector<std::string> extended = on.jobs.extend_leases(worker_id, from.last_active, lease);
    if (says_goodbye(state)) {
        on.events.write("deregistered", json_object().text("worker_id", worker_id));
        on.jobs.say_goodbye(worker_id);
    } else {
        on.jobs.expect_beat_by(worker_id, ojs::steady_clock::now() + on.options.dead_after);
    }
    json_object out;
    out.flag("acknowledged", true)
        .text("state", from.directive)
        .texts("jobs_extended", extended)
        .text("server_time", iso_time());
    if (!from.directive_queues.empty()) out.texts("queues", from.directive_queues);
    return json_response(200, out.str());
}

}  // namespace dev_backend
