// What an answer of the backend makes of the worker's memory: a small multiple of its own size, whatever is in it. And what
// a job costs beside its requests.
#ifndef __SANITIZE_THREAD__  // where the programs are those of another configuration
#include <signal.h>

#include <cstdlib>
#include <mutex>

#include "harness.hpp"

using namespace test;

namespace {

std::string filled(std::string start, const std::string& unit, const std::string& last, std::size_t size) {
    while (start.size() + unit.size() + last.size() <= size) start += unit;
    return start + last;
}

struct run {
    std::size_t peak = 0;
    std::string output;
    std::vector<std::string> reports;
};

// It takes seconds of a processor, of which a busy machine gives few.
constexpr milliseconds parsing_guard{120000};

// Until `said` is in the log, or a job was reported.
run work_off(std::string fetch, std::string beat, const std::string& said) {
    // FETCH and BEAT are answered once with the given bodies, then as by a backend with nothing to do.
    std::mutex mutex;
    std::vector<std::string> reports;
    const auto server = ojs::http_server::start("127.0.0.1:0", [&](const ojs::http_request& request) {
        const std::lock_guard<std::mutex> held(mutex);
        ojs::http_response out;
        const bool fetches = request.target == "/ojs/v1/workers/fetch";
        if (fetches || request.target == "/ojs/v1/workers/heartbeat")
            std::swap(out.body, fetches ? fetch : beat);
        else
            reports.push_back(request.target + " " + request.body);
        if (out.body.empty()) out.body = fetches ? "{\"jobs\":[]}" : "{}";
        return out;
    });
    REQUIRE(server);
    const auto reported = [&] {
        const std::lock_guard<std::mutex> held(mutex);
        return !reports.empty();
    };
    process worker({program("counting_worker")}, {{"OJS_URL", "http://" + server->address()},
                                                  {"OJS_CONCURRENCY", "1"},
                                                  {"OJS_HEARTBEAT_INTERVAL", "20ms"},
                                                  {"OJS_POLL_INTERVAL", "20ms"},
                                                  // A job of this size may take its time, also in the stop.
                                                  {"OJS_VISIBILITY_TIMEOUT", "10m"},
                                                  {"OJS_REQUEST_TIMEOUT", "2m"},
                                                  {"OJS_STOP_TIMEOUT", "2m"},
                                                  {"OJS_LOG_FORMAT", "logfmt"}});
    CHECK(eventually([&] { return (!said.empty() && worker.count(said) > 0) || reported(); }, parsing_guard));
    worker.signal(SIGTERM);
    const int status = worker.wait(parsing_guard);
    run out;
    out.output = worker.output();
    out.reports = reports;
    INFO(out.output);
    CHECK((status == 0 || status == 75));
    const std::size_t at = out.output.find("\npeak ");
    REQUIRE((at != std::string::npos || out.output.compare(0, 5, "peak ") == 0));
    out.peak = std::strtoull(out.output.c_str() + (at == std::string::npos ? 5 : at + 6), nullptr, 10);
    return out;
}

constexpr std::size_t size = 1000000;  // large beside all else that a worker holds

}  // namespace

TEST_CASE("memory: a job with many small arguments takes at most six times its size") {
    const std::pair<const char*, std::size_t> rows[] = {
        {"{},", 4 * size},  // as large an answer as a worker takes
        {"[],", size},
        {"0,", size},
        {"\"\",", size}};
    for (const auto& row : rows) {
        const char* const unit = row.first;
        const std::size_t length = row.second;
        CAPTURE(unit);
        const run seen = work_off(
            filled(R"({"jobs":[{"id":"j1","type":"test.keep","args":[true,)", unit, "0]}]}", length), "", "");
        REQUIRE_MESSAGE(seen.reports.size() == 1, seen.output);
        CHECK(seen.reports.front().find("/ack {\"job_id\":\"j1\",\"result\":true}") != std::string::npos);
        CHECK(seen.peak < 6 * length);
    }
}

TEST_CASE("memory: a malformed job or an overlong list in a response takes at most six times its size") {
    const run malformed =
        work_off(filled(R"({"jobs":[{"id":"j1","type":"test.keep","args":[)", "{},", "1e]}]}", size), "", "");
    REQUIRE_MESSAGE(malformed.reports.size() == 1, malformed.output);
    CHECK(malformed.reports.front().find("/nack {\"job_id\":\"j1\",") != std::string::npos);
    CHECK(malformed.peak < 6 * size);
    const run many =
        work_off(filled("{\"jobs\":[", "{},", "{}]}", size), "", "jobs it may have claimed come back");
    CHECK(many.reports.empty());
    CHECK(many.peak < 6 * size);
    const run extended = work_off(R"({"jobs":[{"id":"j1","type":"test.keep","args":[]}]})",
                                  filled("{\"jobs_extended\":[", "\"\",", "\"j1\"]}", size), "");
    CHECK(extended.reports.size() == 1);
    CHECK(extended.peak < 6 * size);
}

TEST_CASE("memory: a job above the size limit of a response is failed by its id, and the worker survives") {
    const run seen = work_off(
        filled(R"({"jobs":[{"id":"j1","type":"test.keep","args":[)", "{},", "0]}]}", 8000000), "", "");
    REQUIRE_MESSAGE(seen.reports.size() == 1, seen.output);
    CHECK(seen.reports.front().find("/nack {\"job_id\":\"j1\",") != std::string::npos);
    CHECK(seen.peak < 4 * ojs::worker_response_limits.body);
}

#ifdef __linux__
// At one slot each job has its own FETCH and ACK. More slots share FETCHes, and take less.
TEST_CASE("memory: a job that does nothing takes at most 12 allocations, 4 locks and 15 clock reads") {
    backend server;
    server.push("test.count", "[]", 1300);
    process worker({program("counting_worker")}, {{"OJS_URL", server.url()},
                                                  {"OJS_CONCURRENCY", "1"},
                                                  {"OJS_HEARTBEAT_INTERVAL", "1m"},
                                                  {"OJS_VISIBILITY_TIMEOUT", "10m"}});
    REQUIRE(worker.prints("clock reads", std::chrono::seconds(100)));  // 1,200 jobs, below a sanitizer too
    double each[3] = {};
    const std::string found = worker.output().substr(worker.output().find("a job: "));
    REQUIRE(std::sscanf(found.c_str(), "a job: %lf allocations, %lf locks, %lf clock", each, each + 1,
                        each + 2) == 3);
    // A heartbeat, or a thread that had to wait, is a small part of one.
    const double most[3] = {12, 4, 15};
    for (int i = 0; i < 3; ++i) {
        CAPTURE(i);
        CHECK(each[i] > 1);
        CHECK(each[i] < most[i] + 0.5);
    }
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}
#endif

TEST_CASE("memory: one allocation fails at any point -> the worker stops, every job reported or listed") {
    process worker({program("out_of_memory")}, {});
    const int status = worker.wait(parsing_guard);
    INFO(worker.output());
    CHECK(status == 0);
    CHECK(worker.output().find(" allocations, 0 failed\nrun(): ") != std::string::npos);
}
#endif
