// drain_barrier: closes to new entries and waits until those in flight have left.
#pragma once

#include <cstdint>
#include <utility>

#include "../base/detail/light.hpp"
#include "../base/detail/sync.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// A gate with a count. After close() nothing enters. It may be destroyed once no ticket is left, and as soon as
/// wait_until() has returned 0.
class drain_barrier {
  public:
    /// One entry. The destructor leaves the barrier; empty if the barrier was closed.
    class [[nodiscard]] ticket {
      public:
        ticket() = default;
        ticket(ticket&& other) noexcept : barrier_(detail::exchange(other.barrier_, nullptr)) {}
        ticket& operator=(ticket&& other) noexcept {
            detail::swap(barrier_, other.barrier_);
            return *this;
        }
        ~ticket() { leave(); }

        explicit operator bool() const noexcept { return barrier_ != nullptr; }  ///< false: empty
        /// Leaves now. True if this was the last entry of a closed barrier.
        bool leave() noexcept { return barrier_ != nullptr && detail::exchange(barrier_, nullptr)->leave(); }

      private:
        friend class drain_barrier;
        explicit ticket(drain_barrier* barrier) noexcept : barrier_(barrier) {}
        drain_barrier* barrier_ = nullptr;
    };

    /// Lock-free while the barrier is open. Thread-safe. Sequentially consistent, as are leave(), count(),
    /// lifecycle::phase() and apply(): who enters and then finds `running` is counted by whoever applies a quiet and then
    /// reads count(), so that a drain need not close the barrier.
    ticket enter() noexcept {
        std::uint64_t word = word_.load(detail::memory_order::relaxed);
        while ((word & closed_bit) == 0) {
            if (word_.compare_exchange_strong(word, word + one)) return ticket(this);
        }
        return ticket();
    }

    /// Nothing enters once this has returned. Idempotent, thread-safe; not async-signal-safe.
    void close() noexcept {
        const detail::unique_lock held(mutex_);
        if (!closed() && word_.fetch_add(closed_bit) == 0) emptied_.notify_all();
    }
    bool closed() const noexcept { return (word_.load() & closed_bit) != 0; }  ///< close() was called; thread-safe
    std::uint64_t count() const noexcept { return word_.load() / one; }        ///< entries; thread-safe, lock-free

    /// Waits until the barrier is closed and empty, or the deadline. Returns the number of entries left. Thread-safe.
    std::uint64_t wait_until(time_point deadline) noexcept {
        detail::unique_lock held(mutex_);
        while (word_.load() != closed_bit && emptied_.wait_until(held, deadline)) continue;
        return count();
    }

  private:
    static constexpr std::uint64_t closed_bit = 1;
    static constexpr std::uint64_t one = 2;

    bool leave() noexcept {
        std::uint64_t word = word_.load(detail::memory_order::relaxed);
        while ((word & closed_bit) == 0) {
            if (word_.compare_exchange_strong(word, word - one)) return false;
        }
        // Once closed, entries leave under the mutex, so a waiter that saw 0 knows that no thread is still in here.
        const detail::unique_lock held(mutex_);
        const bool last = word_.fetch_sub(one) == (one | closed_bit);
        if (last) emptied_.notify_all();
        return last;
    }

    detail::atomic<std::uint64_t> word_{0};
    detail::mutex mutex_;
    detail::condition emptied_;
};
}  // namespace v0_1_0
}  // namespace ojs
