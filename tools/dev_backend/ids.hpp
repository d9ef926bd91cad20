// ids: UUIDv7 ids of jobs, each greater than all before.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

#include "clock.hpp"

namespace dev_backend {
class id_maker {
  public:
    // Milliseconds, a counter that keeps ids of one millisecond in order, random bits.
    std::string next() {
        const auto now = static_cast<unsigned long long>(wall_ms());
        last_ = std::max(now << 12U, last_ + 1);  // more than 4096 in a millisecond borrow the next
        const unsigned long long ms = last_ >> 12U;
        const unsigned long long random = random_();
        std::array<char, 40> text{};
        std::snprintf(text.data(), text.size(), "%08llx-%04llx-7%03llx-%04llx-%012llx", ms >> 16U & 0xffffffffU,
                      ms & 0xffffU, last_ & 0xfffU, 0x8000U | (random >> 48U & 0x3fffU), random & 0xffffffffffffU);
        return text.data();
    }

  private:
    unsigned long long last_ = 0;  // milliseconds, and 12 bits of the counter
    std::mt19937_64 random_{std::random_device{}()};
};
}  // namespace dev_backend
