// dev_backend's API beyond what a worker needs: policies for retries, dead letters, jobs for later, lists, an operator's
// requests, and refusals. [OJS HTTP binding, retry]
#include <time.h>

#include "harness.hpp"

using namespace test;

namespace {

std::string repeated(const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
}

struct answer {
    int status = 0;
    json body;
    std::string header;
};

answer ask(const backend& jobs, const char* method, const std::string& path, const std::string& body = "",
           const ojs::http_headers& headers = {{"Content-Type", "application/json"}},
           const char* wanted = "X-Request-Id") {
    const auto got = test::ask(jobs.url(), method, path, body, headers);
    REQUIRE(got);
    CHECK(ojs::find_header(got->headers, "OJS-Version") == "1.0");
    CHECK(ojs::find_header(got->headers, "Content-Type") == "application/openjobspec+json");
    return {got->status, json::parse(got->body), std::string(ojs::find_header(got->headers, wanted))};
}

answer push(const backend& jobs, const std::string& options) {
    return ask(jobs, "POST", "/ojs/v1/jobs", R"({"type":"a.b","args":[],"options":{)" + options + "}}");
}

std::string pushed(const backend& jobs, const std::string& options) {
    const answer out = push(jobs, options);
    REQUIRE(out.status == 201);
    return out.body["job"]["id"].text;
}

json claim(const backend& jobs, const char* worker = "w") {
    const answer got = ask(jobs, "POST", "/ojs/v1/workers/fetch",
                           std::string(R"({"queues":["default"],"worker_id":")") + worker + "\"}");
    REQUIRE(got.status == 200);
    return got.body["jobs"].items.empty() ? json() : got.body["jobs"].items.front();
}

json fail(const backend& jobs, const std::string& id,
          const std::string& error = R"("code":"handler_error")") {
    return ask(jobs, "POST", "/ojs/v1/workers/nack",
               R"({"job_id":")" + id + R"(","error":{"message":"m",)" + error + "}}")
        .body;
}

// A job with that policy fails for the first time.
json first_failure(const backend& jobs, const std::string& policy,
                   const std::string& error = R"("code":"handler_error")") {
    const std::string id = pushed(jobs, "\"retry\":{" + policy + "}");
    REQUIRE(claim(jobs)["id"].text == id);
    return fail(jobs, id, error);
}

std::int64_t jobs_of(const backend& jobs) {
    return ask(jobs, "GET", "/dev/summary").body["pushed"].number;
}

std::string next_second() {
    const std::time_t then = std::time(nullptr) + 1;
    tm utc{};
    gmtime_r(&then, &utc);
    char text[40];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

}  // namespace

TEST_CASE(
    "dev_backend: the retry delays of a failed job follow the interval, strategy and maximum of its policy") {
    const backend jobs;
    const struct {
        const char* policy;
        std::vector<std::int64_t> delays;
    } cases[] = {
        {R"("initial_interval":"PT0.02S","backoff_coefficient":3)", {20, 60, 180}},
        {R"("initial_interval_ms":20,"backoff_coefficient":3)", {20, 60, 180}},
        {R"("initial_interval":"PT0.02S","backoff_coefficient":9,"max_interval":"PT0.05S")", {20, 50, 50}},
        {R"("initial_interval":"PT0.02S","backoff_strategy":"linear","backoff_coefficient":5)", {20, 40, 60}},
        {R"("initial_interval":"PT0.02S","backoff_strategy":"polynomial","backoff_coefficient":2)",
         {20, 80, 180}},
        {R"("initial_interval":"PT0.02S","backoff_strategy":"none","backoff_coefficient":2)", {20, 20, 20}},
    };
    for (const auto& each : cases) {
        CAPTURE(each.policy);
        const std::string id =
            pushed(jobs, std::string(R"("retry":{"max_attempts":4,"jitter":false,)") + each.policy + "}");
        int attempt = 0;
        for (const std::int64_t delay : each.delays) {
            REQUIRE(eventually([&] { return claim(jobs)["id"].text == id; }));
            const json said = fail(jobs, id);
            CHECK(said["state"].is("retryable"));
            CHECK(said["attempt"].number == ++attempt);
            CHECK(said["retry_delay_ms"].number == delay);
        }
        REQUIRE(eventually([&] { return claim(jobs)["id"].text == id; }));
        CHECK(fail(jobs, id)["state"].is("discarded"));
    }
}

TEST_CASE("dev_backend: a retry delay with jitter is at least half the interval and at most max_interval") {
    const backend jobs;
    std::set<std::int64_t> seen;
    for (int i = 0; i < 30; ++i) {
        const std::int64_t delay =
            first_failure(jobs, R"("initial_interval":"PT1H","max_interval":"PT75M")")["retry_delay_ms"]
                .number;
        CHECK(delay >= 1800000);
        CHECK(delay <= 4500000);
        seen.insert(delay);
    }
    CHECK(seen.size() > 10);
}

TEST_CASE(
    "dev_backend: the error's type and code and the policy decide between retry, discard and dead letter") {
    const backend jobs;
    constexpr const char* never = R"("non_retryable_errors":["auth.*","x"],"on_exhaustion":"dead_letter")";
    constexpr const char* dead_letter = R"("max_attempts":9,"on_exhaustion":"dead_letter")";
    constexpr const char* many = R"("max_attempts":9)";
    const struct {
        const char* policy;
        std::string error;
        const char* state;
        bool dead = false;
        const char* code = "handler_error";
    } cases[] = {
        {never, R"(,"type":"auth.expired")", "discarded", true},
        {never, R"(,"type":"x")", "discarded", true},
        {never, R"(,"type":"auth")", "retryable"},
        {never, R"(,"type":"xy")", "retryable"},
        {never, R"(,"details":{"error_class":"x"})", "discarded", true},
        {many, "", "discarded", false, "DISCARD"},
        {dead_letter, "", "discarded", false, "FAIL"},
        {many, "", "discarded", true, "DEAD_LETTER"},
        {many, "", "retryable", false, "RETRY"},
        {many, R"(,"retryable":false)", "discarded"},
        {R"("max_attempts":0)", "", "discarded"},
        {R"("max_attempts":1,"on_exhaustion":"dead_letter")", "", "discarded", true},
    };
    for (const auto& each : cases) {
        CAPTURE(each.policy);
        CAPTURE(each.error);
        // Comes back after the last row only.
        const json said = first_failure(jobs, std::string(R"("initial_interval":"PT1H",)") + each.policy,
                                        std::string("\"code\":\"") + each.code + "\"" + each.error);
        CHECK(said["state"].is(each.state));
        const json dead = ask(jobs, "GET", "/ojs/v1/dead-letter?limit=100").body;
        bool listed = false;
        for (const json& job : dead["jobs"].items) listed = listed || job["id"].text == said["id"].text;
        CHECK(listed == each.dead);
    }
}

TEST_CASE("dev_backend: a push with an invalid retry policy or duration is rejected with 422") {
    const backend jobs;
    const struct {
        const char* policy;
        const char* part;
    } cases[] = {
        {R"("max_attempts":-1)", "max_attempts"},
        {R"("max_attempts":1.5)", "max_attempts"},
        {R"("max_attempts":"3")", "max_attempts"},
        {R"("backoff_coefficient":0.99)", "backoff_coefficient"},
        {R"("backoff_coefficient":"2")", "backoff_coefficient"},
        {R"("jitter":"yes")", "jitter"},
        {R"("non_retryable_errors":"x")", "non_retryable_errors"},
        {R"("on_exhaustion":"keep")", "on_exhaustion"},
        {R"("backoff_strategy":"random")", "backoff_strategy"},
        {R"("initial_interval":"PT1M","max_interval":"PT59S")", "max_interval"},
        {R"("initial_interval_ms":0)", "initial_interval"},
        {R"("initial_interval_ms":"1s")", "initial_interval"},
    };
    for (const auto& each : cases) {
        CAPTURE(each.policy);
        const answer said = push(jobs, std::string("\"retry\":{") + each.policy + "}");
        CHECK(said.status == 422);
        CHECK(said.body["error"]["message"].text.find(each.part) != std::string::npos);
    }
    for (const char* duration : {"", "P", "PT", "1S", "PT1", "PTS", "PT-1S", "PT1S1H", "P1Y", "P1M", "PT1.S",
                                 "PT.5S", "PT1.5H1S", "PT0S", "pt1s", "PT1S ", "P1DT", "PT1e3S"}) {
        CAPTURE(duration);
        CHECK(push(jobs, std::string(R"("retry":{"initial_interval":")") + duration + "\"}").status == 422);
    }
    for (const char* duration : {"P1W", "P1DT1H1M1S", "PT1.5S", "PT0.001S", "PT90M"}) {
        CAPTURE(duration);
        CHECK(push(jobs,
                   std::string(R"("retry":{"max_interval":"P4W","initial_interval":")") + duration + "\"}")
                  .status == 201);
    }
    CHECK(push(jobs, R"("retry":[])").status == 422);
    CHECK(jobs_of(jobs) == 5);
}

TEST_CASE("dev_backend: a job can be claimed only when it is due, activated and not expired") {
    const backend jobs;
    const std::string later = pushed(jobs, R"("delay_until":"2199-12-31T23:59:59.999+14:00")");
    const std::string never = pushed(jobs, R"("delay_until":"9999-12-31T23:59:59Z")");
    const std::string past = pushed(jobs, R"("delay_until":"2001-02-03T04:05:06Z")");
    const std::string staged = pushed(jobs, R"("pending":true)");
    const std::string stale = pushed(jobs, R"("expires_at":"2001-02-03T04:05:06.5Z")");
    CHECK(claim(jobs)["id"].text == past);
    CHECK(claim(jobs)["id"].text.empty());
    const auto state = [&](const std::string& id) {
        return ask(jobs, "GET", "/ojs/v1/jobs/" + id).body["job"]["state"].text;
    };
    CHECK(state(later) == "scheduled");
    CHECK(state(never) == "scheduled");
    CHECK(state(staged) == "pending");
    CHECK(state(stale) == "discarded");
    const std::string activate = "/ojs/v1/jobs/" + staged + "/activate";
    CHECK(ask(jobs, "POST", activate).body["job"]["previous_state"].is("pending"));
    CHECK(ask(jobs, "POST", activate).status == 409);
    CHECK(claim(jobs)["id"].text == staged);
    CHECK(ask(jobs, "DELETE", "/ojs/v1/jobs/" + later).body["job"]["previous_state"].is("scheduled"));
    CHECK(ask(jobs, "DELETE", "/ojs/v1/jobs/" + later).status == 409);
    const std::string both = pushed(jobs, R"("pending":true,"delay_until":"2199-01-01T00:00:00Z")");
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs/" + both + "/activate").body["job"]["state"].is("scheduled"));
    CHECK(state(both) == "scheduled");
    for (const char* time :
         {"tomorrow", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-01-01T24:00:00Z",
          "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00+2", "1969-12-31T23:59:59Z",
          "2026-01-01T00:00:00.Z", "+026-01-01T00:00:00Z", "2026-01-01T00:00:00+25:00"}) {
        CAPTURE(time);
        CHECK(push(jobs, std::string(R"("delay_until":")") + time + "\"").status == 400);
    }
    // Nobody does anything, and it is there.
    const std::string soon = pushed(jobs, "\"delay_until\":\"" + next_second() + "\"");
    CHECK(eventually([&] { return claim(jobs)["id"].text == soon; }));
}

TEST_CASE("dev_backend: an attempt that exceeds its timeout fails, even if heartbeats extend its lease") {
    const backend jobs({"--timeout-grace", "0s"});
    const std::string id = pushed(jobs, R"("timeout_ms":300,"retry":{"initial_interval":"PT1H"})");
    REQUIRE(claim(jobs)["id"].text == id);
    const auto shown = [&] { return ask(jobs, "GET", "/ojs/v1/jobs/" + id).body["job"]; };
    CHECK(eventually([&] {
        ask(jobs, "POST", "/ojs/v1/workers/heartbeat",
            R"({"worker_id":"w","active_jobs":[")" + id + R"("],"visibility_timeout_ms":60000})");
        return shown()["state"].is("retryable");
    }));
    CHECK(shown()["error"]["type"].is("timeout"));
    CHECK(shown()["errors"].items.size() == 1);
    CHECK(ask(jobs, "POST", "/ojs/v1/workers/ack", "{\"job_id\":\"" + id + "\"}").status == 409);
}

// [WP 5.1] [River stuck programs (c)]
TEST_CASE("dev_backend: an expired lease is recorded as an error of the job and uses up an attempt") {
    const backend jobs;
    const std::string id = pushed(jobs, R"("retry":{"max_attempts":2},"visibility_timeout_ms":50)");
    const auto shown = [&] { return ask(jobs, "GET", "/ojs/v1/jobs/" + id).body["job"]; };
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(eventually([&] { return shown()["state"].is("available"); }));
    REQUIRE(shown()["errors"].items.size() == 1);
    CHECK(shown()["errors"].items.front()["type"].is("visibility_timeout"));
    CHECK(shown()["started_at"].text.empty());
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(eventually([&] { return shown()["state"].is("discarded"); }));
    CHECK(shown()["errors"].items.size() == 2);
}

TEST_CASE("dev_backend: dead letters can be listed in pages, retried and deleted") {
    const backend jobs;
    std::vector<std::string> ids;
    for (int i = 0; i < 5; ++i) {
        ids.push_back(pushed(jobs, R"("retry":{"max_attempts":1,"on_exhaustion":"dead_letter"})"));
        REQUIRE(claim(jobs)["id"].text == ids.back());
        fail(jobs, ids.back());
    }
    std::vector<std::string> listed;
    std::string cursor;
    for (int page = 0; page < 3; ++page) {
        const json got = ask(jobs, "GET", "/ojs/v1/dead-letter?queue=default&limit=2&cursor=" + cursor).body;
        CHECK(got["pagination"]["total"].number == 5);
        CHECK(got["pagination"]["has_more"].flag == (page < 2));
        for (const json& job : got["jobs"].items) listed.push_back(job["id"].text);
        cursor = got["pagination"]["next_cursor"].text;
    }
    CHECK(listed == ids);
    CHECK(ask(jobs, "GET", "/ojs/v1/dead-letter?queue=other").body["jobs"].items.empty());
    CHECK(ask(jobs, "GET", "/ojs/v1/dead-letter?limit=0").status == 400);
    CHECK(ask(jobs, "GET", "/ojs/v1/dead-letter?limit=x").status == 400);
    CHECK(ask(jobs, "DELETE", "/ojs/v1/dead-letter/" + ids[0]).body["deleted"].flag);
    CHECK(ask(jobs, "DELETE", "/ojs/v1/dead-letter/" + ids[0]).status == 404);
    CHECK(ask(jobs, "GET", "/ojs/v1/jobs/" + ids[0]).status == 404);
    const json again = ask(jobs, "POST", "/ojs/v1/dead-letter/" + ids[1] + "/retry").body["job"];
    CHECK(again["state"].is("available"));
    CHECK(again["attempt"].number == 0);
    CHECK_FALSE(again.has("error"));
    CHECK(ask(jobs, "POST", "/ojs/v1/dead-letter/" + ids[1] + "/retry").status == 404);
    CHECK(claim(jobs)["id"].text == ids[1]);
}

TEST_CASE("dev_backend: the admin routes list jobs and workers, show a worker's health and quiet a worker") {
    const backend jobs;
    const std::string id = pushed(jobs, R"("queue":"default","priority":7)");
    const std::string other = pushed(jobs, R"("queue":"other.q-1")");
    const json found = ask(jobs, "GET", "/ojs/v1/admin/jobs?state=available&type=a.*&queue=other.q-1").body;
    REQUIRE(found["items"].items.size() == 1);
    CHECK(found["items"].items.front()["id"].text == other);
    CHECK(ask(jobs, "GET", "/ojs/v1/admin/jobs?per_page=1&page=2").body["items"].items.front()["id"].text ==
          id);
    CHECK(ask(jobs, "GET", "/ojs/v1/queues").body["queues"].items.size() == 2);
    CHECK(ask(jobs, "GET", "/ojs/v1/workers/w/health").status == 404);
    CHECK(ask(jobs, "POST", "/ojs/v1/admin/workers/w/quiet").status == 404);
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(ask(jobs, "GET", "/ojs/v1/workers/w/health").status == 200);
    CHECK(ask(jobs, "GET", "/ojs/v1/admin/workers/w").body["active_jobs"].number == 1);
    CHECK(ask(jobs, "POST", "/ojs/v1/admin/workers/w/quiet").status == 200);
    const auto beat = [&](const char* path, const char* state) {
        return ask(jobs, "POST", path,
                   std::string(R"({"worker_id":"w","active_jobs":1,"state":")") + state + "\"}")
            .body;
    };
    CHECK(beat("/ojs/v1/workers/heartbeat", "running")["state"].is("quiet"));
    CHECK(beat("/ojs/v1/workers/beat", "drain")["acknowledged"].flag);
    const answer health = ask(jobs, "GET", "/ojs/v1/workers/w/health");
    CHECK(health.status == 503);
    CHECK(health.body["state"].is("drain"));
    CHECK(claim(jobs)["id"].text.empty());
    CHECK(ask(jobs, "GET", "/ojs/v1/admin/workers").body["summary"]["total"].number == 1);
    CHECK(claim(jobs, "a/b c")["id"].text.empty());
    CHECK(ask(jobs, "GET", "/ojs/v1/admin/workers/a%2Fb%20c").status == 200);
    CHECK(ask(jobs, "GET", "/ojs/v1/admin/workers/%ff").status == 400);
}

// [Durable execution 4.4, DUR-003]
TEST_CASE("dev_backend: a checkpoint can be saved, read and deleted, and the job's next claim contains it") {
    backend jobs;
    const std::string id = pushed(jobs, "");
    CHECK(claim(jobs)["checkpoint"].items.empty());
    const std::string path = "/ojs/v1/jobs/" + id + "/checkpoint";
    CHECK(ask(jobs, "GET", path).status == 404);
    CHECK(ask(jobs, "POST", path, R"({"state":{"at":7}})").body["checkpoint"]["job_id"].text == id);
    CHECK(ask(jobs, "GET", path).body["checkpoint"]["state"]["at"].number == 7);
    const std::string requeued =
        R"({"job_id":")" + id + R"(","error":{"code":"ShutdownError"},"requeue":true})";
    CHECK(ask(jobs, "POST", "/ojs/v1/workers/nack", requeued).status == 200);
    const json again = claim(jobs, "v");
    CHECK(again["checkpoint"]["state"]["at"].number == 7);
    CHECK(again["meta"]["checkpoint"]["at"].number == 7);
    CHECK(ask(jobs, "GET", "/ojs/v1/jobs/" + id).body["job"]["worker_id"].text == "v");
    CHECK(ask(jobs, "DELETE", path).body["job_id"].text == id);
    CHECK(ask(jobs, "GET", path).status == 404);
}

TEST_CASE(
    "dev_backend: GET /events returns lifecycle events after a cursor, filtered by type, queue and job "
    "type") {
    const backend jobs;
    const std::string id = pushed(jobs, R"("retry":{"max_attempts":1})");
    REQUIRE(claim(jobs)["id"].text == id);
    fail(jobs, id);
    const auto read = [&](const std::string& query) {
        return ask(jobs, "GET", "/ojs/v1/events?" + query).body;
    };
    std::string types;
    const json all = read("");
    for (const json& event : all["events"].items) types += event["type"].text + " ";
    CHECK(types == "job.enqueued job.started job.failed job.discarded ");
    const json first = read("limit=1");
    CHECK(first["has_more"].flag);
    const json second = read("limit=1&after=" + first["cursor"].text);
    CHECK(second["events"].items.front()["type"].is("job.started"));
    CHECK(read("types=job.failed%2Cjob.started&queues=default&job_types=a.b")["events"].items.size() == 2);
    CHECK(read("queues=other")["events"].items.empty());
    CHECK(read("limit=-1")["error"]["code"].is("invalid_payload"));
}

TEST_CASE("dev_backend: lifecycle events with large errors -> the oldest events are dropped") {
    const backend jobs;
    const std::string error = R"("code":"handler_error","x":")" + std::string(1000000, 'x') + "\"";
    for (int i = 0; i < 5; ++i) pushed(jobs, R"("retry":{"max_attempts":1})");
    for (int i = 0; i < 5; ++i) fail(jobs, claim(jobs)["id"].text, error);  // of two events each
    const auto count = [&](const char* type) {
        return ask(jobs, "GET", std::string("/ojs/v1/events?types=") + type).body["events"].items.size();
    };
    CHECK(count("job.enqueued") == 0);
    CHECK(count("job.started") == 4);
}

TEST_CASE(
    "dev_backend: an error response has a status, a code and the request id of its X-Request-Id header") {
    const backend jobs;
    const std::string uuid = "019539a4-aaaa-7000-8000-111111111111";
    const std::string good = R"({"type":"a","args":[],"id":")" + uuid + "\"}";
    const answer made =
        ask(jobs, "POST", "/ojs/v1/jobs", good, {{"Content-Type", "application/json"}}, "Location");
    CHECK(made.status == 201);
    CHECK(made.header == "/ojs/v1/jobs/" + uuid);
    const std::string twice = R"({"jobs":[{"type":"a","args":[]},)" + good + "]}";
    struct row {
        const char* method;
        std::string path;
        std::string body;
        int status;
        const char* code;
    };
    std::vector<row> rows = {
        {"POST", "/ojs/v1/jobs", good, 409, "duplicate"},
        {"POST", "/ojs/v1/jobs/batch", twice, 409, "duplicate"},
        {"POST", "/ojs/v1/jobs", R"({"type":"a","args":[],"retry":{},"\u0072etry":5})", 422,
         "invalid_request"},
        {"POST", "/ojs/v1/workers/ack", "{\"job_id\":\"" + uuid + "\"}", 409, "conflict"},
        {"GET", "/ojs/v1/jobs/nobody", "", 404, "not_found"},
        {"GET", "/ojs/v1/jobs/a/b", "", 404, "not_found"},
        {"PUT", "/ojs/v1/jobs/a", "", 405, "invalid_request"},
        {"GET", "/ojs/v1/cron", "", 422, "unsupported"},
    };
    const std::string a_job = R"({"type":"a","args":)";
    for (const std::string& body :
         {std::string("{ invalid json }"), std::string(), a_job + "[01]}", a_job + "[1.]}", a_job + "[-]}",
          a_job + "[1e+]}", a_job + "[\"\xff\"]}", a_job + "[\"\xed\xa0\x80\"]}", a_job + "[\"\xe2\x82\"]}",
          repeated("{\"a\":", 5000), a_job + R"([],"expires_at":"9999-12-31T23:59:59-23:59"})",
          a_job + repeated("[", 100) + repeated("]", 100) + "}", std::string(R"({"type":"a-b","args":[]})"),
          a_job + R"([],"options":7})", a_job + R"([],"options":{"priority":101}})"})
        rows.push_back({"POST", "/ojs/v1/jobs", body, 400, "invalid_payload"});
    for (const row& each : rows) {
        CAPTURE(each.path);
        CAPTURE(each.body);
        const answer said = ask(jobs, each.method, each.path, each.body);
        CHECK(said.status == each.status);
        CHECK(said.body["error"]["code"].is(each.code));
        CHECK_FALSE(said.body["error"]["retryable"].flag);
        CHECK(said.body["error"]["request_id"].text == said.header);
        CHECK(said.header.size() > 4);
    }
    CHECK(ask(jobs, "GET", "/ojs/v1/health", "", {{"X-Request-Id", "mine-1"}}).header == "mine-1");
    CHECK(ask(jobs, "GET", "/ojs/v1/health", "", {{"X-Request-Id", "no\tgood"}}).header != "no\tgood");
    CHECK(ask(jobs, "GET", "/ojs/v1/health", "", {{"OJS-Version", "2.0"}})
              .body["error"]["code"]
              .is("unsupported"));
    CHECK(ask(jobs, "GET", "/ojs/v1/health", "", {{"OJS-Version", "1.7"}}).status == 200);
    CHECK(jobs_of(jobs) == 1);
}

TEST_CASE("dev_backend: SIGTERM with requests in flight -> each request gets a response") {
    backend jobs({"--delay", "60s"});
    std::vector<std::thread> clients;
    std::atomic<int> answered{0};
    for (int i = 0; i < 4; ++i) {
        clients.emplace_back([&] {
            const auto got = test::ask(jobs.url(), "POST", "/ojs/v1/workers/fetch",
                                       R"({"queues":["default"],"worker_id":"w"})");
            if (got && got->status == 200) ++answered;
        });
    }
    const auto fetched = [&] { return jobs.count(worker_event("w", "fetch")); };
    CHECK(eventually([&] { return fetched() == 4; }));
    jobs.self().signal(SIGTERM);
    for (std::thread& each : clients) each.join();
    CHECK(answered == 4);
    CHECK(jobs.self().wait() == 0);
}
