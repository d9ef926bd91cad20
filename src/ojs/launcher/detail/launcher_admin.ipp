// launcher_admin: the server that answers a launcher's operator, and who may ask it.
#pragma once

#include "../../net/detail/url.hpp"
#include "../../net/http_server.hpp"
#include "../coordinator.ipp"
#include "admin_answers.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Who may ask: whoever may open the socket, who is on this machine, or who has the token.
inline result<http_guard> admin_guard(const launcher_options& options) {
    const auto fault = [&](std::string_view why) {
        return error{errc::invalid_argument, 0,
                     cat({"admin_address '", printable(options.admin_address, 120), "': ", why})};
    };
    for (const char c : options.admin_token) {
        if (c <= ' ' || c > '~')
            return error{errc::invalid_argument, 0, "admin_token may hold visible ASCII characters only"};
    }
    const result<endpoint> where = parse_listen_address(options.admin_address);
    if (!where) return fault(where.error().text);
    if (options.admin_token.empty() && !is_local(*where))
        return fault("is open to other machines, so set admin_token, or give unix:/PATH or 127.0.0.1:PORT");
    if (!where->unix_path.empty()) {
        const result<void> safe = check_folder(where->unix_path);
        if (!safe) return fault(safe.error().text);
    }
    http_guard out;
    out.on_loopback = where->unix_path.empty() && is_local(*where);
    out.token = options.admin_token;
    out.own_page = !options.status_page.empty();
    return out;
}

class launcher_admin {
  public:
    ~launcher_admin() { stop(); }

    // Does nothing without an address.
    result<void> start(const process_groups& groups, const launcher_options& options, const lifecycle& life,
                       const group_surroundings& around) {
        if (options.admin_address.empty()) return {};
        const result<http_guard> guard = admin_guard(options);
        if (!guard) return guard.error();
        answers_ = make_ref<admin_answers>(groups, options, life, around.events, *guard);
        http_server_options limits;
        limits.limits.head = 8 * 1024;
        limits.limits.body = rpc_body_limit + 1;  // the service refuses what is larger
        limits.max_connections = 16;
        limits.idle_timeout = std::chrono::seconds(10);
        limits.request_timeout = std::chrono::seconds(5);
        server_ = http_server::start(
            options.admin_address,
            [answers = answers_](const http_request& request) { return answers->answer(request); }, limits);
        if (!server_) {
            return error{
                server_.error().code, server_.error().sys_errno,
                cat({"admin_address '", printable(options.admin_address, 120), "': ", server_.error().text})};
        }
        around.log.write(log_level::info, "launcher admin listening", {field("address", server_->address())});
        return {};
    }
    // Empty: it does not serve, or does so no more.
    std::string address() const { return server_ ? server_->address() : std::string(); }
    // After the groups' stop_starting().
    void stop() {
        if (answers_) answers_->end();
        if (server_) server_->stop(deadline_after(std::chrono::seconds(1)));
    }

  private:
    ref<admin_answers> answers_;
    result<http_server> server_ = error{};  // none: it does not serve
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
