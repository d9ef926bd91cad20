// ledger: one line of JSON for each thing that happens, for whoever checks what became of the jobs.
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
    // With the lock of the store held, so that the lines stand in the order of what happened.
    void write(const char* event, const json_object& fields);

  private:
    std::ofstream file_;
    bool enabled_ = false;
    std::int64_t start_ns_ = monotonic_ns();
};

}  // namespace dev_backend
