// ledger: one line of JSON per event, for tests that check what became of each job.
#pragma once
#include <cstdint>
#include <fstream>
#include <string>

#include "clock.hpp"
#include "json.hpp"

namespace dev_backend {

class ledger {
  public:
    bool open(const std::string& path);
    // The caller holds the store's lock, so that the lines are in order.
    void write(const char* event, const json_object& fields);

  private:
    std::ofstream file_;
    bool enabled_ = false;
    std::int64_t start_ns_ = monotonic_ns();
};

}  // namespace dev_backend
