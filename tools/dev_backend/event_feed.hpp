// event_feed: the latest lifecycle events of jobs. [OJS events 2, 3, 6.4]
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "clock.hpp"
#include "job.hpp"
#include "json.hpp"

namespace dev_backend {

// Empty: any.
struct event_filter {
    std::string after;  // the id of an event
    std::vector<std::string> types;
    std::vector<std::string> queues;
    std::vector<std::string> job_types;
    std::size_t limit = 100;
};

// With the lock of the store held.
class event_feed {
  public:
    // Returns the event's `data`, for more members before the next call.
    json_object& add(const char* type, const job& of);
    // The oldest first: {"events":[...],"cursor":ID,"has_more":true}
    std::string list(const event_filter& filter) const;
    void clear();

  private:
    struct entry {
        std::uint64_t number;
        std::int64_t ms;
        const char* type;
        std::string job_id;
        json_object data;
    };
    static std::size_t size_of(const entry& of) { return of.data.open_text().size(); }
    static bool fits(const entry& tested, const event_filter& filter);
    static std::string shown(const entry& of);

    std::deque<entry> events_;
    std::size_t bytes_ = 0;  // of their data, without that of the last
    // Starts at the time, so that readers miss no event after a restart.
    std::uint64_t last_number_ = static_cast<std::uint64_t>(wall_ms()) << 16;
};

}  // namespace dev_backend
