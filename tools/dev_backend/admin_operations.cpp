// The admin routes for workers. [OJS admin API 9]
#include <string>
#include <vector>

#include "clock.hpp"
#include "json.hpp"
#include "operations.hpp"

namespace dev_backend {

namespace {

std::string shown(const worker& each) {
    json_object out;
    out.text("id", each.id).text("state", each.state).text("directive", each.directive);
    out.number("active_jobs", static_cast<std::int64_t>(each.jobs.size())).number("beats", each.beats);
    if (each.last_beat_ms > 0) out.text("last_heartbeat_at", iso_time(each.last_beat_ms));
    return out.raw("registration", each.registration).str();
}

const worker& known_worker(const backend& on, const std::string& id) {
    const auto found = on.jobs.workers().find(id);
    if (found == on.jobs.workers().end()) throw refusal{404, "not_found", "no such worker"};
    return *found->second;
}

}  // namespace

ojs::http_response list_workers(backend& on, const incoming&) {
    const store::lock held(on.jobs.mutex());
    std::vector<std::string> items;
    std::int64_t running = 0;
    for (const auto& each : on.jobs.workers()) {
        items.push_back(shown(*each.second));
        if (each.second->state == "running") ++running;
    }
    const auto total = static_cast<std::int64_t>(items.size());
    json_object totals;
    totals.number("total", total).number("running", running);
    json_object pages;
    pages.number("total", total).flag("has_more", false);
    json_object out;
    out.raws("items", items).raw("summary", totals.str()).raw("pagination", pages.str());
    return json_response(200, out.str());
}

ojs::http_response show_worker(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    return json_response(200, shown(known_worker(on, in.id)));
}

ojs::http_response quiet_worker(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const std::string id = known_worker(on, in.id).id;
    on.jobs.direct(id, "quiet", {});
    return json_response(200, json_object().text("id", id).text("directive", "quiet").str());
}

// For load balancers and probes: 200 while the worker takes jobs, else 503.
ojs::http_response worker_health(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const worker& of = known_worker(on, in.id);
    json_object out;
    out.text("worker_id", of.id).text("state", of.state);
    out.number("active_jobs", static_cast<std::int64_t>(of.jobs.size()));
    return json_response(of.state == "running" ? 200 : 503, out.str());
}

}  // namespace dev_backend
