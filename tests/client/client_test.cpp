#include "fake_backend.hpp"

using test::backend;

namespace {
const std::string id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
const std::string other_id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e1f";

client connect(const std::string& url) {
    client_options options;
    options.url = url;
    options.http.bearer_token = "secret";
    auto made = client::create(options);
    REQUIRE(made);
    return *made;
}
client connect(const backend& to) { return connect(to.url()); }

client_call soon() { return {deadline_after(test::hang_guard), {}}; }

enqueue_request make_job(std::string job_id = id, std::string args = "[1,{\"a\":\"\\u00e4\",\"b\":[2.0]}]") {
    enqueue_request out;
    out.type = "mail.send";
    out.args_json = std::move(args);
    out.id = std::move(job_id);
    return out;
}

std::string shown(const std::string& job_id = id, const std::string& type = "mail.send",
                  const std::string& args = "[1.0, {\"b\": [2], \"a\": \"\xc3\xa4\"}]") {
    return R"({"job":{"id":")" + job_id + R"(","type":")" + type + R"(","queue":"default","args":)" + args +
           R"(,"state":"available","attempt":0}})";
}

const char* const refused = R"({"error":{"code":"duplicate","message":"the id \"x\" is taken"}})";

// Loses the response to the first POST, refuses the second, and shows that job.
std::function<http_response(const http_request&)> loses_response(const std::string& job) {
    return [job, posts = std::make_shared<int>(0)](const http_request& request) {
        if (request.method == "GET") return http_response{200, {}, job};
        return http_response{++*posts == 1 ? 0 : 409, {}, refused};
    };
}
}  // namespace

// [OJS HTTP binding] [OJS core 5]
TEST_CASE("client: enqueue() sends the members of the published schema, and an id only if the job has one") {
    const backend peer(201, shown());
    enqueue_request job = make_job("", "[\"a\", 10000000000000000000000]");
    job.queue = "a-1.b";
    job.priority = -100;
    job.scheduled_at = std::chrono::system_clock::time_point(std::chrono::milliseconds(1769860800250));
    job.meta_json = "{ \"k\" : [1] }";
    job.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    job.retry = {5, 1500ms, 2h};
    job.unique = {{"type", "args"}, 1h};
    const auto sent = connect(peer).enqueue(job, soon());
    REQUIRE(sent);
    CHECK(sent->job.id == id);
    CHECK(sent->state == "available");
    CHECK(sent->is_new);
    const http_request last = peer.last();
    CHECK(last.method + " " + last.target == "POST /ojs/v1/jobs");
    CHECK(find_header(last.headers, "Content-Type") == "application/openjobspec+json");
    CHECK(find_header(last.headers, "Authorization") == "Bearer secret");
    CHECK(last.body == R"({"type":"mail.send","args":["a", 10000000000000000000000],)"
                       R"("meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","k":[1]},)"
                       R"("options":{"queue":"a-1.b","priority":-100,"delay_until":"2026-01-31T12:00:00.250Z",)"
                       R"("retry":{"max_attempts":5,"initial_interval":"PT1.500S","max_interval":"PT7200S"},)"
                       R"("unique":{"keys":["type","args"],"period":"PT3600S"}}})");
    REQUIRE(connect(peer).enqueue(make_job(), soon()));
    CHECK(peer.last().body.find("\"id\":\"" + id + "\"") != std::string::npos);
}

TEST_CASE("client: a field out of range -> an error that names it, and no request") {
    const backend peer(201, shown());
    const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const struct {
        const char* field;
        std::function<void(enqueue_request&)> spoil;
    } rows[] = {
        {"type", [](enqueue_request& job) { job.type = "mail..send"; }},
        {"type", [](enqueue_request& job) { job.type = "a." + std::string(254, 'a'); }},
        {"type", [](enqueue_request& job) { job.type = "mail."; }},
        {"args_json", [](enqueue_request& job) { job.args_json = "{}"; }},
        {"args_json", [](enqueue_request& job) { job.args_json = "[\"\xff\"]"; }},
        {"queue", [](enqueue_request& job) { job.queue = "-a"; }},
        {"queue", [](enqueue_request& job) { job.queue = "aB"; }},
        {"queue", [](enqueue_request& job) { job.queue = std::string(129, 'a'); }},
        {"id", [](enqueue_request& job) { job.id = "7"; }},
        {"id", [](enqueue_request& job) { job.id[14] = '4'; }},
        {"id", [](enqueue_request& job) { job.id[19] = 'c'; }},
        {"id", [](enqueue_request& job) { job.id[0] = 'A'; }},
        {"priority", [](enqueue_request& job) { job.priority = 101; }},
        {"scheduled_at", [](enqueue_request& job) { job.scheduled_at -= std::chrono::hours(1); }},
        {"meta_json", [](enqueue_request& job) { job.meta_json = "[]"; }},
        {"traceparent", [](enqueue_request& job) { job.traceparent = "00-1-2-01"; }},
        {"traceparent", [&](enqueue_request& job) { job.traceparent = trace.substr(0, 36) + "0000000000000000-01"; }},
        {"traceparent",
         [&](enqueue_request& job) { job.traceparent = trace, job.meta_json = "{\"traceparent\":\"x\"}"; }},
        {"retry.max_attempts", [](enqueue_request& job) { job.retry.max_attempts = -1; }},
        {"retry.initial_interval", [](enqueue_request& job) { job.retry.initial_interval = -1ms; }},
        {"retry.max_interval", [](enqueue_request& job) { job.retry.max_interval = no_limit; }},
        {"retry.max_interval",
         [](enqueue_request& job) {
             job.retry = {0, 2s, 1s};
         }},
        {"unique.keys",
         [](enqueue_request& job) {
             job.unique.keys = {"type", "typ"};
         }},
        {"unique.period",
         [](enqueue_request& job) {
             job.unique = {{"type"}, -1s};
         }},
        {"unique.period", [](enqueue_request& job) { job.unique.period = 1s; }}};
    const client to = connect(peer);
    for (const auto& row : rows) {
        CAPTURE(row.field);
        enqueue_request job = make_job();
        row.spoil(job);
        for (const bool is_batch : {false, true}) {
            const std::string begin = std::string(is_batch ? "jobs[1]." : "") + row.field + " ";
            const error why =
                is_batch ? to.enqueue_batch({make_job(), job}, soon()).error() : to.enqueue(job, soon()).error();
            CHECK(why.code == errc::invalid_argument);
            CHECK(why.text.substr(0, begin.size()) == begin);
        }
    }
    CHECK(test::code_of(to.get("", soon())) == errc::invalid_argument);
    CHECK(test::code_of(to.cancel("", soon())) == errc::invalid_argument);
    CHECK(test::code_of(to.enqueue_batch({}, soon())) == errc::invalid_argument);
    CHECK(test::code_of(to.enqueue_batch(std::vector<enqueue_request>(10001), soon())) == errc::invalid_argument);
    CHECK(peer.requests().empty());
    client_options options;
    options.request_timeout = 9ms;
    CHECK(client::create(options).error().text == "request_timeout must be at least 10ms");
    for (const char* url : {"spool:/tmp", "localhost:1", "https://h", "http://h/ojs/v1"}) {
        options = client_options();
        options.url = url;
        CHECK(client::create(options).error().text.substr(0, 15) == "url (OJS_URL) '");
    }
}

TEST_CASE("client: a 4xx response is one request, and rejected with the server's code and message") {
    for (const int status : {400, 401, 404, 409, 413, 422}) {
        const backend peer(status, refused);
        const error why = connect(peer).enqueue(make_job(""), soon()).error();
        CHECK(why.code == errc::rejected);
        CHECK(why.http_status == status);
        CHECK(why.text.find(": duplicate") != std::string::npos);
        CHECK(why.text.find(" (the id \"x\" is taken)") != std::string::npos);
        CHECK(peer.requests().size() == 1);
    }
}

TEST_CASE("client: an enqueue with an id is repeated after a lost response, and a 409 for that job is a success") {
    const struct {
        const char* what;
        std::string job_id, shown;
        std::size_t requests;
        errc code;
    } rows[] = {{"the same job", id, shown(), 3, errc::system},
                {"another type", id, shown(id, "mail.sent"), 3, errc::rejected},
                {"other arguments", id, shown(id, "mail.send", "[1]"), 3, errc::rejected},
                {"no id", "", shown(), 1, errc::disconnected}};
    for (const auto& row : rows) {
        CAPTURE(row.what);
        const backend peer(loses_response(row.shown));
        const auto sent = connect(peer).enqueue(make_job(row.job_id), soon());
        CHECK(peer.requests().size() == row.requests);
        CHECK(sent.has_value() == (row.code == errc::system));
        if (!sent) CHECK(sent.error().code == row.code);
        if (sent) CHECK(!sent->is_new);
    }
}

TEST_CASE(
    "client: a 429, or a 503 to a repeatable request -> another try; a 503 to an enqueue without an id is final") {
    for (const int status : {429, 503}) {
        const auto fails_once = [status, count = std::make_shared<int>(0)](const http_request&) {
            return ++*count == 1 ? http_response{status, {}, refused} : http_response{201, {}, shown()};
        };
        CHECK(connect(backend(fails_once)).enqueue(make_job(), soon()));
        CHECK(connect(backend(fails_once)).get(id, soon()));
        const backend peer(status, refused);
        const client_call call{deadline_after(1s), {}};
        CHECK(test::code_of(connect(peer).enqueue(make_job(""), call)) == errc::unavailable);
        CHECK((peer.requests().size() > 1) == (status == 429));
    }
}

TEST_CASE("client: a lost response to a batch -> each of its jobs is looked up") {
    const std::vector<enqueue_request> both = {make_job(), make_job(other_id)};
    for (const bool is_whole : {true, false}) {
        const backend peer([&](const http_request& request) {
            if (request.method == "POST") return http_response{409, {}, refused};
            const bool is_first = request.target == "/ojs/v1/jobs/" + id;
            return http_response{is_first || is_whole ? 200 : 404, {}, shown(is_first ? id : other_id)};
        });
        const auto sent = connect(peer).enqueue_batch(both, soon());
        CHECK(sent.has_value() == is_whole);
        if (sent) CHECK(sent->at(1).job.id == other_id);
        if (!sent) CHECK(sent.error().http_status == 409);
    }
    const backend peer(200, R"({"jobs":[{"id":"a","state":"available"},{"id":"b","state":"scheduled"}],"count":2})");
    const auto sent = connect(peer).enqueue_batch(both, soon());
    REQUIRE(sent);
    CHECK(sent->at(1).state == "scheduled");
    CHECK(peer.last().target == "/ojs/v1/jobs/batch");
    CHECK(test::code_of(connect(backend(201, "{\"jobs\":[]}")).enqueue_batch({make_job("")}, soon())) ==
          errc::bad_response);
}

TEST_CASE("client: cancel() succeeds for a cancelled job, and fails with the server's refusal for a completed job") {
    for (const char* state : {"cancelled", "completed"}) {
        const backend peer([state](const http_request& request) {
            if (request.method == "DELETE") return http_response{409, {}, refused};
            return http_response{200, {}, R"({"id":"..","state":")" + std::string(state) + "\"}"};
        });
        const auto ended = connect(peer).cancel("..", soon());
        CHECK(ended.has_value() == (state == std::string("cancelled")));
        CHECK(peer.last().target == "/ojs/v1/jobs/%2E%2E");
    }
}

// The suite's L4-STATS-001 and published servers have an object `queue`.
TEST_CASE("client: queues() reads the counts of the HTTP binding and those of the conformance suite") {
    for (const char* body : {R"({"queue":"q.1","status":"paused","stats":{"available":3,"active":1,"retryable":2}})",
                             R"({"queue":{"name":"q.1","available":3,"active":1,"retryable":2,"paused":true}})"}) {
        const backend peer([body](const http_request& request) {
            const bool is_list = request.target == "/ojs/v1/queues";
            return http_response{200, {}, is_list ? R"({"queues":[{"name":"q.1","status":"paused"}]})" : body};
        });
        const auto found = connect(peer).queues(soon());
        REQUIRE(found);
        REQUIRE(found->size() == 1);
        const ojs::queue_info& queue = found->front();
        CHECK(queue.name + " " + queue.status == "q.1 paused");
        CHECK(queue.available == 3);
        CHECK(queue.active == 1);
        CHECK(queue.scheduled == 0);
        CHECK(queue.retryable == 2);
    }
}

TEST_CASE("client: a response with another job than the one named, or without queues or their names -> bad_response") {
    const backend peer(201, shown(other_id));
    CHECK(test::code_of(connect(peer).enqueue(make_job(), soon())) == errc::bad_response);
    CHECK(test::code_of(connect(peer).get(id, soon())) == errc::bad_response);
    CHECK(test::code_of(connect(peer).cancel(id, soon())) == errc::bad_response);
    enqueue_request unique = make_job();
    unique.unique.keys = {"type"};
    CHECK(connect(peer).enqueue(unique, soon())->job.id == other_id);
    CHECK(connect(backend(200, "{\"queues\":null}")).queues(soon())->empty());
    for (const char* body : {"[]", "{}", R"({"queues":7})", R"({"queues":["a"]})", R"({"queues":{"a":{}}})"}) {
        const backend lists(200, body);
        CHECK(test::code_of(connect(lists).queues(soon())) == errc::bad_response);
        CHECK(lists.requests().size() == 1);
    }
}

TEST_CASE("client: a call ends once its token is cancelled, while it waits for a response and between two tries") {
    cancel_source source;
    test::counter returned;
    const backend slow([&](const http_request&) {
        source.cancel(cancel_reason::cancelled);
        CHECK(returned.wait_for(1));
        return http_response{503, {}, ""};
    });
    const client_call call{deadline_after(test::hang_guard), source.token()};
    CHECK(test::code_of(connect(slow).get(id, call)) == errc::cancelled);
    CHECK(test::code_of(connect(slow).get(id, call)) == errc::cancelled);
    CHECK(slow.requests().size() == 1);
    returned.add();
    cancel_source later;
    const client to = connect("http://127.0.0.1:1");
    std::thread cancels([&] { later.cancel(cancel_reason::cancelled); });
    CHECK(test::code_of(to.get(id, {deadline_after(test::hang_guard), later.token()})) == errc::cancelled);
    cancels.join();
    CHECK(test::code_of(to.get(id, {deadline_after(50ms), {}})) == errc::unreachable);
}

TEST_CASE("client: new_job_id() and follow_up_id() are UUIDv7; equal parameters give equal follow_up_id()s") {
    const std::string follow_up = follow_up_id(id, "mail");
    CHECK(follow_up == "019461a8-1a2b-7e46-8ede-ae32fb76988e");
    CHECK(follow_up != follow_up_id(id));
    CHECK(follow_up != follow_up_id(other_id, "mail"));
    const backend peer(200, shown());
    for (const std::string& each : {new_job_id(), follow_up, follow_up_id("7"), follow_up_id(follow_up)})
        CHECK(connect(peer).enqueue(make_job(each), soon()));
    CHECK(new_job_id() != new_job_id());
}
