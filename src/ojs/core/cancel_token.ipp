#pragma once

#include "../base/detail/exchange.hpp"
#include "../base/detail/sync.hpp"
#include "cancel_token.hpp"
#include "detail/wake.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(cancel_reason reason) noexcept {
    constexpr const char* names[] = {
        "none", "grace_period_expired", "forced", "spot_reclaim", "cancelled", "timeout", "revoked"};
    return names[static_cast<std::size_t>(reason)];
}

namespace detail {

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
        wake_waiting();
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
            call_guarded([&] { call(due->callback); },
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

    // With the mutex held.
    void wake_waiting() {
        end_sleep();
        if (poll_.fd() >= 0) tell_pollers();
    }

    // Whoever polls the descriptor has no need to ask for more.
    void tell_pollers() noexcept {
        seen_.store(true, memory_order::release);
        poll_.notify();
    }

    void call(const function<void()>& callback) {
        seen_.store(true, memory_order::release);
        try {
            callback();
        } catch (...) {  // documented: a callback's exception has nowhere to go
            pass_on_thread_end();
        }
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

OJS_SHUTDOWN_INLINE cancel_registration::cancel_registration() noexcept = default;
OJS_SHUTDOWN_INLINE cancel_registration::cancel_registration(cancel_registration&& other) noexcept
    : state_(std::move(other.state_)), id_(detail::exchange(other.id_, 0)) {}
OJS_SHUTDOWN_INLINE cancel_registration& cancel_registration::operator=(
    cancel_registration&& other) noexcept {
    if (state_) state_->remove(id_);
    state_ = std::move(other.state_);
    id_ = detail::exchange(other.id_, 0);
    return *this;
}
OJS_SHUTDOWN_INLINE cancel_registration::~cancel_registration() {
    if (state_) state_->remove(id_);
}

OJS_SHUTDOWN_INLINE cancel_token::cancel_token() noexcept = default;
OJS_SHUTDOWN_INLINE cancel_token::cancel_token(const cancel_token& other) noexcept = default;
OJS_SHUTDOWN_INLINE cancel_token::cancel_token(cancel_token&& other) noexcept = default;
OJS_SHUTDOWN_INLINE cancel_token::cancel_token(detail::ref<detail::cancel_state> state) noexcept
    : state_(std::move(state)) {}
OJS_SHUTDOWN_INLINE cancel_token& cancel_token::operator=(cancel_token other) noexcept {
    state_ = std::move(other.state_);
    return *this;
}
OJS_SHUTDOWN_INLINE cancel_token::~cancel_token() = default;

OJS_SHUTDOWN_INLINE bool cancel_token::cancelled() const noexcept {
    return reason() != cancel_reason::none;
}
OJS_SHUTDOWN_INLINE cancel_reason cancel_token::reason() const noexcept {
    return state_ ? state_->look() : cancel_reason::none;
}
OJS_SHUTDOWN_INLINE bool cancel_source::requested() const noexcept {
    return reason() != cancel_reason::none;
}
OJS_SHUTDOWN_INLINE cancel_reason cancel_source::reason() const noexcept {
    return state_->reason();
}
OJS_SHUTDOWN_INLINE bool cancel_token::seen() const noexcept {
    return state_ && state_->seen();
}

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_until(time_point deadline) const {
    // A token of no source still has to sleep.
    return state_ ? state_->sleep_until(deadline) : cancel_source().state_->sleep_until(deadline);
}

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_for(std::chrono::nanoseconds duration) const {
    return sleep_until(deadline_after(duration));
}

OJS_SHUTDOWN_INLINE cancel_registration cancel_token::on_cancel(function<void()> callback) const {
    cancel_registration out;
    if (!state_) return out;
    out.id_ = state_->add(std::move(callback));
    out.state_ = state_;
    if (state_->reason() != cancel_reason::none) state_->run_callbacks();
    return out;
}

OJS_SHUTDOWN_INLINE result<int> cancel_token::fd() const {
    return state_ ? state_->fd() : result<int>(-1);
}

OJS_SHUTDOWN_INLINE cancel_source::cancel_source() : state_(detail::make_ref<detail::cancel_state>()) {}
OJS_SHUTDOWN_INLINE cancel_source::cancel_source(detail::ref<detail::cancel_state> state) noexcept
    : state_(std::move(state)) {}
OJS_SHUTDOWN_INLINE cancel_source detail::cancel_group::member() {
    return cancel_source(make_ref<cancel_state>(ref<cancel_group>(this)));
}
OJS_SHUTDOWN_INLINE cancel_source::cancel_source(cancel_source&& other) noexcept = default;
OJS_SHUTDOWN_INLINE cancel_source& cancel_source::operator=(cancel_source&& other) noexcept = default;
OJS_SHUTDOWN_INLINE cancel_source::~cancel_source() = default;
OJS_SHUTDOWN_INLINE cancel_token cancel_source::token() const noexcept {
    return cancel_token(state_);
}
OJS_SHUTDOWN_INLINE bool cancel_source::request(cancel_reason reason) {
    return state_->request(reason);
}
OJS_SHUTDOWN_INLINE void cancel_source::end_waits() {
    state_->end_waits();
}
OJS_SHUTDOWN_INLINE bool cancel_source::callbacks_due() const {
    return state_->callbacks_due();
}
OJS_SHUTDOWN_INLINE void cancel_source::run_callbacks() {
    state_->run_callbacks();
}
OJS_SHUTDOWN_INLINE bool cancel_source::cancel(cancel_reason reason) {
    const bool first = request(reason);
    run_callbacks();
    return first;
}

}  // namespace v0_1_0
}  // namespace ojs
