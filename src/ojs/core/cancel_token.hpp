// cancel_source and cancel_token: asking a piece of work to return.
#pragma once

#include <chrono>
#include <cstdint>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class cancel_reason : std::uint8_t {
    none,
    grace_period_expired,
    forced,
    spot_reclaim,
    cancelled,
    timeout,
    revoked  // by the backend, this job alone
};

// "grace_period_expired", ... as they appear in `details.reason` of a FAIL. Never null. Thread-safe.
const char* to_string(cancel_reason reason) noexcept;

namespace detail {
class cancel_state;
class cancel_group;
}  // namespace detail

// A callback's place in a token. Destroying it takes the callback back, and waits for it if it is running on
// another thread; so what the callback captured by reference may go out of scope after it.
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

// The receiving end. Copies share one state. Every member is thread-safe; none is async-signal-safe.
class cancel_token {
  public:
    cancel_token() = default;  // never cancelled

    bool cancelled() const noexcept { return reason() != cancel_reason::none; }
    cancel_reason reason() const noexcept;
    // Sleeps; true when the time passed, false (at once) when cancelled.
    [[nodiscard]] bool sleep_until(time_point deadline) const;
    [[nodiscard]] bool sleep_for(std::chrono::nanoseconds duration) const;
    // Calls `callback` once, from the cancelling thread; if cancelled already, right here and now, unless callbacks
    // are being called at this moment: then from there. It must be short, and what it throws is dropped.
    cancel_registration on_cancel(function<void()> callback) const;
    // Waits on the caller's condition variable, with the lock held as for its own wait(): true when `ready()` holds,
    // false, at once, when cancelled, and then even if it is ready too: a loop over a queue that never runs empty ends
    // as well. For std::condition_variable with std::unique_lock and whatever else has their members. The lock is held
    // again when it returns or `ready` throws, but is let go of in between even where nothing waits. Who cancels must
    // not hold it, for the waiters are told with it; nor may who holds it block until a callback ends that.
    template <class Condition, class Lock, class Predicate>
    [[nodiscard]] bool wait(Condition& condition, Lock& lock, Predicate ready) const;
    // A descriptor that is readable from the cancellation on, to poll for POLLIN beside sockets and pipes. It is made
    // at the first call and shared by all copies of the token, the last of which closes it: never read it or close it.
    // -1, which poll skips, for a token of no source. Errors: errc::system when the process has no descriptor left; a
    // job that cannot be told should not start to wait.
    result<int> fd() const;
    // True once any member above has told someone of the cancellation (a descriptor that was handed out does): the
    // work knew.
    bool seen() const noexcept;

  private:
    friend class cancel_source;
    explicit cancel_token(detail::ref<detail::cancel_state> state) noexcept : state_(std::move(state)) {}
    detail::ref<detail::cancel_state> state_;
};

namespace detail {

// Holds a lock for a scope, or, where `holds` is false, lets go of it.
template <class Lock, bool holds>
class lock_scope {
  public:
    explicit lock_scope(Lock& lock) : lock_(lock) { set(holds); }
    lock_scope(const lock_scope&) = delete;
    lock_scope& operator=(const lock_scope&) = delete;
    ~lock_scope() { set(!holds); }

  private:
    void set(bool held) {
        if (held) lock_.lock();
        if (!held) lock_.unlock();
    }

    Lock& lock_;
};

}  // namespace detail

template <class Condition, class Lock, class Predicate>
bool cancel_token::wait(Condition& condition, Lock& lock, Predicate ready) const {
    while (!cancelled()) {
        if (ready()) return true;
        // Registering may run the callback, and taking it back waits for it: neither with the mutex it needs.
        const detail::lock_scope<Lock, false> unlocked(lock);
        auto* const mutex = lock.mutex();
        const cancel_registration registration = on_cancel([&condition, mutex] {
            mutex->lock();  // so that it does not come between a waiter's look and its sleep
            mutex->unlock();
            condition.notify_all();
        });
        const detail::lock_scope<Lock, true> relocked(lock);
        while (!cancelled() && !ready()) condition.wait(lock);
    }
    return false;
}

// The asking end. Every member is thread-safe; none is async-signal-safe.
class cancel_source {
  public:
    cancel_source();
    cancel_source(cancel_source&& other) = default;
    cancel_source& operator=(cancel_source&& other) = default;

    cancel_token token() const noexcept { return cancel_token(state_); }
    // Sets the flag and ends the waits, without calling anyone. True the first time; the first reason stays.
    bool request(cancel_reason reason);
    // Whether it was asked for. Looking here is not seeing: only what the token tells makes the work know.
    bool requested() const noexcept { return reason() != cancel_reason::none; }
    cancel_reason reason() const noexcept;
    // Ends the waits, once the group was cancelled.
    void end_waits();
    // Whether run_callbacks() might call anyone. Never waits: true while another thread uses the source.
    bool callbacks_due() const;
    // Calls the callbacks that are still due, in the order they were registered.
    void run_callbacks();
    // Both.
    bool cancel(cancel_reason reason) {
        const bool first = request(reason);
        run_callbacks();
        return first;
    }

  private:
    friend class cancel_token;
    friend class detail::cancel_group;
    explicit cancel_source(detail::ref<detail::cancel_state> state) noexcept : state_(std::move(state)) {}
    detail::ref<detail::cancel_state> state_;
};

}  // namespace v0_1_0
}  // namespace ojs
