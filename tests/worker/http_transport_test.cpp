#include <iterator>

#include "fake_backend.hpp"
#include "raw_peer.hpp"
#include "recorder.hpp"

using recorder::parse;
using test::backend;

namespace {
transport_ref connect(const backend& to, http_client_options options = {}) {
    result<http_client> client = make_backend_client(to.url(), std::move(options));
    REQUIRE(client);
    return make_http_transport(std::move(*client));
}

// "POST /workers/ack answered 400": without the address.
std::string route_of(std::string text) {
    const std::string end = "/ojs/v1";
    const std::size_t from = text.find("http://");
    return from == std::string::npos ? text : text.erase(from, text.find(end) + end.size() - from);
}

time_point soon() { return deadline_after(recorder::guard); }

worker_identity identity() {
    worker_identity out;
    out.worker_id = "w\"1";
    out.hostname = "h";
    out.pid = 7;
    out.queues = {"a", "b"};
    out.concurrency = 3;
    out.labels = {"x"};
    out.started_at = "2026-01-02T03:04:05.000Z";
    out.visibility_timeout = 30s;
    return out;
}

result<std::vector<job>> fetch(transport& wire, std::size_t count = 1) {
    const worker_identity self = identity();
    fetch_request request;
    request.worker = &self;
    request.count = count;
    return wire.fetch(request, soon());
}

result<heartbeat_response> beat(transport& wire) {
    const worker_identity self = identity();
    return wire.heartbeat({{&self, nullptr}, "running", {"j1", "j2"}, {}, false}, soon());
}
}  // namespace

// [WP 5.2] [WP 6.2] [WP 6.3] [WP 6.4, 6.5]
TEST_CASE("http: FETCH sends count, queues, visibility timeout and worker id to /workers/fetch") {
    const backend peer(200, "{\"jobs\":[]}");
    const result<std::vector<job>> got = fetch(*connect(peer), 4);
    REQUIRE(got);
    CHECK(got->empty());
    const http_request sent = peer.last();
    CHECK(sent.method == "POST");
    CHECK(sent.target == "/ojs/v1/workers/fetch");
    CHECK(parse(sent.body).serialize() ==
          "{\"count\":4,\"queues\":[\"a\",\"b\"],\"visibility_timeout_ms\":30000,\"worker_id\":\"w\\\"1\"}");
}

// [GS 7.2]
TEST_CASE("http: ACK and FAIL send the job id, result, error and requeue as JSON") {
    const backend peer(200, "{\"state\":\"completed\"}");
    const transport_ref wire = connect(peer);
    REQUIRE(wire->ack({{{}, "j\n1"}, "{\"n\":9007199254740993}"}, soon()));
    CHECK(peer.last().target == "/ojs/v1/workers/ack");
    CHECK(parse(peer.last().body).get("job_id").to_str() == "j\n1");
    CHECK(peer.last().body.find("9007199254740993") != std::string::npos);
    REQUIRE(wire->ack({{{}, "j"}, ""}, soon()));
    CHECK(!parse(peer.last().body).contains("result"));

    job_error failure{"ShutdownError", "\"quoted\" \xff", true, "{\"reason\":\"forced\"}"};
    const std::string checkpoint = R"({"n":9007199254740993})";
    const result<settle_result> failed = wire->fail({{{}, "j"}, failure, true, checkpoint}, soon());
    REQUIRE(failed);
    CHECK(*failed == settle_result::accepted);
    CHECK(peer.last().target == "/ojs/v1/workers/nack");
    CHECK(parse(peer.last().body).serialize() ==
          R"({"error":{"code":"ShutdownError","details":{"reason":"forced"},"message":"\"quoted\" )"
          "\xef\xbf\xbd"
          R"(","retryable":true,"type":"ShutdownError"},"job_id":"j","meta":{"checkpoint":{"n":9007199254740992}},)"
          R"("requeue":true})");
    CHECK(peer.last().body.find(R"("meta":{"checkpoint":)" + checkpoint + "}") != std::string::npos);
    failure.retryable = false;
    REQUIRE(wire->fail({{{}, "j"}, failure, false}, soon()));
    CHECK(!parse(peer.last().body).contains("requeue"));
    CHECK(!parse(peer.last().body).get("error").get("retryable").get<bool>());
}

// [Website Phase 3 (b)] [WP 2.1 (b)] [WP 3.1 (b)] [WP 3.4] [WP 4.2 (c)] [WP 3.1 (a)] [WP 5.4] [Progress 6.3]
TEST_CASE("http: a heartbeat has the worker's identity and state, and the jobs in both forms") {
    const backend peer(200, "{\"state\":\"running\",\"jobs_extended\":[\"j1\",7,\"j3\"],\"server_time\":\"x\"}");
    const transport_ref wire = connect(peer);
    const result<heartbeat_response> got = beat(*wire);
    REQUIRE(got);
    CHECK(got->directive == directive::none);
    CHECK(got->jobs_extended == std::vector<std::string>{"j1"});  // of those asked about
    CHECK(peer.last().target == "/ojs/v1/workers/heartbeat");
    CHECK(parse(peer.last().body).serialize() ==
          R"({"active_job_count":2,"active_job_ids":["j1","j2"],"active_jobs":["j1","j2"],"concurrency":3,)"
          R"("hostname":"h","labels":["x"],"pid":7,"queues":["a","b"],"started_at":"2026-01-02T03:04:05.000Z",)"
          R"("state":"running","visibility_timeout_ms":30000,"worker_id":"w\"1"})");
}

// [WP 4.4 (a)]
TEST_CASE("http: `directive` or `state` of a heartbeat response is the directive; quiet with queues is ignored") {
    struct row {
        const char* body;
        directive expected;
    };
    const row rows[] = {{R"({"state":"quiet"})", directive::quiet},
                        {R"({"direct\u0069ve":"qu\u0069et"})", directive::quiet},
                        {R"({"state":"terminate"})", directive::terminate},
                        {R"({"directive":"terminate","state":"quiet"})", directive::terminate},
                        {R"({"directive":"running","state":"quiet"})", directive::quiet},
                        {R"({"state":7,"jobs_extended":{}})", directive::none},
                        {"", directive::none},
                        {R"({"state":"quiet","queues":["a"]})", directive::none},
                        {R"({"state":"running","queues":["a"]})", directive::none},
                        {R"({"state":"quiet","queues":[]})", directive::quiet}};
    for (const row& each : rows) {
        CAPTURE(each.body);
        const result<heartbeat_response> got = beat(*connect(backend(*each.body == '\0' ? 204 : 200, each.body)));
        REQUIRE(got);
        CHECK(got->directive == each.expected);
    }
}

// Whether a body has the published schema's members only.
bool has_only(const picojson::value& object, const std::vector<std::string>& allowed) {
    for (const auto& member : object.get<picojson::object>()) {
        if (std::find(allowed.begin(), allowed.end(), member.first) == allowed.end()) return false;
    }
    return true;
}
bool is_schema_beat(const picojson::value& body) {
    return has_only(body, {"worker_id", "active_jobs", "visibility_timeout_ms"});
}
bool is_schema_fail(const picojson::value& body) {
    return has_only(body, {"job_id", "error"}) &&
           has_only(body.get("error"), {"code", "message", "retryable", "details"});
}

// An error of the API, as the published schema of answers has it.
const std::string api_error = R"({"error":{"code":"invalid_payload","message":"additional properties"}})";

http_response accept_if(bool good, int refusal = 400) { return {good ? 200 : refusal, {}, good ? "{}" : api_error}; }

namespace {
// A transport to a backend that refuses other bodies than these, and the forms of those that arrive there.
struct downgrading {
    explicit downgrading(std::function<bool(const picojson::value&)> is_good, int refusal = 400,
                         bool active_jobs_as_count = false)
        : peer([=](const http_request& request) { return accept_if(is_good(parse(request.body)), refusal); }),
          wire(make_http_transport(*make_backend_client(peer.url()), active_jobs_as_count)) {}
    std::string heartbeat() {
        CHECK(beat(*wire));
        return sent();
    }
    std::string fail(const fail_request& request) {
        CHECK(wire->fail(request, soon()));
        return sent();
    }
    std::string sent() {
        const std::vector<http_request> all = peer.requests();
        std::string out;
        for (; seen < all.size(); ++seen) {
            const picojson::value body = parse(all[seen].body);
            const bool is_schema = body.contains("job_id") ? is_schema_fail(body) : is_schema_beat(body);
            out += is_schema ? "schema " : "full ";
        }
        return out;
    }
    picojson::value last() const { return parse(peer.last().body); }

    const backend peer;
    const transport_ref wire;
    std::size_t seen = 0;
};
}  // namespace

// [WP 2.1 (b)] [WP 4.2 (b)]
TEST_CASE("http: a heartbeat is rejected -> the schema's form is sent at once, and from then on") {
    for (const int refusal : {400, 422}) {
        downgrading tested(is_schema_beat, refusal, true);
        CHECK(tested.heartbeat() == "full schema ");
        CHECK(tested.last().serialize() ==
              R"({"active_jobs":["j1","j2"],"visibility_timeout_ms":30000,"worker_id":"w\"1"})");
        CHECK(tested.heartbeat() == "schema ");
    }
    downgrading counting([](const picojson::value& body) { return body.get("active_jobs").is<double>(); }, 400, true);
    CHECK(counting.heartbeat() == "full ");
    CHECK(counting.last().get("active_job_ids").serialize() == "[\"j1\",\"j2\"]");
}

TEST_CASE("http: a heartbeat is sent again when its connection broke") {
    peer::server dropping([](int fd, int connection) {
        const std::string request = peer::read_message(fd);
        if (connection > 0 && !request.empty()) peer::send_text(fd, peer::ok("{}"));
    });
    result<http_client> client = make_backend_client(dropping.url());
    REQUIRE(client);
    CHECK(beat(*make_http_transport(std::move(*client))));
    CHECK(dropping.connections() == 2);
}

TEST_CASE("http: a FAIL is rejected -> it is sent without its checkpoint, then in the schema's form") {
    const fail_request request{{{}, "j"}, {"ShutdownError", "m", true, "{}"}, true, "1"};
    downgrading small([](const picojson::value& body) { return !body.contains("meta"); });
    CHECK(small.fail(request) == "full full ");
    CHECK(small.last().get("requeue").get<bool>());
    downgrading strict(is_schema_fail);
    for (int i = 0; i < 2; ++i) CHECK(strict.fail(request) == "full full schema ");
}

TEST_CASE("http: a FAIL in the schema's form keeps the error class, message, retryable and details") {
    const struct {
        const char* code;
        const char* message;
        const char* details;
        const char* in_schema;  // the details
        const char* text;       // the message in the schema's form
    } rows[] = {{"ShutdownError", "ShutdownError: no", R"({"reason":"x"})",
                 R"({"error_class":"ShutdownError","reason":"x"})", "ShutdownError: no"},
                {"handler_error", "", "{}", "{}", "handler_error"},
                {"E", "m", "no JSON", R"({"error_class":"E"})", "E: m"}};
    for (const auto& each : rows) {
        CAPTURE(each.details);
        downgrading tested(is_schema_fail);
        for (const bool retryable : {true, false}) {
            const job_error failure{each.code, each.message, retryable, each.details};
            CHECK(tested.fail({{{}, "j"}, failure, false}) == "full schema ");
            CHECK(tested.last().get("error").serialize() == std::string(R"({"code":"handler_error","details":)") +
                                                                each.in_schema + R"(,"message":")" + each.text +
                                                                R"(","retryable":)" + (retryable ? "true}" : "false}"));
        }
    }
}

TEST_CASE("http: a claim query derives held, gone or unsupported from state, worker_id and attempt") {
    const std::pair<const char*, const char*> rows[] = {
        {R"({"job":{"id":"a/b","state":"cancelled"}})", "gone"},
        {R"({"id":"a/b","state":"completed"})", "gone"},
        {R"({"state":"discarded","worker_id":"w\"1"})", "gone"},
        {R"({"job":{"state":"active","worker_id":"other","attempt":2}})", "gone"},
        {R"({"job":{"state":"active","worker_id":"w\"1"}})", "held"},
        {R"({"job":{"state":"active","worker_id":"w\"1","attempt":2}})", "held"},
        {R"({"job":{"state":"active","worker_id":"w\"1","attempt":3}})", "gone"},
        {R"({"job":{"state":"active","attempt":2}})", "held"},
        {R"({"job":{"state":"available","attempt":1}})", "gone"},
        {R"({"job":{"state":"active"}})", "unsupported"},
        {R"({"job":{"state":"available","worker_id":"other","attempt":2}})", "unsupported"},
        {"", "unsupported"},
        {R"({"job":"cancelled","state":"active"})", "unsupported"},
        {R"({"state":"cancelled")", "unavailable"}};
    const worker_identity self = identity();
    for (const auto& row : rows) {
        CAPTURE(row.first);
        const backend peer(200, row.first);
        const result<bool> held = connect(peer)->confirm_claim({{&self, nullptr}, "../b?c", "", 2, nullptr}, soon());
        CHECK(std::string(!held ? to_string(held.error().code) : *held ? "held" : "gone") == row.second);
        CHECK(peer.last().method == "GET");
        CHECK(peer.last().target == "/ojs/v1/jobs/%2E%2E%2Fb%3Fc");
    }
}

TEST_CASE("http: a 2xx with a body that is not JSON is a failed request on every route") {
    const backend sorry(202, "<html>Sorry, we are down for maintenance</html>");
    const transport_ref wire = connect(sorry);
    const result<settle_result> acked = wire->ack({{{}, "j"}, ""}, soon());
    REQUIRE(!acked);
    CHECK(route_of(acked.error().text) == "POST /workers/ack answered 202 with a body that is not JSON");
    CHECK(acked.error().http_status == 202);
    CHECK(test::holds(fetch(*wire).error().text, "come back after their visibility timeout"));
    for (const auto& code : {test::code_of(acked), test::code_of(beat(*wire)),
                             test::code_of(wire->fail({{{}, "j"}, {"X", "m", true, "{}"}, true}, soon()))})
        CHECK(code == errc::unavailable);
}

// [WP 4.6 (a)]
TEST_CASE("http: every form of a body is rejected -> the next body is sent in full; ACK and FETCH are not repeated") {
    downgrading tested([](const picojson::value&) { return false; });
    for (int i = 0; i < 2; ++i) {
        CHECK(test::code_of(beat(*tested.wire)) == errc::rejected);
        CHECK(tested.sent() == "full schema ");
    }
    CHECK(!tested.wire->ack({{{}, "j"}, ""}, soon()));
    CHECK(!fetch(*tested.wire));
    CHECK(tested.peer.requests().size() == 6);
}

TEST_CASE("http: the text of an error quotes only the error code of a response") {
    const std::string echo = R"({"error":{"code":"INVALID_PAYLOAD","message":"canary"},"you_said":"canary"})";
    for (const int status : {308, 400, 401, 500}) {
        const backend peer(status, echo, {{"Location", "/canary"}});
        const transport_ref wire = connect(peer);
        const std::string said = "answered " + std::to_string(status) + ": INVALID_PAYLOAD" +
                                 (status == 401 ? "; is OJS_AUTH_TOKEN or OJS_AUTH_TOKEN_FILE right?" : "");
        CHECK(route_of(fetch(*wire).error().text) == "POST /workers/fetch " + said);
        CHECK(route_of(wire->ack({{{}, "j"}, "1"}, soon()).error().text) == "POST /workers/ack " + said);
    }
    const backend lost(404, R"({"error":{"code":"not_found","message":"no such route"}})");
    CHECK(fetch(*connect(lost)).error().text ==
          "POST " + lost.url() + "/ojs/v1/workers/fetch answered 404: not_found; is the base path of OJS_URL right?");
    const transport_ref nobody = make_http_transport(*make_backend_client("http://127.0.0.1:1/base"));
    CHECK(fetch(*nobody).error().text.find("POST http://127.0.0.1:1/base/ojs/v1/workers/fetch: cannot connect") == 0);
    for (const char* body : {"canary", R"({"error":{"code":"canary canary"}})", R"({"error":"canary"})"}) {
        CHECK(route_of(connect(backend(400, body))->ack({{{}, "j"}, ""}, soon()).error().text) ==
              "POST /workers/ack answered 400");
    }
}

// The route's outcome: "ok", "gone", or the code of its error.
std::string outcome_of(const result<settle_result>& settled) {
    return !settled ? to_string(settled.error().code) : *settled == settle_result::gone ? "gone" : "ok";
}

TEST_CASE("http: on every route the status, and an API error in the body, decide the error code") {
    struct by_body {
        const char* settling;  // the outcome of ACK and FAIL
        const char* others;    // the code of FETCH, heartbeat and claim query
    };
    const by_body rejected{"rejected", "rejected"}, unavailable{"unavailable", "unavailable"};
    const by_body bad{"bad_response", "bad_response"};
    const struct {
        std::vector<int> statuses;
        by_body of_api;
        by_body of_others;  // a proxy's, which knows nothing of the job
    } rows[] = {{{400, 403, 413, 422}, rejected, rejected},
                {{402, 405}, rejected, unavailable},
                {{404, 409, 410}, {"gone", "rejected"}, unavailable},
                {{401, 408, 429, 500, 503}, unavailable, unavailable},
                {{301}, bad, bad}};
    const worker_identity self = identity();
    for (const auto& each : rows) {
        for (std::size_t i = 0; i < each.statuses.size() * 5; ++i) {
            const int status = each.statuses[i / 5];
            const std::string bodies[] = {api_error, "", "{}", "<html>", R"({"error":{"code":404}})"};
            const std::string& body = bodies[i % 5];
            CAPTURE(status);
            CAPTURE(body);
            const bool is_of_api = body == api_error;
            const by_body& expected = is_of_api ? each.of_api : each.of_others;
            const backend peer(status, body, {{"Retry-After", "7"}});
            const transport_ref wire = connect(peer);
            const result<settle_result> acked = wire->ack({{{}, "j"}, "1"}, soon());
            CHECK(outcome_of(acked) == expected.settling);
            if (!acked) {
                CHECK(acked.error().http_status == status);
                CHECK(acked.error().retry_after == 7s);
            }
            CHECK(outcome_of(wire->fail({{{}, "j"}, {"X", "m", true, "{}"}, true, "1"}, soon())) == expected.settling);
            for (const error& failed : {fetch(*wire).error(), beat(*wire).error(),
                                        wire->confirm_claim({{&self, nullptr}, "j", "", 0, nullptr}, soon()).error()}) {
                CHECK(std::string(to_string(failed.code)) == expected.others);
                CHECK(failed.retry_after == 7s);
            }
            if (!is_of_api) CHECK(peer.requests().size() == 5);  // no other body is tried
        }
    }
}

TEST_CASE("http: a 2xx without a body is a success, and a FETCH without jobs") {
    for (const int status : {200, 202, 204}) {
        const backend silent(status);
        const transport_ref wire = connect(silent);
        CHECK(outcome_of(wire->ack({{{}, "j"}, ""}, soon())) == "ok");
        CHECK(beat(*wire));
        if (status == 204) CHECK(fetch(*wire)->empty());
    }
}

TEST_CASE("http: Retry-After is read as seconds up to an hour") {
    const std::pair<const char*, std::chrono::seconds> rows[] = {
        {"7", 7s}, {"-1", 0s}, {"99999999999", 0s}, {"", 0s}, {"Sun, 06 Nov 1994 08:49:47 GMT", 0s}};
    for (const auto& row : rows) {
        CAPTURE(row.first);
        const backend peer(503, "", {{"Retry-After", row.first}});
        CHECK(connect(peer)->ack({{{}, "j"}, ""}, soon()).error().retry_after == row.second);
    }
}

TEST_CASE("http: a FETCH response that is too large or truncated is an error and gives no job") {
    const std::string jobs = R"({"jobs":[{"id":"j1","type":"t","args":[]},{"id":"j2","type":"t","args":[)";
    http_client_options options;
    options.max_body = 120;
    for (const std::string& body : {jobs + std::string(200, '1') + "]}]}", jobs}) {
        const auto fetched = fetch(*connect(backend(200, body), options));
        REQUIRE(!fetched);
        CHECK(fetched.error().code == errc::bad_response);
        CHECK(test::holds(fetched.error().text, "come back after their visibility timeout"));
    }
}

// [WP 5.3]
TEST_CASE("http: FETCH reads every field of a job and keeps numbers digit for digit") {
    const std::string envelope =
        "{\"id\":\"j1\",\"type\":\"t\",\"queue\":\"q\",\"args\":[9007199254740993, 1.10,{\"a\":\"]\"}],\"attempt\":2,"
        "\"max_attempts\":5,\"timeout_ms\":1500,\"visibility_timeout_ms\":60000,"
        "\"meta\":{\"n\":18446744073709551615},\"custom\":[1]}";
    const result<std::vector<job>> got = fetch(*connect(backend(200, "{\"jobs\":[" + envelope + "]}")));
    REQUIRE(got);
    REQUIRE(got->size() == 1);
    const job& first = got->front();
    CHECK(first.id == "j1");
    CHECK(first.type == "t");
    CHECK(first.queue == "q");
    CHECK(first.args_json == "[9007199254740993, 1.10,{\"a\":\"]\"}]");
    CHECK(first.meta_json == "{\"n\":18446744073709551615}");
    CHECK(first.attempt == 2);
    CHECK(first.max_attempts == 5);
    CHECK(first.timeout == 1500ms);
    CHECK(first.visibility_timeout == 60s);
    CHECK(first.envelope_json == envelope);
    CHECK(first.malformed.empty());
    const result<std::vector<job>> seconds = fetch(
        *connect(backend(200, R"({"jobs":[{"id":"j","type":"t","args":[],"timeout":3,"visibility_timeout":4}]})")));
    REQUIRE(seconds);
    CHECK(seconds->front().timeout == 3s);
    CHECK(seconds->front().visibility_timeout == 4s);
    CHECK(seconds->front().attempt == 1);
    CHECK(seconds->front().meta_json == "{}");
}

TEST_CASE("http: a malformed job in a FETCH response does not affect the other jobs") {
    struct row {
        std::string envelope;
        const char* id;
        bool runs;
    };
    const std::string deep = std::string(200, '[') + std::string(200, ']');
    const row rows[] = {{R"({"id":"a","type":"t","args":[1]})", "a", true},
                        {R"({"id":"huge","type":"t","args":[1e999,"\ud800"]})", "huge", true},
                        {R"({"id":"noargs","type":"t"})", "noargs", false},
                        {R"({"id":"notype","args":[]})", "notype", false},
                        {"7", "", false},
                        {R"({"id":"objargs","type":"t","args":{}})", "objargs", false},
                        {R"({"id":"1","type":"t","args":[],"x":nonsense})", "1", false},
                        {R"({"id":"2","type":"t","args":[1],"x":)" + deep + "}", "2", true},
                        {R"({"id":"5","type":"t","args":)" + deep + "}", "5", true},
                        {R"({"id":"6","type":"t","args":[],"meta":7,"timeout_ms":1e400,"attempt":[]})", "6", true},
                        {"{\"id\":\"3\",\"type\":\"t\",\"args\":[\"a\tb\"]}", "3", false},
                        {R"({"id":"4","type":"t","\u0061rgs":[4],"timeout\u005fms":7})", "4", true}};
    std::string body = R"({"jobs":[)";
    for (const row& each : rows) body += each.envelope + ",";
    body.back() = ']';
    const result<std::vector<job>> got = fetch(*connect(backend(200, body + "}")), std::size(rows));
    REQUIRE(got);
    REQUIRE(got->size() == std::size(rows));
    for (std::size_t i = 0; i < std::size(rows); ++i) {
        CAPTURE(rows[i].envelope);
        CHECK((*got)[i].id == rows[i].id);
        CHECK((*got)[i].malformed.empty() == rows[i].runs);
    }
    CHECK(got->back().args_json == "[4]");
    CHECK(got->back().timeout == 7ms);
}

TEST_CASE("http: FETCH accepts up to 1000 jobs more than requested") {
    const auto answer = [](std::size_t count) {
        std::string body = "{\"jobs\":[{}";
        for (std::size_t i = 1; i < count; ++i) body += ",{}";
        return backend(200, body + "]}");
    };
    const result<std::vector<job>> many = fetch(*connect(answer(1003)), 3);
    REQUIRE(many);
    CHECK(many->size() == 1003);
    const result<std::vector<job>> more = fetch(*connect(answer(1004)), 3);
    REQUIRE(!more);
    CHECK(more.error().text.find("more than 1003 jobs") != std::string::npos);
}

TEST_CASE("http: a FAIL sends the same job id as received, and a job without a valid id is malformed") {
    struct {
        std::string member;
        std::string id;       // empty: it cannot be reported
        std::string sent_as;  // as JSON
    } const cases[] = {
        {R"("\u0069d":"1")", "1", R"("1")"},
        {R"("id":"\u00e4\n\ud83d\ude00")", "\xc3\xa4\n\xf0\x9f\x98\x80", "\"\xc3\xa4\\u000a\xf0\x9f\x98\x80\""},
        {"\"id\":9007199254740993", "", ""},
        {R"("id":"b\ud800")", "", ""},
        {"\"id\":\"a\nb\"", "", ""},
        {"\"id\":\"a\xff\xc3\xa4\"", "", ""},
        {R"("id":"a\q")", "", ""},
        {R"("id":"")", "", ""},
        {"\"id\":[1]", "", ""},
        {"\"ID\":\"x\"", "", ""},
    };
    for (const auto& each : cases) {
        CAPTURE(each.member);
        const std::string envelope = "{" + each.member + R"(,"type":"t","args":[]})";
        const backend peer([&](const http_request& request) {
            if (request.target == "/ojs/v1/workers/fetch")
                return http_response{200, {}, "{\"jobs\":[" + envelope + "]}"};
            // Refuses what is more than the schema has, so that both forms of a FAIL are seen.
            return accept_if(request.body.find("\"type\"") == std::string::npos);
        });
        const transport_ref wire = connect(peer);
        const result<std::vector<job>> got = fetch(*wire);
        REQUIRE(got);
        REQUIRE(got->size() == 1);
        CHECK(got->front().id == each.id);
        CHECK(got->front().type == "t");
        CHECK(got->front().malformed.empty() == !each.id.empty());
        CHECK(got->front().envelope_json == envelope);
        if (each.id.empty()) continue;
        REQUIRE(wire->fail({{{}, each.id}, {}, false}, soon()));
        REQUIRE(peer.requests().size() == 3);
        for (std::size_t i = 1; i < 3; ++i)
            CHECK(peer.requests()[i].body.find("{\"job_id\":" + each.sent_as + ",") == 0);
    }
}

// [WP 5.6] [WP 11.1 - 11.5]
TEST_CASE("http: every request has the headers of the worker, and the last request is a terminate heartbeat") {
    recorder::counter fetches;
    const backend peer([&](const http_request& request) -> http_response {
        if (request.target == "/base/ojs/v1/workers/fetch" && fetches.add() == 1) {
            return {200,
                    {},
                    R"({"jobs":[{"id":"j1","type":"work","args":[9007199254740993]},)"
                    R"({"id":"j2","type":"work","args":["\ud800"]}]})"};
        }
        return {200, {}, R"({"jobs":[],"state":"running"})"};
    });
    worker_options options = recorder::options(2);
    options.url = peer.url() + "/base";
    options.worker_id = "me";
    options.auth_token = "t0k";
    options.headers = {{"X-OJS-Extra", "e"}, {"ojs-version", "2.0"}};
    worker worker(options);
    worker.register_handler("work", [](job_context& job) { return job.require_arg<std::string>(0); });
    REQUIRE(worker.start());
    REQUIRE(peer.wait_for("/base/ojs/v1/workers/ack"));
    REQUIRE(peer.wait_for("/base/ojs/v1/workers/nack"));
    REQUIRE(worker.stop(recorder::guard));
    CHECK(worker.report().completed == 1);
    CHECK(worker.report().failed == 1);
    for (const http_request& each : peer.requests()) {
        CAPTURE(each.target);
        CHECK(each.method == "POST");
        CHECK(find_header(each.headers, "X-OJS-Worker-ID") == "me");
        CHECK(find_header(each.headers, "Content-Type") == "application/openjobspec+json");
        CHECK(find_header(each.headers, "Accept") == "application/openjobspec+json");
        CHECK(find_header(each.headers, "OJS-Version") == "2.0");
        for (const http_header& header : each.headers) CHECK(header.value != "1.0");  // ours, which is replaced
        CHECK(find_header(each.headers, "Authorization") == "Bearer t0k");
        CHECK(find_header(each.headers, "X-OJS-Extra") == "e");
    }
    CHECK(peer.last().target == "/base/ojs/v1/workers/heartbeat");
    const picojson::value last = parse(peer.last().body);
    CHECK(last.get("state").to_str() == "terminate");
    CHECK(last.get("active_jobs").serialize() == "[]");
    CHECK(last.get("pid").get<double>() == doctest::Approx(::getpid()));
}
