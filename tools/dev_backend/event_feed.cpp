#include "event_feed.hpp"

#include <algorithm>
#include <utility>

#include "clock.hpp"
#include "ids.hpp"

namespace dev_backend {

namespace {

constexpr std::size_t max_events = 10000;
constexpr std::size_t max_bytes = 8 * 1024 * 1024;

bool is_one_of(const std::vector<std::string>& accepted, std::string_view value) {
    return accepted.empty() || std::find(accepted.begin(), accepted.end(), value) != accepted.end();
}

}  // namespace

json_object& event_feed::add(const char* type, const job& of) {
    if (!events_.empty()) bytes_ += size_of(events_.back());
    events_.push_back({++last_number_, wall_ms(), type, of.id, {}});
    while (events_.size() > max_events || (bytes_ > max_bytes && events_.size() > 1)) {
        bytes_ -= size_of(events_.front());
        events_.pop_front();
    }
    return events_.back().data.text("job_type", of.type).text("queue", of.queue);
}

void event_feed::clear() {
    events_.clear();
    bytes_ = 0;
}

bool event_feed::fits(const entry& tested, const event_filter& filter) {
    const json_view data(tested.data.open_text());
    return is_one_of(filter.types, tested.type) && is_one_of(filter.queues, *data.member("queue").string()) &&
           is_one_of(filter.job_types, *data.member("job_type").string());
}

std::string event_feed::shown(const entry& of) {
    json_object out;
    out.text("specversion", "1.0").text("id", event_id(of.number)).text("type", of.type);
    out.text("source", "ojs://dev-backend/api").text("time", iso_time(of.ms)).text("subject", of.job_id);
    return out.raw("data", of.data.open_text() + "}").str();
}

std::string event_feed::list(const event_filter& filter) const {
    std::vector<std::string> out;
    std::string cursor = filter.after;
    bool has_more = false;
    for (const entry& each : events_) {
        const std::string id = event_id(each.number);  // of equal length, so ordered by number
        if (id <= filter.after || !fits(each, filter)) continue;
        has_more = out.size() == filter.limit;
        if (has_more) break;
        out.push_back(shown(each));
        cursor = id;
    }
    return json_object().raws("events", out).text("cursor", cursor).flag("has_more", has_more).str();
}

}  // namespace dev_backend
