// Heartbeats that must arrive, the first to say `quiet` and the last of all; and the jobs that a response leaves out.
#include "busy_worker.hpp"

using namespace recorder;

// [WP 4.2 (a)] [WP 5.3]
TEST_CASE("heartbeat: a lease shorter than heartbeat_interval is renewed in time, even while a callback blocks") {
    recorder::transport wire;
    job given = make_job("a");
    given.visibility_timeout = 1s;
    wire.give(given);  // and a beat an hour
    wire.give(make_job("b"));
    recorder::event go_on;
    worker_options options = recorder::options(2);
    const auto tested = start_worker(wire, options, [&](job_context& job) {
        const cancel_registration keep = job.on_cancel([&] { static_cast<void>(go_on.wait()); });
        if (job.id() == "b") return static_cast<void>(job.sleep_for(guard));
        CHECK(wire.wait_for("beat", 2));
        CHECK(wire.revoke("b"));
        CHECK(wire.wait_for("beat", wire.calls("beat").size() + 3));
        go_on.set();
    });
    REQUIRE(wire.wait_for("ack", 1));
    go_on.set();
    CHECK(tested->stop(guard));
}

// [GS 5.1 (b)]
TEST_CASE("heartbeat: quiet() while a heartbeat waits for its response -> the next heartbeat says quiet") {
    recorder::event answer;
    recorder::transport wire;
    wire.on.beat = [&](const heartbeat_request& request) {
        if (request.state == "running") CHECK(answer.wait());
        return heartbeat_response();
    };
    const auto tested = start_worker(wire, do_nothing);
    REQUIRE(wire.wait_for("beat", 1, "running"));
    CHECK(tested->quiet());
    answer.set();
    REQUIRE(wire.wait_for("beat", 1, "quiet"));  // the interval is an hour
    REQUIRE(tested->stop(guard));
    check_last_word(wire);
}

TEST_CASE("heartbeat: the second heartbeat comes after half of the interval or more, later ones after the interval") {
    worker_options options = recorder::options();
    options.heartbeat_interval = 100ms;
    recorder::transport wire;
    const time_point start = steady_clock::now();
    const auto tested = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("beat", 4));
    const std::vector<call> beats = wire.calls("beat");
    for (int i = 1; i < 4; ++i) CHECK(beats[static_cast<std::size_t>(i)].at - start >= i * 100ms - 50ms);
    CHECK(tested->stop(guard));
}

TEST_CASE("heartbeat: extend_lease() sends a heartbeat, but not within a fifth of the interval after the last one") {
    worker_options options = recorder::options();
    options.heartbeat_interval = 2s;
    recorder::transport wire;
    wire.give(make_job("a"));
    const time_point start = steady_clock::now();
    const auto tested = start_worker(wire, options, [&](job_context& job) {
        job.extend_lease();
        CHECK(wire.wait_for("beat", 2));
    });
    REQUIRE(wire.wait_for("ack", 1));
    CHECK(wire.calls("beat")[1].at - start >= 400ms);
    CHECK(tested->stop(guard));
}

// [GS 5, diagram (a)] [GS 5.3 (c)] [WP 3.4] [WP 7.2 (6)]
TEST_CASE("heartbeat: a last heartbeat whose connection broke is sent again within half a second") {
    worker_options options = recorder::options();
    options.times.stop_timeout = 60s;
    recorder::transport wire;
    wire.refuse("terminate", 1, {errc::disconnected, 0, "it broke"});
    run_until("fetch", 1, wire, options, do_nothing);
    const time_point ended = steady_clock::now();
    const std::vector<call> all = wire.calls();
    const auto last = std::find_if(all.begin(), all.end(), [](const call& each) { return each.state == "terminate"; });
    REQUIRE(last != all.end());
    CHECK(all.back().state == "terminate");
    const auto sent = all.end() - last;
    // On a machine that pauses, the half second may be over before the second one.
    CHECK((sent == 2 || ended - std::prev(last)->at >= 450ms));
}

// ---- jobs that a heartbeat response leaves out: the claim query, and the effect of its response ----

namespace {
// A worker with the jobs "a" and "b", which end by the test or by cancellation, and the most frequent heartbeats.
struct holding {
    explicit holding(const result<bool>& claim) {
        worker_options options = recorder::options(2);
        options.heartbeat_interval = 10ms;
        for (const char* id : {"a", "b"}) wire.give(make_job(id));
        wire.on.beat = [this](const heartbeat_request& request) {
            heartbeat_response out;
            for (const std::string& id : request.active_jobs) {
                if (id != "a" || !leaves_out_a) out.jobs_extended.push_back(id);
            }
            return out;
        };
        wire.on.claim = [claim](const job_request&) { return claim; };
        body = start_worker(wire, options, [this](job_context& job) {
            began.add();
            while (!over.is_set() && job.sleep_for(1ms)) {
            }
            if (!job.cancel_requested()) return;
            CHECK(job.token().reason() == cancel_reason::revoked);
            cancelled.add();
        });
        REQUIRE(began.wait_for(2));
        await_beats();
        CHECK(wire.calls("claim").empty());
    }
    ~holding() { over.set(); }  // after a failure, too
    // The answers to two beats that begin from now on have been looked at.
    void await_beats() { REQUIRE(wire.wait_for("beat", wire.calls("beat").size() + 3)); }
    void end() {
        over.set();
        REQUIRE(body->stop(guard));
        check_last_word(wire);
    }

    recorder::transport wire;
    std::atomic<bool> leaves_out_a{false};
    counter began;
    counter cancelled;
    recorder::event over;
    std::unique_ptr<worker> body;
};
}  // namespace

TEST_CASE("claim: the backend says that a claim is gone -> the job is cancelled, not renewed and not reported") {
    holding tested(false);
    tested.leaves_out_a = true;
    REQUIRE(tested.cancelled.wait_for(1));
    tested.await_beats();
    const std::vector<std::string> active = tested.wire.calls("beat").back().active;
    CHECK(active == std::vector<std::string>{"b"});  // a job that another worker may have is not renewed
    tested.end();
    CHECK(tested.cancelled.count() == 1);
    CHECK(tested.wire.calls("claim").size() == 1);
    CHECK(tested.wire.settlements("a").empty());
    CHECK(sums(*tested.body) == "claimed 2 completed 1 gone 1 exit 0");
}

TEST_CASE("claim: a job not in jobs_extended is queried once, and continues if the claim holds or the query fails") {
    for (const result<bool>& claim : {result<bool>(true), result<bool>(error{errc::unreachable, 0, "no"}),
                                      result<bool>(error{errc::rejected, 0, "GET /jobs/{id} answered 404", 404})}) {
        holding tested(claim);
        for (std::size_t times = 1; times <= 2; ++times) {
            tested.leaves_out_a = true;
            REQUIRE(tested.wire.wait_for("claim", times));
            tested.await_beats();
            REQUIRE(tested.cancelled.count() == 0);
            CHECK(tested.wire.calls("claim").size() == times);
            tested.leaves_out_a = false;
            tested.await_beats();
        }
        tested.end();
        CHECK(sums(*tested.body) == "claimed 2 completed 2 exit 0");
    }
}
