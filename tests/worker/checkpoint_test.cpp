// Checkpoints and the three stages of a cancellation: what is saved, what the FAIL carries, and what a later run reads.
#include "busy_worker.hpp"

using namespace recorder;
using happening = recorder::event;

namespace {
using strings = std::vector<std::string>;

// The checkpoint of each FAIL.
strings failed(const recorder::transport& wire) {
    strings out;
    for (const call& each : wire.calls("fail")) out.push_back(each.checkpoint_json);
    return out;
}

// One job through one worker, stopped when the job is settled.
template <class Handler>
void run_job(recorder::transport& wire, Handler handler, job given = make_job("a")) {
    wire.give(std::move(given));
    run_until("fetch", 2, wire, recorder::options(), std::move(handler));
    check_last_word(wire);
}

std::string code_of(const result<void>& saved) { return saved ? "ok" : to_string(saved.error().code); }
}  // namespace

TEST_CASE("checkpoint: checkpoint() returns the last saved state digit for digit, and nothing after null") {
    recorder::transport wire;
    run_job(wire, [](job_context& job) {
        CHECK(job.checkpoint().empty());
        CHECK(code_of(job.save_checkpoint(R"({"n":12345678901234567890})")) == "ok");
        CHECK(job.checkpoint() == R"({"n":12345678901234567890})");
        CHECK(code_of(job.save_checkpoint("[1.50]")) == "ok");
        CHECK(job.checkpoint() == "[1.50]");
        CHECK(code_of(job.save_checkpoint("null")) == "ok");  // nothing, from now on
        CHECK(job.checkpoint().empty());
    });
    CHECK(failed(wire).empty());
    CHECK(wire.calls("ack").size() == 1);
}

// [GS 7.2]
TEST_CASE("checkpoint: the FAIL of a retry, discard, interruption or exception carries the last saved state") {
    outcome (*const endings[])() = {[] { return outcome::retry("later"); }, [] { return outcome::discard("never"); },
                                    [] { return outcome::interrupted("early"); },
                                    []() -> outcome { throw std::runtime_error("no"); }};
    for (const auto ending : endings) {
        recorder::transport wire;
        run_job(wire, [ending](job_context& job) {
            CHECK(code_of(job.save_checkpoint("1")) == "ok");
            CHECK(code_of(job.save_checkpoint("2")) == "ok");
            return ending();
        });
        CHECK(failed(wire) == strings{"2"});
    }
}

TEST_CASE("checkpoint: a run takes its state from meta.checkpoint, digit for digit, unless that is not JSON") {
    const std::pair<const char*, const char*> rows[] = {
        {R"({"x":1,"checkpoint": {"n":12345678901234567890}})", R"({"n":12345678901234567890})"},
        {R"({"checkpoint":null})", ""},
        {R"({"checkpoint":no})", ""},
        {"7", ""},
        {"", ""}};
    for (const auto& each : rows) {
        CAPTURE(each.first);
        recorder::transport wire;
        job given = make_job("a");
        given.meta_json = each.first;
        const auto fail = [&](job_context& job) {
            CHECK(job.checkpoint() == each.second);
            return outcome::retry("again");
        };
        run_job(wire, fail, given);
        CHECK(failed(wire) == strings{""});  // only what this run saved
    }
}

TEST_CASE("checkpoint: a state that does not parse as JSON in UTF-8 is refused, and the previous state stays") {
    recorder::transport wire;
    run_job(wire, [](job_context& job) {
        CHECK(code_of(job.save_checkpoint("1")) == "ok");
        const strings bad = {
            "", "{", "1 2", "1e999", std::string("1\0", 2), "\"\xff\"", std::string(200, '[') + std::string(200, ']')};
        for (const std::string& state : bad) {
            CAPTURE(state);
            CHECK(code_of(job.save_checkpoint(state)) == "invalid_argument");
        }
        CHECK(job.checkpoint() == "1");
        return outcome::retry("");
    });
    CHECK(failed(wire) == strings{"1"});
}

TEST_CASE("checkpoint: a save succeeds in a drain and after cancellation, and fails once the job is abandoned") {
    recorder::transport wire;
    lifecycle life(0ms);
    happening running, draining, drained, stopped, returned;
    strings seen;
    const auto look = [&](job_context& job) {
        const std::string moment = std::to_string(seen.size());
        seen.push_back(std::string(job.stop_requested() ? "s" : "-") + (job.cancel_requested() ? "c" : "-") +
                       (job.abandoned() ? "a " : "- ") + code_of(job.save_checkpoint(moment)));
    };
    wire.give(make_job("a"));
    worker_options options = recorder::options();
    options.times.cancel_grace = 1h;  // at most half of the stop's time
    options.times.stop_timeout = 2s;
    const auto body = start_worker(wire, options, life, [&](job_context& job) {
        look(job);
        running.set();
        CHECK(draining.wait());
        look(job);
        drained.set();
        CHECK_FALSE(job.sleep_for(1h));
        look(job);
        CHECK(stopped.wait());
        look(job);
        CHECK(job.checkpoint() == "2");  // its own last state
        returned.set();
        return outcome::done("\"too late\"");
    });
    REQUIRE(running.wait());
    send(life, SIGTERM);
    draining.set();
    REQUIRE(drained.wait());
    send(life, SIGTERM);
    REQUIRE(body->stop(guard));
    stopped.set();
    REQUIRE(returned.wait());
    CHECK(seen == strings{"--- ok", "s-- ok", "sc- ok", "sca cancelled"});
    CHECK(failed(wire) == strings{"2"});
    CHECK(wire.calls("ack").empty());
    check_last_word(wire);
}
