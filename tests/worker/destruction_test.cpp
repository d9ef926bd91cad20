// What a worker that is destroyed may still call: nothing, whichever of its threads are left behind.
#include "busy_worker.hpp"
#include "processes.hpp"
#include "standard_error.hpp"
#include "text.hpp"

using namespace ojs;
using namespace recorder;

TEST_CASE("fork: a child that returns from a handler or callback of its parent's worker exits with 70") {
    for (const bool in_handler : {false, true}) {
        std::atomic<pid_t> child{0};
        worker_options options = recorder::options();
        options.on_transition = [&](const lifecycle_state& state) {
            if (!in_handler && state.phase == phase::draining) child = ::fork();
        };
        memory_transport wire;
        wire.push("work");
        const std::string output = test::standard_error_of([&] {
            recorder::event ran;
            worker worker(options, wire);
            worker.register_handler("work", [&](job_context&) {
                if (in_handler && (child = ::fork()) == 0) return;
                ran.set();
            });
            REQUIRE(worker.start());
            CHECK(ran.wait());
            CHECK(worker.stop(guard).status == stop_status::ended);
            CHECK(test::status_of(child) == 70);
        });
        CHECK(output.find("made by fork()") != std::string::npos);
        CHECK(wire.jobs()[0].settlements == 1);
    }
}

// [River wait on stop]
TEST_CASE("destruction: ~worker() waits for a log hook that is running") {
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

TEST_CASE(
    "destruction: destroying a worker in one of its callbacks aborts the process with an error message") {
    for (const bool at_end : {false, true}) {
        const auto destroy_inside = [at_end] {
            memory_transport wire;
            std::unique_ptr<worker> body;
            worker_options options = recorder::options();
            if (!at_end) options.on_transition = [&](const lifecycle_state&) { body.reset(); };
            body = std::make_unique<worker>(options, wire);
            body->register_handler("work", do_nothing);
            cancel_registration callback;
            if (at_end) callback = body->stopped_token().on_cancel([&] { body.reset(); });
            body->request_stop();
            return body->run();
        };
        int status = 0;
        const std::string printed =
            test::standard_error_of([&] { status = test::status_of(test::forked(destroy_inside)); });
        CHECK(status == -SIGABRT);
        CHECK(test::holds(printed, "error: a worker was destroyed in one of its own callbacks"));
    }
}

TEST_CASE(
    "destruction: a thread of the worker does not end -> neither stop() nor the destructor waits for it") {
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
    options.times.stop_timeout = 3s;
    const kept_log log(options, log_level::warn);
    const auto block = [=] { thread_local const blocks_at_end blocked{let_go, ended}; };
    const auto check_left = [&] {
        const auto left = log.records("warn threads have not ended; exiting without waiting for them");
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
    CHECK(ended->count() == 0);
    let_go->set();
    CHECK(ended->wait_for(1));
}
