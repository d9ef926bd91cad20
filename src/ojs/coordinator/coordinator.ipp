#pragma once

#include <algorithm>

#include "../server/detail/listener.ipp"
#include "../worker/worker_options.ipp"
#include "coordinator.hpp"
#include "detail/coordinator_body.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE result<coordinator_options> coordinator_options::from_environment(
    const environment_lookup& lookup) {
    coordinator_options out;
    struct variable {
        const char* name;
        std::string* into;
        bool is_address;
    };
    const variable all[] = {{"OJS_LIFECYCLE_ADDR", &out.address, true},
                            {"OJS_PROCESS_ID", &out.process_id, false},
                            {"OJS_LAUNCHER_ADDR", &out.launcher_address, true}};
    for (const variable& each : all) {
        const char* const value = detail::find_variable(lookup, each.name);
        if (value == nullptr || *value == '\0') continue;  // a launcher leaves what does not apply empty
        *each.into = value;
        if (!each.is_address) continue;
        const result<detail::endpoint> where = detail::parse_listen_address(value);
        if (!where) {
            return error{errc::invalid_argument, 0,
                         detail::cat({each.name, " '", detail::printable(value, 120), "': ", where.error().text})};
        }
    }
    detail::option_visitor read(lookup);
    detail::visit_log_options(out.log, read);
    if (!read.status) return read.status.error();
    return out;
}

OJS_SHUTDOWN_INLINE shutdown_coordinator::shutdown_coordinator(detail::ref<detail::coordinator_body> body) noexcept
    : body_(std::move(body)) {}
OJS_SHUTDOWN_INLINE shutdown_coordinator::shutdown_coordinator(shutdown_coordinator&& other) noexcept
    : body_(std::move(other.body_)) {}
OJS_SHUTDOWN_INLINE shutdown_coordinator& shutdown_coordinator::operator=(shutdown_coordinator&& other) noexcept {
    body_ = std::move(other.body_);
    return *this;
}
OJS_SHUTDOWN_INLINE shutdown_coordinator::~shutdown_coordinator() {}  // the body closes itself

OJS_SHUTDOWN_INLINE result<shutdown_coordinator> shutdown_coordinator::start(coordinator_options options,
                                                                             lifecycle& life) {
    auto body = detail::make_ref<detail::coordinator_body>(std::move(options), life, nullptr);
    const result<void> started = body->start();
    if (!started) return started.error();
    return shutdown_coordinator(std::move(body));
}

OJS_SHUTDOWN_INLINE result<shutdown_coordinator> shutdown_coordinator::start_for(worker& worker, lifecycle& life) {
    result<coordinator_options> options = coordinator_options::from_environment();
    if (!options) return options.error();
    options->log = detail::core_of(worker).options.log;
    options->metrics = [&worker] {
        shutdown_metrics now;
        now.in_flight_requests = static_cast<std::int32_t>(worker.active_jobs());
        return now;
    };
    auto body = detail::make_ref<detail::coordinator_body>(std::move(*options), life, &worker);
    const result<void> started = body->start();
    if (!started) return started.error();
    body->follow_worker(worker);
    return shutdown_coordinator(std::move(body));
}

OJS_SHUTDOWN_INLINE bool shutdown_coordinator::active() const noexcept { return static_cast<bool>(body_->server_); }
OJS_SHUTDOWN_INLINE const std::string& shutdown_coordinator::address() const noexcept { return body_->address_; }
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_starting(std::string message) {
    body_->report_readiness(readiness_state::starting, std::move(message));
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_warming(std::string message) {
    body_->report_readiness(readiness_state::warming, std::move(message));
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_ready(std::string message) {
    body_->report_readiness(readiness_state::ready, std::move(message));
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_unhealthy(std::string message) {
    body_->report_readiness(readiness_state::unhealthy, std::move(message));
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_server_ready(bool is_ready) { body_->checks_.set_server(is_ready); }
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_backend(bool connected, bool warmed) {
    body_->checks_.set_backend(connected, warmed);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_check(std::string name, bool passed) {
    body_->checks_.set_check(std::move(name), passed);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::add_check(std::string name, function<bool()> check) {
    if (check) body_->checks_.add_check(std::move(name), std::move(check));
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_metrics(shutdown_metrics metrics) {
    const detail::unique_lock held(body_->mutex_);
    body_->metrics_ = std::move(metrics);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_message(std::string message) {
    const detail::unique_lock held(body_->mutex_);
    if (body_->state_ != shutdown_state::complete && !body_->drain_failed_) body_->message_ = std::move(message);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_blocked(std::string operation) {
    const detail::unique_lock held(body_->mutex_);
    body_->blocking_.push_back(std::move(operation));
    body_->apply_event(detail::drain_event::blocked);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_unblocked(const std::string& operation) {
    const detail::unique_lock held(body_->mutex_);
    std::vector<std::string>& all = body_->blocking_;
    const auto found = std::find(all.begin(), all.end(), operation);
    if (found == all.end()) return;
    all.erase(found);
    if (all.empty() && !body_->drain_failed_) body_->apply_event(detail::drain_event::unblocked);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::need_more_time(detail::any_duration<std::chrono::seconds> additional) {
    const detail::unique_lock held(body_->mutex_);
    body_->extension_given_ = true;
    body_->extension_s_ = detail::coordinator_body::seconds_of(additional);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::set_estimate(detail::any_duration<std::chrono::seconds> drain) {
    const detail::unique_lock held(body_->mutex_);
    body_->estimate_s_ = detail::coordinator_body::seconds_of(drain);
}
OJS_SHUTDOWN_INLINE bool shutdown_coordinator::on_shutdown(std::string name, function<void()> step,
                                                           detail::any_ms limit) {
    const detail::unique_lock held(body_->mutex_);
    return body_->state_ == shutdown_state::running && body_->steps_.add(std::move(name), std::move(step), limit);
}
OJS_SHUTDOWN_INLINE result<void> shutdown_coordinator::run(const function<result<void>(const cancel_token&)>& drain,
                                                           const cancel_token& abort) {
    return body_->run(drain, abort);
}
OJS_SHUTDOWN_INLINE void shutdown_coordinator::report_finished(std::string message) {
    body_->finish(std::move(message));
}
}  // namespace v0_1_0
}  // namespace ojs
