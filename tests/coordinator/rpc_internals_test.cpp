#include "raw_peer.hpp"

using detail::rpc_call;
using detail::rpc_service;

namespace {
const std::string path = "/prism.interfaces.ProcessLifecycleInterface/";

result<shutdown_ack> ack(const shutdown_request& asked) {
    shutdown_ack out;
    out.acknowledged = true;
    out.estimated_seconds = asked.grace_period_seconds;
    return out;
}

rpc_service lifecycle_rpc() {
    detail::http_guard guard;
    guard.on_loopback = true;
    rpc_service out(lifecycle_service, guard);
    out.add<shutdown_request, shutdown_ack>("Shutdown", ack);
    return out;
}

http_request shutdown_post(const std::string& body) {
    http_request out = peer::post(path + "Shutdown", body);
    out.headers = {{"Host", "127.0.0.1:1"}, {"Content-Type", "application/json"}};
    return out;
}

http_request with(const char* name, const char* value, const std::string& body = "{}") {
    http_request out = shutdown_post(body);
    out.headers.insert(out.headers.begin(), {name, value});  // the first of a name counts
    return out;
}

void check_refused(const http_response& answer, int status, const char* code) {
    CHECK(answer.status == status);
    CHECK_MESSAGE(holds(answer.body, std::string("{\"code\":\"") + code + "\",\"message\":\""), answer.body);
    CHECK(find_header(answer.headers, "Content-Type") == "application/json");
    CHECK(find_header(answer.headers, "Cache-Control") == "no-store");
}
}  // namespace

TEST_CASE("rpc: calls as connect-node, connect-go and curl send them get a JSON response with 200") {
    const rpc_service service = lifecycle_rpc();
    http_request connect_node = with("Connect-Protocol-Version", "1", "{\"gracePeriodSeconds\":7}");
    connect_node.headers.push_back({"Connect-Timeout-Ms", "9999999999"});
    http_request connect_go = with("Content-Encoding", "identity", "{\"grace_period_seconds\":7}");
    connect_go.headers.push_back({"Accept-Encoding", "gzip"});
    const http_request curl =
        with("Content-Type", "application/json; charset=utf-8", "{\"gracePeriodSeconds\":\"7\",\"new\":[1]}");
    for (const http_request& each : {connect_node, connect_go, curl}) {
        const http_response answer = service.answer(each);
        CHECK(answer.status == 200);
        CHECK(answer.body == "{\"acknowledged\":true,\"estimatedSeconds\":7}\n");
        CHECK(find_header(answer.headers, "Content-Type") == "application/json");
        CHECK(find_header(answer.headers, "Cache-Control") == "no-store");
    }
}

TEST_CASE("rpc: an invalid call is refused with an HTTP status and a Connect error code") {
    const rpc_service service = lifecycle_rpc();
    for (const char* target : {"", "/x/Shutdown", "/prism.interfaces.ProcessLifecycleInterface/",
                               "/prism.interfaces.ProcessLifecycleInterface/shutdown",
                               "/prism.interfaces.ProcessLifecycleInterface/Shutdown/"}) {
        http_request odd = shutdown_post("{}");
        odd.target = target;
        INFO(target);
        check_refused(service.answer(odd), 404, "unimplemented");
    }
    http_request get = shutdown_post("");
    get.method = "GET";
    check_refused(service.answer(get), 405, "unimplemented");
    CHECK(find_header(service.answer(get).headers, "Allow") == "POST");
    const struct {
        const char* header;
        const char* value;
        int status;
        const char* code;
    } rows[] = {{"Content-Type", "application/proto", 415, "unimplemented"},
                {"Content-Type", "application/connect+json", 415, "unimplemented"},
                {"Content-Type", "application/jsonx", 415, "unimplemented"},
                {"Content-Type", "", 415, "unimplemented"},
                {"Content-Encoding", "gzip", 404, "unimplemented"},
                {"Connect-Protocol-Version", "2", 400, "invalid_argument"},
                {"Connect-Timeout-Ms", "", 400, "invalid_argument"},
                {"Connect-Timeout-Ms", "-1", 400, "invalid_argument"},
                {"Connect-Timeout-Ms", "12345678901", 400, "invalid_argument"},
                {"Host", "page.example", 403, "permission_denied"}};
    for (const auto& row : rows) {
        INFO(row.header, row.value);
        check_refused(service.answer(with(row.header, row.value)), row.status, row.code);
    }
    for (const char* body : {"", "[]", "{\"reason\":1}"})
        check_refused(service.answer(shutdown_post(body)), 400, "invalid_argument");
    const std::string large = "{\"reason\":\"" + std::string(detail::rpc_body_limit, 'x') + "\"}";
    check_refused(service.answer(shutdown_post(large)), 413, "resource_exhausted");
    CHECK(service.is_for(path + "Unknown"));
    CHECK_FALSE(service.is_for("/metrics"));
}

TEST_CASE("rpc: rpc_call() returns the message of a 200; else the Connect code or HTTP status decides the error") {
    const struct {
        const char* status;
        std::string body;
        std::optional<errc> code;
        const char* text;  // "": it names the request
    } rows[] = {{"200 OK", R"({"acknowledged":true,"estimatedSeconds":9})", std::nullopt, ""},
                {"400 Bad Request", R"({"code":"failed_precondition","message":"one is in progress"})", errc::busy,
                 "failed_precondition: one is in progress"},
                {"404 Not Found", R"({"code":"not_found","message":"x\u0001"})", errc::rejected, R"(not_found: x\x01)"},
                {"404 Not Found", R"({"code":"unimplemented"})", errc::unsupported, "unimplemented: "},
                {"409 Conflict", R"({"code":"aborted"})", errc::rejected, "aborted: "},
                {"404 Not Found", "not here\n", errc::unsupported, ""},
                {"502 Bad Gateway", "", errc::unavailable, ""},
                {"302 Found", "", errc::rejected, ""},
                {"200 OK", "hello", errc::bad_response, ""},
                {"200 OK", R"({"acknowledged":1})", errc::bad_response, ""}};
    for (const auto& row : rows) {
        CAPTURE(row.body);
        peer::server other([&](int fd, int) {
            peer::read_message(fd);
            peer::send_text(fd, std::string("HTTP/1.1 ") + row.status +
                                    "\r\nContent-Length: " + std::to_string(row.body.size()) + "\r\n\r\n" + row.body);
        });
        http_client client = peer::make_client(other.url());
        const auto got = rpc_call<shutdown_ack>(client, "Shutdown", shutdown_request(), peer::call().deadline);
        CHECK(test::code_of(got) == row.code);
        if (!row.code) CHECK(got->estimated_seconds == 9);
        const std::string request = "POST " + other.url() + "/" + lifecycle_service + "/Shutdown";
        if (row.code) CHECK(got.error().text.rfind(*row.text == 0 ? request : row.text, 0) == 0);
    }
}
