#pragma once

#include "cancel_token.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(cancel_reason reason) noexcept {
    constexpr const char* names[] = {
        "none", "grace_period_expired", "forced", "spot_reclaim", "cancelled", "timeout", "revoked"};
    return names[static_cast<std::size_t>(reason)];
}

OJS_SHUTDOWN_INLINE void detail::call_dropping_exceptions(const function<void()>& callback) {
    try {
        callback();
    } catch (...) {
        pass_on_thread_end();
    }
}

OJS_SHUTDOWN_INLINE bool cancel_token::sleep_until(time_point deadline) const {
    // A token of no source still has to sleep.
    return state_ ? state_->sleep_until(deadline) : cancel_source().state_->sleep_until(deadline);
}

OJS_SHUTDOWN_INLINE cancel_registration cancel_token::on_cancel(function<void()> callback) const {
    cancel_registration out;
    if (!state_) return out;
    out.id_ = state_->add(std::move(callback));
    out.state_ = state_;
    if (state_->reason() != cancel_reason::none) state_->run_callbacks();
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
