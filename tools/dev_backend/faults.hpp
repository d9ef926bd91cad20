// faults: what is to go wrong with the requests of workers, and how late they are answered.
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

// What is to go wrong with one request.
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

// Sleeps without any lock that others need, and no longer than until stop().
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
