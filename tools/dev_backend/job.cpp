#include "job.hpp"

#include <algorithm>

#include "clock.hpp"
#include "push_request.hpp"
#include "refusal.hpp"

namespace dev_backend {
json_object open_envelope(const job& shown, std::string prefix) {
    json_object out(std::move(prefix.append(shown.fixed)));
    out.raw("meta", shown.meta);
    out.text("state", name_of(shown.state)).number("attempt", shown.attempt);
    if (shown.owner != nullptr) out.text("worker_id", shown.owner->id);
    if (shown.started_ms > 0) out.text("started_at", iso_time(shown.started_ms));
    if (shown.retry_delay.count() > 0) out.number("retry_delay_ms", shown.retry_delay.count());
    if (shown.state == job_state::cancelled) out.text("cancelled_at", iso_time(shown.ended_ms));
    if (shown.state == job_state::discarded) out.text("discarded_at", iso_time(shown.ended_ms));
    if (shown.state == job_state::completed || shown.state == job_state::discarded)
        out.text("completed_at", iso_time(shown.ended_ms));
    if (!shown.result.empty()) out.raw("result", shown.result);
    if (!shown.error.empty()) out.raw("error", shown.error);
    if (!shown.errors.empty()) out.raws("errors", shown.errors);
    return out;
}

// ---- records ----

namespace {
std::int64_t wall_ms_of(ojs::time_point when) {
    if (when == never) return 0;
    return wall_ms() + std::chrono::duration_cast<milliseconds>(when - ojs::steady_clock::now()).count();
}

job_state state_of(const std::string& name) {
    const auto* const found = std::find(state_names.begin(), state_names.end(), name);
    if (found == state_names.end()) refuse_shape("no state is called " + name);
    return static_cast<job_state>(found - state_names.begin());
}
}  // namespace

std::string record_of(const job& kept) {
    json_object out;
    out.text("id", kept.id);
    if (!kept.is_stored) out.raw("fixed", kept.fixed + "}");
    out.number("turn", kept.turn).number("created_ms", kept.created_ms);
    out.raw("meta", kept.meta).text("state", name_of(kept.state)).number("attempt", kept.attempt);
    if (kept.owner != nullptr) out.text("worker", kept.owner->id).number("lease_ms", kept.lease.count());
    out.number("due_ms", wall_ms_of(kept.due)).number("started_ms", kept.started_ms).number("ended_ms", kept.ended_ms);
    out.number("retry_delay_ms", kept.retry_delay.count()).flag("is_dead_letter", kept.is_dead_letter);
    if (!kept.result.empty()) out.raw("result", kept.result);
    if (!kept.error.empty()) out.raw("error", kept.error);
    return out.raws("errors", kept.errors).str();
}

std::unique_ptr<job> job_of(std::string_view fixed, json_view record) {
    auto out = std::make_unique<job>();
    static_cast<job_terms&>(*out) = read_push(parse_object(fixed), true);
    if (out->id != required_text(record, "id")) refuse_shape("fixed is that of another job");
    out->fixed = fixed.substr(0, fixed.size() - 1);
    out->meta = object_or_none(record, "meta").text();
    out->turn = integer_or(record, "turn", 1, 0);
    out->created_ms = integer_or(record, "created_ms", 0, 0);
    out->state = state_of(required_text(record, "state"));
    out->attempt = integer_or(record, "attempt", 0, 0);
    out->lease = time_or(record, "lease_ms", milliseconds(1), milliseconds(0));
    out->retry_delay = time_or(record, "retry_delay_ms", milliseconds(1), milliseconds(0));
    out->started_ms = integer_or(record, "started_ms", 0, 0);
    out->ended_ms = integer_or(record, "ended_ms", 0, 0);
    out->is_dead_letter = flag_or(record, "is_dead_letter", false);
    out->result = member(record, "result").text();
    out->error = member(record, "error").text();
    for (const auto& [key, value] : member(record, "errors")) out->errors.emplace_back(value.text());
    out->is_stored = true;
    return out;
}
}  // namespace dev_backend
