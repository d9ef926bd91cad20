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
    std::function<settling()> on_save;
    std::function<result<std::string>(const std::string&)> on_load;

    std::vector<std::string> saved() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return saved_;
    }
    int loads() const { return loads_; }

    settling save_checkpoint(const checkpoint_request& request, time_point /*deadline*/) override {
        {
            const std::lock_guard<std::mutex> held(mutex_);
            saved_.push_back(request.job_id + "=" + request.state_json);
        }
        return on_save ? on_save() : settling(settle_result::accepted);
    }
    result<std::string> load_checkpoint(const std::string& job_id, time_point /*deadline*/) override {
        ++loads_;
        return on_load ? on_load(job_id) : result<std::string>(std::string());
    }

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> saved_;
    std::atomic<int> loads_{0};
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
    outcome (*const endings[])() = {
        [] { return outcome::retry("later"); }, [] { return outcome::discard("never"); },
        [] { return outcome::interrupted("early"); }, []() -> outcome { throw std::runtime_error("no"); }};
    for (const auto ending : endings) {
        keeping wire;
        run_job(wire, [ending](job_context& job) {
            CHECK(code_of(job.save_checkpoint("1")) == "ok");
            CHECK(code_of(job.save_checkpoint("2")) == "ok");
            return ending();
        });
        CHECK(failed(wire) == strings{"2"});
    }
}

// [Durable execution 6.2, DUR-004]
TEST_CASE(
    "checkpoint: a run takes its state from the backend, else from the envelope, else from the job's meta") {
    const char* const none = "{}";
    const char* const in_envelope = R"({"id":"a","checkpoint":{"state":{"n":2.50},"sequence":7}})";
    const char* const in_meta = R"({"x":1,"checkpoint": {"n":12345678901234567890}})";
    const error down{errc::unavailable, 0, "later"};
    const struct {
        result<std::string> loaded;
        const char* envelope;
        const char* meta;
        std::string found;
    } rows[] = {{std::string("3"), in_envelope, in_meta, "3"},
                {std::string(), in_envelope, in_meta, R"({"n":2.50})"},
                {down, in_envelope, in_meta, R"({"n":2.50})"},
                {std::string(), none, in_meta, R"({"n":12345678901234567890})"},
                {std::string("null"), none, R"({"checkpoint":1})", ""},
                {std::string("[1.0]"), none, R"({"checkpoint":no})", "[1.0]"},
                {std::string("no JSON"), none, "7", ""}};
    for (const auto& each : rows) {
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
        worker_options options = recorder::options();
        const kept_log log(options, log_level::warn);
        const auto fail = [&](job_context& job) {
            CHECK(wire.loads() == 0);
            CHECK(job.checkpoint() == each.found);
            CHECK(job.checkpoint() == each.found);
            return outcome::retry("again");
        };
        run_job(wire, fail, given, options);
        const bool is_down = test::code_of(each.loaded) == errc::unavailable;
        CHECK(wire.loads() == (is_down ? 2 : 1));  // a failed load is logged and retried
        CHECK(log.count("warn cannot load the checkpoint") == (is_down ? 2 : 0));
        CHECK(failed(wire) == strings{""});  // only what this run saved
    }
}

TEST_CASE(
    "checkpoint: a state that does not parse as JSON in UTF-8 is refused, and the previous state stays") {
    keeping wire;
    run_job(wire, [](job_context& job) {
        CHECK(code_of(job.save_checkpoint("1")) == "ok");
        const strings bad = {"",
                             "{",
                             "1 2",
                             "1e999",
                             std::string("1\0", 2),
                             "\"\xff\"",
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

TEST_CASE(
    "checkpoint: a save that fails -> the handler gets the error, and the FAIL still carries the state") {
    using settling = recorder::transport::settling;
    error too_large{errc::rejected, 0, "too large"};
    too_large.http_status = 413;
    const struct {
        std::function<settling()> answer;
        const char* code;
        int status;
    } rows[] = {{[&] { return settling(too_large); }, "rejected", 413},
                {[] { return settling(settle_result::gone); }, "rejected", 409},
                {[]() -> settling { throw 7; }, "disconnected", 0}};
    for (const auto& each : rows) {
        CAPTURE(each.code);
        keeping wire;
        wire.on_save = each.answer;
        run_job(wire, [&](job_context& job) {
            const result<void> saved = job.save_checkpoint("1");
            CHECK(code_of(saved) == each.code);
            CHECK(saved.error().http_status == each.status);
            CHECK(job.checkpoint() == "1");
            return outcome::retry("");
        });
        CHECK(failed(wire) == strings{"1"});
    }
    recorder::transport no_storage;
    no_storage.refuse("fail", 1, {errc::rejected, 0, "too large"});
    run_job(no_storage, [](job_context& job) {
        CHECK(job.checkpoint().empty());
        CHECK(code_of(job.save_checkpoint("1")) == "ok");
        return outcome::retry("");
    });
    CHECK(failed(no_storage) == strings{"1", ""});  // once more without it
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
    CHECK(wire.saved() == strings{"a=0", "a=1", "a=2"});
    CHECK(wire.calls("ack").empty());
    check_last_word(wire);
}
