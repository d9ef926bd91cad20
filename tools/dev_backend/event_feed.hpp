// event_feed: the latest lifecycle events of jobs. [OJS events 2, 3, 6.4]
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "clock.hpp"
#include "job.hpp"
#include "json.hpp"

namespace dev_backend {
// With the lock of the store held.
class event_feed {
  public:
    void add(const char* type, const job& of) {
        json_object data;
        data.text("job_type", of.type).text("queue", of.queue).number("attempt", of.attempt);
        if (of.ended_ms > 0 && of.started_ms > 0) data.number("duration_ms", of.ended_ms - of.started_ms);
        json_object out;
        out.text("specversion", "1.0").text("id", "evt_" + std::to_string(++last_number_)).text("type", type);
        out.text("source", "ojs://dev-backend/api").text("time", iso_time()).text("subject", of.id);
        events_.push_back({type, of.queue, out.raw("data", data.str()).str()});
        if (events_.size() > max_events) events_.pop_front();
    }
    // The oldest first; an empty list means any.
    std::string list(const std::vector<std::string>& types, const std::vector<std::string>& queues,
                     std::size_t limit) const {
        const auto has = [](const std::vector<std::string>& accepted, const std::string& value) {
            return accepted.empty() || std::find(accepted.begin(), accepted.end(), value) != accepted.end();
        };
        std::vector<std::string> out;
        for (const entry& each : events_) {
            if (out.size() < limit && has(types, each.type) && has(queues, each.queue)) out.push_back(each.json);
        }
        return json_object().raws("events", out).str();
    }
    void clear() { events_.clear(); }

  private:
    struct entry {
        std::string type;
        std::string queue;
        std::string json;
    };
    static constexpr std::size_t max_events = 10000;
    std::deque<entry> events_;
    std::int64_t last_number_ = 0;
};
}  // namespace dev_backend
