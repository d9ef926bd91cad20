// What a transport for a broker needs beside a job's id: the text of its claim, the job itself, the end of a long poll,
// the phase, and claims that end with a connection.
#include "recorder.hpp"

using namespace recorder;

namespace {
ojs::job claimed_as(std::string id, std::string claim, std::int64_t attempt = 1) {
    ojs::job out = make_job(std::move(id));
    out.claim = std::move(claim);
    out.body = std::string("\0\xff", 2);
    out.attempt = attempt;
    return out;
}

// Its FETCHes wait for a job until the worker wants none.
class long_poll : public recorder::transport {
  public:
    result<std::vector<ojs::job>> fetch(const fetch_request& request, time_point deadline) override {
        auto taken = recorder::transport::fetch(request, deadline);
        if (!taken || !taken->empty()) return taken;
        waiting.add();
        test::event cancelled;
        const cancel_registration callback = request.until.on_cancel([&cancelled] { cancelled.set(); });
        if (!request.until.sleep_until(deadline) && cancelled.wait()) ended.add();
        return taken;
    }
    void on_phase(ojs::phase now) override { phases.push_back(now); }  // on one thread

    counter waiting;
    counter ended;
    std::vector<ojs::phase> phases;
};
}  // namespace

// [WP 5.4] [Progress 6.3]
TEST_CASE("claim: an ACK or FAIL has the job and claim that FETCH returned, and a heartbeat has the claim") {
    recorder::transport wire;
    std::vector<std::string> seen;
    wire.on.ack = [&](const ack_request& request, time_point) {
        seen.push_back(request.claim + " " + request.job->body);
        return settle_result::accepted;
    };
    wire.on.fail = [&](const fail_request& request, time_point) {
        seen.push_back(request.claim + " " + std::to_string(request.job->attempt));
        return settle_result::accepted;
    };
    std::vector<std::string> beaten;
    wire.on.beat = [&](const heartbeat_request& request) {
        if (!request.claims.empty()) beaten = request.claims;
        heartbeat_response out;
        out.jobs_extended = request.active_jobs;
        return out;
    };
    wire.give(claimed_as("a", "tag 1"));
    wire.give(claimed_as("b", "tag 2", 3));
    wire.give(make_job("c"));
    const auto worker = run_until("fetch", 4, wire, [&](job_context& job) {
        CHECK(job.job().body.size() == (job.id() == "c" ? 0 : 2));
        if (job.id() != "b") return outcome::done();
        job.extend_lease();
        CHECK(wire.wait_for("beat", 2));
        return outcome::retry("again");
    });
    CHECK(worker->report().completed == 2);
    REQUIRE(seen.size() == 3);
    CHECK(seen[0] == std::string("tag 1 \0\xff", 8));
    CHECK(seen[1] == "tag 2 3");
    CHECK(seen[2] == " ");
    CHECK(beaten == std::vector<std::string>{"tag 2"});
}

TEST_CASE("claim: a job claimed again while it runs -> its latest claim is settled") {
    recorder::transport wire;
    std::string settled_claim;
    wire.on.ack = [&](const ack_request& request, time_point) {
        settled_claim = request.claim;
        return settle_result::accepted;
    };
    worker_options settings = recorder::options(2);
    settings.poll_interval = 1ms;
    const kept_log log(settings);
    wire.give(claimed_as("a", "tag 1"));
    const auto worker = run_until("ack", 1, wire, settings, [&](job_context&) {
        wire.give(claimed_as("a", "tag 2", 2));
        CHECK(log.wait_for("warn claimed a job that is still running here; not started twice"));
    });
    CHECK(settled_claim == "tag 2");
    CHECK(sums(*worker) == "claimed 1 completed 1 exit 0");
}

TEST_CASE("claim: claims_lost in a heartbeat response -> jobs not in jobs_extended are cancelled and not reported") {
    recorder::transport wire;
    counter running;
    wire.on.beat = [&](const heartbeat_request&) {
        heartbeat_response out;
        out.claims_lost = running.wait_for(2);
        if (out.claims_lost) out.jobs_extended = {"b"};
        return out;
    };
    wire.give(make_job("a"));
    wire.give(make_job("b"));
    test::event a_ended;
    const auto worker = start_worker(wire, options(2), [&](job_context& job) {
        running.add();
        job.extend_lease();
        if (job.id() == "b") return void(CHECK(a_ended.wait()));
        CHECK(!job.sleep_for(guard));
        CHECK(job.token().reason() == cancel_reason::revoked);
        a_ended.set();
    });
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(worker->stop(guard));
    CHECK(wire.settlements("a").empty());
    CHECK(wire.settled("b") == "ack");
    CHECK(sums(*worker) == "claimed 2 completed 1 gone 1 exit 0");
}

TEST_CASE("fetch: quiet and a stop end a long poll at once, and on_phase() gets the phases in order") {
    long_poll wire;
    worker_options settings = options();
    settings.request_timeout = 1h;
    test::event resumed;
    settings.on_transition = [&](const lifecycle_state& now) {
        if (now.phase == phase::running) resumed.set();
    };
    const auto worker = start_worker(wire, settings, do_nothing);
    REQUIRE(wire.waiting.wait_for(1));
    CHECK(worker->quiet());
    REQUIRE(wire.ended.wait_for(1));
    CHECK(worker->resume());
    REQUIRE(resumed.wait());            // changes that follow each other fast may be one
    REQUIRE(wire.waiting.wait_for(2));  // with a new token
    REQUIRE(worker->stop(guard));
    CHECK(wire.ended.wait_for(2));
    using ojs::phase;
    CHECK(wire.phases == std::vector<phase>{phase::quiet, phase::running, phase::draining, phase::stopping});
}
