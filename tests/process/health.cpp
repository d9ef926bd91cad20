// The health server of a real worker that ends by _exit().
#include "harness.hpp"

TEST_CASE("health: the unix socket is removed even if the worker exits while a handler still runs") {
    backend jobs;
    const std::string path = scratch_file("health.sock");
    process worker = start_worker(
        jobs.url(), "w",
        {{"OJS_HEALTH_ADDR", "unix:" + path}, {"OJS_HEALTH_CONTROL", "on"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "50ms"}});
    REQUIRE(worker.prints("start " + jobs.push_one("test.deaf", "[]")));
    const auto answer = ask("unix:" + path, "POST", "/stop", "", {});
    REQUIRE(answer);
    CHECK(answer->status == 202);
    CHECK(worker.wait() == 0);
    CHECK(::access(path.c_str(), F_OK) != 0);
}
