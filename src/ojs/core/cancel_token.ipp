#pragma once

#include "../base/detail/light.hpp"
#include "../base/detail/sync.hpp"
#include "cancel_token.hpp"
#include "detail/wake.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Cancels all its tokens by one store, however many there are, even if the canceller then makes no progress.
class cancel_group : public ref_counted {
  public:
    // False: it was cancelled before, and keeps that reason.
    bool request(cancel_reason reason) noexcept {
        cancel_reason none = cancel_reason::none;
        return reason_.compare_exchange_strong(none, reason, memory_order::acq_rel);
    }
    cancel_reason reason() const noexcept { return reason_.load(memory_order::acquire); }
    cancel_source member();  // a source that this group cancels, too

  private:
    atomic<cancel_reason> reason_{cancel_reason::none};
};

// What a source and all copies of its token share.
class cancel_state : public ref_counted {
  public:
    explicit cancel_state(ref<cancel_group> owner = {}) : group(std::move(owner)) {}

    // False: it was cancelled before, and keeps that reason.
    bool set_reason(cancel_reason reason) noexcept {
        cancel_reason none = cancel_reason::none;
        return own_reason.compare_exchange_strong(none, reason, memory_order::acq_rel);
    }
    // The first read copies the group's reason, so that a later one does not replace it.
    cancel_reason reason() noexcept {
        if (group && group->reason() != cancel_reason::none) set_reason(group->reason());
        return own_reason.load(memory_order::acquire);
    }
    cancel_reason observe() noexcept {
        const cancel_reason current = reason();
        if (current != cancel_reason::none) seen.store(true, memory_order::release);
        return current;
    }

    void remove_and_await(std::uint64_t id) {
        entry dropped;  // destroyed without the mutex: what the callback holds may itself deregister
        unique_lock held(access);
        for (std::size_t i = 0; i < callbacks.size(); ++i) {
            if (callbacks[i].id == id) return static_cast<void>(dropped = take(i));
        }
        // A callback may drop its own registration; any other thread waits until it has returned.
        while (running_id == id && !pthread_equal(running_thread, pthread_self())) changed.wait(held);
    }

    void run_callbacks() {
        unique_lock held(access);
        while (!callbacks.empty() && running_id == 0) {
            entry due = take(0);
            running_id = due.id;
            running_thread = pthread_self();
            held.unlock();
            seen.store(true, memory_order::release);
            try {
                due.callback();
            } catch (...) {  // dropped
            }
            due = {};  // without the mutex, as above
            held.lock();
            running_id = 0;
            changed.notify_all();
        }
    }

    // Counts as seen: a poller of the descriptor calls no other member.
    void notify_pollers() noexcept {
        seen.store(true, memory_order::release);
        poll_wake.notify();
    }

    struct entry {
        std::uint64_t id = 0;
        function<void()> callback;
    };

    const ref<cancel_group> group;  // or none
    atomic<cancel_reason> own_reason{cancel_reason::none};
    atomic<bool> seen{false};
    mutex access;  // guards the rest
    condition changed;
    wake poll_wake;          // none before the first fd()
    array<entry> callbacks;  // in order of registration
    std::uint64_t last_id = 0;
    std::uint64_t running_id = 0;
    pthread_t running_thread{};

  private:
    // With the mutex held.
    entry take(std::size_t index) noexcept {
        entry taken = std::move(callbacks[index]);
        callbacks.remove(index);
        return taken;
    }
};

inline cancel_source cancel_group::member() {
    return cancel_source(make_ref<cancel_state>(ref<cancel_group>(this)));
}

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(cancel_reason reason) noexcept {
    constexpr const char* names[] = {
        "none", "grace_period_expired", "forced", "spot_reclaim", "cancelled", "timeout", "revoked"};
    return names[static_cast<std::size_t>(reason)];
}

OJS_SHUTDOWN_INLINE cancel_registration::~cancel_registration() {
    if (state_) state_->remove_and_await(id_);
}

OJS_SHUTDOWN_INLINE cancel_reason cancel_token::reason() const noexcept {
    return state_ ? state_->observe() : cancel_reason::none;
}

OJS_SHUTDOWN_INLINE bool cancel_token::seen() const noexcept {
    return state_ && state_->seen.load(detail::memory_order::acquire);
}

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_until(time_point deadline) const {
    if (!state_) return cancel_source().token().sleep_until(deadline);  // never cancelled, but still sleeps
    detail::unique_lock held(state_->access);
    while (state_->reason() == cancel_reason::none && state_->changed.wait_until(held, deadline)) {
    }
    return state_->observe() == cancel_reason::none;
}

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_for(std::chrono::nanoseconds duration) const {
    return sleep_until(deadline_after(duration));
}

OJS_SHUTDOWN_INLINE cancel_registration cancel_token::on_cancel(function<void()> callback) const {
    cancel_registration out;
    if (!state_) return out;
    {
        const detail::unique_lock held(state_->access);
        out.id_ = ++state_->last_id;
        state_->callbacks.push_back({out.id_, std::move(callback)});
    }
    out.state_ = state_;
    if (state_->reason() != cancel_reason::none) state_->run_callbacks();
    return out;
}

OJS_SHUTDOWN_INLINE result<int> cancel_token::fd() const {
    if (!state_) return -1;
    const detail::unique_lock held(state_->access);
    if (state_->poll_wake.fd() < 0) {
        result<detail::wake> made = detail::wake::create();
        if (!made) return made.error();
        state_->poll_wake = std::move(*made);
        if (state_->reason() != cancel_reason::none) state_->notify_pollers();
    }
    return state_->poll_wake.fd();
}

OJS_SHUTDOWN_INLINE cancel_source::cancel_source() : state_(detail::make_ref<detail::cancel_state>()) {}

OJS_SHUTDOWN_INLINE cancel_reason cancel_source::reason() const noexcept {
    return state_->reason();
}

OJS_SHUTDOWN_INLINE bool cancel_source::request(cancel_reason reason) {
    state_->reason();  // copies the group's
    if (!state_->set_reason(reason)) return false;
    wake_waiters();
    return true;
}

OJS_SHUTDOWN_INLINE void cancel_source::wake_waiters() {
    const detail::unique_lock held(state_->access);  // a sleeper is either before its check or asleep
    state_->changed.notify_all();
    if (state_->poll_wake.fd() >= 0) state_->notify_pollers();
}

OJS_SHUTDOWN_INLINE bool cancel_source::has_pending_callbacks() const {
    if (!state_->access.try_lock()) return true;
    const bool due = !state_->callbacks.empty();
    state_->access.unlock();
    return due;
}

OJS_SHUTDOWN_INLINE void cancel_source::run_callbacks() {
    state_->run_callbacks();
}

}  // namespace v0_1_0
}  // namespace ojs
