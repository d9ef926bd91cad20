// Checkpoints and the three stages of a cancellation: what is saved, when it reaches the backend, and what a later run
// loads.
#include "busy_worker.hpp"

using namespace ojs;
using namespace recorder;
using happening = recorder::event;

namespace {

// A backend that stores checkpoints and records requests and FAILs.
class keeping : public recorder::transport {
  public:
    std::function<settling(const checkpoint_request&, time_point)> on_save;
    std::function<result<std::string>(const std::string&)> on_load;

    std::vector<std::string> saved() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return saved_;
    }
    int loads() const { return loads_; }
    bool called_after_goodbye() const { return after_goodbye_; }

    settling save_checkpoint(const checkpoint_request& request, time_point deadline) override {
        look_at_the_time();
        {
            const std::lock_guard<std::mutex> held(mutex_);
            saved_.push_back(request.job_id + "=" + request.state_json);
        }
        return on_save ? on_save(request, deadline) : settling(settle_result::accepted);
    }
    result<std::string> load_checkpoint(const std::string& job_id, time_point /*deadline*/) override {
        look_at_the_time();
        ++loads_;
        return on_load ? on_load(job_id) : result<std::string>(std::string());
    }

  private:
    void look_at_the_time() {
        for (const call& each : calls("beat")) {
            if (each.state == "terminate") after_goodbye_ = true;
        }
    }

    mutable std::mutex mutex_;
    std::vector<std::string> saved_;
    std::atomic<int> loads_{0};
    std::atomic<bool> after_goodbye_{false};
};

using strings = std::vector<std::string>;

// The checkpoint of each FAIL.
strings failed(const recorder::transport& wire) {
    strings out;
    for (const call& each : wire.calls("fail")) out.push_back(each.checkpoint_json);
    return out;
}

// One job through one worker, stopped when the job is settled.
template <class Handler>
void run_job(recorder::transport& wire, Handler handler, job given = make_job("a"),
             worker_options options = recorder::options()) {
    wire.give(std::move(given));
    run_until("fetch", 2, wire, std::move(options), std::move(handler));
    check_last_word(wire);
}

std::string code_of(const result<void>& saved) {
    return saved ? "ok" : to_string(saved.error().code);
}

}  // namespace

TEST_CASE("checkpoint: checkpoint() returns the last saved state digit for digit, and nothing after null") {
    keeping wire;
    run_job(wire, [](job_context& job) {
        CHECK(job.checkpoint().empty());
        CHECK(code_of(job.save_checkpoint(R"({"n":12345678901234567890})")) == "ok");
        CHECK(job.checkpoint() == R"({"n":12345678901234567890})");
        CHECK(code_of(job.save_checkpoint("[1.50]")) == "ok");
        CHECK(job.checkpoint() == "[1.50]");
        CHECK(code_of(job.save_checkpoint("null")) == "ok");  // nothing, from now on
        CHECK(job.checkpoint().empty());
    });
    CHECK(wire.saved() == strings{R"(a={"n":12345678901234567890})", "a=[1.50]", "a=null"});
    CHECK(wire.loads() == 1);
    CHECK(failed(wire).empty());
    CHECK(wire.calls("ack").size() == 1);
}

// [GS 7.2]
TEST_CASE(
    "checkpoint: the FAIL of a retry, discard, interruption or exception carries the last saved state") {
    const auto fails_with = [](auto ending) {
        keeping wire;
        run_job(wire, [ending](job_context& job) -> outcome {
            CHECK(code_of(job.save_checkpoint("1")) == "ok");
            CHECK(code_of(job.save_checkpoint("2")) == "ok");
            return ending();
        });
        return failed(wire);
    };
    CHECK(fails_with([] { return outcome::retry("later"); }) == strings{"2"});
    CHECK(fails_with([] { return outcome::discard("never"); }) == strings{"2"});
    CHECK(fails_with([] { return outcome::interrupted("early"); }) == strings{"2"});
    CHECK(fails_with([]() -> outcome { throw std::runtime_error("no"); }) == strings{"2"});
    CHECK(fails_with([]() -> outcome { throw 7; }) == strings{"2"});
}

// [Durable execution 6.2, DUR-004]
TEST_CASE(
    "checkpoint: a run takes its state from the backend, else from the envelope, else from the job's meta") {
    const char* const none = "{}";
    const char* const in_envelope = R"({"id":"a","checkpoint":{"state":{"n":2.50},"sequence":7}})";
    const char* const in_meta = R"({"x":1,"checkpoint": {"n":12345678901234567890}})";
    const error down{errc::unavailable, 0, "later"};
    struct row {
        result<std::string> loaded;
        const char* envelope;
        const char* meta;
        std::string found;
    };
    std::vector<row> rows = {{std::string("3"), in_envelope, in_meta, "3"},
                             {std::string(), in_envelope, in_meta, R"({"n":2.50})"},
                             {down, in_envelope, in_meta, R"({"n":2.50})"},
                             {error{errc::unsupported, 0, "no route"}, in_envelope, in_meta, R"({"n":2.50})"},
                             {std::string(), none, in_meta, R"({"n":12345678901234567890})"},
                             {down, none, R"({"checkpoint":1})", "1"},
                             {std::string("null"), none, R"({"checkpoint":1})", ""}};
    for (const char* meta : {"{}", R"({"checkpoint":"older"})", R"({"checkpoint":null})",
                             R"({"checkpoint":no})", R"({"checkpoint":})", "", "7"})
        rows.push_back({std::string("[1.0]"), none, meta, "[1.0]"});
    for (const char* nothing : {"", "null", "no JSON", "\"\xff\""})
        rows.push_back({std::string(nothing), none, none, ""});
    for (const row& each : rows) {
        CAPTURE(each.envelope);
        CAPTURE(each.meta);
        keeping wire;
        wire.on_load = [&](const std::string& id) {
            CHECK(id == "a");
            return each.loaded;
        };
        job given = make_job("a");
        given.envelope_json = each.envelope;
        given.meta_json = each.meta;
        const auto fail = [&](job_context& job) {
            CHECK(wire.loads() == 0);
            CHECK(job.checkpoint() == each.found);
            CHECK(job.checkpoint() == each.found);
            return outcome::retry("again");
        };
        worker_options options = recorder::options();
        const kept_log log(options, log_level::warn);
        run_job(wire, fail, given, options);
        const bool is_down = test::code_of(each.loaded) == errc::unavailable;
        CHECK(wire.loads() == (is_down ? 2 : 1));  // a failed load is logged and retried
        CHECK(log.count("warn cannot load the checkpoint") == (is_down ? 2 : 0));
        CHECK((log.text().find("later") != std::string::npos) == is_down);
        CHECK(failed(wire) == strings{""});  // only what this run saved
    }
}

TEST_CASE(
    "checkpoint: a state that does not parse as JSON in UTF-8 is refused, and the previous state stays") {
    keeping wire;
    run_job(wire, [](job_context& job) {
        CHECK(code_of(job.save_checkpoint("1")) == "ok");
        const strings bad = {"",
                             " ",
                             "{",
                             "1 2",
                             "nul",
                             "'a'",
                             "1e999",
                             std::string("1\0", 2),
                             "\"\xff\"",
                             "\"\xc3\"",
                             std::string(200, '[') + std::string(200, ']')};
        for (const std::string& state : bad) {
            CAPTURE(state);
            CHECK(code_of(job.save_checkpoint(state)) == "invalid_argument");
        }
        CHECK(job.checkpoint() == "1");
        return outcome::retry("");
    });
    CHECK(wire.saved() == strings{"a=1"});
    CHECK(failed(wire) == strings{"1"});
}

TEST_CASE("checkpoint: a transport without checkpoint storage -> the FAIL carries the saved state") {
    recorder::transport wire;
    run_job(wire, [](job_context& job) {
        CHECK(job.checkpoint().empty());
        CHECK(code_of(job.save_checkpoint("1")) == "ok");
        return outcome::retry("");
    });
    CHECK(failed(wire) == strings{"1"});
}

TEST_CASE(
    "checkpoint: a save that fails -> the handler gets the error, and the FAIL still carries the state") {
    struct row {
        recorder::transport::settling answer;
        const char* code;
        int status;
    };
    error too_large{errc::rejected, 0, "too large"};
    too_large.http_status = 413;
    for (const row& each : {row{too_large, "rejected", 413}, row{settle_result::gone, "rejected", 409},
                            row{error{errc::unavailable, 0, ""}, "unavailable", 0},
                            row{error{errc::timed_out, 0, ""}, "timed_out", 0}}) {
        keeping wire;
        wire.on_save = [&](const checkpoint_request&, time_point) { return each.answer; };
        run_job(wire, [&](job_context& job) {
            const result<void> saved = job.save_checkpoint("1");
            CHECK(code_of(saved) == each.code);
            CHECK(saved.error().http_status == each.status);
            CHECK(job.checkpoint() == "1");
            return outcome::retry("");
        });
        CHECK(failed(wire) == strings{"1"});
    }
    keeping throwing;
    throwing.on_save = [](const checkpoint_request&, time_point) -> recorder::transport::settling {
        throw 7;
    };
    run_job(throwing, [](job_context& job) {
        CHECK(code_of(job.save_checkpoint("1")) == "disconnected");
        return outcome::retry("");
    });
    CHECK(failed(throwing) == strings{"1"});
}

TEST_CASE("checkpoint: a FAIL that is rejected is sent again without its checkpoint") {
    keeping wire;
    wire.refuse("fail", 1, {errc::rejected, 0, "too large"});
    run_job(wire, [](job_context& job) {
        CHECK(job.save_checkpoint("1"));
        return outcome::retry("");
    });
    CHECK(failed(wire) == strings{"1", ""});
}

// [GS 7.2]
TEST_CASE("checkpoint: memory_transport passes the state of an interrupted run to the next run") {
    memory_transport wire;
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 0ms;
    wire.push("work");
    for (int run = 1; run <= 3; ++run) {
        happening saved;
        std::string found;
        worker body(options, wire);
        body.register_handler("work", [&](job_context& job) -> outcome {
            found = job.checkpoint();
            if (run == 3) return outcome::done();
            CHECK(job.save_checkpoint("{\"run\":" + std::to_string(run) + ",\"n\":12345678901234567890}"));
            saved.set();
            static_cast<void>(job.sleep_for(1h));
            return {};
        });
        REQUIRE(body.start());
        if (run < 3) REQUIRE(saved.wait());
        while (run == 3 && body.report().completed == 0) std::this_thread::yield();
        REQUIRE(body.stop(guard));
        CHECK(body.exit_code() == 0);
        CHECK(found ==
              (run == 1 ? "" : "{\"run\":" + std::to_string(run - 1) + ",\"n\":12345678901234567890}"));
    }
    REQUIRE(wire.jobs().size() == 1);
    CHECK(wire.jobs()[0].state == "completed");
    CHECK(wire.load_checkpoint("no such job", time_point::max()).value_or("?").empty());
    CHECK(wire.save_checkpoint({"no such job", "1"}, time_point::max()).value_or(settle_result::accepted) ==
          settle_result::gone);
}

TEST_CASE(
    "checkpoint: a save succeeds in a drain and after cancellation, and fails once the job is abandoned") {
    keeping wire;
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
    options.times.cancel_wait = 1h;  // at most half of the stop's time
    options.times.stop_timeout = 5s;
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
    CHECK(wire.saved() == strings{"a=0", "a=1", "a=2"});
    CHECK_FALSE(wire.called_after_goodbye());
    CHECK(wire.calls("ack").empty());
    check_last_word(wire);
}

TEST_CASE("checkpoint: the FAIL of a stop waits for a save in flight and carries the saved state") {
    keeping wire;
    lifecycle life(0ms);
    happening saving, waiting, go_on, returned;
    std::string said_to_second;
    std::size_t fails_meanwhile = 1;
    time_point forced;
    bool is_in_time = false;
    wire.on_save = [&](const checkpoint_request&, time_point) {
        saving.set();
        CHECK(go_on.wait());
        fails_meanwhile = wire.calls("fail").size();
        return recorder::transport::settling(settle_result::accepted);
    };
    wire.give(make_job("a"));
    const auto body = start_worker(wire, recorder::options(), life, [&](job_context& job) {
        std::thread second([&] {
            CHECK(saving.wait());
            waiting.set();
            said_to_second = code_of(job.save_checkpoint("2"));  // its turn never comes
            go_on.set();
        });
        CHECK(job.save_checkpoint("1"));
        is_in_time = steady_clock::now() < forced + 250ms;
        second.join();
        returned.set();
    });
    REQUIRE(saving.wait());
    REQUIRE(waiting.wait());
    forced = steady_clock::now();
    recorder::force(life);
    REQUIRE(body->stop(guard));
    REQUIRE(returned.wait());
    CHECK(said_to_second == "cancelled");
    CHECK(wire.saved() == strings{"a=1"});
    if (!is_in_time) return;  // a FAIL waits for 250 ms at most
    CHECK(fails_meanwhile == 0);
    CHECK(failed(wire) == strings{"1"});
}

TEST_CASE(
    "checkpoint: the deadline of a save is request_timeout, or the end of the stop if that is earlier") {
    keeping wire;
    lifecycle life(0ms);
    std::vector<time_point> deadlines;
    wire.on_save = [&](const checkpoint_request&, time_point deadline) {
        deadlines.push_back(deadline);
        return recorder::transport::settling(settle_result::accepted);
    };
    happening saved;
    wire.give(make_job("a"));
    worker_options options = recorder::options();
    options.times.cancel_wait = 1h;
    options.times.stop_timeout = 10s;
    options.request_timeout = 20s;
    const auto body = start_worker(wire, options, life, [&](job_context& job) {
        const time_point before = steady_clock::now();
        CHECK(job.save_checkpoint("1"));
        CHECK(deadlines.back() >= before + 20s);
        CHECK(deadlines.back() <= steady_clock::now() + 20s);
        saved.set();
        CHECK_FALSE(job.sleep_for(1h));
        CHECK(job.save_checkpoint("2"));
        CHECK(deadlines.back() <= steady_clock::now() + 10s);
        return outcome::interrupted();
    });
    REQUIRE(saved.wait());
    recorder::force(life);
    REQUIRE(body->stop(guard));
    CHECK(deadlines.size() == 2);
    CHECK(failed(wire) == strings{"2"});
}

TEST_CASE("checkpoint: a save without a response delays the FAIL of a stop by less than stop_timeout") {
    keeping wire;
    lifecycle life(0ms);
    happening saving, go_on;
    wire.on_save = [&](const checkpoint_request&, time_point) -> recorder::transport::settling {
        saving.set();
        CHECK(go_on.wait());
        return error{errc::timed_out, 0, ""};
    };
    wire.give(make_job("a"));
    worker_options options = recorder::options();
    options.times.stop_timeout = 60s;
    const shared_event returned = make_event();
    const auto body = start_worker(wire, options, life, [returned](job_context& job) {
        CHECK(code_of(job.save_checkpoint("1")) == "timed_out");
        returned->set();
    });
    REQUIRE(saving.wait());
    recorder::force(life);
    REQUIRE(wire.wait_for("fail", 1));  // the wait ends before the stop would
    go_on.set();
    REQUIRE(body->wait(deadline_after(guard)));
    CHECK(failed(wire) == strings{"1"});
    CHECK(body->exit_code() == 0);
    CHECK(body->report().interrupted == 1);
    CHECK(returned->wait());  // the stop does not wait for it
}
