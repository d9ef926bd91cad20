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
    // `details` are more members of `data`.
    void add(const char* type, const job& of, json_object details = {});
    // The oldest first: {"events":[...],"cursor":ID,"has_more":true}
    std::string list(const event_filter& filter) const;
    void clear();

  private:
    struct entry {
        std::uint64_t number;
        std::int64_t ms;
        const char* type;
        std::string job_id;
        std::string job_type;
        std::string queue;
        std::string data;  // JSON
    };
    static std::string id_of(const entry& of);
    static bool fits(const entry& tested, const event_filter& filter);
    static std::string shown(const entry& of);

    std::deque<entry> events_;
    std::size_t bytes_ = 0;  // of their data
    // Starts at the time, so that readers miss no event after a restart.
    std::uint64_t last_number_ = static_cast<std::uint64_t>(wall_ms()) << 16;
};

}  // namespace dev_backend
