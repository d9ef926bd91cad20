// notification_server: where a launcher's children say that they are ready, and that they have drained.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../coordinator/coordinator.ipp"
#include "../../coordinator/detail/rpc.ipp"
#include "../../server/http_server.hpp"
#include "process_group.ipp"

namespace ojs::detail {

// Who is at the other end of a Unix socket; 0: not to be known.
inline pid_t peer_process(int socket) noexcept {
#if defined(__linux__)
    ucred who{};
    socklen_t size = sizeof who;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
#elif defined(__APPLE__)
    pid_t who = 0;
    socklen_t size = sizeof who;
    return ::getsockopt(socket, SOL_LOCAL, LOCAL_PEERPID, &who, &size) == 0 ? who : 0;
#else
    static_cast<void>(socket);
    return 0;
#endif
}

inline constexpr const char* notification_socket = "launcher.sock";

// The notifying methods of ProcessLifecycleInterface; the others are a child's. Only the folder's owner reaches it, and
// what is said is but a reason to look: of a process group's own processes where the system tells who they are.
class notification_server {
  public:
    result<void> start(const std::string& folder, array<ref<process_group>> groups) {
        http_server_options how;
        how.limits.head = 8 * 1024;
        how.limits.body = rpc_body_limit;
        how.idle_timeout = std::chrono::seconds(5);
        how.request_timeout = std::chrono::seconds(2);  // a slow one has but its own connection
        server_ = http_server::start(
            cat({"unix:", folder, "/", notification_socket}),
            [groups = std::move(groups)](const http_request& asked) { return answer(groups, asked); }, how);
        return server_ ? result<void>() : server_.error();
    }
    std::string address() const { return server_ ? server_->address() : std::string(); }
    void stop() { server_ = error{}; }

  private:
    static http_response answer(const array<ref<process_group>>& groups, const http_request& asked) {
        const pid_t peer = peer_process(static_cast<const served_request&>(asked).socket);
        const pid_t from = peer > 0 ? ::getpgid(peer) : 0;
        rpc_service service(lifecycle_service, http_guard());
        service.add<ready_notification, ready_ack>("NotifyReady", [&](const ready_notification& what) {
            return passed_on<ready_ack>(groups, from, what);
        });
        service.add<shutdown_complete, shutdown_complete_ack>(
            "NotifyShutdownComplete", [&](const shutdown_complete& what) {
                return passed_on<shutdown_complete_ack>(groups, from, what);
            });
        return service.answer(asked);
    }
    template <class Ack, class Notification>
    static result<Ack> passed_on(const array<ref<process_group>>& groups, pid_t from,
                                 const Notification& what) {
        for (const ref<process_group>& each : groups) {
            if (!each->notified(from, what)) continue;
            Ack out;
            out.acknowledged = true;
            return out;
        }
        return error{errc::rejected, 0, cat({"no such process of yours: ", printable(what.process_id, 60)})};
    }

    result<http_server> server_ = error{};  // none: it does not serve
};

}  // namespace ojs::detail
