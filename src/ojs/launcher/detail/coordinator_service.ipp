// coordinator_service: where a child listens, and what it answers.
#pragma once

#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

#include "../../base/detail/text.hpp"
#include "../../net/detail/url.hpp"
#include "coordinator_body.hpp"
#include "rpc.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Who may write to the folder could put a socket of his own in the place of ours, unless it is sticky.
inline result<void> check_folder(const std::string& socket_path) {
    const std::size_t slash = socket_path.rfind('/');
    const std::string folder = slash == 0 ? "/" : socket_path.substr(0, slash);
    struct stat found {};
    if (::stat(folder.c_str(), &found) != 0) {
        return error{errc::system, errno, cat({"cannot look at ", folder, ": ", errno_text(errno)})};
    }
    const bool owned = found.st_uid == ::geteuid() || found.st_uid == 0;
    const bool kept = (found.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (found.st_mode & S_ISVTX) != 0;
    if (owned && kept) return {};
    return error{errc::invalid_argument, 0, cat({folder, " belongs to, or can be changed by, other users"})};
}

OJS_SHUTDOWN_INLINE result<void> coordinator_body::start() {
    result<wake> waker = wake::create();
    if (!waker) return waker.error();
    wake_ = std::move(*waker);
    if (options_.address.empty()) return {};
    if (!options_.launcher_address.empty()) {
        http_client_options one;
        one.max_idle_connections = 1;
        const result<endpoint> where = parse_listen_address(options_.launcher_address);
        if (!where) return where.error();
        launcher_ = http_client::create(url_of(where->name), one);
        if (!launcher_) return launcher_.error();
    }
    const result<void> serving = serve();
    return serving ? start_thread() : serving;
}

OJS_SHUTDOWN_INLINE result<void> coordinator_body::serve() {
    const result<endpoint> where = parse_listen_address(options_.address);
    if (!where) return where.error();
    if (!where->unix_path.empty()) {
        const result<void> safe = check_folder(where->unix_path);
        if (!safe) return safe;
    }
    http_server_options limits;
    limits.limits.head = 8 * 1024;
    limits.limits.body = rpc_body_limit;
    limits.max_connections = 8;
    limits.request_timeout = std::chrono::seconds(2);
    server_ = http_server::start(
        options_.address,
        [answers = service()](const http_request& request) { return answers.answer(request); }, limits);
    if (!server_) return server_.error();
    address_ = server_->address();
    log_.write(log_level::debug, "lifecycle service listening", {field("address", address_)});
    return {};
}

OJS_SHUTDOWN_INLINE rpc_service coordinator_body::service() {
    const result<endpoint> where = parse_listen_address(options_.address);
    http_guard guard;
    guard.on_loopback = where && where->unix_path.empty() && is_local(*where);
    rpc_service out(lifecycle_service, guard);
    out.add<shutdown_request, shutdown_ack>(
        "Shutdown", [this](const shutdown_request& request) { return shut_down(request); });
    out.add<shutdown_status_request, shutdown_status>(
        "GetShutdownStatus", [this](const shutdown_status_request& request) -> result<shutdown_status> {
            const result<void> ours = is_for_us(request.process_id);
            if (!ours) return ours.error();
            return status();
        });
    out.add<readiness_request, readiness_response>(
        "GetReadinessStatus", [this](const readiness_request& request) -> result<readiness_response> {
            const result<void> ours = is_for_us(request.process_id);
            if (!ours) return ours.error();
            notice();
            return checks_.look(phase() == phase::running);
        });
    const error elsewhere{errc::unsupported, 0, "the launcher takes this, not its child"};
    out.add<ready_notification, ready_ack>(
        "NotifyReady", [=](const ready_notification&) -> result<ready_ack> { return elsewhere; });
    out.add<shutdown_complete, shutdown_complete_ack>(
        "NotifyShutdownComplete",
        [=](const shutdown_complete&) -> result<shutdown_complete_ack> { return elsewhere; });
    return out;
}

// ---- what is asked ----

OJS_SHUTDOWN_INLINE result<void> coordinator_body::is_for_us(const std::string& process_id) const {
    if (process_id.empty() || options_.process_id.empty() || process_id == options_.process_id) return {};
    return error{errc::rejected, 0, cat({"this is process ", options_.process_id})};
}

OJS_SHUTDOWN_INLINE result<shutdown_ack> coordinator_body::shut_down(const shutdown_request& request) {
    const result<void> ours = is_for_us(request.process_id);
    if (!ours) return ours.error();
    if (request.grace_period_seconds < 0 || request.max_shutdown_seconds < 0) {
        return error{errc::invalid_argument, 0, "a time below zero"};
    }
    const auto max = said_or(request.max_shutdown_seconds, options_.max_shutdown);
    const auto asked_grace = said_or(request.grace_period_seconds, options_.grace_period);
    const auto grace = asked_grace < max ? asked_grace : max;
    const bool idle = metrics().in_flight_requests == 0;
    shutdown_ack out;
    out.acknowledged = true;
    lock_guard held(mutex_);
    const bool repeated = exchange(asked_, true);
    const bool over = state_ == shutdown_state::complete;
    out.message = over ? "complete" : repeated ? "shutting down already" : "shutting down";
    if (over || repeated) return out;
    out.estimated_seconds = idle ? 1 : wire_seconds(grace);
    const time_point now = steady_clock::now();
    if (state_ == shutdown_state::running) received_ = now;  // a signal may have come first
    set_times(now, grace, max);
    move(drain_event::asked);
    held.unlock();
    life_.apply(event::stop_request, rpc_cause);
    wake_.notify();
    log_.write(log_level::info, "shutdown requested",
               {field("process_id", options_.process_id), field("reason", printable(request.reason)),
                field("grace_ms", grace.count()), field("max_ms", max.count())});
    return out;
}

OJS_SHUTDOWN_INLINE shutdown_metrics coordinator_body::metrics() {
    shutdown_metrics out;
    if (options_.metrics) out = options_.metrics();
    const lock_guard held(mutex_);
    if (!options_.metrics) out = metrics_;
    for (const std::string& each : blocking_) out.blocking_operations.push_back(each);
    return out;
}

OJS_SHUTDOWN_INLINE shutdown_status coordinator_body::status() {
    notice();
    shutdown_status out;
    // First, as the state is the newer of the two then: it is complete only where nothing is left.
    out.metrics = metrics();
    const time_point now = steady_clock::now();
    const lock_guard held(mutex_);
    out.state = state_;
    out.message = message_;
    if (!under_way()) return out;
    out.need_more_time = more_said_ ? more_seconds_ > 0 : asked_ && now >= ask_more_at_;
    if (out.need_more_time) {
        out.additional_seconds =
            more_said_
                ? more_seconds_
                : wire_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(cancel_at_ - now));
    }
    return out;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
