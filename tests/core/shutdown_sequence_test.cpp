// shutdown_sequence: the order, and what a step that throws or hangs does to the others.
#include "processes.hpp"
#include "thread_sleep.hpp"

namespace {
std::string shown(const std::vector<step_result>& results) {
    std::string out;
    for (const step_result& each : results)
        out += each.name + ":" + to_string(each.status) + (each.error.empty() ? " " : ":" + each.error + " ");
    return out;
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

// [GS 9.1]
TEST_CASE("shutdown sequence: steps run once, in order, and a step that fails or throws stops no later step") {
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
    sequence_options options;
    std::string progress;
    options.progress = [&](const step_result& each) { progress += each.name + ":" + to_string(each.status) + " "; };
    CHECK(shown(tested.run(options)) ==
          "first:done throws:threw:no disk anything:threw:an exception that is not a std::exception "
          "silence:threw:an exception without a text fails:failed:is full last:done ");
    CHECK(progress ==
          "first:running first:done throws:running throws:threw anything:running anything:threw "
          "silence:running silence:threw fails:running fails:failed last:running last:done ");
    CHECK(tested.run().empty());
    CHECK(ran == "13");
}

TEST_CASE("shutdown sequence: the total timeout ends a step with a longer timeout, and later steps still begin") {
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
    sequence_options options;
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

TEST_CASE("shutdown sequence: a step whose thread does not end is abandoned at its timeout") {
    const auto let_go = std::make_shared<test::event>();
    const auto ended = std::make_shared<test::event>();
    const auto at_end = [=](void*) { let_go->wait(), ended->set(); };
    const auto next = std::make_shared<test::event>();
    shutdown_sequence tested;
    tested.add(
        "blocks", [=] { thread_local const std::shared_ptr<void> blocked(nullptr, at_end); }, 100ms);
    tested.add("next", [=] { next->set(); });
    CHECK(tested.run()[0].status == step_status::timed_out);
    CHECK_FALSE(ended->is_set());
    CHECK(next->wait());
    let_go->set();
    CHECK(ended->wait());
}

TEST_CASE("shutdown sequence: if no thread can be created, steps run on the calling thread") {
    const std::thread::id here = std::this_thread::get_id();
    std::string ran;
    const auto notes = [&](const char* name) {
        return [&ran, here, name] { ran += std::this_thread::get_id() == here ? name : "elsewhere"; };
    };
    shutdown_sequence tested;
    tested.add("a", notes("a"));
    tested.add("fails", fails, 1min);
    tested.add("b", notes("b"), 1min);
    sequence_options options;
    CHECK(options.thread_stack_size == 0);
    options.thread_stack_size = SIZE_MAX / 2;  // more than any process has room for
    CHECK(shown(tested.run(options)) == "a:done fails:failed:is full b:done ");
    CHECK(ran == "ab");
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
    tested.run();
    CHECK(slept);
    CHECK(std::string(name) == "ojs-step");
    CHECK(sigismember(&blocked, SIGTERM) == 0);  // a program that the step starts inherits the mask
}
#endif
}  // namespace
