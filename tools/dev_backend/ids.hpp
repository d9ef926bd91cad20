// ids: ids of jobs, each greater than all before, and of events.
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace dev_backend {

// UUIDv7: milliseconds, a counter that keeps ids of one millisecond in order, random bits.
class id_maker {
  public:
    std::string next();

  private:
    std::int64_t last_ms_ = 0;
    std::uint64_t counter_ = 0;
    std::mt19937_64 random_{std::random_device{}()};
};

std::string event_id(std::uint64_t number);
// The time in an id of queue_events, in ms since the epoch; now, if `id` is none.
std::int64_t ms_of_event(const std::string& id);

}  // namespace dev_backend
