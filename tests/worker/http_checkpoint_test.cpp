// The checkpoint route: requests, responses, and how a missing route differs from an unknown job.
#include "http_backend.hpp"

using namespace ojs;

namespace {

// A backend with a transport that is connected to it. Its requests are "METHOD TARGET BODY".
struct backend {
    explicit backend(std::function<http_response(const http_request&)> answer) : peer(std::move(answer)) {}
    explicit backend(int status, const std::string& body = "") : peer(status, body) {}
    std::vector<std::string> requests() const {
        std::vector<std::string> out;
        for (const http_request& each : peer.requests())
            out.push_back(each.method + " " + each.target + " " + each.body);
        return out;
    }
    result<settle_result> save(const std::string& id = "j", const std::string& state = "1") {
        return wire->save_checkpoint({id, state}, http_backend::soon());
    }
    result<std::string> load(const std::string& id = "j") {
        return wire->load_checkpoint(id, http_backend::soon());
    }
    const http_backend::backend peer;
    const std::unique_ptr<http_transport> wire = http_backend::connect(peer);
};

const std::string api_404 = R"({"error":{"code":"NOT_FOUND","message":"no such job"}})";

// Answers for the checkpoint and for INFO.
backend missing(const http_response& checkpoint, const http_response& info) {
    return backend([=](const http_request& request) {
        return request.target.find("/checkpoint") == std::string::npos ? info : checkpoint;
    });
}

}  // namespace

// [GS 7.2] [Durable execution 4.1, DUR-001]
TEST_CASE("http checkpoint: a state is saved and loaded digit for digit") {
    backend peer([](const http_request& request) {
        return http_response{
            200, {}, request.method == "GET" ? R"({"state": {"n": 12345678901234567890} })" : "{}", false};
    });
    const result<settle_result> saved = peer.save("j", R"({"n":12345678901234567890})");
    REQUIRE(saved);
    CHECK(*saved == settle_result::accepted);
    const result<std::string> loaded = peer.load();
    REQUIRE(loaded);
    CHECK(*loaded == R"({"n": 12345678901234567890})");
    CHECK(peer.requests() ==
          std::vector<std::string>{R"(POST /ojs/v1/jobs/j/checkpoint {"state":{"n":12345678901234567890}})",
                                   "GET /ojs/v1/jobs/j/checkpoint "});
}

TEST_CASE("http checkpoint: a job id is sent as one escaped segment of the path") {
    backend peer(200, "{}");
    for (const char* id : {"a/b?c#d e%\n", "..", "\xc3\xa4", "Z-9_"}) CHECK(peer.save(id));
    CHECK(peer.load("a/b"));
    CHECK(peer.requests() ==
          std::vector<std::string>{"POST /ojs/v1/jobs/a%2Fb%3Fc%23d%20e%25%0A/checkpoint {\"state\":1}",
                                   "POST /ojs/v1/jobs/%2E%2E/checkpoint {\"state\":1}",
                                   "POST /ojs/v1/jobs/%C3%A4/checkpoint {\"state\":1}",
                                   "POST /ojs/v1/jobs/Z-9_/checkpoint {\"state\":1}",
                                   "GET /ojs/v1/jobs/a%2Fb/checkpoint "});
}

TEST_CASE(
    "http checkpoint: a save returns accepted for 2xx, gone or rejected for an API error, else unavailable") {
    for (const int status : {200, 201, 204})
        CHECK(backend(status).save().value_or(settle_result::gone) == settle_result::accepted);
    for (const int status : {409, 410})
        CHECK(backend(status, api_404).save().value_or(settle_result::accepted) == settle_result::gone);
    backend large(413, R"({"error":{"code":"TOO_LARGE","message":"1"}})");
    const result<settle_result> refused = large.save();
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::rejected);
    CHECK(refused.error().http_status == 413);
    CHECK(http_backend::route_of(refused.error().text) ==
          "POST /jobs/j/checkpoint answered 413: TOO_LARGE");  // no echo of what was sent
    const std::string api_error = R"({"error":{"code":"INVALID_PAYLOAD","message":"no state"}})";
    for (const int status : {400, 422})
        CHECK(backend(status, api_error).save().error().code == errc::rejected);
    for (const int status : {401, 409, 413, 429, 500, 503})
        CHECK(backend(status, "<html>").save().error().code == errc::unavailable);
    CHECK(large.save().error().code == errc::rejected);
    CHECK(large.requests().size() == 2);  // refusing one is not having no route
}

TEST_CASE("http checkpoint: after a save has found no route, saves and loads send no request") {
    const http_response known = {200, {}, "{\"job\":{}}", false};
    const http_response unknown = {404, {}, api_404, false};
    const http_response plain = {404, {}, "404 page not found\n", false};
    const http_response no_method = {405, {}, "", false};
    const http_response not_made = {501, {}, "", false};
    struct row {
        http_response checkpoint;
        http_response info;
        std::size_t requests;
    };
    for (const row& each : {row{no_method, known, 2}, row{not_made, known, 1}, row{plain, known, 2},
                            row{unknown, known, 2}, row{plain, unknown, 2}}) {
        backend peer = missing(each.checkpoint, each.info);
        CAPTURE(each.checkpoint.status);
        const result<settle_result> first = peer.save();
        REQUIRE(!first);
        CHECK(first.error().code == errc::unsupported);
        CHECK(peer.requests().size() == each.requests);
        CHECK(peer.save().error().code == errc::unsupported);
        CHECK(peer.load().value_or("?").empty());
        CHECK(peer.requests().size() == each.requests);
    }
}

TEST_CASE(
    "http checkpoint: a proxy's 404 does not disable checkpoints, and is an error once the route is known") {
    std::atomic<bool> proxied{true};
    backend peer([&](const http_request&) {
        return proxied ? http_response{404, {}, "default backend - 404", false}
                       : http_response{200, {}, R"({"state":7})", false};
    });
    CHECK(peer.save().error().code == errc::unsupported);  // the FAIL carries it
    CHECK(peer.load().value_or("?").empty());
    proxied = false;
    CHECK(peer.save().value_or(settle_result::gone) == settle_result::accepted);
    proxied = true;
    CHECK(peer.save().error().code == errc::unavailable);
    CHECK(peer.load().error().code == errc::unavailable);
    proxied = false;
    CHECK(peer.load().value_or("?") == "7");
}

// [Durable execution 4.1, DUR-001]
TEST_CASE("http checkpoint: POST gets 405 and PUT succeeds -> later saves use PUT at once") {
    std::atomic<bool> works{false};
    backend peer([&](const http_request& request) {
        return http_response{request.method == "POST" ? 405 : works ? 200 : 503, {}, "{}", false};
    });
    CHECK(peer.save().error().code == errc::unavailable);
    works = true;
    CHECK(peer.save("j", "2").value_or(settle_result::gone) == settle_result::accepted);
    CHECK(peer.save("k", "3").value_or(settle_result::gone) == settle_result::accepted);
    CHECK(peer.load());
    const std::vector<std::string> sent = peer.requests();
    REQUIRE(sent.size() == 6);
    CHECK(sent[2] == R"(POST /ojs/v1/jobs/j/checkpoint {"state":2})");
    CHECK(sent[3] == R"(PUT /ojs/v1/jobs/j/checkpoint {"state":2})");
    CHECK(sent[4] == R"(PUT /ojs/v1/jobs/k/checkpoint {"state":3})");
}

TEST_CASE("http checkpoint: once a save has succeeded, an API 404 for another job means gone") {
    backend peer([](const http_request& request) {
        const bool known = request.target.find("/jobs/known") != std::string::npos;
        return http_response{known ? 200 : 404, {}, known ? "{}" : api_404, false};
    });
    // Before anything was saved, both 404 may as well mean that there are no such routes; the next one is tried.
    const result<settle_result> unclear = peer.save("other");
    REQUIRE(!unclear);
    CHECK(unclear.error().code == errc::unsupported);
    CHECK(peer.save("known").value_or(settle_result::gone) == settle_result::accepted);
    CHECK(peer.save("other").value_or(settle_result::accepted) == settle_result::gone);
    CHECK(peer.requests().back() == "GET /ojs/v1/jobs/other ");
}

TEST_CASE("http checkpoint: a 404 whose job query fails -> the save fails, and the next save is sent") {
    backend peer = missing({404, {}, api_404, false}, {503, {}, "", false});
    CHECK(peer.save().error().code == errc::unavailable);
    CHECK(peer.save().error().code == errc::unavailable);
    CHECK(peer.requests().size() == 4);
    backend dropping = missing({404, {}, api_404, false}, {200, {}, "", true});
    CHECK(dropping.save().error().code == errc::disconnected);
}

// [Durable execution 4.3, DUR-002]
TEST_CASE(
    "http checkpoint: a load returns the state in the response, and nothing if there is no checkpoint") {
    for (const int status : {204, 404, 405, 501}) {
        const result<std::string> none = backend(status, api_404).load();
        REQUIRE(none);
        CHECK(none->empty());
    }
    CHECK(backend(200, "{}").load().value_or("?").empty());
    CHECK(backend(200, "[1]").load().value_or("?").empty());
    CHECK(backend(200, R"({"state":null})").load().value_or("?") == "null");
    CHECK(backend(200, R"({"st\u0061te":[1.50]})").load().value_or("?") == "[1.50]");
    CHECK(backend(200, "").load().value_or("?").empty());
    CHECK(backend(200, R"({"state":1e999})").load().value_or("?") == "1e999");
    for (const char* bad : {"{", "no", R"({"state":1e})"}) {
        CHECK(backend(200, bad).load().error().code == errc::unavailable);
    }
    // As the durable-execution extension publishes it, with its other members.
    CHECK(backend(200, R"({"checkpoint":{"job_id":"j","state":{"n":[1.50]},"sequence":3}})")
              .load()
              .value_or("?") == R"({"n":[1.50]})");
    CHECK(backend(200, R"({"checkpoint":{"state":null}})").load().value_or("?") == "null");
    CHECK(backend(200, R"({"checkpoint":"a word","state":2})").load().value_or("?") == "2");
    const result<std::string> down = backend(503).load();
    REQUIRE(!down);
    CHECK(down.error().code == errc::unavailable);
    CHECK(http_backend::route_of(down.error().text) == "GET /jobs/j/checkpoint answered 503");
    CHECK(backend(409, api_404).load().error().code == errc::rejected);
}
