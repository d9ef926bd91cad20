// The example worker's text.count, killed, and stopped in the middle of its work.
#include "harness.hpp"

namespace {
std::string write_text() {
    std::string path = scratch_file("text");
    std::ofstream out(path, std::ios::binary);
    for (std::int64_t i = 0; i < 200003; ++i) out << "abcdefghij \n"[i * i % 12];
    return path;
}

process count_worker(const std::string& url, const std::string& id) {
    return process({program("worker")},
                   settings_from("OJS_HEARTBEAT_INTERVAL=50ms OJS_POLL_INTERVAL=20ms OJS_CONCURRENCY=1 "
                                 "OJS_SHUTDOWN_GRACE_PERIOD=0s OJS_CANCEL_GRACE=30s OJS_STOP_TIMEOUT=60s "
                                 "OJS_VISIBILITY_TIMEOUT=60s",
                                 {{"OJS_URL", url}, {"OJS_WORKER_ID", id}}));
}
}  // namespace

// [GS 1] [GS 7.1 (a)] [GS 7.2 (3)] [Website In-flight (c)] [WP 10.1 - 10.3]
TEST_CASE("text.count: SIGKILL -> the next run starts over; SIGTERM -> it continues from the checkpoint") {
    backend jobs({"--dead-after", "2s"});  // a live one is silent for less
    const std::string id = jobs.push_one("text.count", "[\"" + write_text() + "\",3600000,1,65536]");
    const auto run = [&](int number, int signal) {
        const std::string name = "w" + std::to_string(number);
        const process worker = count_worker(jobs.url(), name);
        const auto beat = worker_event(name, "beat");
        REQUIRE(jobs.event([&](const json& each) { return beat(each) && each["active"].holds(id); }).what ==
                json::kind::object);
        worker.signal(signal);
        CHECK(worker.wait() == (signal == SIGKILL ? -SIGKILL : 0));
        REQUIRE(jobs.reaches(id, "available"));
        return jobs.job(id)["meta"]["checkpoint"];
    };
    CHECK(run(0, SIGKILL).what == json::kind::null);
    std::int64_t passed = 0;  // in the latest checkpoint
    std::int64_t continued_in = 1;
    for (int number = 1; continued_in == 1 && number < 100; ++number) {
        const json state = run(number, SIGTERM);
        continued_in = std::max<std::int64_t>(1, state["first_pass"].number);
        if (continued_in == 1) passed = state["pass"].number;
    }
    CHECK(continued_in == passed);
}
