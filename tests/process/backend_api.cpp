// dev_backend's routes: what each takes, refuses and does. [OJS HTTP binding, retry]
#include "harness.hpp"
#include "raw_peer.hpp"

namespace {
struct answer {
    int status = 0;
    json body;
    std::string message() const { return body["error"]["message"].text; }
};

answer ask(const backend& jobs, const std::string& method, const std::string& path, const std::string& body = "",
           const ojs::http_headers& headers = {{"Content-Type", "application/json"}}) {
    const auto got = test::ask(jobs.url(), method, path, body, headers);
    REQUIRE(got);
    return {got->status, json::parse(got->body)};
}

// `members` stand behind the type and the arguments.
answer push(const backend& jobs, const std::string& members) {
    return ask(jobs, "POST", "/ojs/v1/jobs", R"({"type":"a.b","args":[])" + members + "}");
}

std::string pushed(const backend& jobs, const std::string& members) {
    const answer out = push(jobs, members);
    REQUIRE_MESSAGE(out.status == 201, out.message());
    return out.body["job"]["id"].text;
}

json shown(const backend& jobs, const std::string& id) { return ask(jobs, "GET", "/ojs/v1/jobs/" + id).body["job"]; }

json claim(const backend& jobs, const char* worker = "w") {
    const answer got = ask(jobs, "POST", "/ojs/v1/workers/fetch",
                           std::string(R"({"queues":["default"],"worker_id":")") + worker + "\"}");
    REQUIRE(got.status == 200);
    return got.body["jobs"].items.empty() ? json() : got.body["jobs"].items.front();
}

json fail(const backend& jobs, const std::string& id, const std::string& error = R"("code":"handler_error")",
          const std::string& more = "") {
    return ask(jobs, "POST", "/ojs/v1/workers/nack",
               R"({"job_id":")" + id + R"(","error":{"message":"m",)" + error + "}" + more + "}")
        .body;
}

// A job with that policy fails for the first time.
json first_failure(const backend& jobs, const std::string& policy,
                   const std::string& error = R"("code":"handler_error")") {
    const std::string id = pushed(jobs, ",\"retry\":{" + policy + "}");
    REQUIRE(claim(jobs)["id"].text == id);
    return fail(jobs, id, error);
}

std::int64_t jobs_of(const backend& jobs) { return ask(jobs, "GET", "/dev/summary").body["pushed"].number; }
}  // namespace

TEST_CASE("dev_backend: an invalid request -> a 4xx status with the reason, and no job") {
    const backend jobs;
    const std::string open = R"({"type":"a","args":)";
    const std::string many = std::string(100, '[') + std::string(100, ']');
    const std::string post = "POST /ojs/v1/jobs", batch = "POST /ojs/v1/jobs/batch";
    const auto with = [&](const std::string& member) { return open + "[]," + member + "}"; };
    const struct {
        std::string call;
        std::string body;
        int status;
        const char* message;
    } rows[] = {
        {"GET /ojs/v1/jobs/nobody", "", 404, "no such job"},
        {"GET /ojs/v1/workers/w/health", "", 404, "no such worker"},
        {"GET /ojs/v1/queues/nobody/stats", "", 404, "no job was ever in this queue"},
        {"PUT /ojs/v1/jobs/a", "", 405, "method not allowed"},
        {"GET /ojs/v1/events?limit=x", "", 400, "limit is not a number up to 1000"},
        {"POST /dev/directive", R"({"worker_id":"w","directive":"pause"})", 400, "directive is none of"},
        {"POST /dev/faults", R"({"faults":"lose:1001"})", 400, "faults is not"},
        {"POST /ojs/v1/workers/fetch", R"({"queues":["q"],"count":0})", 400, "count is not a whole number"},
        {"POST /ojs/v1/workers/nack", R"({"job_id":"a"})", 400, "error is missing"},
        {post, open + "[01]}", 400, "the body is"},
        {post, open + "[\"\xff\"]}", 400, "the body is"},
        {post, open + many + "}", 400, "the body is"},
        {post, open + "7}", 400, "args is missing or not an array"},
        {post, R"({"type":"a-b","args":[]})", 400, "type must be names"},
        {batch, R"({"jobs":[]})", 400, "jobs is missing, empty or not an array"},
        {batch, R"({"jobs":[7]})", 400, "jobs[0]: a job is not an object"},
        {batch, R"({"jobs":[],"queue":"q"})", 422, R"("queue" belongs into "options")"},
        {batch, "{\"jobs\":[" + open + "[]}," + with(R"("max_attempts":1)") + "]}", 422,
         R"(jobs[1]: "max_attempts" belongs into "options.retry")"},
        {post, with(R"("retries":null)"), 422, R"(unknown member "retries" in the job itself)"},
        {post, with(R"("options":{"\u0070rio":1})"), 422, R"(unknown member "prio" in "options")"},
        {post, with(R"("id":"7")"), 400, "id is not a UUIDv7"},
        {post, with(R"("options":[])"), 400, "options is not an object"},
        {post, with(R"("queue":"_")"), 400, "queue must be of"},
        {post, with(R"("priority":1.5)"), 400, "priority is not a whole number"},
        {post, with(R"("timeout_ms":"1s")"), 400, "timeout_ms is not a number"},
        {post, with(R"("delay_until":"2026-01-01T00:00:00")"), 400, "delay_until is not a time"},
        {post, with(R"("retry":{"max_attempts":-1})"), 422, "retry.max_attempts"},
        {post, with(R"("retry":{"backoff_coefficient":0.99})"), 422, "retry.backoff_coefficient"},
        {post, with(R"("retry":{"non_retryable_errors":"x"})"), 422, "retry.non_retryable_errors"},
        {post, with(R"("retry":{"on_exhaustion":"keep"})"), 422, "retry.on_exhaustion"},
        {post, with(R"("retry":{"backoff_strategy":"random"})"), 422, "retry.backoff_strategy"},
        {post, with(R"("retry":{"initial_interval":"PT1M","max_interval":"PT59S"})"), 422,
         "retry.max_interval is less"},
        {post, with(R"("retry":{"initial_interval":"PT"})"), 422, "retry.initial_interval is not an ISO 8601 duration"},
        {post, with(R"("unique":{"keys":["meta"]})"), 422,
         R"(unique.keys has "meta"; this backend has type, queue and)"},
        {post, with(R"("unique":{"on_conflict":"replace"})"), 422, R"(unique.on_conflict is not "reject")"},
    };
    for (const auto& each : rows) {
        CAPTURE(each.call);
        CAPTURE(each.body);
        const std::size_t blank = each.call.find(' ');
        const answer said = ask(jobs, each.call.substr(0, blank), each.call.substr(blank + 1), each.body);
        CHECK(said.status == each.status);
        CHECK_MESSAGE(said.message().rfind(each.message, 0) == 0, said.message());
        CHECK_FALSE(said.body["error"]["retryable"].flag);
    }
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE("dev_backend: a PUSH in each documented form is accepted, and unknown members are kept") {
    const backend jobs;
    const std::string schema =  // a job by the published schema, as GET shows it
        R"({"type":"a","args":[],"specversion":"1.0","id":"019539a4-aaaa-7000-8000-111111111111","queue":"q-1.a","priority":1,)"
        R"("timeout":30,"scheduled_at":"2026-01-31T12:00:00.5+01:00","expires_at":"2199-01-31T12:00:00Z","schema":"urn:x",)"
        R"("retry":{"initial_interval":"P1DT1H1M1.5S","max_interval":"P1W"},"unique":{"keys":["type","queue"]},)"
        R"("state":"completed","attempt":2,"created_at":"x","enqueued_at":"x","started_at":"x","completed_at":"x",)"
        R"("result":1,"error":{},"errors":[],"meta":{"max_attempts":1},"x_a":{"b":7},"ext_c":"d"})";
    std::vector<std::string> forms = {schema};
    const std::string command = block_of("tools/dev_backend/README.md", "sh");
    if (command.empty()) MESSAGE("skipped: its README is not there");
    const std::size_t begin = command.find("-d '");
    if (begin != command.npos) forms.push_back(command.substr(begin + 4, command.rfind('\'') - begin - 4));
    for (const std::string& body : forms) {
        const answer said = ask(jobs, "POST", "/ojs/v1/jobs", body);
        CAPTURE(said.message());
        REQUIRE(said.status == 201);
        CHECK(said.body["job"]["attempt"].number == 0);
    }
    const json job = shown(jobs, "019539a4-aaaa-7000-8000-111111111111");
    CHECK(job["timeout_ms"].number == 30000);
    CHECK(job["meta"]["max_attempts"].number == 1);
    CHECK(job["x_a"]["b"].number == 7);
    CHECK(job["ext_c"].is("d"));
}

TEST_CASE("dev_backend: a PUSH with the id or unique keys of an unfinished job gets 409, also in a batch") {
    const backend jobs;
    const auto status = [&](const std::string& members) { return push(jobs, "," + members).status; };
    const std::string id = R"("id":"019539a4-aaaa-7000-8000-111111111111")";
    CHECK(status(id) == 201);
    CHECK(status(id) == 409);
    const std::string by_args = R"("unique":{"keys":["type","args"],"period":"PT1H"},"args":)";
    const std::string first = pushed(jobs, "," + by_args + R"([{"x":1,"y":[2]}])");
    const answer second = push(jobs, "," + by_args + R"([ {"y":[2],"x":1.0} ])");
    CHECK(second.status == 409);
    CHECK(second.message() == "unique: job " + first + " (available) is a duplicate");
    CHECK(status(by_args + "[]") == 201);
    CHECK(status(R"("unique":{"keys":["queue"]})") == 201);
    CHECK(status(R"("unique":{"keys":["queue"]},"queue":"other")") == 201);
    CHECK(status(R"("unique":{"keys":["queue"]},"queue":"other")") == 409);
    // Each earlier job is soon older than a millisecond.
    CHECK(eventually([&] { return status(R"("unique":{"keys":["queue"],"period":"PT0.001S"})") == 201; }));
    ask(jobs, "DELETE", "/ojs/v1/jobs/" + first);
    CHECK(status(by_args + R"([{"x":1,"y":[2]}])") == 201);
    const std::int64_t before = jobs_of(jobs);
    const std::string twice = R"({"type":"c","args":[],"unique":{}})";
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs/batch", R"({"jobs":[)" + twice + "," + twice + "]}").status == 409);
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs/batch",
              R"({"jobs":[{"type":"c","args":[]},{"type":"c","args":[],)" + id + "}]}")
              .status == 409);
    CHECK(jobs_of(jobs) == before);
}

TEST_CASE("dev_backend: retry delays follow the interval, strategy and maximum of the job's policy") {
    const backend jobs;
    const struct {
        const char* policy;
        std::vector<std::int64_t> delays;
    } cases[] = {
        {R"("backoff_coefficient":3)", {20, 60, 180}},
        {R"("backoff_coefficient":9,"max_interval":"PT0.05S")", {20, 50, 50}},
        {R"("backoff_strategy":"linear","backoff_coefficient":5)", {20, 40, 60}},
        {R"("backoff_strategy":"polynomial","backoff_coefficient":2)", {20, 80, 180}},
        {R"("backoff_strategy":"none","backoff_coefficient":2)", {20, 20, 20}},
    };
    for (const auto& each : cases) {
        CAPTURE(each.policy);
        const std::string id =
            pushed(jobs, R"(,"retry":{"max_attempts":4,"initial_interval":"PT0.02S","jitter":false,)" +
                             std::string(each.policy) + "}");
        for (const std::int64_t delay : each.delays) {
            REQUIRE(eventually([&] { return claim(jobs)["id"].text == id; }));
            const json said = fail(jobs, id);
            CHECK(said["state"].is("retryable"));
            CHECK(said["retry_delay_ms"].number == delay);
        }
        REQUIRE(eventually([&] { return claim(jobs)["id"].text == id; }));
        CHECK(fail(jobs, id)["state"].is("discarded"));
    }
    std::set<std::int64_t> seen;  // of 30 to 75 minutes
    for (int i = 0; i < 30; ++i) {
        const json said = first_failure(jobs, R"("initial_interval":"PT1H","max_interval":"PT75M")");
        seen.insert(said["retry_delay_ms"].number);
    }
    CHECK(*seen.begin() >= 1800000);
    CHECK(*seen.rbegin() <= 4500000);
    CHECK(seen.size() > 10);
}

// [GS 5.3 (b)]
TEST_CASE("dev_backend: the error and the policy decide between retry, discard and dead letter") {
    const backend jobs;
    const std::string never = R"("non_retryable_errors":["auth.*","x"],"on_exhaustion":"dead_letter")";
    const struct {
        std::string policy;
        std::string error;
        const char* state;
        bool dead = false;
    } cases[] = {
        {never, R"("code":"c","type":"auth.expired")", "discarded", true},
        {never, R"("code":"c","type":"x")", "discarded", true},
        {never, R"("code":"c","type":"auth")", "retryable"},
        {never, R"("code":"c","type":"xy")", "retryable"},
        {never, R"("code":"c","details":{"error_class":"x"})", "discarded", true},
        {R"("max_attempts":9)", R"("code":"c","retryable":false)", "discarded"},
        {R"("max_attempts":0)", R"("code":"c")", "discarded"},
        {R"("max_attempts":9)", R"("code":"ShutdownError","retryable":false)", "retryable"},
        {R"("max_attempts":9)", R"("code":"c","type":"ShutdownError","retryable":false)", "retryable"},
    };
    std::vector<std::string> dead;
    for (const auto& each : cases) {
        CAPTURE(each.policy);
        CAPTURE(each.error);
        const json said = first_failure(jobs, R"("initial_interval":"PT1H",)" + each.policy, each.error);
        CHECK(said["state"].is(each.state));
        if (each.dead) dead.push_back(said["id"].text);
    }
    const json all = ask(jobs, "GET", "/ojs/v1/dead-letter").body["jobs"];
    std::vector<std::string> listed;
    for (const json& job : all.items) listed.push_back(job["id"].text);
    CHECK(listed == dead);
    CHECK(ask(jobs, "DELETE", "/ojs/v1/dead-letter/" + dead[0]).body["deleted"].flag);
    CHECK(ask(jobs, "GET", "/ojs/v1/jobs/" + dead[0]).status == 404);
    const json again = ask(jobs, "POST", "/ojs/v1/dead-letter/" + dead[1] + "/retry").body["job"];
    CHECK(again["state"].is("available"));
    CHECK(again["attempt"].number == 0);
    CHECK_FALSE(again.has("error"));
    CHECK(ask(jobs, "POST", "/ojs/v1/dead-letter/" + dead[1] + "/retry").status == 404);
    CHECK(claim(jobs)["id"].text == dead[1]);
}

TEST_CASE("dev_backend: a job can be claimed while due and not expired, and cancelled until it ends") {
    const backend jobs;
    const std::string later = pushed(jobs, R"(,"delay_until":"2199-12-31T23:59:59.999+14:00")");
    const std::string never = pushed(jobs, R"(,"delay_until":"9999-12-31T23:59:59Z")");
    const std::string past = pushed(jobs, R"(,"delay_until":"2001-02-03T04:05:06Z")");
    const std::string stale = pushed(jobs, R"(,"expires_at":"2001-02-03T04:05:06.5Z")");
    CHECK(claim(jobs)["id"].text == past);
    CHECK(claim(jobs)["id"].text.empty());
    CHECK(shown(jobs, later)["state"].is("scheduled"));
    CHECK(shown(jobs, never)["state"].is("scheduled"));
    CHECK(shown(jobs, stale)["state"].is("discarded"));
    CHECK(ask(jobs, "DELETE", "/ojs/v1/jobs/" + later).body["job"]["previous_state"].is("scheduled"));
    CHECK(ask(jobs, "DELETE", "/ojs/v1/jobs/" + later).status == 409);
    const json events = ask(jobs, "GET", "/ojs/v1/events?types=job.expired,job.cancelled&queues=default&limit=2").body;
    REQUIRE(events["events"].items.size() == 2);
    CHECK(events["events"].items.back()["subject"].text == later);
}

TEST_CASE("dev_backend: an attempt that exceeds its timeout fails, even if heartbeats extend its lease") {
    const backend jobs({"--timeout-grace", "0s"});
    const std::string id = pushed(jobs, R"(,"timeout_ms":300,"retry":{"initial_interval":"PT1H"})");
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(eventually([&] {
        ask(jobs, "POST", "/ojs/v1/workers/heartbeat",
            R"({"worker_id":"w","active_jobs":[")" + id + R"("],"visibility_timeout_ms":60000})");
        return shown(jobs, id)["state"].is("retryable");
    }));
    CHECK(shown(jobs, id)["error"]["type"].is("timeout"));
    CHECK(shown(jobs, id)["errors"].items.size() == 1);
    CHECK(ask(jobs, "POST", "/ojs/v1/workers/ack", "{\"job_id\":\"" + id + "\"}").status == 409);
}

// [WP 5.1] [River stuck programs (c)]
TEST_CASE("dev_backend: an expired lease is recorded as an error of the job and uses up an attempt") {
    const backend jobs;
    const std::string id = pushed(jobs, R"(,"retry":{"max_attempts":2},"visibility_timeout_ms":50)");
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(eventually([&] { return shown(jobs, id)["state"].is("available"); }));
    REQUIRE(shown(jobs, id)["errors"].items.size() == 1);
    CHECK(shown(jobs, id)["errors"].items.front()["type"].is("visibility_timeout"));
    REQUIRE(claim(jobs)["id"].text == id);
    CHECK(eventually([&] { return shown(jobs, id)["state"].is("discarded"); }));
    CHECK(shown(jobs, id)["errors"].items.size() == 2);
}

TEST_CASE("dev_backend: a heartbeat's response has the directive; only a running worker gets jobs") {
    const backend jobs;
    const std::string id = pushed(jobs, "");
    const auto beat = [&](const char* path, const char* state) {
        return ask(jobs, "POST", path, std::string(R"({"worker_id":"w/1","active_jobs":1,"state":")") + state + "\"}")
            .body;
    };
    const std::string health = "/ojs/v1/workers/w%2F1/health";
    CHECK(beat("/ojs/v1/workers/heartbeat", "running")["state"].is("running"));
    CHECK(ask(jobs, "GET", health).status == 200);
    CHECK(ask(jobs, "POST", "/dev/directive", R"({"worker_id":"*","directive":"quiet"})").status == 200);
    CHECK(beat("/ojs/v1/workers/heartbeat", "running")["state"].is("quiet"));
    CHECK(ask(jobs, "POST", "/dev/directive", R"({"worker_id":"w/1","directive":"terminate"})").status == 200);
    CHECK(beat("/ojs/v1/workers/beat", "drain")["state"].is("terminate"));
    CHECK(ask(jobs, "GET", health).status == 503);
    CHECK(claim(jobs, "w/1")["id"].text.empty());
    CHECK(claim(jobs)["id"].text == id);
}

TEST_CASE("dev_backend: requests that a web page could send are refused and have no effect") {
    const backend jobs;
    const struct {
        const char* headers;
        const char* status;
    } rows[] = {
        {"Host: localhost\r\nOrigin: http://evil.example", "403"},
        {"Host: localhost\r\nsec-fetch-site: same-origin", "403"},
        {"Host: evil.example:8080", "403"},
        {"Host: 127.0.0.1.evil.example", "403"},
        {"Host: [evil]", "403"},
        {"Host: localhost:1", "201"},
        {"Host: [::1]:80", "201"},
        {"Host: 10.0.0.7", "201"},
    };
    for (const auto& each : rows) {
        CAPTURE(std::string(each.headers));
        // Byte for byte: a client of the library would add a Host of its own.
        peer::client client(jobs.port());
        client.send(std::string("POST /ojs/v1/jobs HTTP/1.1\r\nConnection: close\r\nContent-Length: 22\r\n") +
                    each.headers + "\r\n\r\n" + R"({"type":"a","args":[]})");
        CHECK(client.rest().substr(9, 3) == each.status);
    }
    CHECK(jobs_of(jobs) == 3);
}

TEST_CASE("dev_backend: GET / lists the routes, and a port in use ends start-up with 71") {
    const backend jobs;
    const auto got = test::ask(jobs.url(), "GET", "/", "", {});
    REQUIRE(got);
    CHECK(got->body.find("POST /ojs/v1/jobs  enqueue a job\n") != std::string::npos);
    process taken({program("dev_backend"), "--port", std::to_string(jobs.port())}, {});
    CHECK(taken.wait() == 71);
    CHECK(taken.prints("in use"));
}

TEST_CASE("ojs: push, show, cancel and queues work on dev_backend; a wrong value ends with 64 and is named") {
    const backend jobs;
    const auto run = [&](const std::string& command, int status) {
        std::vector<std::string> all = words(command);
        all.insert(all.begin(), program("ojs"));
        process ran(all, {{"OJS_URL", jobs.url()}});
        CHECK_MESSAGE(ran.wait() == status, command << ": " << ran.output());
        return ran.output();
    };
    const std::string id =
        run(R"(push mail.send you 7 {"a":[1]} "7" --queue mail --priority 5 --meta k=v=w -- --x)", 0);
    const json job = json::parse(run("show " + id, 0));
    CHECK(job["args"].items.size() == 5);
    CHECK(job["args"].items[1].number == 7);
    CHECK(job["args"].items[3].is("7"));
    CHECK(job["args"].items[4].is("--x"));
    CHECK(job["priority"].number == 5);
    CHECK(job["meta"]["k"].is("v=w"));
    const std::string later = run("push mail.send --delay 1h --queue mail", 0);
    CHECK(run("queues", 0).find("\nmail           1       0          1          0  active\n") != std::string::npos);
    CHECK(run("cancel " + id, 0) == "cancelled\n");
    CHECK(run("push mail.send --id " + later, 1).find("answered 409: duplicate (") != std::string::npos);
    CHECK(run("push mail.send --delay 3x", 64).find("error: --delay: '3x' is not a duration") == 0);
    CHECK(run("push Mail", 64).find("error: type must be names") == 0);
    CHECK(run("push --help", 0).find("usage: ojs push") == 0);
}
