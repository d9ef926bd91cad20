// rpc: unary calls of the Connect protocol, server and client. [WIRE 4]
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../../base/detail/clock.ipp"
#include "../../net/http_client.ipp"
#include "../../server/detail/http_routes.ipp"
#include "../message_json.ipp"

namespace ojs::detail {
// Maps errc to Connect code and HTTP status, and back; the first match counts. A bad_response is sent as
// invalid_argument and arrives as such.
struct rpc_code {
    errc code;
    const char* name;
    int status;
};
inline constexpr rpc_code rpc_codes[] = {{errc::invalid_argument, "invalid_argument", 400},
                                         {errc::bad_response, "invalid_argument", 400},
                                         {errc::rejected, "not_found", 404},
                                         {errc::unsupported, "unimplemented", 404},
                                         {errc::busy, "failed_precondition", 400},
                                         {errc::unavailable, "unavailable", 503},
                                         {errc::timed_out, "deadline_exceeded", 504},
                                         {errc::cancelled, "canceled", 499},
                                         {errc::system, "internal", 500}};

// No message of ours is larger.
inline constexpr std::size_t rpc_body_limit = 64 * 1024;

// Connect's body of a failed call. Its `details` are ignored.
struct connect_error {
    std::string code;
    std::string message;
};

inline message_view json_fields(connect_error& message, adl_tag) {
    return {"Error", {item("code", message.code), item("message", message.message)}};
}

inline http_response rpc_refusal(int status, const char* code, std::string_view why) {
    connect_error body{code, std::string(why)};
    return json_response(status, write_fields(view_of(body)));
}

inline http_response rpc_refusal(const error& failure) {
    for (const rpc_code& each : rpc_codes) {
        if (each.code == failure.code) return rpc_refusal(each.status, each.name, failure.text);
    }
    return rpc_refusal(500, "internal", failure.text);
}

// The error response to an unsupported form of request; status 200: the form is supported.
inline http_response check_rpc_form(const http_request& request) {
    const std::string_view type = find_header(request.headers, "Content-Type");
    if (!equals_ignore_case(trim_blanks(type.substr(0, type.find(';'))), "application/json"))
        return rpc_refusal(
            415, "unimplemented",
            "the Content-Type must be application/json: the binary codec, gRPC and streams are not served");
    const std::string_view encoding = find_header(request.headers, "Content-Encoding");
    if (!encoding.empty() && !equals_ignore_case(encoding, "identity"))
        return rpc_refusal(404, "unimplemented", "compressed bodies are not supported");
    const std::string_view version = find_header(request.headers, "Connect-Protocol-Version");
    if (version.data() != nullptr && version != "1")
        return rpc_refusal(400, "invalid_argument", "the Connect-Protocol-Version must be 1");
    const std::string_view time = find_header(request.headers, "Connect-Timeout-Ms");
    const bool is_time = time.find_first_not_of("0123456789") == std::string_view::npos;
    if (time.data() != nullptr && (time.empty() || time.size() > 10 || !is_time))
        return rpc_refusal(400, "invalid_argument", "the Connect-Timeout-Ms must be a number of at most ten digits");
    if (request.body.size() > rpc_body_limit)
        return rpc_refusal(413, "resource_exhausted", cat({"the body is larger than ", rpc_body_limit, " bytes"}));
    return {};
}

// The methods of one service. Complete before its server starts, then only read: answer() is as thread-safe as the
// handlers. A handler must not block: it runs on a connection's thread.
class rpc_service {
  public:
    // `guard` as for guarded routes, for every method.
    rpc_service(const char* service, http_guard guard) : service_(service), guard_(std::move(guard)) {}

    template <class Request, class Response>
    void add(const char* method, function<result<Response>(const Request&)> handler) {
        methods_.push_back({method, [handler](std::string_view body) -> result<std::string> {
                                const result<Request> request = read_message<Request>(body);
                                if (!request) return request.error();
                                const result<Response> answer = handler(*request);
                                if (!answer) return answer.error();
                                return write_message(*answer);
                            }});
    }
    template <class Owner, class Request, class Response>
    void add(const char* method, Owner& owner, result<Response> (Owner::*handler)(const Request&)) {
        add<Request, Response>(method, [&owner, handler](const Request& request) { return (owner.*handler)(request); });
    }
    // Whether the target begins with "/SERVICE/": one server may have several services, and /metrics.
    bool is_for(std::string_view target) const noexcept {
        const std::string_view service = service_;
        return target.size() > service.size() + 1 && target[0] == '/' && target.substr(1, service.size()) == service &&
               target[service.size() + 1] == '/';
    }
    http_response answer(const http_request& request) const {
        if (!has_trusted_host(guard_, request)) {
            return rpc_refusal(403, "permission_denied", "on loopback the Host must be an address or localhost");
        }
        const served_method* const method = guard_.open ? find(request.target) : nullptr;
        if (method == nullptr) return rpc_refusal(404, "unimplemented", "no such method");
        if (request.method != "POST") {
            http_response out = rpc_refusal(405, "unimplemented", "a method is called by POST");
            out.headers.push_back({"Allow", "POST"});
            return out;
        }
        http_response refused;
        if (!passes_guard(guard_, request, refused)) {
            const bool unknown = refused.status == 401;
            refused.body =
                rpc_refusal(refused.status, unknown ? "unauthenticated" : "permission_denied",
                            unknown ? "a bearer token is required" : "requests from web pages are not allowed")
                    .body;
            return refused;
        }
        http_response refusal = check_rpc_form(request);
        if (refusal.status != 200) return refusal;
        const result<std::string> answered = method->call(request.body);
        return answered ? json_response(200, *answered) : rpc_refusal(answered.error());
    }

  private:
    struct served_method {
        const char* name;
        function<result<std::string>(std::string_view)> call;
    };
    const served_method* find(std::string_view target) const noexcept {
        if (!is_for(target)) return nullptr;
        const std::string_view path = target.substr(0, target.find('?'));
        const std::string_view name = path.substr(std::string_view(service_).size() + 2);
        for (const served_method& each : methods_) {
            if (name == each.name) return &each;
        }
        return nullptr;
    }

    const char* service_;
    http_guard guard_;
    array<served_method> methods_;
};

// ---- the client ----

// By the Connect code; without one, by the HTTP status, as Connect maps responses of proxies.
inline errc rpc_errc(const std::string& code, int status) noexcept {
    for (const rpc_code& each : rpc_codes) {
        if (code == each.name) return each.code;
    }
    if (code.empty() && status == 404) return errc::unsupported;
    const bool later = status >= 500 || status == 408 || status == 429;
    return later ? errc::unavailable : errc::rejected;
}

inline error rpc_error_of(const http_response& answer, const std::string& request) {
    connect_error body;
    if (!read_fields(answer.body, view_of(body))) body = connect_error();
    error out{rpc_errc(body.code, answer.status), 0, {}};
    out.http_status = answer.status;
    out.text = body.code.empty() ? cat({request, " answered ", answer.status})
                                 : cat({printable(body.code, 40), ": ", printable(body.message)});
    return out;
}

inline std::string describe_rpc(const http_client& peer, const char* method) {
    return peer.describe("POST", cat({"/", lifecycle_service, "/", method}));
}

// The body of a successful response. Errors: those of send(); those of rpc_codes for a refusal, with the peer's message
// made printable; unsupported for an unknown method or path.
inline result<std::string> rpc_send(http_client& peer, const char* method, std::string body, time_point deadline,
                                    int interrupt_fd) {
    http_call call;
    call.deadline = deadline;
    call.is_repeatable = true;
    call.interrupt_fd = interrupt_fd;
    http_request request;
    request.method = "POST";
    request.target = cat({"/", lifecycle_service, "/", method});
    request.headers = {{"Content-Type", "application/json"}, {"Connect-Protocol-Version", "1"}};
    if (deadline != time_point::max()) request.headers.push_back({"Connect-Timeout-Ms", cat({poll_timeout(deadline)})});
    request.body = std::move(body);
    result<http_response> answer = peer.send(request, call);
    if (!answer) return answer.error();
    if (answer->status != 200) return rpc_error_of(*answer, describe_rpc(peer, method));
    return std::move(answer->body);
}

inline std::string url_of(const std::string& address) {
    return address.compare(0, 5, "unix:") == 0 ? address : "http://" + address;
}

// Calls a method of lifecycle_service; each may be repeated. Thread-safe, as the client is.
template <class Response, class Request>
result<Response> rpc_call(http_client& peer, const char* method, const Request& request, time_point deadline,
                          int interrupt_fd = -1) {
    const result<std::string> body = rpc_send(peer, method, write_message(request), deadline, interrupt_fd);
    if (!body) return body.error();
    return named(read_message<Response>(*body), [&] { return describe_rpc(peer, method); });
}
}  // namespace ojs::detail
