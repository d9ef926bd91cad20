#pragma once

#include "../base/detail/light.hpp"
#include "../base/detail/sync.hpp"
#include "cancel_token.hpp"
#include "detail/wake.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class cancel_state : public ref_counted {
  public:
    explicit cancel_state(ref<cancel_state> owner = {}) : group(std::move(owner)) {}

    // False: it was cancelled before, and keeps that reason.
    bool set_reason(cancel_reason reason) noexcept {
        cancel_reason none = cancel_reason::none;
        return own_reason.compare_exchange_strong(none, reason);
    }
    // Copies the group's, so that a later one does not replace it.
    cancel_reason reason() noexcept {
        const cancel_reason of_group = group ? group->own_reason.load() : cancel_reason::none;
        if (of_group != cancel_reason::none) set_reason(of_group);
        return own_reason;
    }
    cancel_reason observe() noexcept {
        const cancel_reason current = reason();
        if (current != cancel_reason::none) seen = true;
        return current;
    }
    bool request(cancel_reason wanted) {
        reason();  // copies the group's
        if (!set_reason(wanted)) return false;
        wake_waiters();
        return true;
    }
    void wake_waiters() {
        const unique_lock held(access);  // a sleeper is either before its check or asleep
        changed.notify_all();
        if (poll_wake.fd() < 0) return;
        seen = true;  // a poller of the descriptor calls no other member
        poll_wake.notify();
    }

    void remove_and_await(std::uint64_t id) {
        entry dropped;  // destroyed without the mutex: what the callback holds may itself deregister
        unique_lock held(access);
        for (std::size_t i = 0; i < callbacks.size(); ++i) {
            if (callbacks[i].id == id) return static_cast<void>(dropped = callbacks.remove(i));
        }
        // A callback may drop its own registration; any other thread waits until it has returned.
        while (running_id == id && !pthread_equal(running_thread, pthread_self())) changed.wait(held);
    }

    void run_callbacks() {
        unique_lock held(access);
        while (!callbacks.empty() && running_id == 0) {
            entry due = callbacks.remove(0);
            running_id = due.id;
            running_thread = pthread_self();
            held.unlock();
            seen = true;
            try {
                due.callback();
            } catch (...) {  // dropped
            }
            due = {};  // without the mutex
            held.lock();
            running_id = 0;
            changed.notify_all();
        }
    }

    struct entry {
        std::uint64_t id = 0;
        function<void()> callback;
    };

    const ref<cancel_state> group;  // or none
    atomic<cancel_reason> own_reason{cancel_reason::none};
    atomic<bool> seen{false};
    mutex access;  // guards the rest
    condition changed;
    wake poll_wake;          // none before the first fd()
    array<entry> callbacks;  // in order of registration
    std::uint64_t last_id = 0;
    std::uint64_t running_id = 0;
    pthread_t running_thread{};
};

// In two steps, as callbacks may block.
class split_source : public cancel_source {
  public:
    split_source() = default;

    // cancel() without the callbacks.
    bool request(cancel_reason reason) { return state_->request(reason); }
    void run_callbacks() { state_->run_callbacks(); }
    bool has_pending_callbacks() const {
        const unique_lock held(state_->access);
        return !state_->callbacks.empty();
    }
    // A source that is cancelled by cancel_members() of this one.
    split_source member() const { return split_source(make_ref<cancel_state>(state_)); }
    // One store: all are cancelled even if the caller then makes no progress. Wakes nobody.
    bool cancel_members(cancel_reason reason) noexcept { return state_->set_reason(reason); }
    void wake_waiters() { state_->wake_waiters(); }  // of a member's tokens, after that

  private:
    explicit split_source(ref<cancel_state> state) noexcept : cancel_source(std::move(state)) {}
};
}  // namespace detail

OJS_SHUTDOWN_INLINE cancel_registration::~cancel_registration() {
    if (state_) state_->remove_and_await(id_);
}

OJS_SHUTDOWN_INLINE cancel_reason cancel_token::reason() const noexcept {
    return state_ ? state_->observe() : cancel_reason::none;
}

OJS_SHUTDOWN_INLINE bool cancel_token::seen() const noexcept { return state_ && state_->seen; }

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_until(time_point deadline) const {
    if (!state_) return cancel_source().token().sleep_until(deadline);  // never cancelled, but still sleeps
    detail::unique_lock held(state_->access);
    while (state_->reason() == cancel_reason::none && state_->changed.wait_until(held, deadline)) continue;
    return state_->observe() == cancel_reason::none;
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
    detail::unique_lock held(state_->access);
    if (state_->poll_wake.fd() < 0) {
        result<detail::wake> made = detail::wake::create();
        if (!made) return made.error();
        state_->poll_wake = std::move(*made);
        held.unlock();
        if (state_->reason() != cancel_reason::none) state_->wake_waiters();
    }
    return state_->poll_wake.fd();
}

OJS_SHUTDOWN_INLINE cancel_source::cancel_source() : state_(detail::make_ref<detail::cancel_state>()) {}

OJS_SHUTDOWN_INLINE cancel_reason cancel_source::reason() const noexcept { return state_->reason(); }

OJS_SHUTDOWN_INLINE bool cancel_source::cancel(cancel_reason reason) {
    const bool first = state_->request(reason);
    state_->run_callbacks();
    return first;
}
}  // namespace v0_1_0
}  // namespace ojs
