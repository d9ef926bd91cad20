// Heartbeats that must arrive, the first to say `quiet` and the last of all; and the jobs that a response leaves out.
#include "busy_worker.hpp"

using namespace ojs;
using namespace recorder;

// [WP 4.2 (a)] [WP 5.3]
TEST_CASE("heartbeat: a lease shorter than heartbeat_interval is renewed in time, though a callback blocks") {
    recorder::transport wire;
    job given = make_job("a");
    given.visibility_timeout = 200ms;
    wire.give(given);                                         // and a beat an hour
    wire.on.claim = [](const claim_query&) { return true; };  // one that starts late does start
    recorder::event go_on;
    worker tested(recorder::options(), wire);
    tested.register_handler("work", [&](job_context&) { CHECK(wire.wait_for("beat", 4)); });
    const cancel_registration keep =
        tested.connected_token().on_cancel([&] { static_cast<void>(go_on.wait()); });
    REQUIRE(tested.start());
    REQUIRE(wire.wait_for("ack", 1));
    go_on.set();
    CHECK(tested.stop(guard));
}

// [GS 5.1 (b)]
TEST_CASE("heartbeat: quiet and terminate are sent while an earlier heartbeat waits for its response") {
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    options.times.stop_timeout = 20s;
    recorder::event hung_may_end;
    counter began;
    recorder::transport wire;
    wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state == "running" && began.add() == 2) CHECK(hung_may_end.wait());
        if (request.state == "terminate") hung_may_end.set();
        return heartbeat_response();
    };
    const auto tested = start_worker(wire, options, do_nothing);
    REQUIRE(began.wait_for(2));
    CHECK(tested->quiet());
    REQUIRE(wire.wait_for("beat", 1, "quiet"));  // while the other one hangs
    REQUIRE(tested->stop(guard));
    CHECK(tested->exit_code() == 0);
    check_last_word(wire);
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
    const auto last =
        std::find_if(all.begin(), all.end(), [](const call& each) { return each.state == "terminate"; });
    REQUIRE(last != all.begin());
    REQUIRE(last != all.end());
    CHECK(std::prev(last)->what == "deregister");
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
        wire.on.claim = [claim](const claim_query&) { return claim; };
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

TEST_CASE(
    "claim: the backend says that a claim is gone -> the job is cancelled, not renewed and not reported") {
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

TEST_CASE(
    "claim: a job not in jobs_extended is queried once, and continues if the claim holds or the query "
    "fails") {
    for (const result<bool>& claim :
         {result<bool>(true), result<bool>(error{errc::unreachable, 0, "no"}),
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

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

TEST_CASE(
    "heartbeat plan: at most two are unanswered; the last is sent when no call is in flight or when it is "
    "due") {
    using action = detail::beat_action;
    const time_point t{1h};
    const struct {
        int unanswered, calls;
        time_point requested, last_due;
        bool registered, last_begun;
        time_point now;
        action next;
        time_point until;
    } rows[] = {
        {0, 0, detail::never, detail::never, true, false, t + 999ms, action::wait, t + 1s},
        {0, 0, detail::never, detail::never, true, false, t + 1s, action::send, detail::never},
        {0, 1, t + 20ms, detail::never, true, false, t + 20ms, action::send, detail::never},
        {1, 1, t, detail::never, true, false, t + 249ms, action::wait, t + 250ms},
        {1, 1, t, detail::never, true, false, t + 250ms, action::send, detail::never},
        {1, 1, t, detail::never, false, false, t + 2s, action::wait, detail::never},
        {2, 2, t, detail::never, true, false, t + 2s, action::wait, detail::never},
        {1, 1, t, t + 100ms, true, false, t, action::send, detail::never},
        {2, 2, t, t + 100ms, true, false, t, action::wait, t + 100ms},
        {0, 1, detail::never, t + 100ms, true, false, t + 99ms, action::wait, t + 100ms},
        {0, 1, detail::never, t + 100ms, true, false, t + 100ms, action::send_last, detail::never},
        {0, 0, detail::never, t + 100ms, true, false, t, action::send_last, detail::never},
        {1, 1, t, t + 100ms, true, true, t + 2s, action::end, detail::never},
    };
    for (const auto& row : rows) {
        CAPTURE(&row - rows);
        detail::beat_facts facts;
        facts.interval = 1s;
        facts.begun = 2;
        facts.begun_at = t;
        facts.unanswered = row.unanswered;
        facts.calls = row.calls;
        facts.requested_at = row.requested;
        facts.last_due_at = row.last_due;
        facts.registration_tried = row.registered;
        facts.last_begun = row.last_begun;
        const detail::beat_plan plan = detail::plan_beat(facts, row.now);
        CHECK(plan.action == row.next);
        CHECK(plan.until == row.until);
    }
}

TEST_CASE(
    "fetch: the pause after an empty FETCH grows with the time since the last job, up to poll_interval") {
    const detail::poll_intervals intervals = {1s, 5s};
    const auto pause = [&](steady_clock::duration since) {
        return detail::empty_pause(since, false, intervals);
    };
    CHECK(pause(0ms) == 10ms);
    CHECK(pause(80ms) == 10ms);
    CHECK(pause(800ms) == 100ms);
    CHECK(pause(2s) == 250ms);
    CHECK(pause(1min) == 250ms);
    CHECK(pause(1min + 1ms) == 1s);
    CHECK(detail::empty_pause(1s, false, {5ms, 5s}) == 5ms);
    CHECK(detail::empty_pause(0ms, true, intervals) == 1s);
    CHECK(detail::empty_pause(1min, true, intervals) == 1s);
    CHECK(detail::empty_pause(1min + 1ms, true, intervals) == 5s);
}

TEST_CASE("heartbeat: heartbeats on request follow a fifth of the interval after the latest, or a second") {
    const std::pair<std::chrono::milliseconds, std::chrono::milliseconds> rows[] = {
        {1s, 200ms}, {5s, 1s}, {1h, 1s}};
    for (const auto& [interval, gap] : rows) {
        detail::state_lock state;
        detail::beat_schedule beats(state, interval);
        std::uint64_t number = 0;
        REQUIRE(beats.await_next(false, number) == detail::beat_action::send);
        beats.request_soon();
        CHECK(beats.facts().requested_at == beats.facts().begun_at + gap);
    }
}

TEST_CASE("heartbeat: the gap before the second heartbeat is random, from half to all of the interval") {
    std::chrono::milliseconds shortest = 1h;
    std::chrono::milliseconds longest = 0h;
    for (int i = 0; i < 100; ++i) {
        detail::state_lock state;
        const std::chrono::milliseconds gap = detail::beat_schedule(state, 1h).facts().first_gap;
        CHECK(gap > 30min);
        CHECK(gap <= 1h);
        shortest = std::min(shortest, gap);
        longest = std::max(longest, gap);
    }
    CHECK(longest - shortest > 15min);  // all within half of the range: once in 10^28
}

#endif  // !OJS_SHUTDOWN_SEPARATE
