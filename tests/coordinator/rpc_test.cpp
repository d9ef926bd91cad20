#include "raw_peer.hpp"
#include "text.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using detail::rpc_call;
using detail::rpc_service;
using test::holds;

namespace {

const std::string path = "/prism.interfaces.ProcessLifecycleInterface/";

// Says the reason back as an error's text, where there is one; the process's name tells which error.
result<shutdown_ack> ack(const shutdown_request& asked) {
    if (asked.reason == "busy") return error{errc::busy, 0, "one is in progress"};
    if (asked.reason == "gone") return error{errc::rejected, 0, "no process \"x\"\n\x01"};
    shutdown_ack out;
    out.acknowledged = true;
    out.estimated_seconds = asked.grace_period_seconds;
    return out;
}

rpc_service lifecycle_rpc(detail::http_guard guard = {}) {
    rpc_service out(lifecycle_service, std::move(guard));
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

TEST_CASE(
    "rpc: calls in the forms that connect-node, connect-go and curl send get a JSON response with 200") {
    const rpc_service service = lifecycle_rpc();
    http_request connect_node = shutdown_post("{\"gracePeriodSeconds\":7}");
    connect_node.headers.push_back({"Connect-Protocol-Version", "1"});
    connect_node.headers.push_back({"Connect-Timeout-Ms", "5000"});
    http_request connect_go = with("Content-Encoding", "identity", "{\"grace_period_seconds\":7}");
    connect_go.headers.push_back({"Accept-Encoding", "gzip"});
    const http_request curl =
        with("Content-Type", "application/json; charset=utf-8", "{\"gracePeriodSeconds\":\"7\",\"new\":[1]}");
    for (const http_request& each :
         {connect_node, connect_go, curl,
          with("Connect-Timeout-Ms", "9999999999", "{\"gracePeriodSeconds\":7}")}) {
        const http_response answer = service.answer(each);
        CHECK(answer.status == 200);
        CHECK(answer.body == "{\"acknowledged\":true,\"estimatedSeconds\":7}\n");
        CHECK(find_header(answer.headers, "Content-Type") == "application/json");
        CHECK(find_header(answer.headers, "Cache-Control") == "no-store");
    }
}

TEST_CASE("rpc: an invalid call is refused with an HTTP status and a Connect error code") {
    const rpc_service service = lifecycle_rpc();
    for (const char* target : {"/", "", "/prism.interfaces.ProcessLifecycleInterface", "/x/Shutdown",
                               "/prism.interfaces.ProcessLifecycleInterface/",
                               "/prism.interfaces.ProcessLifecycleInterface/shutdown",
                               "/prism.interfaces.ProcessLifecycleInterface/x/Shutdown",
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
    for (const char* type : {"application/proto", "application/grpc", "application/connect+json", "text/json",
                             "", "application/jsonx", ";application/json"}) {
        INFO(type);
        check_refused(service.answer(with("Content-Type", type)), 415, "unimplemented");
    }
    check_refused(service.answer(with("Content-Encoding", "gzip")), 404, "unimplemented");
    check_refused(service.answer(with("Connect-Protocol-Version", "2")), 400, "invalid_argument");
    for (const char* time : {"", "soon", "-1", "1.5", "12345678901"}) {
        INFO(time);
        check_refused(service.answer(with("Connect-Timeout-Ms", time)), 400, "invalid_argument");
    }
    for (const char* body : {"", "[]", "nonsense", "{\"reason\":1}", "{\"reason\":\"a\",\"reason\":\"b\"}"}) {
        INFO(body);
        check_refused(service.answer(shutdown_post(body)), 400, "invalid_argument");
    }
    const std::string large = "{\"reason\":\"" + std::string(detail::rpc_body_limit, 'x') + "\"}";
    check_refused(service.answer(shutdown_post(large)), 413, "resource_exhausted");
    CHECK(service.is_for(path + "Unknown"));
    CHECK_FALSE(service.is_for("/metrics"));
}

TEST_CASE("rpc: calls from web pages, for foreign host names or without the token are refused") {
    const rpc_service open = lifecycle_rpc();
    check_refused(open.answer(with("Origin", "http://page.example")), 403, "permission_denied");
    check_refused(open.answer(with("Sec-Fetch-Site", "cross-site")), 403, "permission_denied");

    detail::http_guard guard;
    guard.on_loopback = true;
    guard.token = "secret";
    const rpc_service guarded = lifecycle_rpc(guard);
    check_refused(guarded.answer(with("Host", "page.example")), 403, "permission_denied");
    check_refused(guarded.answer(shutdown_post("{}")), 401, "unauthenticated");
    check_refused(guarded.answer(with("Authorization", "Bearer secreT")), 401, "unauthenticated");
    CHECK(guarded.answer(with("Authorization", "Bearer secret")).status == 200);
}

TEST_CASE("rpc: rpc_call() returns the handler's result, or the errc of a busy, rejected or unknown call") {
    const rpc_service service = lifecycle_rpc();
    auto server = http_server::start("127.0.0.1:0",
                                     [&](const http_request& request) { return service.answer(request); });
    REQUIRE(server);
    http_client client = peer::make_client("http://" + server->address());
    const auto call = [&](const char* method, const char* reason) {
        shutdown_request request;
        request.reason = reason;
        request.grace_period_seconds = 9;
        return rpc_call<shutdown_ack>(client, method, request, peer::call().deadline);
    };
    const result<shutdown_ack> done = call("Shutdown", "");
    REQUIRE(done);
    CHECK(done->acknowledged);
    CHECK(done->estimated_seconds == 9);
    const error busy = call("Shutdown", "busy").error();
    CHECK(busy.code == errc::busy);
    CHECK(busy.text == "failed_precondition: one is in progress");
    const error gone = call("Shutdown", "gone").error();
    CHECK(gone.code == errc::rejected);
    CHECK_FALSE(holds(gone.text, "\x01"));
    const error unknown = call("Sleep", "").error();
    CHECK(unknown.code == errc::unsupported);
    CHECK(unknown.http_status == 404);
}

TEST_CASE("rpc: an unexpected HTTP response -> rpc_call() fails with the errc for its status or body") {
    const std::pair<const char*, errc> responses[] = {
        {"404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n", errc::unsupported},
        {"502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", errc::unavailable},
        {"302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", errc::rejected},
        {"409 Conflict\r\nContent-Length: 18\r\n\r\n{\"code\":\"aborted\"}", errc::rejected},
        {"200 OK\r\nContent-Length: 5\r\n\r\nhello", errc::bad_response},
        {"200 OK\r\nContent-Length: 18\r\n\r\n{\"acknowledged\":1}", errc::bad_response}};
    for (const auto& each : responses) {
        CAPTURE(each.first);
        peer::server odd([&](int fd, int) {
            peer::read_message(fd);
            peer::send_text(fd, std::string("HTTP/1.1 ") + each.first);
        });
        http_client client = peer::make_client(odd.url());
        const auto got =
            rpc_call<shutdown_ack>(client, "Shutdown", shutdown_request(), peer::call().deadline);
        CHECK(test::code_of(got) == each.second);
        const bool has_own_words = holds(each.first, "aborted");
        CHECK(has_own_words !=
              holds(got.error().text, "POST " + odd.url() + "/" + lifecycle_service + "/Shutdown"));
    }
}

#endif
