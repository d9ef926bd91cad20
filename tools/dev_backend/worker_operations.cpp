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
std::string claimed_envelope(const job& claimed, bool with_checkpoint, std::string prefix) {
    json_object out = open_envelope(claimed, std::move(prefix));
    if (with_checkpoint && claimed.has_checkpoint)
        out.raw("checkpoint", json_object().raw("state", checkpoint_of(claimed)).str());
    return out.str();
}

}  // namespace

ojs::http_response fetch(backend& on, const incoming& in) {
    const json_members body = parse_object(in.request.body);
    const auto queues = texts_of(body["queues"]);
    if (!queues || queues->empty()) refuse_shape("queues is missing, empty or not an array of strings");
    const std::int64_t count = integer_or(body, "count", 1, 1);
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(0));
    const std::string worker_id = text_or(body, "worker_id", "");

    const store::lock held(on.jobs.mutex());
    const worker& by = on.jobs.find_worker(worker_id);
    json_object event = on.events.fields();
    event.text("worker_id", worker_id).texts("queues", *queues).number("count", count);
    event.number("recv_mono_ns", in.received_ns);
    if (by.state != "running") {
        on.events.write("refused_fetch", event.text("state", by.state));
        return json_response(200, "{\"jobs\":[]}");
    }
    std::vector<std::string_view> ids;
    std::string out = "{\"jobs\":[";
    for (const job* each : on.jobs.claim(worker_id, *queues, static_cast<std::size_t>(count), lease)) {
        if (out.back() != '[') out += ',';
        out = claimed_envelope(*each, !on.options.no_checkpoints, std::move(out));
        ids.push_back(each->id);
    }
    event.texts("jobs", ids);
    if (in.lost) event.flag("lost", true);
    on.events.write("fetch", event);
    // It was declared dead, but claims again: if it dies now, its jobs must come back once more.
    const bool declared_dead = by.beats > 0 && by.dead_at == ojs::time_point::max();
    if (declared_dead) on.jobs.expect_beat_by(worker_id, ojs::steady_clock::now() + on.options.dead_after);
    return json_response(200, out + "]}");
}

namespace {

// Lets `apply(body, job, event)` settle the active job, and records the request in any case.
template <class Settle>
ojs::http_response settle(backend& on, const char* event, const incoming& in, Settle apply) {
    json_object fields = on.events.fields();
    const std::string from(ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    if (!from.empty()) fields.text("from", from);
    ojs::http_response out;
    store::lock held(on.jobs.mutex(), std::defer_lock);
    try {
        const json_members body = parse_object(in.request.body);
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
std::string type_of(const json_members& error) {
    const json_view error_class = error["details"].member("error_class");
    return text_or(error, "type", error_class.string().value_or(text_or(error, "code", "")));
}

bool is_interruption(const json_members& error) {
    return text_or(error, "code", "") == "ShutdownError" || text_or(error, "type", "") == "ShutdownError";
}

bool says_goodbye(const std::string& state) {
    return state == "terminate" || state == "terminated";
}

}  // namespace

ojs::http_response ack(backend& on, const incoming& in) {
    return settle(on, "ack", in, [&](const json_members& body, const job& done, json_object& event) {
        std::string result(body["result"].text());
        if (!result.empty()) event.raw("result", result);
        require_active(done);
        on.jobs.complete(done.id, std::move(result));
        return json_response(200, settled_answer(done));
    });
}

ojs::http_response nack(backend& on, const incoming& in) {
    return settle(on, "nack", in, [&](const json_members& body, const job& failed, json_object& event) {
        const json_view given = body["error"];
        if (given.type() != json_type::object) refuse_shape("error is missing or not an object");
        const json_members error(given);
        const std::string type = type_of(error);
        std::string source(given.text());
        if (!error["type"]) source = with_raw_member(source, "type", ojs::json_quote(type));
        // An interruption is not the job's fault, whatever the worker reports. [GS 6]
        const bool retryable = flag_or(error, "retryable", true) || is_interruption(error);
        const bool requeue = flag_or(body, "requeue", false);
        event.text("code", required_text(error, "code")).text("type", text_or(error, "type", ""));
        event.text("message", text_or(error, "message", ""))
            .flag("retryable", retryable)
            .flag("requeue", requeue);
        if (const json_view details = error["details"]) event.raw("details", details.text());
        std::string state;
        if (const json_view meta = body["meta"]) {
            if (meta.type() != json_type::object) refuse_shape("meta is not an object");
            state = meta.member("checkpoint").text();
            if (!state.empty()) event.raw("checkpoint", state);
        }
        require_active(failed);
        if (state.size() > on.options.max_checkpoint)
            throw refusal{413, "invalid_payload", "the checkpoint is too large"};
        if (!state.empty()) on.jobs.keep_checkpoint(failed.id, state);
        const job_state next =
            on.jobs.fail(failed.id, {source, type, text_or(error, "code", ""), retryable, requeue});
        event.text("state", name_of(next));
        return json_response(200, settled_answer(failed));
    });
}

ojs::http_response heartbeat(backend& on, const incoming& in) {
    const json_members body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string state = text_or(body, "state", "running");
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(0));
    auto active = texts_of(body["active_jobs"]);
    if (!active) active = texts_of(body["active_job_ids"]);  // active_jobs was a count

    const store::lock held(on.jobs.mutex());
    const worker& from =
        on.jobs.note({worker_id, state, in.request.body, active.value_or(std::vector<std::string>())});
    json_object event = on.events.fields();
    event.text("worker_id", worker_id).text("state", state).texts("active", from.last_active);
    event.flag("says_state", static_cast<bool>(body["state"]));
    event.number("recv_mono_ns", in.received_ns);
    if (in.lost) event.flag("lost", true);
    on.events.write("beat", event);
    const std::vector<std::string> extended = on.jobs.extend_leases(worker_id, from.last_active, lease);
    if (says_goodbye(state)) {
        on.events.write("deregistered", on.events.fields().text("worker_id", worker_id));
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
