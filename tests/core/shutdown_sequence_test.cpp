// shutdown_sequence: the order, and what a step that throws or hangs does to the others.
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
        test::event let_go, returned;
    };
    const std::shared_ptr<events> shared = std::make_shared<events>();
    void operator()() const {
        shared->let_go.wait();
        shared->returned.set();
    }
    void end() const {
        shared->let_go.set();
        REQUIRE(shared->returned.wait());
    }
};

const auto fails = []() -> result<void> { return error{errc::system, 0, "is full"}; };

sequence_options silent() {
    sequence_options out;
    out.log.level = log_level::off;
    return out;
}

TEST_CASE("shutdown sequence: steps run in order, once, and each has a status") {
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

TEST_CASE("shutdown sequence: a line for each step that has ended, to a hook or in plain text") {
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
          "debug shutdown step begins step=http\ninfo shutdown step step=http status=done\n"
          "debug shutdown step begins step=database\n"
          "error shutdown step step=database status=failed error=is full\n");
    options = {};  // plain, also without a terminal
    const std::string plain = test::standard_error_of([&] { run(options); });
    CAPTURE(plain);
    CHECK(test::holds(plain, "Z info  shutdown step  step=http  status=done  took_ms="));
}

TEST_CASE("shutdown sequence: parallel steps run together, and the next waits for all of them") {
    test::counter began, ended;
    shutdown_sequence tested;
    const auto together = [&] { began.add(), began.wait_for(3), ended.add(); };
    const auto last = [&] { CHECK(ended.count() == 3); };
    tested.add_parallel("one", together, 1min);  // with none before it
    tested.add_parallel("two", together, 2min);
    tested.add_parallel("three", together, 1min);
    tested.add("last", last, 1min);
    CHECK(tested.timeout() == 3min);
    CHECK(shown(tested.run(silent())) == "one:done two:done three:done last:done ");
}

TEST_CASE("shutdown sequence: a step that hangs is abandoned at its timeout") {
    const hanging_step hangs;
    const auto done = [] {};
    shutdown_sequence tested;
    tested.add("hangs", hangs, 1ms);
    tested.add_parallel("fails", fails, 1min);
    tested.add_parallel("done", done, 1min);
    tested.add("next", done, 1min);
    CHECK(shown(tested.run(silent())) == "hangs:timed out fails:failed:is full done:done next:done ");
    hangs.end();
}

TEST_CASE("shutdown sequence: the total timeout ends a step with a longer one, and later ones still begin") {
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

TEST_CASE("shutdown sequence: a second stop signal aborts a waiting step, and those after it") {
    const hanging_step hangs;
    struct shared {
        test::event close;
        std::atomic<bool> drain_aborted{false}, close_aborted{false};
    };
    const auto with = std::make_shared<shared>();
    lifecycle life(0ms);
    shutdown_sequence tested;
    tested.add("drain", [=, &life](const step_context& step) {
        stop_signal(life);
        with->drain_aborted = !step.abort.sleep_for(1min);
        hangs();
    });
    tested.add("close", [=](const step_context& step) {
        with->close_aborted = step.abort.cancelled();
        with->close.set();
    });
    stop_signal(life);
    sequence_options options = silent();
    options.lifecycle = &life;
    const std::vector<step_result> got = tested.run(options);
    hangs.end();
    REQUIRE(with->close.wait());
    CHECK(got[0].status == step_status::cut_short);
    CHECK(with->drain_aborted);
    CHECK(with->close_aborted);
}

TEST_CASE("shutdown sequence: a callback of the abort blocks -> the steps end at their time limits") {
    const hanging_step blocks;
    lifecycle life(0ms);
    shutdown_sequence tested;
    tested.add("drain", [=, &life](const step_context& step) {
        const cancel_registration keep = step.abort.on_cancel(blocks);
        for (int i = 0; i < 2; ++i) stop_signal(life);
        blocks.shared->let_go.wait();
    });
    tested.add("close", [] {});
    sequence_options options = silent();
    options.lifecycle = &life;
    CHECK(shown(tested.run(options)) == "drain:cut short close:done ");
    CHECK_FALSE(blocks.shared->returned.is_set());
    blocks.end();
}

TEST_CASE("shutdown sequence: one stop signal in a drain that a call began -> the steps are aborted") {
    lifecycle life;
    life.apply(event::stop_request, {cause_kind::api, 0});
    shutdown_sequence tested;
    std::atomic<bool> aborted{false};
    tested.add("drain", [&](const step_context& step) {
        stop_signal(life);
        aborted = !step.abort.sleep_for(1min);
    });
    sequence_options options = silent();
    options.lifecycle = &life;
    CHECK(shown(tested.run(options)) == "drain:done ");
    CHECK(aborted);
}

TEST_CASE("shutdown sequence: a step's captures are destroyed with it, within its timeout") {
    const auto let_go = std::make_shared<test::event>();
    const auto waits = [let_go](void*) { let_go->wait(); };
    shutdown_sequence tested;
    auto holds = [held = std::shared_ptr<void>(nullptr, waits)] {};
    tested.add("holds", std::move(holds), 50ms);
    CHECK(shown(tested.run(silent())) == "holds:timed out ");
    let_go->set();
}

TEST_CASE("shutdown sequence: what is added while it runs is for the next run") {
    shutdown_sequence tested;
    sequence_options options = silent();
    options.progress = [&](const step_result& each) {
        for (int i = 0; i < 20 && each.name == "first" && each.status == step_status::running; ++i)
            tested.add("later", [] {});
    };
    tested.add("first", [&] { CHECK(tested.run(silent()).size() <= 20); });
    tested.add("second", [] {});
    CHECK(shown(tested.run(options)) == "first:done second:done ");
    CHECK(tested.run(silent()).empty());
}

TEST_CASE("shutdown sequence: the timeout from the environment") {
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

TEST_CASE("shutdown sequence: a step whose thread does not end is abandoned, by timeout or signal") {
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
        tested.add("next", [] {});
        sequence_options options = silent();
        options.lifecycle = &life;
        CHECK(shown(tested.run(options)) ==
              (by_signal ? "blocks:cut short next:done " : "blocks:timed out next:done "));
        CHECK_FALSE(ended->is_set());
        let_go->set();
        CHECK(ended->wait());
    }
}

TEST_CASE("shutdown sequence: without a thread, steps run on the calling one") {
    const std::thread::id here = std::this_thread::get_id();
    shutdown_sequence tested;
    int ran = 0;
    const auto step = [&] { ran += std::this_thread::get_id() == here ? 1 : 0; };
    const auto beside = [&] { return step(), fails(); };
    tested.add("first", step, 1min);
    tested.add_parallel("beside", beside, 1min);
    sequence_options options = silent();
    CHECK(options.thread_stack_size == 0);
    options.thread_stack_size = std::size_t{1} << 46;  // more than any process has room for
    CHECK(shown(tested.run(options)) == "first:done beside:failed:is full ");
    CHECK(ran == 2);
    // Aborted before it begins.
    lifecycle life(0ms);
    for (int i = 0; i < 2; ++i) stop_signal(life);
    options.lifecycle = &life;
    tested.add("aborted", [&](const step_context& context) {
        CHECK(context.abort.cancelled());
        CHECK((context.deadline <= steady_clock::now() + 50ms));
        ++ran;
    });
    CHECK(shown(tested.run(options)) == "aborted:done ");
    CHECK(ran == 3);
}

#if OJS_SHUTDOWN_USE_PROC
TEST_CASE(
    "shutdown sequence: a step has a named thread that takes signals; the calling one sleeps meanwhile") {
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
