#include "job.hpp"

#include <utility>

#include "clock.hpp"
#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {

json_object open_envelope(const job& shown, std::string prefix) {
    json_object out = json_object::continued(std::move(prefix.append(shown.fixed)));
    out.raw("meta", shown.meta);
    out.text("state", name_of(shown.state)).number("attempt", shown.attempt);
    if (shown.owner != nullptr) out.text("worker_id", shown.owner->id);
    if (shown.started_ms > 0) out.text("started_at", iso_time(shown.started_ms));
    if (shown.retry_delay.count() > 0) out.number("retry_delay_ms", shown.retry_delay.count());
    if (shown.state == job_state::cancelled) out.text("cancelled_at", iso_time(shown.ended_ms));
    if (shown.state == job_state::discarded) out.text("discarded_at", iso_time(shown.ended_ms));
    if (shown.state == job_state::completed || shown.state == job_state::discarded) {
        out.text("completed_at", iso_time(shown.ended_ms));
    }
    if (!shown.result.empty()) out.raw("result", shown.result);
    if (!shown.error.empty()) out.raw("error", shown.error);
    if (!shown.errors.empty()) out.raws("errors", shown.errors);
    return out;
}

std::string_view checkpoint_of(const job& of) {
    return raw_member(of.meta, "checkpoint");
}

void require_holder(const job& held, std::string_view from) {
    if (from.empty() || held.owner == nullptr || held.owner->id == from) return;
    throw refusal{409, "conflict", "another worker holds the job"};
}

void require_active(const job& settled) {
    if (settled.state == job_state::active) return;
    throw refusal{409, "conflict", std::string("the job is not active but ") + name_of(settled.state)};
}

}  // namespace dev_backend
