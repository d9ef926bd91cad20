// cancel_source and cancel_token: asking a piece of work to return.
#pragma once

#include <chrono>
#include <cstdint>

#include "../base/detail/atomic.hpp"
#include "../base/detail/sync.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "detail/wake.hpp"

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

class cancel_source;

namespace detail {

// Cancels all of its tokens by one store, however many there are and whether or not the canceller gets any further.
class cancel_group : public ref_counted {
  public:
    // False: it was cancelled before; the first reason stays.
    bool request(cancel_reason why) noexcept {
        cancel_reason none = cancel_reason::none;
        return reason_.compare_exchange_strong(none, why, memory_order::acq_rel);
    }
    cancel_reason reason() const noexcept { return reason_.load(memory_order::acquire); }
    cancel_source member();  // whose tokens are the group's

  private:
    atomic<cancel_reason> reason_{cancel_reason::none};
};

// Passes on only the end of the thread.
void call_dropping_exceptions(const function<void()>& callback);

// What a source and all copies of its token share.
class cancel_state : public ref_counted {
  public:
    explicit cancel_state(ref<cancel_group> group = {}) : group_(std::move(group)) {}

    // The group's reason becomes the token's own when somebody first looks: so the first one stays.
    cancel_reason reason() const noexcept {
        const cancel_reason all = group_ ? group_->reason() : cancel_reason::none;
        cancel_reason own = reason_.load(memory_order::acquire);
        if (own != cancel_reason::none || all == cancel_reason::none) return own;
        const bool first = reason_.compare_exchange_strong(own, all, memory_order::acq_rel);
        return first ? all : own;
    }
    bool seen() const noexcept { return seen_.load(memory_order::acquire); }

    cancel_reason look() noexcept {
        const cancel_reason why = reason();
        if (why != cancel_reason::none) seen_.store(true, memory_order::release);
        return why;
    }

    bool request(cancel_reason why) {
        if (reason() != cancel_reason::none) return false;
        cancel_reason none = cancel_reason::none;
        if (!reason_.compare_exchange_strong(none, why, memory_order::acq_rel)) return false;
        end_waits();
        return true;
    }

    void end_waits() {
        const lock_guard held(mutex_);  // so that it does not come between a sleeper's look and its sleep
        end_sleep();
        if (poll_.fd() >= 0) tell_pollers();
    }

    bool sleep_until(time_point deadline) {
        lock_guard held(mutex_);
        ++sleepers_;
        while (reason() == cancel_reason::none) {
            if (!changed_.wait_until(held, deadline)) break;
        }
        --sleepers_;
        return look() == cancel_reason::none;
    }

    result<int> fd() {
        const lock_guard held(mutex_);
        if (poll_.fd() < 0) {
            result<wake> made = wake::create();
            if (!made) return made.error();
            poll_ = std::move(*made);
            if (reason() != cancel_reason::none) tell_pollers();
        }
        return poll_.fd();
    }

    // Nothing is allocated or freed under the mutex: among thousands of threads the allocator's locks take their time.
    std::uint64_t add(function<void()> callback) {
        entry* const added = new entry{0, std::move(callback), nullptr};
        const lock_guard held(mutex_);
        added->id = ++last_id_;
        *end_ = added;
        end_ = &added->next;
        return last_id_;
    }

    void remove(std::uint64_t id) {
        lock_guard held(mutex_);
        for (entry** due = &callbacks_; *due != nullptr; due = &(*due)->next) {
            if ((*due)->id != id) continue;
            const entry* const dropped = take(*due);
            held.unlock();
            delete dropped;  // what the callback holds goes after the mutex
            return;
        }
        // A callback may drop its own registration; anyone else waits until it is through.
        ++sleepers_;
        while (running_id_ == id && !pthread_equal(runner_, pthread_self())) changed_.wait(held);
        --sleepers_;
    }

    // Also true while another thread holds the mutex, so that the caller never waits for it.
    bool callbacks_due() {
        if (!mutex_.try_lock()) return true;
        const bool due = callbacks_ != nullptr;
        mutex_.unlock();
        return due;
    }

    void run_callbacks() {
        lock_guard held(mutex_);
        while (callbacks_ != nullptr && running_id_ == 0) {
            entry* const due = take(callbacks_);
            running_id_ = due->id;
            runner_ = pthread_self();
            held.unlock();
            seen_.store(true, memory_order::release);
            call_guarded([due] { call_dropping_exceptions(due->callback); },
                         [this, due] {
                             delete due;
                             callback_ended();
                         });
            delete due;  // what the callback holds may itself deregister: not under the mutex
            callback_ended();
            held.lock();
        }
    }

  private:
    struct entry {
        std::uint64_t id = 0;
        function<void()> callback;
        entry* next = nullptr;
    };

    // With the mutex held.
    entry* take(entry*& place) noexcept {
        entry* const taken = place;
        if (end_ == &taken->next) end_ = &place;
        place = taken->next;
        return taken;
    }

    // Whoever polls the descriptor has no need to ask for more.
    void tell_pollers() noexcept {
        seen_.store(true, memory_order::release);
        poll_.notify();
    }

    // Also where it ended its thread.
    void callback_ended() {
        const lock_guard held(mutex_);
        running_id_ = 0;
        end_sleep();
    }

    // With the mutex held. For one sleeper alone the system need not look through all that sleep in this process, which
    // counts where thousands do.
    void end_sleep() {
        if (sleepers_ == 1) {
            changed_.notify_one();
        } else {
            changed_.notify_all();
        }
    }

    const ref<cancel_group> group_;  // or none
    mutex mutex_;
    condition changed_;
    unsigned sleepers_ = 0;
    mutable atomic<cancel_reason> reason_{cancel_reason::none};
    atomic<bool> seen_{false};
    wake poll_;                   // none before the first fd()
    entry* callbacks_ = nullptr;  // in the order they came; ours
    entry** end_ = &callbacks_;
    std::uint64_t last_id_ = 0;
    std::uint64_t running_id_ = 0;
    pthread_t runner_{};
};

}  // namespace detail

// A callback's place in a token. Destroying it takes the callback back, and waits for it if it is running on
// another thread; so what the callback captured by reference may go out of scope after it.
class [[nodiscard]] cancel_registration {
  public:
    cancel_registration() = default;
    cancel_registration(cancel_registration&& other) noexcept
        : state_(std::move(other.state_)), id_(other.id_) {}
    cancel_registration& operator=(cancel_registration&& other) noexcept {
        if (state_) state_->remove(id_);
        state_ = std::move(other.state_);
        id_ = other.id_;
        return *this;
    }
    ~cancel_registration() {
        if (state_) state_->remove(id_);
    }

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
    cancel_reason reason() const noexcept { return state_ ? state_->look() : cancel_reason::none; }
    // Sleeps; true when the time passed, false (at once) when cancelled.
    [[nodiscard]] bool sleep_until(time_point deadline) const;
    [[nodiscard]] bool sleep_for(std::chrono::nanoseconds duration) const {
        return sleep_until(deadline_after(duration));
    }
    // Calls `callback` once, from the cancelling thread; if cancelled already, right here and now, unless callbacks
    // are being called at this moment: then from there. It must be short, and what it throws is dropped.
    cancel_registration on_cancel(function<void()> callback) const;
    // Waits on the caller's condition variable, with the lock held as for its own wait(): true when `ready()` holds,
    // false, at once, when cancelled, and then even if it is ready too: a loop over a queue that never runs empty ends
    // as well. For std::condition_variable with std::unique_lock and whatever else has their members. The lock is held
    // again when it returns or `ready` throws, but is let go of in between even where nothing waits. Who cancels must
    // not hold it, for the waiters are told with it; nor may who holds it block until a callback ends that.
    template <class Condition, class Lock, class Predicate>
    [[nodiscard]] bool wait(Condition& changed, Lock& held, Predicate ready) const;
    // A descriptor that is readable from the cancellation on, to poll for POLLIN beside sockets and pipes. It is made
    // at the first call and shared by all copies of the token, the last of which closes it: never read it or close it.
    // -1, which poll skips, for a token of no source. Errors: errc::system when the process has no descriptor left; a
    // job that cannot be told should not start to wait.
    result<int> fd() const { return state_ ? state_->fd() : result<int>(-1); }
    // True once any member above has told someone of the cancellation (a descriptor that was handed out does): the
    // work knew.
    bool seen() const noexcept { return state_ && state_->seen(); }

  private:
    friend class cancel_source;
    explicit cancel_token(detail::ref<detail::cancel_state> state) noexcept : state_(std::move(state)) {}
    detail::ref<detail::cancel_state> state_;
};

namespace detail {

// Lets go of a lock for a scope, whatever state the scope leaves it in.
template <class Lock>
class released {
  public:
    explicit released(Lock& held) : lock_(held) { lock_.unlock(); }
    released(const released&) = delete;
    released& operator=(const released&) = delete;
    ~released() { lock_.lock(); }

  private:
    Lock& lock_;
};

template <class Lock>
class retaken {
  public:
    explicit retaken(Lock& open) : lock_(open) { lock_.lock(); }
    retaken(const retaken&) = delete;
    retaken& operator=(const retaken&) = delete;
    ~retaken() { lock_.unlock(); }

  private:
    Lock& lock_;
};

}  // namespace detail

template <class Condition, class Lock, class Predicate>
bool cancel_token::wait(Condition& changed, Lock& held, Predicate ready) const {
    while (!cancelled()) {
        if (ready()) return true;
        // Registering may run the callback, and taking it back waits for it: neither with the mutex it needs.
        const detail::released<Lock> open(held);
        auto* const mutex = held.mutex();
        const cancel_registration told = on_cancel([&changed, mutex] {
            mutex->lock();  // so that it does not come between a waiter's look and its sleep
            mutex->unlock();
            changed.notify_all();
        });
        const detail::retaken<Lock> closed(held);
        while (!cancelled() && !ready()) changed.wait(held);
    }
    return false;
}

// The asking end. Every member is thread-safe; none is async-signal-safe.
class cancel_source {
  public:
    cancel_source() : state_(detail::make_ref<detail::cancel_state>()) {}
    cancel_source(cancel_source&& other) = default;
    cancel_source& operator=(cancel_source&& other) = default;

    cancel_token token() const noexcept { return cancel_token(state_); }
    // Sets the flag and ends the waits, without calling anyone. True the first time; the first reason stays.
    bool request(cancel_reason reason) { return state_->request(reason); }
    // Whether it was asked for. Looking here is not seeing: only what the token tells makes the work know.
    bool requested() const noexcept { return reason() != cancel_reason::none; }
    cancel_reason reason() const noexcept { return state_->reason(); }
    // Ends the waits, once the group was cancelled.
    void end_waits() { state_->end_waits(); }
    // Whether run_callbacks() might call anyone.
    bool callbacks_due() const { return state_->callbacks_due(); }
    // Calls the callbacks that are still due, in the order they were registered.
    void run_callbacks() { state_->run_callbacks(); }
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

inline cancel_source detail::cancel_group::member() {
    return cancel_source(make_ref<cancel_state>(ref<cancel_group>(this)));
}

}  // namespace v0_1_0
}  // namespace ojs
