// ids: new ids of jobs, each greater than all before.
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

}  // namespace dev_backend
