// atomic<T>: what is needed of std::atomic. With that one, including the separate form takes 0.05 of picojson longer.
#pragma once

#include <cstdint>

namespace ojs::detail {

// Those of std::memory_order, by the compiler's numbers.
enum class memory_order : int {
    relaxed = __ATOMIC_RELAXED,
    acquire = __ATOMIC_ACQUIRE,
    release = __ATOMIC_RELEASE,
    acq_rel = __ATOMIC_ACQ_REL,
    seq_cst = __ATOMIC_SEQ_CST
};

// The members have the meaning and the defaults of std::atomic's, and are made of the same built-in functions of the
// compiler. T: of the size of an integer, and copied as its bytes are. Lock-free, so also for signal handlers, where
// is_always_lock_free.
template <class T>
class atomic {
  public:
    static constexpr bool is_always_lock_free = __atomic_always_lock_free(sizeof(T), nullptr);

    constexpr atomic() noexcept : value_() {}
    constexpr atomic(T value) noexcept : value_(value) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    operator T() const noexcept { return load(); }
    T operator=(T value) noexcept {
        store(value);
        return value;
    }
    T operator++() noexcept { return fetch_add(1) + 1; }
    T operator--() noexcept { return fetch_sub(1) - 1; }

    T load(memory_order order = memory_order::seq_cst) const noexcept {
        T value;
        __atomic_load(&value_, &value, static_cast<int>(order));
        return value;
    }
    void store(T value, memory_order order = memory_order::seq_cst) noexcept {
        __atomic_store(&value_, &value, static_cast<int>(order));
    }
    T fetch_add(T by, memory_order order = memory_order::seq_cst) noexcept {
        return __atomic_fetch_add(&value_, by, static_cast<int>(order));
    }
    T fetch_sub(T by, memory_order order = memory_order::seq_cst) noexcept {
        return __atomic_fetch_sub(&value_, by, static_cast<int>(order));
    }
    T fetch_or(T bits, memory_order order = memory_order::seq_cst) noexcept {
        return __atomic_fetch_or(&value_, bits, static_cast<int>(order));
    }
    T exchange(T value, memory_order order = memory_order::seq_cst) noexcept {
        T before;
        __atomic_exchange(&value_, &value, &before, static_cast<int>(order));
        return before;
    }
    // Where it finds another value, it has that order without its release.
    bool compare_exchange_weak(T& expected, T wanted, memory_order order = memory_order::seq_cst) noexcept {
        return change(expected, wanted, true, order);
    }
    bool compare_exchange_strong(T& expected, T wanted, memory_order order = memory_order::seq_cst) noexcept {
        return change(expected, wanted, false, order);
    }

  private:
    bool change(T& expected, T wanted, bool weak, memory_order order) noexcept {
        const memory_order otherwise = order == memory_order::acq_rel   ? memory_order::acquire
                                       : order == memory_order::release ? memory_order::relaxed
                                                                        : order;
        return __atomic_compare_exchange(&value_, &expected, &wanted, weak, static_cast<int>(order),
                                         static_cast<int>(otherwise));
    }

    alignas(sizeof(T)) T value_;
};

using counter = atomic<std::uint64_t>;

inline void count_one(counter& of) noexcept {
    of.fetch_add(1, memory_order::relaxed);
}
inline std::uint64_t read_counter(const counter& of) noexcept {
    return of.load(memory_order::relaxed);
}

}  // namespace ojs::detail
