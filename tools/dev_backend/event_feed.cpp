#include "event_feed.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "clock.hpp"

namespace dev_backend {

namespace {

constexpr std::size_t max_events = 10000;
constexpr std::size_t max_bytes = 8 * 1024 * 1024;

bool is_one_of(const std::vector<std::string>& accepted, std::string_view value) {
    return accepted.empty() || std::find(accepted.begin(), accepted.end(), value) != accepted.end();
}

}  // namespace

void event_feed::add(const char* type, const job& of, json_object details) {
    details.text("job_type", of.type).text("queue", of.queue);
    events_.push_back({++last_number_, wall_ms(), type, of.id, of.type, of.queue, details.str()});
    bytes_ += events_.back().data.size();
    while (events_.size() > max_events || (bytes_ > max_bytes && events_.size() > 1)) {
        bytes_ -= events_.front().data.size();
        events_.pop_front();
    }
}

void event_feed::clear() {
    events_.clear();
    bytes_ = 0;
}

std::string event_feed::id_of(const entry& of) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "evt_%016llx", static_cast<unsigned long long>(of.number));
    return text.data();
}

bool event_feed::fits(const entry& tested, const event_filter& filter) {
    return is_one_of(filter.types, tested.type) && is_one_of(filter.queues, tested.queue) &&
           is_one_of(filter.job_types, tested.job_type);
}

std::string event_feed::shown(const entry& of) {
    json_object out;
    out.text("specversion", "1.0").text("id", id_of(of)).text("type", of.type);
    out.text("source", "ojs://dev-backend/api").text("time", iso_time(of.ms)).text("subject", of.job_id);
    return out.raw("data", of.data).str();
}

std::string event_feed::list(const event_filter& filter) const {
    std::vector<std::string> out;
    std::string cursor = filter.after;
    bool has_more = false;
    for (const entry& each : events_) {
        const std::string id = id_of(each);  // of equal length, so ordered by number
        if (id <= filter.after || !fits(each, filter)) continue;
        has_more = out.size() == filter.limit;
        if (has_more) break;
        out.push_back(shown(each));
        cursor = id;
    }
    return json_object().raws("events", out).text("cursor", cursor).flag("has_more", has_more).str();
}

}  // namespace dev_backend
