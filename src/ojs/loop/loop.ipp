#pragma once

#include "../stop/stoppable.ipp"
#include "detail/loop_core.ipp"
#include "loop.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE cancel_token item::token() const noexcept {
    return entry_ ? entry_->cancel.token() : cancel_token();
}
OJS_SHUTDOWN_INLINE void item::end() noexcept {
    if (entry_) entry_->loop->end_item(*entry_);
    entry_ = {};
}

OJS_SHUTDOWN_INLINE cancel_token consumer::intake_token() const { return loop_.taking(1 + index_); }
OJS_SHUTDOWN_INLINE item consumer::begin(std::string id) { return loop_.begin_item(std::move(id), this); }
OJS_SHUTDOWN_INLINE consumer::turn consumer::await_turn(time_point deadline) {
    return loop_.await_turn(*this, deadline);
}

OJS_SHUTDOWN_INLINE loop::loop(result<loop_options> options, lifecycle* shared)
    : core_(detail::make_ref<detail::loop_core>(options ? *options : loop_options(), shared)) {
    machine_ = detail::ref<detail::machine>(core_.get());
    if (!options) core_->status = options.error();
    core_->prepare();
}
OJS_SHUTDOWN_INLINE loop::~loop() { core_->close(); }

OJS_SHUTDOWN_INLINE bool loop::add_consumers(std::size_t count, function<void(consumer&)> body) {
    if (!core_->accepts("add_consumers")) return false;
    if (count == 0 && core_->options.concurrency > 0) count = static_cast<std::size_t>(core_->options.concurrency);
    for (; count > 0; --count) core_->consumers.push_back(body);
    return true;
}
OJS_SHUTDOWN_INLINE bool loop::on_renew(detail::any_ms interval,
                                        function<std::vector<std::string>(const std::vector<std::string>&)> renew) {
    if (!core_->accepts("on_renew")) return false;
    core_->renew_interval = detail::max<std::chrono::milliseconds>(interval, std::chrono::milliseconds(1));
    core_->renew = std::move(renew);
    return true;
}
OJS_SHUTDOWN_INLINE int loop::run() {
    core_->run();
    return exit_code();
}
OJS_SHUTDOWN_INLINE int loop::fd() const noexcept { return core_->waker.fd(); }
OJS_SHUTDOWN_INLINE time_point loop::deadline() const noexcept { return core_->due; }
OJS_SHUTDOWN_INLINE bool loop::advance() { return core_->advance(); }

OJS_SHUTDOWN_INLINE bool loop::accepting() const noexcept { return core_->phases.may_take(); }
OJS_SHUTDOWN_INLINE cancel_token loop::intake_token() const { return core_->taking(); }
OJS_SHUTDOWN_INLINE item loop::begin(std::string id) { return core_->begin_item(std::move(id)); }
OJS_SHUTDOWN_INLINE std::size_t loop::active_items() const { return core_->active(); }
}  // namespace v0_1_0
}  // namespace ojs
