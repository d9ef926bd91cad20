// shutdown_sequence: the order, side by side or not, and what a step that throws or hangs does to the others.
#include <array>

#include "processes.hpp"
#include "standard_error.hpp"
#include "text.hpp"
#include "thread_sleep.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

std::string shown(const std::vector<step_result>& results) {
    std::string out;
    for (const step_result& each : results)
        out += each.name + ":" + to_string(each.status) + (each.error.empty() ? " " : ":" + each.error + " ");
    return out;
}

void stop_signal(lifecycle& life) {
    life.apply(event::stop_signal, {cause_kind::signal, SIGTERM});
}

// A step that ends when the test lets it go, if the sequence has abandoned it or not.
struct hanging_step {
    struct events {
        test::event begun, let_go, returned;
    };
    const std::shared_ptr<events> shared = std::make_shared<events>();
    void operator()() const {
        shared->begun.set();
        shared->let_go.wait();
        shared->returned.set();
    }
    void end() const {
        shared->let_go.set();
        REQUIRE(shared->returned.wait());
    }
};

const auto fails = []() -> result<void> { return error{errc::system, 0, "is full"}; };

const after at_once({});

sequence_options silent() {
    sequence_options out;
    out.log.level = log_level::off;
    return out;
}

// [GS 9.1]
TEST_CASE(
    "shutdown sequence: steps run once, in order, and a step that fails or throws stops no later step") {
    struct silence : std::exception {
        const char* what() const noexcept override { return nullptr; }
    };
    std::string ran;
    const auto first = [&] { ran += "1"; };
    const auto throws = []() -> void { throw std::runtime_error("no disk"); };
    const auto last = [&]() -> result<void> { return ran += "3", result<void>(); };
    shutdown_sequence tested;
    CHECK(tested.add("first", first, 1min));
    CHECK(tested.add("throws", throws, 1min));
    CHECK(tested.add("anything", []() -> void { throw 1; }));
    CHECK(tested.add("silence", []() -> void { throw silence(); }));
    CHECK(tested.add("fails", fails));
    CHECK(tested.add("last", last, no_limit));
    CHECK_FALSE(tested.add("none", function<void()>()));
    CHECK(tested.size() == 6);
    CHECK(tested.timeout() == no_limit);
    sequence_options options = silent();
    std::string progress;
    options.progress = [&](const step_result& each) {
        progress += each.name + ":" + to_string(each.status) + " ";
    };
    CHECK(shown(tested.run(options)) ==
          "first:done throws:threw:no disk anything:threw:an exception that is not a std::exception "
          "silence:threw:an exception without a text fails:failed:is full last:done ");
    CHECK(progress ==
          "first:running first:done throws:running throws:threw anything:running anything:threw "
          "silence:running silence:threw fails:running fails:failed "
          "last:running last:done ");
    CHECK(tested.run(silent()).empty());
    CHECK(ran == "13");
    CHECK(std::string(to_string(step_status::not_started)) == "not started");
}

TEST_CASE("shutdown sequence: each finished step is logged with its status, to a hook or as plain text") {
    const auto run = [](sequence_options options) {
        shutdown_sequence tested;
        tested.add("http", [] {});
        tested.add("database", fails);
        tested.run(options);
    };
    std::string log;
    sequence_options options;
    options.log.level = log_level::debug;
    options.log.hook = [&](const log_record& record) {
        CHECK(std::string(record.component) == "sequence");
        log += std::string(to_string(record.level)) + " " + record.message;
        for (const log_field& each : record.fields) {
            if (each.name != "took_ms") log += " " + each.name + "=" + each.value;
        }
        log += "\n";
    };
    run(options);
    CHECK(log ==
          "debug shutdown step started step=http\ninfo shutdown step finished step=http status=done\n"
          "debug shutdown step started step=database\n"
          "error shutdown step failed step=database status=failed error=is full\n");
    options = {};  // plain, also without a terminal
    const std::string plain = test::standard_error_of([&] { run(options); });
    CAPTURE(plain);
    CHECK(test::holds(plain, "Z info  shutdown step finished  step=http  status=done  took_ms="));
}

TEST_CASE(
    "shutdown sequence: the total timeout ends a step with a longer timeout, and later steps still begin") {
    const hanging_step hangs;
    const auto next = std::make_shared<test::event>();
    const auto given = std::make_shared<time_point>();
    shutdown_sequence tested;
    const auto waits = [=](const step_context& step) { *given = step.deadline, hangs(); };
    const auto ends = [=] { next->set(); };
    const time_point began = steady_clock::now();
    tested.add("next", ends, -1h);
    CHECK(tested.timeout() == 0ms);
    tested = {};
    tested.add("hangs", waits, 24h);
    tested.add("next", ends);
    sequence_options options = silent();
    options.timeout = 20ms;
    const std::vector<step_result> got = tested.run(options);
    const time_point ended = steady_clock::now();
    hangs.end();
    REQUIRE(next->wait());  // it may have needed more than its last chance to begin
    CHECK(got[0].status == step_status::timed_out);
    CHECK(got[0].took >= 20ms);
    CHECK(*given >= began + 20ms);
    CHECK(*given <= ended);
}

// [GS 9.2]
TEST_CASE(
    "server_shutdown_timeout: the default is 30s, and an invalid variable is refused by name and value") {
    const auto with = [](const char* value) {
        return server_shutdown_timeout([=](const char* name) {
            return std::string(name) == "OJS_SERVER_SHUTDOWN_TIMEOUT" ? value : nullptr;
        });
    };
    CHECK(*with(nullptr) == 30s);
    CHECK(*with("1m30s") == 90s);
    for (const char* const bad : {"", "soon"}) {
        CAPTURE(bad);
        const auto refused = with(bad);
        REQUIRE(test::code_of(refused) == errc::invalid_argument);
        CHECK(refused.error().sys_errno == 0);
        CHECK(refused.error().text.find(std::string("OJS_SERVER_SHUTDOWN_TIMEOUT='") + bad + "' ") == 0);
    }
}

TEST_CASE(
    "shutdown sequence: a step whose thread does not end is abandoned at its timeout or second stop signal") {
    for (const bool by_signal : {false, true}) {
        CAPTURE(by_signal);
        const auto let_go = std::make_shared<test::event>();
        const auto ended = std::make_shared<test::event>();
        const auto at_end = [=](void*) { let_go->wait(), ended->set(); };
        lifecycle life(0ms);
        shutdown_sequence tested;
        const auto blocks = [=, &life] {
            thread_local const std::shared_ptr<void> blocked(nullptr, at_end);
            for (int i = 0; by_signal && i < 2; ++i) stop_signal(life);
        };
        tested.add("blocks", blocks, by_signal ? no_limit : 100ms);
        const auto next = std::make_shared<test::event>();
        tested.add("next", [=] { next->set(); });
        sequence_options options = silent();
        options.lifecycle = &life;
        CHECK(tested.run(options)[0].status == (by_signal ? step_status::cut_short : step_status::timed_out));
        CHECK_FALSE(ended->is_set());
        CHECK(next->wait());  // by the signal it may be cut short, too, but has begun
        let_go->set();
        CHECK(ended->wait());
    }
}

TEST_CASE(
    "shutdown sequence: if no thread can be created, steps run on the calling thread, in the order of "
    "after()") {
    const std::thread::id here = std::this_thread::get_id();
    std::string ran;
    const auto notes = [&](const char* name) {
        return [&ran, here, name] { ran += std::this_thread::get_id() == here ? name : "elsewhere"; };
    };
    const auto beside = [&] { return notes("p")(), fails(); };
    shutdown_sequence tested;
    tested.add("c", notes("c"), after({"a", "b"}));
    tested.add("a", notes("a"), at_once);
    tested.add("b", notes("b"), after({"a"}));
    tested.add("last", notes("l"), 1min);
    tested.add_parallel("beside", beside, 1min);
    sequence_options options = silent();
    CHECK(options.thread_stack_size == 0);
    options.thread_stack_size = SIZE_MAX / 2;  // more than any process has room for
    CHECK(shown(tested.run(options)) == "c:done a:done b:done last:done beside:failed:is full ");
    CHECK(ran == "abclp");
    // Aborted before it begins.
    lifecycle life(0ms);
    for (int i = 0; i < 2; ++i) stop_signal(life);
    options.lifecycle = &life;
    tested.add("aborted", [&](const step_context& context) {
        CHECK(context.abort.cancelled());
        CHECK((context.deadline <= steady_clock::now() + 50ms));
    });
    CHECK(shown(tested.run(options)) == "aborted:done ");
}

std::string chain_of(const std::vector<step_result>& results) {
    std::string out;
    for (const step_result& each : results) out += each.critical ? each.name + " " : "";
    return out;
}

// Notes the order in which its steps begin and end, and lets the test hold one that must end after others.
struct order_recorder {
    std::mutex mutex;
    std::string began, ended;
    test::counter running;
    function<void()> step(
        const std::string& name, function<void()> body = [] {}) {
        return [this, name, body] {
            {
                const std::lock_guard<std::mutex> held(mutex);
                began += name;
            }
            running.add();
            body();
            const std::lock_guard<std::mutex> held(mutex);
            ended += name;
        };
    }
};

TEST_CASE(
    "shutdown sequence: a step with after() waits for the named steps only, a step without it for all before "
    "it") {
    order_recorder noted;
    test::event slow_may_end;
    shutdown_sequence tested;
    const auto both_run = [&] { noted.running.wait_for(2); };
    tested.add("d", noted.step("d"), after({"a", "b"}), 1min);  // fan-in, on steps that are added later
    tested.add("a", noted.step("a", both_run), at_once, 2min);
    tested.add("b", noted.step("b", both_run), at_once, 3min);
    tested.add("slow", noted.step("s", [&] { slow_may_end.wait(); }), after({"a"}), 5min);
    tested.add("e", noted.step("e", [&] { slow_may_end.set(); }), after({"d"}), 1min);
    tested.add("last", noted.step("l"), 1min);
    tested.add_parallel("beside", noted.step("L"), 1min);
    CHECK(tested.check());
    CHECK(tested.timeout() == 8min);
    CHECK(shown(tested.run(silent())) == "d:done a:done b:done slow:done e:done last:done beside:done ");
    // `slow` has not ended before `e`, which waits for `d`, which waits for `a` and `b`.
    const auto place = [&](char step) { return noted.began.find(step); };
    CHECK(place('d') > std::max(place('a'), place('b')));
    CHECK(place('s') > place('a'));
    CHECK(place('e') > place('d'));
    CHECK(noted.ended.find('s') > noted.ended.find('d'));
    CHECK(std::min(place('l'), place('L')) == 5);
}

TEST_CASE("shutdown sequence: an order that cannot be kept is an error that names the steps; none runs") {
    struct row {
        std::vector<std::pair<const char*, std::vector<std::string>>> steps;  // "=x": without after()
        const char* error;
    };
    const row rows[] = {
        {{{"a", {"a"}}}, "steps wait for each other: \"a\" after \"a\""},
        {{{"a", {"b"}}, {"b", {"a"}}}, "steps wait for each other: \"a\" after \"b\" after \"a\""},
        {{{"x", {"a"}}, {"a", {"b"}}, {"b", {"c"}}, {"c", {"y", "a"}}, {"y", {}}},
         "steps wait for each other: \"b\" after \"c\" after \"a\" after \"b\""},
        {{{"db", {"http"}}, {"=http", {}}}, "steps wait for each other: \"db\" after \"http\" after \"db\""},
        {{{"http", {}}, {"db", {"http", "htp"}}}, "step \"db\" is after \"htp\", which was not added"},
        {{{"a", {}}, {"=a", {}}, {"b", {"a"}}}, "step \"b\" is after \"a\", the name of several steps"},
        {{{"=a", {}}, {"=a", {}}, {"b", {}}}, nullptr},
        {{{"c", {"b", "b"}}, {"b", {"a"}}, {"a", {}}}, nullptr},
        {{}, nullptr},
    };
    for (const row& each : rows) {
        CAPTURE(std::string(each.error == nullptr ? "" : each.error));
        int ran = 0;
        shutdown_sequence tested;
        for (const auto& step : each.steps) {
            const auto body = [&] { ++ran; };
            *step.first == '=' ? tested.add(step.first + 1, body, 1min)
                               : tested.add(step.first, body, after(step.second), 1min);
        }
        const result<void> checked = tested.check();
        REQUIRE(bool(checked) == (each.error == nullptr));
        std::string progress;
        sequence_options options = silent();
        options.progress = [&](const step_result& step) { progress += shown({step}); };
        const std::vector<step_result> got = tested.run(options);
        REQUIRE(got.size() == each.steps.size());
        if (each.error == nullptr) continue;
        CHECK(test::code_of(checked) == errc::invalid_argument);
        CHECK(checked.error().text == each.error);
        for (const step_result& step : got) {
            CHECK(step.status == step_status::not_started);
            CHECK(step.error == each.error);
        }
        CHECK(progress == shown(got));
        CHECK(ran == 0);
        CHECK(tested.size() == each.steps.size());
        CHECK(tested.timeout() == 0ms);
    }
}

TEST_CASE("shutdown sequence: the critical path is marked, and logged if other steps ran beside it") {
    const auto run = [](bool is_slow_first, std::string& log) {
        test::event fast_ended;
        sequence_options options;
        options.log.level = log_level::info;
        options.log.hook = [&](const log_record& record) {
            if (std::string(record.message) == "shutdown steps finished") log += record.fields[1].value;
        };
        options.progress = [&](const step_result& each) {
            if (each.name == "fast" && each.status == step_status::done) fast_ended.set();
        };
        shutdown_sequence tested;
        if (is_slow_first) {
            tested.add(
                "fast", [] {}, at_once);
            tested.add(
                "slow", [&] { fast_ended.wait(); }, at_once);
            tested.add(
                "db", [] {}, after({"fast", "slow"}));
        } else {
            tested.add("fast", [] {});
            tested.add("db", [] {});
        }
        return chain_of(tested.run(options));
    };
    std::string log;
    CHECK(run(true, log) == "slow db ");
    CHECK(log == "slow > db");
    log.clear();
    CHECK(run(false, log) == "fast db ");
    CHECK(log.empty());
}

#if OJS_SHUTDOWN_USE_PROC
TEST_CASE("shutdown sequence: a step runs in a named thread that takes signals, while the caller sleeps") {
    const long calling = test::thread_id();
    bool slept = false;
    char name[16] = {};
    sigset_t blocked;
    sigemptyset(&blocked);
    shutdown_sequence tested;
    tested.add("looks", [&] {
        slept = test::await_sleep(calling);
        pthread_getname_np(pthread_self(), name, sizeof name);
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    });
    tested.run(silent());
    CHECK(slept);
    CHECK(std::string(name) == "ojs-step");
    CHECK(sigismember(&blocked, SIGTERM) == 0);  // a program that the step starts inherits the mask
}
#endif

}  // namespace
