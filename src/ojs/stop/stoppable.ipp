#pragma once

#include "detail/machine.ipp"
#include "stoppable.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE bool stoppable::apply(event request) { return machine_->phases.apply(request); }
OJS_SHUTDOWN_INLINE bool stoppable::add_step(std::string name, function<void()> step,
                                             std::chrono::milliseconds timeout) {
    return machine_->accepts("shutdown step", name) && machine_->steps.add(std::move(name), std::move(step), timeout);
}
OJS_SHUTDOWN_INLINE cancel_token stoppable::stopped_token() const { return machine_->stopped.token(); }
OJS_SHUTDOWN_INLINE phase stoppable::phase() const noexcept { return machine_->phases.now(); }
OJS_SHUTDOWN_INLINE worker_report stoppable::report() const { return machine_->report(); }
OJS_SHUTDOWN_INLINE int stoppable::exit_code() const noexcept { return machine_->exit_code; }
}  // namespace v0_1_0
}  // namespace ojs
