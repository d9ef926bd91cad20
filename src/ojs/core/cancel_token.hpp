// cancel_token: requests that work return, by a cancel_source and its tokens.
#pragma once

#include <chrono>
#include <cstdint>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Why work is cancelled; `none`: it is not; `forced`: as by a second stop signal.
enum class cancel_reason : std::uint8_t {
    none,
    grace_period_expired,
    forced,
    spot_reclaim,
    cancelled,  ///< by a call, such as stop_and_cancel()
    timeout,    ///< the job exceeded its own timeout
    revoked     ///< the backend cancelled this job alone
};

/// "grace_period_expired", ... as they appear in `details.reason` of a FAIL. Never null. Thread-safe.
inline const char* to_string(cancel_reason reason) noexcept {
    return detail::name_of(
        reason, {"none", "grace_period_expired", "forced", "spot_reclaim", "cancelled", "timeout", "revoked"});
}

namespace detail {
class cancel_state;

// Locks (`holds`) or unlocks a lock for a scope.
template <class Lock, bool holds>
struct lock_scope : non_copyable {
    explicit lock_scope(Lock& target) : lock(target) { holds ? lock.lock() : lock.unlock(); }
    ~lock_scope() { holds ? lock.unlock() : lock.lock(); }
    Lock& lock;
};
}  // namespace detail

/// Keeps a callback registered. Its destructor removes the callback, and waits while another thread runs it.
class [[nodiscard]] cancel_registration {
  public:
    cancel_registration() = default;
    cancel_registration(cancel_registration&& other) noexcept = default;
    cancel_registration& operator=(cancel_registration other) noexcept {
        detail::swap(state_, other.state_);
        detail::swap(id_, other.id_);
        return *this;
    }
    ~cancel_registration();

  private:
    friend class cancel_token;
    detail::ref<detail::cancel_state> state_;
    std::uint64_t id_ = 0;
};

/// The receiving end; by default never cancelled. Every member is thread-safe, none is async-signal-safe.
class cancel_token {
  public:
    cancel_token() = default;

    bool cancelled() const noexcept { return reason() != cancel_reason::none; }  ///< true once cancelled
    cancel_reason reason() const noexcept;                                       ///< why it is cancelled
    /// Sleeps until the deadline. True when the time has passed; false, at once, when cancelled.
    [[nodiscard]] bool sleep_until(time_point deadline) const;
    /// Like sleep_until().
    [[nodiscard]] bool sleep_for(detail::any_duration<> time) const { return sleep_until(deadline_after(time)); }
    /// Calls `callback` once, on the cancelling thread; if cancelled already, at once, or after other callbacks that
    /// are being called. It must be short; an exception it throws is dropped.
    cancel_registration on_cancel(function<void()> callback) const;
    /// Waits on the caller's std::condition_variable, or the like, with the lock held. True when `ready()` holds;
    /// false, at once, when cancelled, even if it is ready too. It may release the lock even if it does not wait, and
    /// holds it again when it returns or `ready` throws. The canceller must not hold the lock.
    template <class Condition, class Lock, class Predicate>
    [[nodiscard]] bool wait(Condition& condition, Lock& lock, Predicate ready) const;
    /// A descriptor to poll, readable once cancelled. All copies of the token share it: never read or close it. -1, which
    /// poll skips, for a token without a source. errc::system: out of descriptors.
    result<int> fd() const;
    /// True once a member above has reported the cancellation (a descriptor does): the work has seen it.
    bool seen() const noexcept;

  private:
    friend class cancel_source;
    explicit cancel_token(detail::ref<detail::cancel_state> state) noexcept : state_(std::move(state)) {}
    detail::ref<detail::cancel_state> state_;
};

template <class Condition, class Lock, class Predicate>
bool cancel_token::wait(Condition& condition, Lock& lock, Predicate ready) const {
    while (!cancelled()) {
        if (ready()) return true;
        // Registering may run the callback, deregistering may wait for it: both without the mutex it takes.
        const detail::lock_scope<Lock, false> unlocked(lock);
        auto* const mutex = lock.mutex();
        const cancel_registration registration = on_cancel([&condition, mutex] {
            mutex->lock();  // a waiter is either before its check or asleep
            mutex->unlock();
            condition.notify_all();
        });
        const detail::lock_scope<Lock, true> relocked(lock);
        while (!cancelled() && !ready()) condition.wait(lock);
    }
    return false;
}

/// The requesting end. Every member is thread-safe, none is async-signal-safe.
class cancel_source {
  public:
    cancel_source();
    cancel_source(cancel_source&& other) = default;
    cancel_source& operator=(cancel_source&& other) = default;

    cancel_token token() const noexcept { return cancel_token(state_); }  ///< a token of this source
    /// Ends the waits, and calls the callbacks in order. True the first time; later reasons are ignored.
    bool cancel(cancel_reason reason);
    /// Whether cancel() was called. Does not count as having seen it, unlike cancel_token::cancelled().
    bool requested() const noexcept { return reason() != cancel_reason::none; }
    cancel_reason reason() const noexcept;  ///< none: not requested

  protected:
    explicit cancel_source(detail::ref<detail::cancel_state> state) noexcept : state_(std::move(state)) {}
    detail::ref<detail::cancel_state> state_;
};
}  // namespace v0_1_0
}  // namespace ojs
