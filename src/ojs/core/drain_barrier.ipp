#pragma once

#include "drain_barrier.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE drain_barrier::ticket drain_barrier::ticket::split() const noexcept {
    if (barrier_ != nullptr) barrier_->word_.fetch_add(one, detail::memory_order::relaxed);
    return ticket(barrier_);
}

OJS_SHUTDOWN_INLINE void drain_barrier::close() noexcept {
    const detail::lock_guard held(mutex_);
    if (word_.fetch_or(closed_bit, detail::memory_order::acq_rel) == 0) emptied_.notify_all();
}

// Once closed, every departure happens under the mutex, so a waiter that saw 0 knows nobody is still in here.
OJS_SHUTDOWN_INLINE bool drain_barrier::leave_closed() noexcept {
    const detail::lock_guard held(mutex_);
    const bool last = word_.fetch_sub(one, detail::memory_order::acq_rel) == (one | closed_bit);
    if (last) emptied_.notify_all();
    return last;
}

OJS_SHUTDOWN_INLINE std::uint64_t drain_barrier::wait_until(time_point deadline) noexcept {
    detail::lock_guard held(mutex_);
    for (;;) {
        const std::uint64_t word = word_.load(detail::memory_order::acquire);
        if (word == closed_bit) return 0;
        if (!emptied_.wait_until(held, deadline)) return word_.load(detail::memory_order::acquire) / one;
    }
}

}  // namespace v0_1_0
}  // namespace ojs
