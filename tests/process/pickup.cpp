// queue_events(): a worker whose next poll is an hour away runs a job as soon as dev_backend announces it.
#include "harness.hpp"

using namespace test;

namespace {

ojs::worker_options events_only(const backend& jobs) {
    ojs::worker_options options;
    options.url = jobs.url();
    options.poll_interval = std::chrono::hours(1);
    options.http_events = ojs::queue_events();
    options.log.level = ojs::log_level::off;
    return options;
}

}  // namespace

TEST_CASE("queue events: an idle worker runs a pushed or retried job without waiting for its next poll") {
    backend jobs;
    counter runs;
    ojs::worker worker(events_only(jobs));
    worker.register_handler("once", [&](ojs::job_context&) { runs.add(); });
    worker.register_handler("twice", [&](ojs::job_context& job) {
        runs.add();
        return job.attempt() == 1 ? ojs::outcome::retry("again") : ojs::outcome::done();
    });
    REQUIRE(worker.start());
    for (int i = 1; i <= 20; ++i) {
        jobs.push_one("once", "[]");
        REQUIRE(runs.wait_for(i));
    }
    const std::string id = jobs.push_one("twice", "[]");
    CHECK(runs.wait_for(22));
    CHECK(jobs.reaches(id, "completed"));
    worker.stop();
    CHECK(worker.exit_code() == 0);
}
