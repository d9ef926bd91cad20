#include "job.hpp"

#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {

std::string envelope(const job& shown) {
    json_object out = json_object::continued(shown.fixed);
    out.raw("meta", shown.meta);
    out.text("state", name_of(shown.state)).number("attempt", shown.attempt);
    if (!shown.started_at.empty()) out.text("started_at", shown.started_at);
    if (!shown.result.empty()) out.raw("result", shown.result);
    if (!shown.error.empty()) out.raw("error", shown.error);
    return out.str();
}

void require_holder(const job& held, std::string_view from) {
    if (from.empty() || held.owner == nullptr || held.owner->id == from) return;
    throw refusal{409, "INVALID_STATE_TRANSITION", "another worker holds the job"};
}

void require_active(const job& settled) {
    if (settled.state == job_state::active) return;
    throw refusal{409, "INVALID_STATE_TRANSITION",
                  std::string("the job is not active but ") + name_of(settled.state)};
}

}  // namespace dev_backend
