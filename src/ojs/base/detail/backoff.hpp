// backoff: the pauses between tries of something that fails.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "../duration.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Pauses that double from `first` to `last`, each cut by a random part of its half, so that workers that
// failed together do not come back together.
class backoff {
  public:
    backoff(std::chrono::milliseconds first, std::chrono::milliseconds last) : first_(first), last_(last) {}

    std::chrono::milliseconds next() noexcept {
        pause_ = pause_.count() == 0 ? first_ : pause_ * 2 < last_ ? pause_ * 2 : last_;
        const auto cut = static_cast<std::int64_t>(random() % 512);
        return std::chrono::milliseconds(pause_.count() - pause_.count() * cut / 1024);
    }
    void reset() noexcept { pause_ = std::chrono::milliseconds(0); }

  private:
    // xorshift64, seeded by where and when at the first use: spread is all it is for.
    std::uint64_t random() noexcept {
        if (state_ == 0) {
            const auto now = static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count());
            state_ = (now ^ static_cast<std::uint64_t>(getpid()) << 32) | 1;
        }
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }

    const std::chrono::milliseconds first_;
    const std::chrono::milliseconds last_;
    std::chrono::milliseconds pause_{0};
    std::uint64_t state_ = 0;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
