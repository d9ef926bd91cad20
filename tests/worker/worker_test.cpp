#include "environment.hpp"
#include "recorder.hpp"

using namespace recorder;

// [WP 8.2 (a)] [WP 8.2 (c)]
TEST_CASE("worker: concurrent jobs never exceed the slots, and FETCH asks for no more than the free slots") {
    for (const int slots : {1, 3, 10}) {
        CAPTURE(slots);
        recorder::transport wire;
        const int total = slots * 20;
        for (int i = 0; i < total; ++i) wire.give(make_job("j" + std::to_string(i)));
        counter running;
        counter done;
        recorder::event all_busy;
        worker worker(recorder::options(slots), wire);
        wire.on.fetch = [&](std::size_t count) {
            // Other FETCHes may have added their jobs meanwhile, but only to slots this one did not ask for.
            CHECK(count <= static_cast<std::size_t>(slots) - worker.active_jobs());
            CHECK(count >= 1);
        };
        worker.register_handler("work", [&](job_context&) {
            if (running.add() == slots) all_busy.set();
            CHECK(all_busy.wait());  // the first batch fills every slot
            running.add(-1);
            done.add();
        });
        REQUIRE(worker.start());
        REQUIRE(done.wait_for(total));
        REQUIRE(worker.stop(guard));
        CHECK(running.highest() == slots);
        CHECK(worker.report().completed == static_cast<std::uint64_t>(total));
        check_last_word(wire);
    }
}

TEST_CASE("worker: a slot that becomes free is filled at once, without waiting for poll_interval") {
    recorder::transport wire;
    recorder::event let_go;
    counter fetched;
    wire.on.fetched = [&](std::size_t) { fetched.add(); };
    wire.give(make_job("first"));
    const auto worker = start_worker(wire, recorder::options(3), [&](job_context& job) {
        if (job.id() == "first") CHECK(let_go.wait());
    });
    REQUIRE(fetched.wait_for(2));  // the second of which found nothing: an hour until the next
    CHECK(wire.calls("fetch")[1].count == 2);
    wire.give(make_job("second"));
    let_go.set();
    REQUIRE(wire.wait_for("ack", 2));
}

TEST_CASE("worker: a job that is malformed or of unknown type is requeued, and a job without an id is unreported") {
    recorder::transport wire;
    wire.give(make_job("unknown", "no.such\ntype"));
    job bad = make_job("bad");
    bad.malformed = "args is not an array";
    wire.give(bad);
    bad.id.clear();
    wire.give(bad);  // it cannot be reported
    wire.give(make_job("good"));
    const auto worker = start_worker(wire, recorder::options(4), do_nothing);
    REQUIRE(wire.wait_for("fail", 2));
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(worker->stop(guard));
    const std::string unknown = wire.settlements("unknown").at(0).error.message;
    CHECK(holds(unknown, "no.such"));
    CHECK(!holds(unknown, "\n"));
    CHECK(wire.settled("bad") == "fail invalid_payload requeue");
    CHECK(wire.settlements("bad")[0].error.message == "args is not an array");
    CHECK(wire.settlements("good").size() == 1);
    CHECK(wire.settlements("").empty());
    const std::string counted = sums(*worker);
    CHECK(counted.find("claimed 4 completed 1 requeued 2 unreported ") == 0);
    CHECK(holds(counted, "args is not an array"));
}

TEST_CASE("worker: all unreported jobs are counted, and report() lists the first 10,000") {
    constexpr std::size_t jobs = 10010;
    struct nameless : recorder::transport {
        result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
            const auto none = recorder::transport::fetch(request, deadline);
            return none && calls("fetch").size() == 1 ? std::vector<job>(jobs) : none;
        }
    } wire;
    worker_options options = recorder::options();
    const kept_log log(options, log_level::info);
    const auto worker = run_until("fetch", 1, wire, options, do_nothing);
    CHECK(worker->report().claimed == jobs);
    CHECK(worker->report().unreported.size() == 10000);
    CHECK(value_of(log.records("info worker stopped").at(0), "unreported") == std::to_string(jobs));
}

TEST_CASE("worker: an exception of a handler is a retryable FAIL with a printable, bounded message") {
    const call thrown = run_one(make_job("a"), [](job_context&) { throw std::runtime_error("disk\x01 full"); });
    CHECK(holds(thrown.error.message, "full"));
    CHECK(!holds(thrown.error.message, "\x01"));
    const call endless =
        run_one(make_job("a"), [](job_context&) { throw std::runtime_error(std::string(1000000, 'x')); });
    CHECK(endless.error.message.size() < 10000);
    const call hungry = run_one(make_job("a"), [](job_context&) { throw std::bad_alloc(); });
    for (const call& each : {thrown, endless, hungry}) CHECK(each.text() == "fail handler_error");
}

TEST_CASE("worker: each kind of outcome is reported as its own ACK or FAIL") {
    const struct {
        outcome returned;
        outcome_kind kind;
        const char* report;
        const char* text;  // the result, or the error's message
    } rows[] = {{outcome::done("{\"a\":1}"), outcome_kind::done, "ack", "{\"a\":1}"},
                {outcome::done(), outcome_kind::done, "ack", ""},
                {outcome(), outcome_kind::implicit, "ack", ""},
                {outcome::retry("later"), outcome_kind::retry, "fail handler_error", "later"},
                {outcome::discard("never"), outcome_kind::discard, "fail handler_error final", "never"},
                {outcome::interrupted("no disk"), outcome_kind::interrupted, "fail ShutdownError requeue",
                 "ShutdownError: no disk"}};
    for (const auto& each : rows) {
        CAPTURE(each.text);
        CHECK(each.returned.kind == each.kind);
        const call settled = run_one(make_job("a"), [&](job_context&) { return each.returned; });
        CHECK(settled.text() == each.report);
        CHECK((settled.what == "ack" ? settled.result_json : settled.error.message) == each.text);
    }
    CHECK(outcome::discard("x").text == "x");
}

TEST_CASE("worker: a returned text that is JSON is the result, and other text becomes a JSON string") {
    const std::pair<const char*, const char*> rows[] = {{"[1,2]", "[1,2]"},
                                                        {"9007199254740993", "9007199254740993"},
                                                        {"say \"hi\"\n", "\"say \\\"hi\\\"\\u000a\""},
                                                        {"[1,", "\"[1,\""},
                                                        {"1e999", "\"1e999\""},
                                                        {"\xff", "\"\xef\xbf\xbd\""}};
    for (const auto& row : rows) {
        const char* const returned = row.first;
        CHECK(run_one(make_job("a"), [=](job_context&) { return returned; }).result_json == row.second);
    }
    CHECK(run_one(make_job("a"), [](job_context&) { return std::string("7"); }).result_json == "7");
}

TEST_CASE("worker: job_context gives the handler the fields and metadata of its job") {
    job given = make_job("id-1", "work", "[1]");
    given.queue = "mail";
    given.attempt = 3;
    given.envelope_json = "{\"x\":1}";
    given.meta_json =
        "{\"who\":\"me\",\"n\":12345678901234567890,\"o\":{\"a\":[1]},\"nothing\":null,\"esc\":\"a\\nb\"}";
    const call settled = run_one(given, [](job_context& job) {
        CHECK(job.id() == "id-1");
        CHECK(job.type() == "work");
        CHECK(job.queue() == "mail");
        CHECK(job.attempt() == 3);
        CHECK(job.args_json() == "[1]");
        CHECK(job.job().envelope_json == "{\"x\":1}");
        CHECK(job.meta("who") == "me");
        CHECK(job.meta("n") == "12345678901234567890");
        CHECK(job.meta("o") == "{\"a\":[1]}");
        CHECK(job.meta("nothing") == "null");
        CHECK(job.meta("esc") == "a\nb");
        CHECK(job.meta("absent").empty());
        CHECK(!job.stop_requested());
        CHECK(!job.cancel_requested());
        CHECK(job.deadline() == time_point::max());
        CHECK(job.sleep_for(1ms));
    });
    CHECK(settled.what == "ack");
}

TEST_CASE("worker: arg() returns an argument in the requested type, or an error if the type does not fit") {
    const char* args =
        "[ \"text\" , 9223372036854775807,-9223372036854775807, 9007199254740993, 1.5, true,"
        "{\"a\": [1, 2]}, null, -0, 9223372036854775808, \"7\", 1e3, \"\\ud800\" ]";
    const call settled = run_one(make_job("a", "work", args), [](job_context& job) {
        CHECK(*job.arg<std::string>(0) == "text");
        CHECK(*job.arg<std::int64_t>(3) == 9007199254740993);
        CHECK(*job.arg<std::string>(3) == "9007199254740993");
        CHECK(*job.arg<double>(4) == doctest::Approx(1.5));
        CHECK(*job.arg<bool>(5));
        CHECK(*job.arg<std::string>(6) == "{\"a\": [1, 2]}");
        CHECK(job.arg<std::string>(7).error().text == "argument 7: not a string");
        CHECK(job.arg_or(0, std::string("other")) == "text");
        CHECK(job.arg_or(7, 4) == 4);  // null
        CHECK(job.arg_or(20, "default") == "default");
        CHECK_THROWS_AS(job.arg_or(0, 4), std::invalid_argument);
        CHECK(*job.arg<double>(1) > 9e18);
        const auto refused = [](const auto& answer) {
            return !answer && answer.error().code == errc::invalid_argument;
        };
        CHECK(refused(job.arg<double>(10)));
        CHECK(refused(job.arg<bool>(7)));
        CHECK(refused(job.arg<bool>(4)));
        CHECK(job.arg<std::string>(12).error().text == "argument 12: half of a surrogate pair");
        CHECK(refused(job.arg<double>(static_cast<std::size_t>(-1))));
        CHECK(holds(job.arg<bool>(99).error().text, "99"));
    });
    CHECK(settled.what == "ack");
    run_one(make_job("a", "work", "[]"), [](job_context& job) { CHECK(!job.arg<std::string>(0)); });
}

// What arg<T>() makes of one argument: it must be `wanted`.
template <class T>
void check_number(const char* written, T wanted) {
    CAPTURE(written);
    run_one(make_job("a", "work", "[" + std::string(written) + "]"), [&](job_context& job) {
        const result<T> found = job.arg<T>(0);
        CAPTURE((found ? "" : found.error().text));
        CHECK(found.has_value());
        CHECK(found.value_or(T(77)) == wanted);
    });
}

// It must be refused with an error that names the argument and the accepted range.
template <class T>
void check_refused(const char* written, const char* range) {
    CAPTURE(written);
    run_one(make_job("a", "work", "[0," + std::string(written) + "]"), [&](job_context& job) {
        const result<T> found = job.arg<T>(1);
        CHECK(!found.has_value());
        if (found) return;
        CAPTURE(found.error().text);
        CHECK(found.error().code == errc::invalid_argument);
        CHECK(holds(found.error().text, "argument 1: "));
        CHECK(holds(found.error().text, range));
        CHECK(!holds(found.error().text, "hush"));  // never quoted: it may be a secret
    });
}

TEST_CASE("worker: arg() reads a number as every type that can hold it, and refuses the others") {
    check_number<int>("2147483647", 2147483647);
    check_number<int>("-2147483648", std::numeric_limits<int>::min());
    check_refused<int>("2147483648", "not an integer from -2147483648 to 2147483647");
    check_number<unsigned>("4294967295", 4294967295U);
    check_refused<unsigned>("4294967296", "not an integer from 0 to 4294967295");
    check_refused<unsigned>("-1", "from 0 to 4294967295");
    check_number<unsigned>("-0", 0);
    check_refused<long long>("1e3", "not an integer from");
    check_number<std::uint64_t>("18446744073709551615", std::numeric_limits<std::uint64_t>::max());
    check_refused<std::uint64_t>("18446744073709551616", "not an integer from 0 to 18446744073709551615");
    check_refused<std::uint64_t>("-9223372036854775808", "from 0 to 18446744073709551615");
    check_number<long long>("-9223372036854775808", std::numeric_limits<long long>::min());
    check_refused<long long>("9223372036854775808", "not an integer from -9223372036854775808 to 9223372036854775807");
    check_number<std::int8_t>("-128", std::numeric_limits<std::int8_t>::min());
    check_refused<std::int8_t>("128", "not an integer from -128 to 127");
    check_refused<unsigned short>("65536", "not an integer from 0 to 65535");
    check_refused<int>("2.5", "from -2147483648");
    check_refused<int>("\"hush\"", "from -2147483648");
    check_number<float>("0.25", 0.25F);
    check_number<float>("3.4028234663852886e38", std::numeric_limits<float>::max());
    check_refused<float>("3.41e38", "from -3.4e38 to 3.4e38");
    check_refused<float>("true", "a number");
    check_number<double>("-1e300", -1e300);
    check_number<long double>("1e300", static_cast<long double>(1e300));
    check_refused<long double>("null", "a number");
}

TEST_CASE("job_context: require_arg() reads a member by name, and its error names the member") {
    const char* args = R"([{"to":"a@b.c","copies":2,"cc":null,"n":[1]},7])";
    const call settled = run_one(make_job("a", "work", args), [](job_context& job) {
        CHECK(job.require_arg<std::string>(0, "to") == "a@b.c");
        CHECK(*job.arg<int>(0, "copies") == 2);
        CHECK(job.arg_or(0, "copies", 1) == 2);
        CHECK(job.arg_or(0, "cc", "none") == "none");
        CHECK(job.arg_or(0, "bcc", std::string("none")) == "none");
        CHECK(job.arg_or(2, "copies", 1) == 1);
        CHECK(*job.arg<std::string>(0, "n") == "[1]");
        CHECK(job.arg<int>(0, "").error().text == R"(argument 0, member "": missing)");
        CHECK(job.arg<int>(0, "To").error().text == R"(argument 0, member "To": missing)");
        CHECK(job.arg<int>(1, "to").error().text == "argument 1: not an object");
        CHECK(job.arg<bool>(0, "to").error().text == R"(argument 0, member "to": not true or false)");
        CHECK(job.arg<int>(2, "to").error().text == R"(argument 2, member "to": missing)");
        CHECK_THROWS_WITH_AS(job.require_arg<double>(0, "cc"), R"(argument 0, member "cc": not a number)",
                             std::invalid_argument);
        CHECK_THROWS_AS(job.arg_or(0, "to", 1), std::invalid_argument);
        CHECK_THROWS_AS(job.arg_or(1, "to", 1), std::invalid_argument);  // a number has no members
    });
    CHECK(settled.what == "ack");
}

TEST_CASE("worker: start() fails without a handler, and succeeds once a handler is registered") {
    recorder::transport wire;
    worker idle(recorder::options(), wire);
    CHECK(test::code_of(idle.start()) == errc::invalid_argument);
    CHECK(wire.calls().empty());
    CHECK(!idle.stopped());
    CHECK_FALSE(idle.wait());
    idle.register_handler("work", do_nothing);  // it can still be put right
    REQUIRE(idle.start());
    CHECK(idle.stop(guard));
}

TEST_CASE("worker: a second handler of a type, an empty handler or an empty type makes start() and run() fail") {
    const auto check = [](const char* named, const char* fault, auto registered) {
        CAPTURE(named);
        recorder::transport wire;
        worker worker(recorder::options(), wire);
        CHECK(worker.register_handler("good", do_nothing));
        CHECK_FALSE(registered(worker));
        CHECK_FALSE(worker.register_handler("", do_nothing));  // only the first error is reported
        const result<void> started = worker.start();
        REQUIRE(test::code_of(started) == errc::invalid_argument);
        CHECK(holds(started.error().text, named));
        CHECK(holds(started.error().text, fault));
        CHECK(worker.run() == exit_status::usage);
        CHECK(wire.calls().empty());
    };
    check("'good'", "twice", [](worker& in) { return in.register_handler("good", do_nothing); });
    check("'none'", "empty", [](worker& in) { return in.register_handler("none", detail::job_handler()); });
    check("''", "no type", [](worker& in) { return in.register_handler("", do_nothing); });
}

// [WP 2.3 (c)]
TEST_CASE("worker: start(), run() and register_handler() are refused after start() and after the end") {
    recorder::transport wire;
    wire.give(make_job("a"));
    wire.give(make_job("b", "late"));
    worker_options options = recorder::options();
    const kept_log log(options, log_level::error);
    worker worker(options, wire);
    REQUIRE(worker.register_handler("work", [&](job_context&) {
        CHECK_FALSE(worker.register_handler("late", do_nothing));  // as an on-demand plugin would
    }));
    const auto check_busy = [&] {
        CHECK(test::code_of(worker.start()) == errc::busy);
        CHECK(worker.run() == exit_status::usage);
    };
    REQUIRE(worker.start());
    check_busy();
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(wire.wait_for("fail", 1));
    CHECK_FALSE(worker.register_handler("work", [](job_context&) { CHECK(false); }));
    CHECK(!worker.stopped());
    REQUIRE(worker.stop(guard));
    check_busy();
    CHECK_FALSE(worker.register_handler("later still", do_nothing));
    CHECK(wire.settlements("b").at(0).what == "fail");
    for (const char* type : {"late", "work", "later still"}) CHECK(holds(log.text(), type));
    CHECK(worker.exit_code() == 0);
    check_last_word(wire);
}

TEST_CASE("worker: job types in OJS_JOB_TYPES without a handler are logged once at start-up") {
    const auto warned = [](const char* deployed) {
        const test::environment_variable set("OJS_JOB_TYPES", deployed);
        recorder::transport wire;
        worker_options options = recorder::options();
        options.extensions.add(ops());
        const kept_log log(options, log_level::warn);
        run_until("fetch", 1, wire, options, do_nothing);
        std::string types;
        for (const log_record& each : log.records()) types += value_of(each, "job_types");
        return types;
    };
    CHECK(warned("email.send, work,sms.send") == "email.send,sms.send");
    CHECK(warned("work").empty());
    CHECK(warned("").empty());
}

TEST_CASE("worker: the log shows job arguments only if a handler's error quotes them") {
    for (const bool quoted : {true, false}) {
        recorder::transport wire;
        wire.give(make_job("a", "work", "[\"hush-hush\"]"));
        wire.give(make_job("b", "unknown", "[\"hush-hush\"]"));
        worker_options options = recorder::options();
        options.auth_token = "t0ken";
        options.log.error_messages = quoted;
        const kept_log log(options);
        run_until("fail", 2, wire, options,
                  [](job_context& job) { throw std::runtime_error("bad " + job.args_json()); });
        CHECK(holds(log.text(), "job_id=a"));
        CHECK(holds(log.text(), "error_type=handler_error"));
        CHECK(holds(log.text(), "hush") == quoted);
        CHECK(!holds(log.text(), "t0ken"));
    }
}

// ---- jobs of types that no handler is registered for ----

namespace {
// A backend that returns job "u" of an unknown type first, whenever it is not claimed.
struct insistent : recorder::transport {
    insistent() {
        on.fail = [this](const fail_request& request, time_point) -> settling {
            if (request.job_id == "u") claimed = false;
            return settle_result::accepted;
        };
    }
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        if (claimed.exchange(true)) return recorder::transport::fetch(request, deadline);
        {
            const std::lock_guard<std::mutex> held(mutex);
            claims.push_back(steady_clock::now());
        }
        claim_count.add();
        return std::vector<job>{make_job("u", "no.such")};
    }
    time_point claim(std::size_t number) {
        const std::lock_guard<std::mutex> held(mutex);
        return claims.at(number);
    }
    std::atomic<bool> claimed{false};
    std::mutex mutex;
    std::vector<time_point> claims;
    counter claim_count;
};

const char* const no_handler = "warn no handler for this job type";
}  // namespace

TEST_CASE("unknown type: the option unknown_type decides between requeue, fail and discard") {
    const struct {
        unknown_type_action action;
        const char* report;
        const char* expected;
    } rows[] = {{unknown_type_action::requeue, "fail unsupported requeue", "claimed 1 requeued 1 exit 0"},
                {unknown_type_action::fail, "fail unsupported", "claimed 1 failed 1 exit 0"},
                {unknown_type_action::discard, "fail unsupported final", "claimed 1 failed 1 exit 0"}};
    for (const auto& each : rows) {
        recorder::transport wire;
        wire.give(make_job("u", "no.such"));
        worker_options options = recorder::options();
        options.on_unknown_type = each.action;
        const auto worker = run_until("fail", 1, wire, options, do_nothing);
        CHECK(wire.settled("u") == each.report);
        CHECK(sums(*worker) == each.expected);
    }
}

// [WP 8.2 (b)]
TEST_CASE("unknown type: requeues of one job are delayed longer each time, and are immediate in a drain") {
    insistent wire;
    wire.give(make_job("good"));
    worker_options options = recorder::options();  // one slot
    const kept_log log(options, log_level::warn);
    const auto worker = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("ack", 1));  // though "u" always comes first
    REQUIRE(wire.claim_count.wait_for(4));
    REQUIRE(worker->stop(guard));
    const std::vector<call> reports = wire.settlements("u");
    REQUIRE(reports.size() >= 4);  // more if the stop comes late
    const std::size_t last = reports.size() - 1;
    for (std::size_t i = 0; i < last; ++i) {
        CHECK(reports[i].error.code == "unsupported");
        CHECK(reports[i].at - wire.claim(i) >= 100ms * (1 << i));
    }
    CHECK(reports[last].requeue);
    CHECK(reports[last].error.code == "ShutdownError");  // as any job that never started
    CHECK(log.count(no_handler) == 1);
    CHECK(worker->report().requeued == reports.size());
    CHECK(worker->exit_code() == 0);
}

TEST_CASE("worker: a transport announces work -> an idle worker fetches at once") {
    struct announcing final : recorder::transport {
        bool announces_work() const noexcept override { return true; }
        void on_work_available(function<void()> callback) override { tell = std::move(callback); }
        function<void()> tell;
    };
    worker_options options = recorder::options();
    options.poll_interval = 1h;
    announcing wire;
    const auto announced = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("fetch", 1));
    wire.give(make_job("a"));
    wire.tell();
    CHECK(wire.wait_for("ack", 1));
    CHECK(announced->stop(guard));
}
