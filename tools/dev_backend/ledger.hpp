// ledger: one line of JSON per event, for tests that check what became of each job.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "clock.hpp"
#include "json.hpp"

namespace dev_backend {

class ledger {
  public:
    bool open(const std::string& path);
    // For the fields of a line; they cost nothing without a ledger.
    json_object fields() const { return enabled_ ? json_object() : json_object::none(); }
    // The caller holds the store's lock, so that the lines are in order.
    void write(const char* event, json_object& fields);

  private:
    bool write_all(std::string_view text);

    ojs::detail::unique_fd file_;
    std::atomic<bool> enabled_{false};
    std::int64_t start_ns_ = monotonic_ns();
};

}  // namespace dev_backend
