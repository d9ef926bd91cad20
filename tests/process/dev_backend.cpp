// What the example backend refuses because a web page could have sent it, and what it makes of times nobody can mean.
#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

struct answer {
    int status = 0;
    json body;
};

// A request byte for byte: a client of the library would add a Host of its own.
answer ask(const backend& jobs, const std::string& head, const std::string& body) {
    peer::client client(static_cast<std::uint16_t>(std::stoi(jobs.url().substr(jobs.url().rfind(':') + 1))));
    client.send(head + "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                body);
    const std::string text = client.rest();
    const std::size_t end = text.find("\r\n\r\n");
    REQUIRE(end != std::string::npos);
    return {std::stoi(text.substr(9, 3)), json::parse(text.substr(end + 4))};
}

constexpr const char* push = "POST /ojs/v1/jobs HTTP/1.1\r\n";
constexpr const char* as_json = "Content-Type: application/json\r\n";
constexpr const char* job = "{\"type\":\"a\",\"args\":[]}";

int status_of(const backend& jobs, const std::string& headers) {
    return ask(jobs, push + headers, job).status;
}

}  // namespace

TEST_CASE("dev_backend: requests that a web page could send are refused and have no effect") {
    backend jobs;
    const std::string host = "Host: 127.0.0.1\r\n";
    const std::string good = host + as_json;
    CHECK(status_of(jobs, good + "Origin: http://evil.example\r\n") == 403);
    CHECK(status_of(jobs, good + "Origin: null\r\n") == 403);
    CHECK(status_of(jobs, good + "Origin: http://127.0.0.1:8080\r\n") == 403);
    CHECK(status_of(jobs, good + "sec-fetch-site: same-origin\r\n") == 403);
    for (const char* form :
         {"text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
          "multipart/form-data; boundary=x", "text/plain; application/json", "json", "+json", ""}) {
        CAPTURE(form);
        CHECK(status_of(jobs, host + "Content-Type: " + form + "\r\n") == 400);
    }
    CHECK(status_of(jobs, host) == 400);
    // Names that may be made to lead here.
    for (const std::string name : {"evil.example", "evil.example:8080", "localhost.evil.example",
                                   "127.0.0.1.evil.example", "127.0.0.1x", "[evil]", "[::1", "", "127.1"}) {
        CAPTURE(name);
        CHECK(status_of(jobs, std::string("Host: ") + name + "\r\n" + as_json) >= 400);
        const std::string look = std::string("GET /dev/summary HTTP/1.1\r\nHost: ") + name + "\r\n";
        CHECK(ask(jobs, look, "").status >= 400);
    }
    const std::string control = "POST /dev/directive HTTP/1.1\r\n" + host + "Content-Type: text/plain\r\n";
    CHECK(ask(jobs, control, "{\"worker_id\":\"*\",\"directive\":\"terminate\"}").status == 400);
    CHECK(jobs.summary()["pushed"].number == 0);
}

TEST_CASE(
    "dev_backend: requests with localhost or an IP address as Host and a JSON content type are accepted") {
    backend jobs;
    for (const std::string name :
         {"127.0.0.1", "127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]", "[::1]:80", "10.0.0.7"}) {
        CAPTURE(name);
        CHECK(status_of(jobs, std::string("Host: ") + name + "\r\n" + as_json) == 201);
    }
    for (const char* type : {"application/json; charset=utf-8", "Application/JSON",
                             "application/openjobspec+json", "application/vnd.api+json ;v=1"}) {
        CAPTURE(type);
        CHECK(status_of(jobs, std::string("Host: localhost\r\nContent-Type: ") + type + "\r\n") == 201);
    }
}

TEST_CASE("dev_backend: extreme timeouts and leases are limited to a valid range") {
    backend jobs;
    const auto pushed = [&](const std::string& more) {
        const std::string id = jobs.push("a", "[]", 1, more).front();
        return jobs.job(id)["timeout_ms"].number;
    };
    constexpr std::int64_t longest = 2147483000;
    CHECK(pushed(",\"timeout_ms\":1000") == 1000);
    CHECK(pushed(",\"timeout\":2") == 2000);
    CHECK(pushed(",\"timeout_ms\":-1") == 0);  // none
    CHECK(pushed(",\"timeout\":-1e300") == 0);
    CHECK(pushed(",\"timeout_ms\":1e300") == longest);
    CHECK(pushed(",\"timeout\":9223372036854775807") == longest);
    CHECK(pushed(",\"options\":{\"timeout_ms\":1e18}") == longest);

    for (const char* lease : {"1e300", "9223372036854775807", "9223372036854"}) {
        CAPTURE(lease);
        const std::string much = std::string(",\"visibility_timeout_ms\":") + lease + "}";
        const json claimed =
            jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":"w")" + much);
        REQUIRE(claimed["jobs"].items.size() == 1);
        const std::string id = claimed["jobs"].items[0]["id"].text;
        const json beat = jobs.post("/ojs/v1/workers/heartbeat",
                                    R"({"worker_id":"w","active_jobs":[")" + id + "\"]" + much);
        CHECK(beat["jobs_extended"].holds(id));
    }
    // A lease of the past is one that ends at once: the backend has looked at all of them when this one is over.
    const json gone =
        jobs.post("/ojs/v1/workers/fetch",
                  "{\"queues\":[\"default\"],\"worker_id\":\"v\",\"visibility_timeout_ms\":-1e300}");
    REQUIRE(gone["jobs"].items.size() == 1);
    CHECK(jobs.event(job_event(gone["jobs"].items[0]["id"].text, "expired")).what == json::kind::object);
    CHECK(jobs.summary()["expired"].number == 1);
    CHECK(jobs.summary()["active"].number == 3);
    jobs.post("/dev/delay", "{\"ms\":-5}");
    jobs.post("/dev/delay", "{\"ms\":-1e300}");
    CHECK(jobs.summary()["pushed"].number == 7);
}

TEST_CASE("dev_backend: with more than 4096 workers the oldest ones without jobs are forgotten") {
    backend jobs;
    jobs.push("a", "[]", 1);
    jobs.post("/ojs/v1/workers/fetch",
              R"({"queues":["default"],"worker_id":"holder","visibility_timeout_ms":3600000})");
    ojs::http_client client = peer::make_client(jobs.url());
    const auto beat = [&](const std::string& id) {
        ojs::http_request request = peer::post("/ojs/v1/workers/heartbeat", R"({"worker_id":")" + id + "\"}");
        request.headers = {{"Content-Type", "application/json"}};
        const auto got = client.send(request, peer::call());
        REQUIRE(got);
        return got->status;
    };
    CHECK(beat(std::string(257, 'w')) == 400);
    CHECK(beat(std::string(256, 'w')) == 200);
    for (int i = 0; i < 4096; ++i) REQUIRE(beat(std::to_string(i)) == 200);
    const json workers = jobs.summary()["workers"];
    CHECK(workers.members.size() == 4096);
    CHECK(workers.has("holder"));
    CHECK(workers.has("4095"));
    CHECK_FALSE(workers.has(std::string(256, 'w').c_str()));
    CHECK_FALSE(workers.has("0"));
    CHECK(workers.has("1"));
}

TEST_CASE("dev_backend: the jobs of a worker that is declared dead twice come back each time") {
    backend jobs({"--dead-after", "100ms"});
    const std::string id = jobs.push_one("a", "[]");
    const auto claim = [&] {
        return jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":"w"})")["jobs"]
            .items.size();
    };
    REQUIRE(claim() == 1);
    jobs.post("/ojs/v1/workers/heartbeat", R"({"worker_id":"w"})");
    REQUIRE(jobs.reaches(id, "available"));
    REQUIRE(claim() == 1);
    CHECK(jobs.reaches(id, "available"));
}

// [GS 5.3 (b)]
TEST_CASE("dev_backend: a job failed with ShutdownError is retried even if marked as not retryable") {
    backend jobs;
    const json manifest = ask(jobs, "GET /ojs/manifest HTTP/1.1\r\nHost: localhost\r\n", "").body;
    REQUIRE(manifest["extensions"]["official"].items.size() == 1);
    CHECK(manifest["extensions"]["official"].items[0]["uri"].is("urn:ojs:ext:graceful-shutdown"));
    CHECK(manifest["extensions"]["official"].items[0]["name"].is("graceful-shutdown"));
    const struct {
        const char* error;
        const char* state;
    } cases[] = {
        {"\"code\":\"ShutdownError\",\"retryable\":false", "retryable"},
        {"\"code\":\"handler_error\",\"type\":\"ShutdownError\",\"retryable\":false", "retryable"},
        {"\"code\":\"handler_error\",\"type\":\"NotAShutdownError\",\"retryable\":false", "discarded"},
    };
    for (const auto& each : cases) {
        CAPTURE(std::string(each.error));
        const std::string id = jobs.push_one("a", "[]");
        const json claimed =
            jobs.post("/ojs/v1/workers/fetch", "{\"queues\":[\"default\"],\"worker_id\":\"w\"}");
        REQUIRE(claimed["jobs"].items.size() == 1);
        REQUIRE(claimed["jobs"].items[0]["id"].text == id);
        const json said = jobs.post("/ojs/v1/workers/nack", "{\"job_id\":\"" + id + "\",\"error\":{" +
                                                                each.error + ",\"message\":\"m\"}}");
        CHECK(said["state"].is(each.state));
    }
}
