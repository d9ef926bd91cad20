// Included before the library: its atomics, with a point before each access.
#pragma once

#include "machine.hpp"
#include "ojs/base/config.hpp"

// The library's own gets another name. Counts of references stay with it: they order nothing that a schedule could show.
#define atomic plain_atomic
#include "ojs/base/detail/light.hpp"
#undef atomic

namespace ojs::detail {
template <class T>
class atomic : public plain_atomic<T> {
    using base = plain_atomic<T>;

  public:
    constexpr atomic() noexcept = default;
    constexpr atomic(T value) noexcept : base(value) {}
    operator T() const noexcept { return load(); }
    T operator=(T value) noexcept {
        store(value);
        return value;
    }
    T operator++() noexcept { return fetch_add(1) + 1; }
    T operator--() noexcept { return fetch_sub(1) - 1; }
    T load(memory_order order = memory_order::seq_cst) const noexcept {
        sim::point("load");
        return base::load(order);
    }
    void store(T value, memory_order order = memory_order::seq_cst) noexcept {
        sim::point("store");
        base::store(value, order);
    }
    T fetch_add(T by, memory_order order = memory_order::seq_cst) noexcept {
        sim::point("add");
        return base::fetch_add(by, order);
    }
    T fetch_sub(T by, memory_order order = memory_order::seq_cst) noexcept {
        sim::point("sub");
        return base::fetch_sub(by, order);
    }
    T exchange(T value, memory_order order = memory_order::seq_cst) noexcept {
        sim::point("exchange");
        return base::exchange(value, order);
    }
    bool compare_exchange_strong(T& expected, T desired) noexcept {
        sim::point("cas");
        return base::compare_exchange_strong(expected, desired);
    }
};
}  // namespace ojs::detail
