// rpc: unary calls as the Connect protocol makes them, both ends. [WIRE 4]
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../../base/detail/array.hpp"
#include "../../base/error.hpp"
#include "../../base/function.hpp"
#include "../../net/detail/http_routes.hpp"
#include "../../net/http_client.hpp"
#include "../../net/http_message.hpp"
#include "../message_json.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Each errc of a failed call or handler, its Connect code and the status of that. Read in both directions, first match: an
// unreadable body is invalid_argument when sent, which comes back as such.
struct rpc_code {
    errc code;
    const char* name;
    int status;
};
inline constexpr rpc_code rpc_codes[] = {{errc::invalid_argument, "invalid_argument", 400},
                                         {errc::bad_answer, "invalid_argument", 400},
                                         {errc::rejected, "not_found", 404},
                                         {errc::unsupported, "unimplemented", 404},
                                         {errc::busy, "failed_precondition", 400},
                                         {errc::unavailable, "unavailable", 503},
                                         {errc::timed_out, "deadline_exceeded", 504},
                                         {errc::cancelled, "canceled", 499},
                                         {errc::system, "internal", 500}};

// More no message of ours needs.
inline constexpr std::size_t rpc_body_limit = 64 * 1024;

// What one service answers. Built before its server starts, then only read: answer() is as thread-safe as the handlers. A
// handler must not block: a connection's thread waits for it.
class rpc_service {
  public:
    // `guard` as for routes: what it refuses is refused here, for every method.
    rpc_service(const char* service, http_guard guard) : service_(service), guard_(std::move(guard)) {}

    template <class Request, class Answer>
    void add(const char* method, function<result<Answer>(const Request&)> handler) {
        methods_.push_back({method, [handler](std::string_view body) -> result<std::string> {
                                const result<Request> request = read_message<Request>(body);
                                if (!request) return request.error();
                                const result<Answer> answer = handler(*request);
                                if (!answer) return answer.error();
                                return write_message(*answer);
                            }});
    }
    template <class Owner, class Request, class Answer>
    void add(const char* method, Owner& owner, result<Answer> (Owner::*handler)(const Request&)) {
        add<Request, Answer>(method,
                             [&owner, handler](const Request& request) { return (owner.*handler)(request); });
    }
    // "/SERVICE/": so that one server can have two services, and /metrics.
    bool is_for(std::string_view target) const noexcept;
    http_response answer(const http_request& request) const;

  private:
    struct served_method {
        const char* name;
        function<result<std::string>(std::string_view)> call;
    };
    const served_method* find(std::string_view target) const noexcept;

    const char* service_;
    http_guard guard_;
    array<served_method> methods_;
};

// The body of the answer to a call that went well. Errors: those of send(); of the table, for what the peer refused, with
// its message made printable; unsupported where there is no such method, or nothing of the kind at this path.
result<std::string> rpc_send(http_client& peer, const char* service, const char* method, std::string body,
                             http_call call);

// The URL of what listens at an address: unix:/PATH or HOST:PORT.
inline std::string url_of(const std::string& address) {
    return address.compare(0, 5, "unix:") == 0 ? address : "http://" + address;
}

// Calls SERVICE/METHOD. Thread-safe, as the client is.
template <class Answer, class Request>
result<Answer> rpc_call(http_client& peer, const char* service, const char* method, const Request& request,
                        http_call call) {
    const result<std::string> body = rpc_send(peer, service, method, write_message(request), std::move(call));
    if (!body) return body.error();
    return read_message<Answer>(*body);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
