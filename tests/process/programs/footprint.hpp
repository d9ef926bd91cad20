// footprint: what it counts, shared with the test.
#pragma once
#include <atomic>
#include <cstddef>

namespace test {
struct taken {
    std::atomic<long> heap{0};  // bytes of operator new
    std::atomic<long> peak{0};  // the most of them at once
    std::atomic<long> allocations{0};
    std::atomic<long> locks{0};
    std::atomic<long> clock_reads{0};
    std::atomic<long> stacks{0};  // threads begun with one of stack_size
};
inline constexpr std::size_t stack_size = 1024 * 1024;  // not the default, which is that of `ulimit -s`
}  // namespace test
