// What a worker that is destroyed may still call: nothing, whichever of its threads are left behind.
#include "busy_worker.hpp"
#include "standard_error.hpp"

using namespace recorder;

// [River wait on stop]
TEST_CASE("destruction: ~worker() waits for a log hook that is running") {
    recorder::event in_hook;
    recorder::event gone;
    recorder::event hook_returned;
    recorder::event stopping;
    worker_options options = recorder::options();
    options.times.stop_timeout = 200ms;
    options.log.level = log_level::debug;  // an outage has a warning of its own
    options.log.hook = [&](const log_record& record) {
        if (record.message != "heartbeat failed" && record.message != "backend unreachable") return;
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

TEST_CASE("destruction: destroying a worker in one of its callbacks aborts the process with an error message") {
    const auto destroy_inside = [] {
        memory_transport wire;
        std::unique_ptr<worker> body;
        worker_options options = recorder::options();
        options.on_transition = [&](const lifecycle_state&) { body.reset(); };
        body = std::make_unique<worker>(options, wire);
        body->register_handler("work", do_nothing);
        body->request_stop();
        return body->run();
    };
    int status = 0;
    const std::string printed =
        test::standard_error_of([&] { status = test::status_of(test::forked(destroy_inside)); });
    CHECK(status == -SIGABRT);
    CHECK(test::holds(printed, "error: a worker was destroyed in one of its own handlers or callbacks"));
}

TEST_CASE("destruction: a handler's thread does not end -> neither stop() nor the destructor waits for it") {
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
    worker_options options = recorder::options();
    options.times.stop_timeout = 300ms;  // which both may wait
    const kept_log log(options, log_level::warn);
    {
        busy_worker busy(options, [=](job_context&) { thread_local const blocks_at_end blocked{let_go, ended}; });
        CHECK(busy.body->stop(guard));
        CHECK(busy.body->exit_code() == 0);
        CHECK(busy.settlement().what == "ack");
    }
    const auto left = log.records("warn threads have not ended; exiting without waiting for them");
    REQUIRE(left.size() == 1);
    CHECK(left[0].fields[0].value == "1");
    CHECK(ended->count() == 0);
    let_go->set();
    CHECK(ended->wait_for(1));
}
