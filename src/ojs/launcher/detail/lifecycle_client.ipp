// lifecycle_client: asks one child's coordinator.
#pragma once

#include "../../net/http_client.hpp"
#include "../messages.hpp"
#include "rpc.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Thread-safe. Everything it asks may be asked twice: a repeated Shutdown changes nothing.
class lifecycle_client : public ref_counted {
  public:
    // `address` as the child was given it: unix:/PATH or HOST:PORT. Opens nothing yet. Questions, but for those of
    // operators, end with errc::cancelled once `interrupt_fd` is readable.
    static result<ref<lifecycle_client>> create(const std::string& address, int interrupt_fd) {
        const bool is_path = address.compare(0, 5, "unix:") == 0;
        http_client_options how;
        how.limits.head = 8 * 1024;
        how.limits.body = 64 * 1024;
        how.max_idle_connections = 2;  // the process's own thread, and an operator's question
        result<http_client> peer =
            http_client::create(is_path ? address : "http://" + address, std::move(how));
        if (!peer) return peer.error();
        return ref<lifecycle_client>(new lifecycle_client(std::move(*peer), interrupt_fd));
    }

    result<shutdown_ack> shut_down(const shutdown_request& request, time_point deadline) {
        return ask<shutdown_ack>("Shutdown", request, deadline);
    }
    result<shutdown_status> status(const std::string& id, time_point deadline) {
        return ask<shutdown_status>("GetShutdownStatus", shutdown_status_request{id}, deadline);
    }
    result<shutdown_status> status_for_operator(const std::string& id, time_point deadline) {
        return ask<shutdown_status>("GetShutdownStatus", shutdown_status_request{id}, deadline, false);
    }
    result<readiness_response> readiness(const std::string& id, time_point deadline) {
        return ask<readiness_response>("GetReadinessStatus", readiness_request{id}, deadline);
    }

  private:
    lifecycle_client(http_client peer, int interrupt_fd) noexcept
        : peer_(std::move(peer)), interrupt_fd_(interrupt_fd) {}

    template <class Answer, class Request>
    result<Answer> ask(const char* method, const Request& request, time_point deadline,
                       bool interruptible = true) {
        http_call call;
        if (interruptible) call.interrupt_fd = interrupt_fd_;
        call.deadline = deadline;
        call.policy = resend::always;
        return rpc_call<Answer>(peer_, lifecycle_service, method, request, call);
    }

    http_client peer_;
    const int interrupt_fd_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
