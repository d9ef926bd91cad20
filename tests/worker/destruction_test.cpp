// What a worker that is destroyed may still call: nothing, whichever of its threads are left behind.
#include <pthread.h>
#include <unistd.h>

#include <fstream>

#include "busy_worker.hpp"
#include "processes.hpp"
#include "standard_error.hpp"

using namespace ojs;
using namespace recorder;

namespace {

// Counts calls that come once the worker is gone.
struct late_calls {
    void note() {
        if (gone.is_set()) late.add();
    }
    recorder::event gone;
    counter late;
};

// In KiB; 0: unknown.
long address_space() {
    std::ifstream status("/proc/self/status");
    std::string key;
    while (status >> key) {
        long value = 0;
        if (key == "VmSize:" && status >> value) return value;
    }
    return 0;
}

}  // namespace

TEST_CASE("fork: a child returns from a callback of its parent's worker -> the child ends with 70") {
    std::atomic<pid_t> child{0};
    worker_options options = recorder::options();
    options.on_transition = [&](const lifecycle_state& state) {
        if (state.phase == phase::draining) child = ::fork();
    };
    memory_transport wire;
    const std::string output = test::standard_error_of([&] {
        worker worker(options, wire);
        worker.register_handler("work", [](job_context&) {});
        REQUIRE(worker.start());
        CHECK(worker.stop(guard).status == stop_status::ended);
        CHECK(test::status_of(child) == 70);
    });
    CHECK(output.find("made by fork()") != std::string::npos);
}

TEST_CASE("fork: a child of a handler uses the worker's transport -> an error, and nothing is sent") {
    recorder::transport wire;
    worker worker(recorder::options(), wire);
    std::atomic<int> status{-1};
    wire.give(make_job("one"));
    worker.register_handler("work", [&](job_context& job) {
        status = test::status_of(test::forked([&] {
            const result<void> saved = job.save_checkpoint("1");
            if (worker.stop().status != stop_status::never_started) return 2;  // nothing to wait for
            return !saved && saved.error().code == errc::cancelled ? 0 : 1;
        }));
    });
    REQUIRE(worker.start());
    CHECK(wire.wait_for("ack", 1));
    CHECK(worker.stop(guard).status == stop_status::ended);
    CHECK(status == 0);
}

TEST_CASE("destruction: waits for a log hook that is running") {
    recorder::event in_hook;
    recorder::event gone;
    recorder::event hook_returned;
    recorder::event stopping;
    worker_options options = recorder::options();
    options.times.stop_timeout = 200ms;
    options.log.level = log_level::warn;
    options.log.hook = [&](const log_record& record) {
        if (record.message != "heartbeat failed") return;
        in_hook.set();
        CHECK(!gone.wait_until(steady_clock::now() + 300ms));
        hook_returned.set();
    };
    recorder::transport wire;
    // Its response comes after the stop has abandoned it, so its thread logs late.
    wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state != "running") return heartbeat_response();
        CHECK(stopping.wait());
        return error{errc::timed_out, 0, "no answer"};
    };
    {
        worker worker(options, wire);
        worker.register_handler("work", [](job_context&) {});
        REQUIRE(worker.start());
        REQUIRE(wire.wait_for("beat", 1));
        REQUIRE(worker.stop(guard));
        stopping.set();
        REQUIRE(in_hook.wait());
    }
    gone.set();
    CHECK(hook_returned.is_set());
}

TEST_CASE("destruction: a callback of stopped_token() may destroy its worker, and no thread is leaked") {
    const long before = address_space();
    for (int i = 0; i < 64; ++i) {
        memory_transport wire;
        auto body = std::make_unique<worker>(recorder::options(), wire);
        body->register_handler("work", [](job_context&) {});
        recorder::event destroyed;
        const cancel_token stopped = body->stopped_token();
        const cancel_registration told = stopped.on_cancel([&] {
            body.reset();
            destroyed.set();
        });
        REQUIRE(body->start());
        body->request_stop();
        REQUIRE(destroyed.wait());
    }
    CHECK(address_space() - before < 256L * 1024);  // 64 stacks are 512 MiB
}

TEST_CASE("destruction: on_transition may destroy its worker, which then makes no calls") {
    const auto calls = std::make_shared<late_calls>();
    const auto ended = std::make_shared<counter>();
    const shared_event let_go = make_event();
    recorder::event destroyed;
    std::unique_ptr<worker> body;
    auto wire = std::make_unique<recorder::transport>();
    wire->give(make_job("a"));
    worker_options options = recorder::options();
    options.times.stop_timeout = 200ms;
    options.log.level = log_level::debug;
    options.log.hook = [calls](const log_record&) { calls->note(); };
    options.on_stuck_job = [calls](const stuck_job& job) {
        calls->note();
        return job.default_action;
    };
    options.on_transition = [&, calls, ended](const lifecycle_state&) {
        calls->note();
        thread_local const counts_at_end at_end(ended);
        body.reset();
        wire.reset();  // AddressSanitizer detects a later use
        calls->gone.set();
        destroyed.set();
    };
    recorder::event began;
    body = std::make_unique<worker>(options, *wire);
    const auto handler_ended = std::make_shared<counter>();
    body->register_handler("work", [&began, let_go, handler_ended](job_context&) {
        thread_local const counts_at_end at_end(handler_ended);
        began.set();
        CHECK(let_go->wait());
    });
    REQUIRE(body->start());
    REQUIRE(began.wait());
    body->request_stop();
    REQUIRE(destroyed.wait());
    REQUIRE(ended->wait_for(1));  // the stop went on, and left the handler behind
    let_go->set();
    REQUIRE(handler_ended->wait_for(1));
    CHECK(calls->late.count() == 0);
}

TEST_CASE("destruction: a thread that does not end delays neither the stop nor the destruction") {
    const shared_event let_go = make_event();
    const auto ended = std::make_shared<counter>();
    struct blocks_at_end {
        shared_event let_go;
        std::shared_ptr<counter> ended;
        ~blocks_at_end() {
            let_go->wait();
            ended->add();
        }
    };
    worker_options options = recorder::options(1);
    options.times.stop_timeout = 1s;
    const kept_log log(options, log_level::warn);
    const auto block = [=] { thread_local const blocks_at_end blocked{let_go, ended}; };
    const auto check_left = [&] {
        const auto left = log.records("warn threads have not ended; leaving without them");
        REQUIRE(left.size() == 1);
        CHECK(left[0].fields[0].value == "1");
    };
    SUBCASE("a handler's") {
        busy_worker busy(options, [=](job_context&) { block(); });
        CHECK(busy.body->stop(guard));
        CHECK(busy.body->exit_code() == 0);
        CHECK(busy.settlement().what == "ack");
        check_left();
    }
    SUBCASE("one that waits in an on_cancel callback") {
        const shared_event registered = make_event();
        const shared_event called = make_event();
        busy_worker busy(options, [=](job_context& job) {
            const cancel_registration kept = job.on_cancel([=] {
                called->set();
                let_go->wait();
                ended->add();
            });
            registered->set();
            CHECK(called->wait());  // a handler that returned before would take it back
        });
        REQUIRE(registered->wait());
        CHECK(busy.body->stop_and_cancel(guard));
        CHECK(busy.body->report().interrupted == 1);
    }
    SUBCASE("a heartbeat's") {
        recorder::transport wire;
        wire.on.beat = [=](const heartbeat_request& request) -> result<heartbeat_response> {
            if (request.state == "terminate") block();
            return heartbeat_response();
        };
        CHECK(start_worker(wire, options, do_nothing)->stop(guard));
        check_left();
    }
    SUBCASE("the supervising one") {
        options.request_timeout = 50ms;
        options.on_transition = [=](const lifecycle_state&) { block(); };
        busy_worker busy(options, [](job_context&) {});
        CHECK(busy.body->stop(guard));
    }
    CHECK(ended->count() == 0);
    let_go->set();
    CHECK(ended->wait_for(1));
}

// ---- handlers and callbacks that end the thread they run on: no job is lost with it ----

namespace {

void cancel_this_thread() {
    pthread_cancel(pthread_self());
}

// Every second job ends its thread in this way; the others complete.
void run_twenty(std::int64_t concurrency, void (*end_thread)()) {
    recorder::transport wire;
    for (int i = 0; i < 20; ++i)
        wire.give(make_job(std::to_string(i), "work", i % 2 == 0 ? "[true]" : "[false]"));
    const auto worker = start_worker(wire, recorder::options(concurrency), [end_thread](job_context& job) {
        const std::string on_the_stack = job.args_json();
        if (on_the_stack == "[true]") end_thread();
    });
    REQUIRE(wire.wait_for("ack", 10));
    REQUIRE(wire.wait_for("fail", 10));
    REQUIRE(worker->stop(guard));
    check_last_word(wire);
    for (int i = 0; i < 20; ++i) {
        CAPTURE(i);
        CHECK(wire.settled(std::to_string(i)) == (i % 2 == 0 ? "fail handler_error" : "ack"));
    }
    CHECK(wire.settlements("0")[0].error.message == "the handler ended its thread");
    CHECK(sums(*worker) == "claimed 20 completed 10 failed 10 exit 0");
}

}  // namespace

TEST_CASE("thread end: a handler whose thread exits or is cancelled fails its job, and its slot is reused") {
    for (const std::int64_t concurrency : {1, 4}) {
        run_twenty(concurrency, [] { pthread_exit(nullptr); });
        run_twenty(concurrency, [] {
            cancel_this_thread();
            pthread_testcancel();
        });
    }
}

TEST_CASE("thread end: a cancellation request after the handler affects neither its job nor the next") {
    recorder::transport wire;
    for (const char* id : {"a", "b", "c"}) wire.give(make_job(id));
    counter ran;
    const auto worker = run_until("ack", 3, wire, [&](job_context& job) {
        pthread_testcancel();
        if (job.id() != "c") cancel_this_thread();
        ran.add();
    });
    CHECK(sums(*worker) == "claimed 3 completed 3 exit 0");
    CHECK(ran.count() == 3);
}

TEST_CASE("thread end: the library's own waits and calls cannot be cancelled") {
    bool slept = false;
    busy_worker busy(recorder::options(), [&](job_context& job) {
        cancel_this_thread();
        slept = job.sleep_for(1ms);
        job.heartbeat();
        static_cast<void>(job.save_checkpoint("{}"));
        pthread_testcancel();
    });
    REQUIRE(busy.wire.wait_for("fail", 1));
    REQUIRE(busy.body->stop(guard));
    CHECK(slept);
    CHECK(busy.settled() == "fail handler_error");
    CHECK(sums(*busy.body) == "claimed 1 failed 1 exit 0");
}

TEST_CASE("thread end: on cancellation it is an interruption, as any other way to return") {
    busy_worker busy(patient(), [](job_context& job) {
        static_cast<void>(job.sleep_for(guard));
        pthread_exit(nullptr);
    });
    REQUIRE(busy.body->stop_and_cancel(guard));
    CHECK(sums(*busy.body) == "claimed 1 interrupted 1 requeued 1 exit 0");
}

TEST_CASE("thread end: a job's other callbacks are called though one ends its thread") {
    const auto called = make_event();
    const auto registered = make_event();  // or they would be called by the handler's own thread
    busy_worker busy(patient(), [called, registered](job_context& job) {
        const cancel_registration first = job.on_cancel([] { pthread_exit(nullptr); });
        const cancel_registration second = job.on_cancel([called] { called->set(); });
        registered->set();
        return called->wait() ? outcome::done() : outcome::retry("the second callback was not called");
    });
    REQUIRE(registered->wait());
    REQUIRE(busy.body->stop_and_cancel(guard));
    CHECK(called->is_set());
    CHECK(busy.settlement().what == "ack");
    CHECK(busy.body->exit_code() == 0);
}

TEST_CASE("thread end: the destructors of a thread have the time of the stop") {
    struct slow_at_end {
        ~slow_at_end() { static_cast<void>(never.wait_until(deadline_after(700ms))); }
        recorder::event never;
    };
    worker_options options = patient();
    const kept_log log(options, log_level::warn);
    busy_worker busy(options, [](job_context&) { static thread_local const slow_at_end kept; });
    REQUIRE(busy.body->stop(guard));
    CHECK(log.count("warn threads have not ended; leaving without them") == 0);
}

TEST_CASE("thread end: in a drain, jobs that wait for a thread get another one") {
    recorder::transport wire;
    wire.extra = {"b", "c"};
    wire.give(make_job("a"));
    recorder::event began, may_end;
    worker_options options = recorder::options(1);
    options.times.shutdown_grace_period = no_limit;
    const auto worker = start_worker(wire, options, [&](job_context& job) {
        if (job.id() != "a") return;
        began.set();
        may_end.wait();
        pthread_exit(nullptr);
    });
    REQUIRE(began.wait());
    worker->request_stop();
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    may_end.set();
    const bool ended = worker->wait(deadline_after(guard));
    CHECK(ended);
    for (const char* const id : {"a", "b", "c"}) CHECK(wire.settlements(id).size() == 1);
    CHECK(worker->report().completed == 2);
    if (!ended) worker->stop_and_cancel(guard);
}
