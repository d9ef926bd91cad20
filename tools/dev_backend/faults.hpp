// faults: errors and delays injected into the requests of workers.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>

namespace dev_backend {

using std::chrono::milliseconds;

// The faults of one request.
struct fault_plan {
    milliseconds delay{0};
    bool reset = false;
    bool e500 = false;
    bool lose = false;
};

constexpr std::array<const char*, 4> fault_kinds = {"delay", "reset", "e500", "lose"};
using fault_rates = std::array<std::uint64_t, fault_kinds.size()>;  // permille

std::optional<fault_rates> parse_faults(std::string_view text);  // "KIND:PERMILLE,KIND:PERMILLE"

class fault_injector {
  public:
    fault_injector(const fault_rates& rates, std::uint64_t seed);
    void set(const fault_rates& rates);
    fault_plan next();

  private:
    std::mutex mutex_;
    std::mt19937_64 random_;
    fault_rates rates_{};
    std::atomic<bool> on_{false};  // spares the lock where there are no faults
};

// Sleeps without holding a lock, at most until stop().
class pauses {
  public:
    void pause(milliseconds duration);
    void stop();

  private:
    std::mutex mutex_;
    std::condition_variable end_;
    bool stopping_ = false;
};

}  // namespace dev_backend
