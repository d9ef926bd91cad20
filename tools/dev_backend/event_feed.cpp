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

bool is_one_of(const std::vector<std::string>& wanted, std::string_view value) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
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

bool event_feed::fits(const entry& tested, const event_filter& wanted) {
    return is_one_of(wanted.types, tested.type) && is_one_of(wanted.queues, tested.queue) &&
           is_one_of(wanted.job_types, tested.job_type);
}

std::string event_feed::shown(const entry& of) {
    json_object out;
    out.text("specversion", "1.0").text("id", id_of(of)).text("type", of.type);
    out.text("source", "ojs://dev-backend/api").text("time", iso_time(of.ms)).text("subject", of.job_id);
    return out.raw("data", of.data).str();
}

std::string event_feed::list(const event_filter& wanted) const {
    std::vector<std::string> out;
    std::string cursor = wanted.after;
    bool has_more = false;
    for (const entry& each : events_) {
        const std::string id = id_of(each);  // of equal length: in the order of their numbers
        if (id <= wanted.after || !fits(each, wanted)) continue;
        has_more = out.size() == wanted.limit;
        if (has_more) break;
        out.push_back(shown(each));
        cursor = id;
    }
    return json_object().raws("events", out).text("cursor", cursor).flag("has_more", has_more).str();
}

}  // namespace dev_backend
