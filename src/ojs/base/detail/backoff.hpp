// backoff: the pauses between tries of something that fails.
#pragma once

#include <chrono>
#include <cstdint>

#include "random.hpp"

namespace ojs::detail {

// Pauses that double from `first` to `last`, each cut by a random part of its half, so that workers that
// failed together do not come back together.
class backoff {
  public:
    backoff(std::chrono::milliseconds first, std::chrono::milliseconds last) : first_(first), last_(last) {}

    std::chrono::milliseconds next() noexcept {
        pause_ = pause_.count() == 0 ? first_ : pause_ * 2 < last_ ? pause_ * 2 : last_;
        const auto cut = static_cast<std::int64_t>(random_number() % 512);
        return std::chrono::milliseconds(pause_.count() - pause_.count() * cut / 1024);
    }
    void reset() noexcept { pause_ = std::chrono::milliseconds(0); }

  private:
    const std::chrono::milliseconds first_;
    const std::chrono::milliseconds last_;
    std::chrono::milliseconds pause_{0};
};

}  // namespace ojs::detail
