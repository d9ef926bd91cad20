// faults: errors and delays injected into the requests of workers.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>

#include "ojs_server.hpp"

namespace dev_backend {
using std::chrono::milliseconds;

// The faults of one request.
struct fault_plan {
    milliseconds delay{0};
    bool reset = false;
    bool e500 = false;
    bool lose = false;
};

constexpr std::array<std::string_view, 4> fault_kinds = {"delay", "reset", "e500", "lose"};
using fault_rates = std::array<std::uint64_t, fault_kinds.size()>;  // permille

// "KIND:PERMILLE,KIND:PERMILLE"
inline std::optional<fault_rates> parse_faults(std::string_view text) {
    fault_rates rates{};
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find(','));
        const std::string_view kind = item.substr(0, item.find(':'));
        const auto* known = std::find(fault_kinds.begin(), fault_kinds.end(), kind);
        if (known == fault_kinds.end() || kind.size() == item.size()) return std::nullopt;
        std::uint64_t& rate = rates[static_cast<std::size_t>(known - fault_kinds.begin())];
        if (!ojs::detail::parse_number(item.substr(kind.size() + 1), 1000, rate)) return std::nullopt;
        text.remove_prefix(std::min(item.size() + 1, text.size()));
    }
    return rates;
}

class fault_injector {
  public:
    fault_injector(const fault_rates& rates, std::uint64_t seed) : random_(seed), rates_(rates) {}
    void set(const fault_rates& rates) {
        const std::lock_guard<std::mutex> held(mutex_);
        rates_ = rates;
    }
    fault_plan next() {
        fault_plan plan;
        const std::lock_guard<std::mutex> held(mutex_);
        if (rates_ == fault_rates{}) return plan;
        std::array<bool, fault_kinds.size()> hit{};
        for (std::size_t i = 0; i < hit.size(); ++i) hit[i] = random_() % 1000 < rates_[i];
        if (hit[0]) plan.delay = milliseconds(random_() % 51);
        plan.reset = hit[1];
        plan.e500 = hit[2];
        plan.lose = hit[3];
        return plan;
    }

  private:
    std::mutex mutex_;
    std::mt19937_64 random_;
    fault_rates rates_;
};

// Sleeps without holding a lock, at most until stop().
class pauses {
  public:
    void pause(milliseconds duration) {
        if (duration.count() <= 0) return;
        std::unique_lock<std::mutex> held(mutex_);
        end_.wait_for(held, duration, [this] { return stopping_; });
    }
    void stop() {
        {
            const std::lock_guard<std::mutex> held(mutex_);
            stopping_ = true;
        }
        end_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable end_;
    bool stopping_ = false;
};
}  // namespace dev_backend
