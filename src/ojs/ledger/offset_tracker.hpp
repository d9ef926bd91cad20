// offset_tracker: the position to commit in a queue whose items finish out of order.
#pragma once

#include <cstdint>
#include <new>

#include "../base/detail/light.hpp"
#include "../base/detail/sync.hpp"
#include "../base/error.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Finds the position to commit in a queue that acknowledges a prefix only (Kafka offsets, Pulsar's cumulative
/// acknowledgement, AMQP's multiple=true). One per partition or channel. Thread-safe, not async-signal-safe: each call
/// takes a mutex, for a time that does not depend on the number of items. It keeps 40 bytes for each item in flight, to
/// be used again by later ones.
class offset_tracker {
    // An item in flight, between those begun before and after it.
    struct entry {
        offset_tracker* tracker;
        entry* previous;
        entry* next;
        std::uint64_t prefix;  // next_position() while this is the oldest
        std::uint64_t epoch;
    };

  public:
    /// An item in flight. Destroyed without done(), it is not finished: next_position() stops before it until reset(),
    /// so that the queue delivers it again. Used by one thread at a time.
    class [[nodiscard]] ticket {
      public:
        ticket() = default;
        ticket(ticket&& other) noexcept : entry_(detail::exchange(other.entry_, nullptr)) {}
        ticket& operator=(ticket&& other) noexcept {
            detail::swap(entry_, other.entry_);
            return *this;
        }
        ~ticket() { end(false); }

        explicit operator bool() const noexcept { return entry_ != nullptr; }  ///< false: empty
        void done() noexcept { end(true); }  ///< the item is finished; leaves the ticket empty

      private:
        friend class offset_tracker;
        explicit ticket(entry* begun) noexcept : entry_(begun) {}
        void end(bool finished) noexcept {
            if (entry_ != nullptr) entry_->tracker->end(entry_, finished);
            entry_ = nullptr;
        }
        entry* entry_ = nullptr;
    };

    offset_tracker() = default;
    offset_tracker(const offset_tracker&) = delete;
    offset_tracker& operator=(const offset_tracker&) = delete;
    /// No ticket may be left. The tracker may be destroyed as soon as in_flight() has returned 0.
    ~offset_tracker() {
        while (free_ != nullptr) delete detail::exchange(free_, free_->next);
    }

    /// Adds an item, before it is handed to a handler. Positions must increase; gaps are allowed.
    /// errc::invalid_argument: not above the latest position, or 2^64-1; nothing changes. errc::unavailable: out of
    /// memory; next_position() stops before the item, as if its ticket had been destroyed.
    result<ticket> begin(std::uint64_t position) noexcept {
        const detail::unique_lock held(mutex_);
        const std::uint64_t prefix = ends_.prefix;
        if (position < prefix || position == UINT64_MAX)
            return error{errc::invalid_argument, 0, "the position is not above the latest"};
        ends_.prefix = position + 1;
        entry* const begun = free_ != nullptr ? free_ : new (std::nothrow) entry();
        if (begun == nullptr) {
            stop_ = detail::min(stop_, prefix);
            return error{errc::unavailable, 0, "out of memory"};
        }
        free_ = begun->next;
        *begun = {this, ends_.previous, &ends_, prefix, ends_.epoch};
        begun->previous->next = ends_.previous = begun;
        ++in_flight_;
        return ticket(begun);
    }

    /// The position to commit: 1 above the highest that is finished together with all begun before it; 0: there is
    /// none. Kafka commits this number, but not 0; a cumulative acknowledgement takes 1 less. Only reset() decreases
    /// it. Commit in one thread, so that no commit overtakes a later one.
    std::uint64_t next_position() const noexcept {
        const detail::unique_lock held(mutex_);
        return detail::min(stop_, ends_.next->prefix);
    }
    /// Tickets that have not ended, including those begun before reset().
    std::uint64_t in_flight() const noexcept {
        const detail::unique_lock held(mutex_);
        return in_flight_;
    }
    /// Resets the tracker when the partition is revoked or the consumer seeks: the next position may be any, and
    /// next_position() ignores the items begun so far.
    void reset() noexcept {
        const detail::unique_lock held(mutex_);
        ends_ = {this, &ends_, &ends_, 0, ends_.epoch + 1};
        stop_ = UINT64_MAX;
    }

  private:
    void end(entry* ended, bool finished) noexcept {
        const detail::unique_lock held(mutex_);
        if (ended->epoch == ends_.epoch) {
            ended->previous->next = ended->next;
            ended->next->previous = ended->previous;
            if (!finished) stop_ = detail::min(stop_, ended->prefix);
        }
        ended->next = detail::exchange(free_, ended);
        --in_flight_;
    }

    mutable detail::mutex mutex_;
    entry ends_{this, &ends_, &ends_, 0, 0};  // closes the ring, as the item that begins next
    entry* free_ = nullptr;                   // to be used again
    std::uint64_t stop_ = UINT64_MAX;         // next_position() at most
    std::uint64_t in_flight_ = 0;
};
}  // namespace v0_1_0
}  // namespace ojs
