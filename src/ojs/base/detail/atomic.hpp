// atomic: std::atomic, under a name that the model checker can give to its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

template <class T>
using atomic = std::atomic<T>;

// std::memory_order is an enumeration with such names from C++20 on.
struct memory_order {
    static constexpr std::memory_order relaxed = std::memory_order_relaxed;
    static constexpr std::memory_order acquire = std::memory_order_acquire;
    static constexpr std::memory_order release = std::memory_order_release;
    static constexpr std::memory_order acq_rel = std::memory_order_acq_rel;
    static constexpr std::memory_order seq_cst = std::memory_order_seq_cst;
};

using counter = atomic<std::uint64_t>;

inline void count_one(counter& of) noexcept {
    of.fetch_add(1, memory_order::relaxed);
}
inline std::uint64_t read_counter(const counter& of) noexcept {
    return of.load(memory_order::relaxed);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
