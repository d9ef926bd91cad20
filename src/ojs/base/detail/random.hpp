// random: a number that no other process has.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <cstdint>

#include "../duration.hpp"

namespace ojs::detail {

// From the kernel; where it gives none, by where and when.
inline std::uint64_t random_number() noexcept {
    std::uint64_t out = 0;
    if (getentropy(&out, sizeof out) == 0) return out;
    return static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count()) ^
           static_cast<std::uint64_t>(getpid()) << 32;
}

}  // namespace ojs::detail
