// shutdown_sequence: the order, and what a step that throws, hangs or ends its thread does to the others.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <stdexcept>

#include "processes.hpp"
#include "standard_error.hpp"
#include "text.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

struct journal {
    std::mutex mutex;
    std::string text;
    void add(const char* what) {
        const std::lock_guard<std::mutex> held(mutex);
        text += what;
    }
};

std::vector<step_status> ends(const std::vector<step_result>& results) {
    std::vector<step_status> out;
    for (const step_result& each : results) out.push_back(each.status);
    return out;
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
    journal ran;
    const auto first = [&] { ran.add("1"); };
    const auto throws = []() -> void { throw std::runtime_error("no disk"); };
    const auto leaves = [&] { ran.add("2"), pthread_exit(nullptr); };
    const auto last = [&]() -> result<void> { return ran.add("3"), result<void>(); };
    shutdown_sequence tested;
    CHECK(tested.add("first", first, 1min));
    CHECK(tested.add("throws", throws, 1min));
    CHECK(tested.add("throws anything", []() -> void { throw 1; }));
    CHECK(tested.add("throws silence", []() -> void { throw silence(); }));
    CHECK(tested.add("fails", fails));
    CHECK(tested.add("leaves", leaves, 1min));
    CHECK(tested.add("last", last, no_limit));
    CHECK_FALSE(tested.add("none", function<void()>()));
    CHECK(tested.size() == 7);
    CHECK(tested.timeout() == no_limit);
    sequence_options options = silent();
    std::string progress;
    options.progress = [&](const step_result& each) {
        progress += each.name + ":" + to_string(each.status) + " ";
    };
    std::string results;
    for (const step_result& each : tested.run(options))
        results += each.name + ":" + to_string(each.status) + ":" + each.error + " ";
    CHECK(ran.text == "123");
    CHECK(
        progress ==
        "first:running first:done throws:running throws:threw throws anything:running throws anything:threw "
        "throws silence:running throws silence:threw fails:running fails:failed leaves:running leaves:done "
        "last:running last:done ");
    CHECK(results ==
          "first:done: throws:threw:no disk throws anything:threw: throws silence:threw: "
          "fails:failed:is full leaves:done: last:done: ");
    CHECK(tested.run(silent()).empty());
    CHECK(ran.text == "123");
    CHECK(std::string(to_string(step_status::timed_out)) == "timed out");
    CHECK(std::string(to_string(step_status::not_started)) == "not started");
}

TEST_CASE("shutdown sequence: a line for each step that has ended, to a hook, in plain text, or as JSON") {
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
    options.log.format = log_format::json;
    CHECK(test::holds(test::standard_error_of([&] { run(options); }), "\"component\":\"sequence\""));
}

TEST_CASE("shutdown sequence: parallel steps run together, and the next waits for all of them") {
    test::event first;
    test::event second;
    journal ran;
    const auto one = [&] { first.set(), second.wait(), ran.add("a"); };
    const auto two = [&] { second.set(), first.wait(), ran.add("a"); };
    const auto three = [&] { ran.add("b"); };
    shutdown_sequence tested;
    tested.add("one", one, 1min);
    tested.add_parallel("two", two, 2min);
    tested.add("three", three, 1min);
    CHECK(tested.timeout() == 3min);
    std::string results;
    for (const step_result& each : tested.run(silent()))
        results += each.name + ":" + to_string(each.status) + " ";
    CHECK(ran.text == "aab");
    CHECK(results == "one:done two:done three:done ");
}

TEST_CASE("shutdown sequence: a step that hangs is abandoned at its timeout") {
    const hanging_step hangs;
    const auto done = [] {};
    shutdown_sequence tested;
    tested.add("hangs", hangs, 1ms);
    tested.add_parallel("fails", fails, 1min);
    tested.add_parallel("done", done, 1min);
    tested.add("next", done, 1min);
    CHECK(ends(tested.run(silent())) == std::vector<step_status>{step_status::timed_out, step_status::failed,
                                                                 step_status::done, step_status::done});
    hangs.end();
}

TEST_CASE("shutdown sequence: the total timeout ends a step without one, and later ones still begin") {
    const hanging_step hangs;
    struct shared {
        test::event next;
        time_point given;
    };
    const auto with = std::make_shared<shared>();
    shutdown_sequence tested;
    const time_point began = steady_clock::now();
    tested.add("hangs", [=](const step_context& step) {
        with->given = step.deadline;
        hangs();
    });
    tested.add("next", [=] { with->next.set(); });
    sequence_options options = silent();
    options.timeout = 20ms;
    const std::vector<step_result> got = tested.run(options);
    const time_point ended = steady_clock::now();
    hangs.end();
    REQUIRE(with->next.wait());  // it may have needed more than its last chance to begin
    CHECK(got[0].status == step_status::timed_out);
    CHECK(got[0].took >= 20ms);
    CHECK(with->given >= began + 20ms);
    CHECK(with->given <= ended);
}

TEST_CASE("shutdown sequence: a second stop signal aborts a waiting step, and those after it") {
    const hanging_step hangs;
    struct shared {
        test::event close;
        std::atomic<bool> drain_aborted{false}, close_aborted{false};
    };
    const auto with = std::make_shared<shared>();
    lifecycle life(0ms);
    const auto signal = [&life] { life.apply(event::stop_signal, {cause_kind::signal, SIGTERM}); };
    shutdown_sequence tested;
    tested.add("drain", [=](const step_context& step) {
        signal();
        with->drain_aborted = !step.abort.sleep_for(1min);
        hangs();
    });
    tested.add("close", [=](const step_context& step) {
        with->close_aborted = step.abort.cancelled();
        with->close.set();
    });
    signal();
    sequence_options options = silent();
    options.lifecycle = &life;
    const std::vector<step_result> got = tested.run(options);
    hangs.end();
    REQUIRE(with->close.wait());
    CHECK(got[0].status == step_status::cut_short);
    CHECK(with->drain_aborted);
    CHECK(with->close_aborted);
}

TEST_CASE("shutdown sequence: a second stop signal is noticed without a place among the followers") {
    lifecycle life(0ms);
    const test::pipe_ends pipe(O_NONBLOCK);
    int followers = 0;
    while (life.subscribe(pipe.writer())) ++followers;
    const auto signal = [&life] { life.apply(event::stop_signal, {cause_kind::signal, SIGTERM}); };
    signal();
    shutdown_sequence tested;
    tested.add("waits", [&](const step_context& step) {
        signal();
        static_cast<void>(step.abort.sleep_for(1min));
    });
    sequence_options options = silent();
    options.lifecycle = &life;
    CHECK(tested.run(options)[0].took < 1min);
    while (followers-- > 0) life.unsubscribe(pipe.writer());
}

TEST_CASE("shutdown sequence: a step's captures are destroyed with it, within its timeout") {
    struct holder {
        std::shared_ptr<test::event> let_go;
        explicit holder(std::shared_ptr<test::event> until) : let_go(std::move(until)) {}
        holder(holder&& other) noexcept = default;
        ~holder() {
            if (let_go) let_go->wait();
        }
    };
    const auto let_go = std::make_shared<test::event>();
    const auto gone = std::make_shared<test::event>();
    shutdown_sequence tested;
    auto holds = [gone, held = holder(let_go)] { gone->set(); };
    tested.add("holds", std::move(holds), 50ms);
    CHECK(tested.run(silent())[0].status == step_status::timed_out);
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
    CHECK(ends(tested.run(options)) == std::vector<step_status>{step_status::done, step_status::done});
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
    CHECK(*with("250ms") == 250ms);
    CHECK(*with("0") == 0s);
    for (const char* const bad : {"", "soon", "-1s", "1.5s", "30 s"}) {
        CAPTURE(bad);
        const auto refused = with(bad);
        REQUIRE(test::code_of(refused) == errc::invalid_argument);
        CHECK(refused.error().text.find(std::string("OJS_SERVER_SHUTDOWN_TIMEOUT='") + bad + "' ") == 0);
    }
}

// As a thread_local: its destructor, which runs at the thread's end, waits for the event.
struct blocks_at_end {
    std::shared_ptr<test::event> let_go;
    std::shared_ptr<test::event> ended;
    ~blocks_at_end() {
        let_go->wait();
        ended->set();
    }
};

TEST_CASE("shutdown sequence: a step whose thread does not end is abandoned, by timeout or signal") {
    const auto let_go = std::make_shared<test::event>();
    const auto ended = std::make_shared<test::event>();
    const auto step = [=] { thread_local const blocks_at_end blocked{let_go, ended}; };
    shutdown_sequence tested;
    std::atomic<bool> next_ran{false};
    sequence_options options = silent();
    lifecycle life(0ms);
    step_status expected = step_status::timed_out;
    SUBCASE("limit") {
        tested.add("blocks", step, 100ms);
    }
    SUBCASE("second signal") {
        tested.add("blocks", [&life, step] {
            step();
            for (int i = 0; i < 2; ++i) life.apply(event::stop_signal, {cause_kind::signal, SIGTERM});
        });
        options.lifecycle = &life;
        expected = step_status::cut_short;
    }
    tested.add("next", [&] { next_ran = true; });
    const std::vector<step_result> got = tested.run(options);
    CHECK_FALSE(ended->is_set());
    REQUIRE(got.size() == 2);
    CHECK(got[0].status == expected);
    CHECK(next_ran);
    let_go->set();
    CHECK(ended->wait());
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
    options.thread_stack_size = std::size_t{1} << 46;  // more than any process has room for
    CHECK(ends(tested.run(options)) == std::vector<step_status>{step_status::done, step_status::failed});
    CHECK(ran == 2);
}

}  // namespace
