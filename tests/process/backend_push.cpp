// What dev_backend takes and refuses in a PUSH, and its list of routes.
#include <sstream>

#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

struct answer {
    int status = 0;
    std::string body;
    json parsed;
    std::string message() const { return parsed["error"]["message"].text; }
    std::string code() const { return parsed["error"]["code"].text; }
};

answer ask(const backend& jobs, const std::string& method, const std::string& path,
           const std::string& body = "") {
    const auto got = test::ask(jobs.url(), method, path, body, {{"Content-Type", "application/json"}});
    REQUIRE(got);
    return {got->status, got->body, json::parse(got->body)};
}

// `members` stand behind the type and the arguments.
answer push(const backend& jobs, const std::string& members) {
    return ask(jobs, "POST", "/ojs/v1/jobs", R"({"type":"a.b","args":[])" + members + "}");
}

std::int64_t jobs_of(const backend& jobs) {
    return json::parse(ask(jobs, "GET", "/dev/summary").body)["pushed"].number;
}

}  // namespace

TEST_CASE("dev_backend: a PUSH has an unknown member -> 422, and the message names it and its place") {
    const backend jobs;
    const struct {
        const char* members;
        const char* message;
    } cases[] = {
        {R"(,"retries":1)", R"(unknown member "retries" in the job itself)"},
        {R"(,"retries":null)", R"(unknown member "retries" in the job itself)"},
        {R"(,"maxAttempts":1)", R"(unknown member "maxAttempts" in the job itself)"},
        {R"(,"worker_id":"w")", R"(unknown member "worker_id" in the job itself)"},
        {R"(,"options":{"rate_limit":{}})", R"(unknown member "rate_limit" in "options")"},
        {R"(,"options":{"":1})", R"(unknown member "" in "options")"},
        {R"(,"options":{"\u0070rio":1})", R"(unknown member "prio" in "options")"},
        {R"(,"options":{"retry":{"strategy":"linear"}})", R"(unknown member "strategy" in "options.retry")"},
        {R"(,"retry":{"strategy":"linear"})", R"(unknown member "strategy" in "options.retry")"},
        {R"(,"options":{"unique":{"args_keys":["x"]}})", R"(unknown member "args_keys" in "options.unique")"},
        {R"(,"unique":{"within":"PT1H"})", R"(unknown member "within" in "options.unique")"},
    };
    for (const auto& each : cases) {
        CAPTURE(each.members);
        const answer said = push(jobs, each.members);
        CHECK(said.status == 422);
        CHECK(said.code() == "invalid_request");
        CHECK(said.message() == each.message);
    }
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE("dev_backend: a known option is in the wrong place -> 422, and the message says where it belongs") {
    const backend jobs;
    const struct {
        const char* members;
        const char* message;
    } cases[] = {
        {R"(,"max_attempts":1)", R"("max_attempts" belongs into "options.retry")"},
        {R"(,"options":{"max_attempts":1})", R"("max_attempts" belongs into "options.retry")"},
        {R"(,"options":{"retry":{"queue":"q"}})", R"("queue" belongs into "options")"},
        {R"(,"options":{"meta":{}})", R"("meta" belongs into the job itself)"},
        {R"(,"options":{"x_mine":1})", R"("x_mine" belongs into the job itself)"},
        {R"(,"on_conflict":"reject")", R"("on_conflict" belongs into "options.unique")"},
        {R"(,"options":{"jobs":[]})", R"("jobs" belongs into the body of a batch)"},
    };
    for (const auto& each : cases) {
        CAPTURE(each.members);
        const answer said = push(jobs, each.members);
        CHECK(said.status == 422);
        CHECK(said.message() == each.message);
    }
    const answer batch = ask(jobs, "POST", "/ojs/v1/jobs/batch", R"({"jobs":[],"queue":"q"})");
    CHECK(batch.status == 422);
    CHECK(batch.message() == R"("queue" belongs into "options")");
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE("dev_backend: an option has a value of a wrong type -> the message names the option") {
    const backend jobs;
    const struct {
        const char* member;
        const char* value;
    } cases[] = {
        {"id", "7"},          {"meta", "[]"},           {"schema", "7"},
        {"specversion", "1"}, {"options", "[]"},        {"queue", "7"},
        {"priority", "1.5"},  {"timeout_ms", "\"1s\""}, {"visibility_timeout_ms", "{}"},
        {"delay_until", "7"}, {"expires_at", "true"},   {"pending", "\"yes\""},
        {"tags", "[7]"},      {"retry", "7"},           {"unique", "true"},
        {"metadata", "7"},
    };
    for (const auto& each : cases) {
        CAPTURE(each.member);
        const answer said = push(jobs, std::string(",\"") + each.member + "\":" + each.value);
        CHECK((said.status == 400 || said.status == 422));
        CHECK(said.message().rfind(each.member, 0) == 0);
    }
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE("dev_backend: a PUSH in the form of each published SDK is accepted") {
    const backend jobs;
    const char* const go =
        R"(,"meta":{"a":{"b":1}},"schema":"urn:ojs:schema:a.b:v1","options":{"queue":"q","priority":5,"timeout_ms":30000,)"
        R"("delay_until":"2026-01-31T12:00:00.123456789+01:00","expires_at":"2199-01-31T12:00:00Z","retry":{"max_attempts":5,)"
        R"("initial_interval_ms":1000,"backoff_coefficient":2,"max_interval_ms":300000,"jitter":true,)"
        R"("non_retryable_errors":["auth.*"]},"unique":{"key":["type","args"],"period_ms":60000,"on_conflict":"reject"},)"
        R"("tags":["x"],"visibility_timeout_ms":30000})";
    const char* const js =
        R"(,"options":{"timeout_ms":30000,"retry":{"max_attempts":3,"initial_interval":"PT1S","max_interval":"PT5M",)"
        R"("on_exhaustion":"dead_letter"},"unique":{"key":["type","queue"],"period":"PT1H","states":["active"]}})";
    const char* const ruby =
        R"(,"specversion":"1.0","id":"019539a4-aaaa-7000-8000-111111111111","queue":"default","priority":1,"timeout":30,)"
        R"("scheduled_at":"2026-01-31T12:00:00Z","retry":{"max_attempts":2},"unique":{"keys":["type","queue"]},"schema":"urn:x")";
    const char* const stored =  // a job as GET shows it, without what only this backend adds
        R"(,"state":"completed","attempt":2,"created_at":"2026-01-31T12:00:00Z","enqueued_at":"x","started_at":"x",)"
        R"("completed_at":"x","cancelled_at":"x","discarded_at":"x","result":1,"error":{},"errors":[],"retry_delay_ms":5)";
    for (const char* members : {go, js, ruby, stored, R"(,"id":null,"meta":null,"options":null)"}) {
        CAPTURE(members);
        const answer said = push(jobs, members);
        CAPTURE(said.body);
        CHECK(said.status == 201);
        CHECK(said.parsed["job"]["attempt"].number == 0);
        ask(jobs, "POST", "/dev/reset");
    }
}

TEST_CASE("dev_backend: the command of docs/jobs.md with every option is accepted") {
    const std::string command = block_of("docs/jobs.md", "sh");
    if (command.empty()) {
        MESSAGE("skipped: docs/jobs.md is not there");
        return;
    }
    const std::size_t begin = command.find("-d '") + 4;
    const backend jobs;
    const answer said = ask(jobs, "POST", "/ojs/v1/jobs", command.substr(begin, command.rfind('\'') - begin));
    CAPTURE(said.body);
    CHECK(said.status == 201);
}

TEST_CASE("dev_backend: members of meta, and those that begin with x_ or ext_, are kept in the job") {
    const backend jobs;
    const answer said = push(jobs, R"(,"meta":{"max_attempts":1,"q":{"z":[]}},"x_a":{"b":7},"ext_c":"d")");
    REQUIRE(said.status == 201);
    const json job = said.parsed["job"];
    CHECK(job["meta"]["max_attempts"].number == 1);
    CHECK(job["x_a"]["b"].number == 7);
    CHECK(job["ext_c"].is("d"));
}

TEST_CASE("dev_backend: one job of a batch is refused -> the message has its index, and none is enqueued") {
    const backend jobs;
    const answer said = ask(jobs, "POST", "/ojs/v1/jobs/batch",
                            R"({"jobs":[{"type":"a","args":[]},{"type":"a","args":[],"max_attempts":1}]})");
    CHECK(said.status == 422);
    CHECK(said.message() == R"(jobs[1]: "max_attempts" belongs into "options.retry")");
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs/batch", R"({"jobs":[7]})").message() ==
          "jobs[0]: a job is not an object");
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE(
    "dev_backend: a unique job with the same keys as an unfinished job -> 409 duplicate, which names that "
    "job") {
    const backend jobs;
    const auto enqueue = [&](const char* args, const std::string& unique, const char* queue = "q") {
        return ask(jobs, "POST", "/ojs/v1/jobs",
                   std::string(R"({"type":"a","args":)") + args + R"(,"options":{"queue":")" + queue +
                       "\",\"unique\":{" + unique + "}}}");
    };
    const std::string by_args = R"("keys":["type","args"])";
    const answer first = enqueue(R"([{"x":1,"y":[2]}])", by_args);
    REQUIRE(first.status == 201);
    const std::string id = first.parsed["job"]["id"].text;
    const answer second = enqueue(R"([ {"y":[2],"x":1.0} ])", by_args, "other");
    CHECK(second.status == 409);
    CHECK(second.code() == "duplicate");
    CHECK(second.message() == "unique: job " + id + " (available) is a duplicate");
    CHECK(enqueue("[]", "").status == 409);  // by its type alone
    CHECK(enqueue("[]", by_args).status == 201);
    CHECK(enqueue("[]", R"("keys":["queue"])", "other").status == 201);
    CHECK(enqueue("[]", R"("keys":["queue"])", "other").status == 409);
    CHECK(enqueue(R"([{"x":1,"y":[2]}])", by_args + R"(,"states":["active"])").status == 201);
    CHECK(eventually(  // each earlier job is soon older than a millisecond
        [&] { return enqueue("[]", by_args + R"(,"period":"PT0.001S")").status == 201; }));
    CHECK(enqueue("[]", by_args + R"(,"period":"PT1H")").status == 409);
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs", R"({"type":"b","args":[],"unique":{}})").status == 201);
    REQUIRE(ask(jobs, "POST", "/ojs/v1/jobs", R"({"type":"b","args":[],"unique":{}})").status == 409);
}

TEST_CASE(
    "dev_backend: a unique job whose duplicate was cancelled gets 201, unless unique.states lists "
    "cancelled") {
    const backend jobs;
    const answer first = push(jobs, R"(,"unique":{})");
    REQUIRE(first.status == 201);
    CHECK(push(jobs, R"(,"unique":{})").status == 409);
    ask(jobs, "DELETE", "/ojs/v1/jobs/" + first.parsed["job"]["id"].text);
    CHECK(push(jobs, R"(,"unique":{"states":["cancelled"]})").status == 409);
    CHECK(push(jobs, R"(,"unique":{})").status == 201);
}

TEST_CASE(
    "dev_backend: one job of a batch is a duplicate, even of another in the batch -> 409, and none is "
    "enqueued") {
    const backend jobs;
    const auto batch = [&](const std::string& unique) {
        return ask(jobs, "POST", "/ojs/v1/jobs/batch",
                   R"({"jobs":[{"type":"a","args":[1]},{"type":"a","args":[1],"unique":{)" + unique + "}}]}");
    };
    CHECK(batch("").status == 409);
    CHECK(jobs_of(jobs) == 0);
    CHECK(batch(R"("states":["completed"])").status == 201);
    CHECK(ask(jobs, "POST", "/ojs/v1/jobs/batch",
              R"({"jobs":[{"type":"b","args":[]},{"type":"a","args":[],"unique":{}}]})")
              .status == 409);
    CHECK(jobs_of(jobs) == 2);
}

TEST_CASE("dev_backend: unique is invalid or not supported -> 422, and the message names the member") {
    const backend jobs;
    const struct {
        const char* unique;
        const char* message;
    } cases[] = {
        {R"("keys":["argz"])", "unique.keys has \"argz\"; this backend has type, queue and args"},
        {R"("keys":["meta"])", "unique.keys has \"meta\"; this backend has type, queue and args"},
        {R"("key":"type")", "unique.key is not an array of strings"},
        {R"("states":["done"])", "unique.states has \"done\", which is no state"},
        {R"("period":"1h")", "unique.period is not an ISO 8601 duration of weeks or less, such as PT1.5S"},
        {R"("period_ms":"1")", "unique.period_ms is not a number"},
        {R"("on_conflict":"replace")",
         "unique.on_conflict is not \"reject\", the only one that this backend has"},
    };
    for (const auto& each : cases) {
        CAPTURE(each.unique);
        const answer said = push(jobs, std::string(",\"options\":{\"unique\":{") + each.unique + "}}");
        CHECK(said.status == 422);
        CHECK(said.message() == each.message);
    }
    CHECK(jobs_of(jobs) == 0);
}

TEST_CASE("dev_backend: GET / -> a list of routes, each of which exists") {
    const backend jobs;
    const auto got = test::ask(jobs.url(), "GET", "/", "", {});
    REQUIRE(got);
    CHECK(got->status == 200);
    CHECK(ojs::find_header(got->headers, "Content-Type") == "text/plain; charset=utf-8");
    CHECK(got->body.find("POST   /ojs/v1/jobs ") != std::string::npos);
    CHECK(got->body.find("GET    /dev/summary ") != std::string::npos);
    std::istringstream lines(got->body);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        CAPTURE(line);
        std::istringstream words(line);
        std::string method;
        std::string path;
        std::string purpose;
        REQUIRE(static_cast<bool>(words >> method >> path >> purpose));
        const answer said = ask(jobs, method, path, method == "POST" ? "{}" : "");
        CHECK(said.status != 405);
        CHECK(said.message() != "no such route");
    }
    CHECK(count > 30);
}
