#pragma once

#include "../stop/stoppable.ipp"
#include "detail/worker_core.ipp"
#include "worker.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE const detail::worker_core& detail::core_of(const worker& one) noexcept { return *one.core_; }

OJS_SHUTDOWN_INLINE worker::worker(const worker_options& options, ojs::transport* transport, lifecycle* shared)
    : core_(detail::make_ref<detail::worker_core>(options, transport, shared)) {
    machine_ = detail::ref<detail::machine>(core_.get());
}
OJS_SHUTDOWN_INLINE worker::~worker() {
    if (core_->is_forked()) core_->retain();  // the threads exist in the parent only
    if (core_->is_forked()) return;
    if (core_->in_own_call()) detail::abort_with("a worker was destroyed in one of its own handlers or callbacks");
    if (!stopped()) stop();
    // Refuses new calls to transports, hooks and callbacks, and waits for those in flight.
    const auto deadline = deadline_after(core_->options.request_timeout + std::chrono::seconds(1));
    if (!core_->close(deadline))
        core_->log.write(log_level::error,
                         "a transport, a hook or a callback has not returned; the worker is destroyed");
    static_cast<void>(background_.end_by(deadline));
}
OJS_SHUTDOWN_INLINE bool worker::add_handler(std::string type, detail::job_handler handler, handler_options options) {
    return core_->add_handler(std::move(type), std::move(handler), options);
}
OJS_SHUTDOWN_INLINE bool worker::wrap(detail::handler_wrapper around) {
    if (!around || !core_->accepts("wrap")) return false;
    core_->wrappers.push_back(std::move(around));
    return true;
}
OJS_SHUTDOWN_INLINE int worker::run() {
    const detail::ref<detail::worker_core> core = core_;  // at its end another thread may delete this
    detail::run_claim claim;
    const result<void> started = core->start(&claim);
    if (!started) return core->report_start(started.error());
    core->run_to_end();
    return core->exit_code;
}
OJS_SHUTDOWN_INLINE result<void> worker::start() {
    result<void> begun = core_->start(nullptr);
    if (!begun) return begun;
    result<detail::thread> started =
        detail::thread::start([core = core_] { core->run_to_end(); }, {0, false, "ojs-worker"});
    if (!started) {  // stop in order, on this thread
        request_stop_and_cancel();
        core_->run_to_end();
        return started.error();
    }
    background_ = std::move(*started);
    return {};
}
OJS_SHUTDOWN_INLINE bool worker::wait(time_point deadline) { return core_->await_end(deadline); }
OJS_SHUTDOWN_INLINE bool worker::stopped() const noexcept { return core_->stopped.requested(); }
OJS_SHUTDOWN_INLINE std::size_t worker::active_jobs() const { return core_->active(); }
}  // namespace v0_1_0
}  // namespace ojs
