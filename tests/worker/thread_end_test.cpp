// Handlers and callbacks that end the thread they run on, by pthread_exit() or pthread_cancel(): no job is lost with it.
#include <pthread.h>

#include "busy_worker.hpp"

using namespace ojs;
using namespace recorder;

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
