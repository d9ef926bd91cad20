// Corner cases in which two rules meet.
#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "recorder.hpp"

namespace {

using namespace recorder;
using ojs::phase;

#if defined(__SANITIZE_THREAD__)
constexpr int rounds = 15;
#else
constexpr int rounds = 60;
#endif

TEST_CASE("edge: a worker that could not start leaves no callback in the transport") {
    transport wire;
    std::size_t when_gone = 0;
    for (int i = 0; i < 5; ++i) {
        ojs::worker_options settings = options();
        settings.thread_stack_size = ~std::size_t{0} / 2;  // no job thread can be had
        ojs::worker worker(settings, wire);
        worker.register_handler("work", [](ojs::job_context&) {});
        const ojs::result<void> started = worker.start();
        REQUIRE_FALSE(started);
        CHECK(started.error().code == ojs::errc::system);
        CHECK_FALSE(worker.stopped());
        when_gone = wire.calls().size();
    }
    // A complete worker starts and ends meanwhile, which gives a leaked thread time to show.
    transport other;
    ojs::worker next(options(), other);
    next.register_handler("work", [](ojs::job_context&) {});
    REQUIRE(next.start());
    REQUIRE(other.wait_for("fetch", 1));
    REQUIRE(next.stop(guard));
    CHECK(wire.calls().size() == when_gone);
}

TEST_CASE("edge: a cancel_wait longer than stop_timeout leaves time to report") {
    transport wire;
    wire.give(make_job("deaf"));
    event running;
    event go;
    event back;
    ojs::worker_options settings = options();
    settings.times.shutdown_grace_period = 0ms;
    settings.times.cancel_wait = 10s;
    settings.times.stop_timeout = 2s;
    ojs::worker worker(settings, wire);
    worker.register_handler("work", [&](ojs::job_context&) {
        running.set();
        go.wait();
        back.set();
    });
    REQUIRE(worker.start());
    REQUIRE(running.wait());
    CHECK(worker.stop(guard));
    CHECK(worker.exit_code() == ojs::exit_status::settled);
    CHECK(worker.report().unreported.empty());
    CHECK(worker.report().interrupted == 1);
    CHECK(wire.settlements("deaf").size() == 1);
    check_last_word(wire);
    go.set();
    CHECK(back.wait());
}

TEST_CASE(
    "edge: no heartbeat reports `running` while the worker is quiet, not even one that renews a lease") {
    transport wire;
    ojs::job brief = make_job("brief");
    brief.visibility_timeout = 1ms;
    wire.give(brief);
    event running;
    event go;
    wire.on.beat = [&](const ojs::heartbeat_request& request) {
        ojs::heartbeat_response answer;
        if (go.is_set()) answer.jobs_extended = request.active_jobs;
        return answer;
    };
    ojs::worker worker(options(), wire);
    worker.register_handler("work", [&](ojs::job_context&) {
        running.set();
        go.wait();
    });
    REQUIRE(worker.start());
    REQUIRE(running.wait());
    REQUIRE(worker.quiet());
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    std::this_thread::sleep_for(2ms);  // the lease, which no beat renewed, is certainly over
    const std::size_t before = wire.calls("beat").size();
    go.set();
    REQUIRE(wire.wait_for("beat", before + 1));
    const std::vector<call> beats = wire.calls("beat");
    for (std::size_t i = before; i < beats.size(); ++i) CHECK(beats[i].state == "quiet");
    CHECK(worker.stop(guard));
}

TEST_CASE("edge: the grace period of a stop right after a quiet ends") {
    for (int round = 0; round < rounds * 4; ++round) {
        transport wire;
        wire.give(make_job("patient"));
        event running;
        std::atomic<bool> quieted{false};
        ojs::worker_options settings = options();
        settings.times.shutdown_grace_period = 1ms;
        settings.on_transition = [&](const ojs::lifecycle_state& now) {
            if (now.phase == phase::quiet) quieted = true;
        };
        ojs::worker worker(settings, wire);
        worker.register_handler("work", [&](ojs::job_context& job) {
            running.set();
            static_cast<void>(job.sleep_for(guard * 2));
        });
        REQUIRE(worker.start());
        REQUIRE(running.wait());
        worker.quiet();
        while (!quieted) std::this_thread::yield();
        // The supervisor is about to look again; the stop comes before, while and after it does.
        for (volatile int spin = 0; spin < round * 97 % 3000; spin = spin + 1) {
        }
        REQUIRE(worker.stop(guard));
        CHECK(worker.report().interrupted == 1);
    }
}

TEST_CASE("edge: jobs that return at the moment the grace period ends are settled once") {
    constexpr int slots = 32;
    for (int round = 0; round < rounds; ++round) {
        transport wire;
        for (int i = 0; i < slots; ++i) wire.give(make_job("job-" + std::to_string(i)));
        counter running;
        ojs::worker_options settings = options(slots);
        settings.times.shutdown_grace_period = 3ms;
        ojs::worker worker(settings, wire);
        worker.register_handler("work", [&](ojs::job_context& job) {
            running.add();
            while (!job.stop_requested() || job.deadline() == ojs::time_point::max())
                std::this_thread::yield();
            std::this_thread::sleep_until(job.deadline());  // deaf, and back at the very moment
        });
        REQUIRE(worker.start());
        REQUIRE(running.wait_for(slots));
        REQUIRE(worker.stop(guard));
        const ojs::worker_report report = worker.report();
        CHECK(report.completed + report.interrupted == slots);
        CHECK(report.unreported.empty());
        CHECK(report.gone == 0);
        for (int i = 0; i < slots; ++i) CHECK(wire.settlements("job-" + std::to_string(i)).size() == 1);
        CHECK(wire.calls("ack").size() == report.completed);
        CHECK(wire.calls("fail").size() == report.interrupted);
        check_last_word(wire);
    }
}

TEST_CASE("edge: a FAIL that hangs outside of handlers does not delay the stop") {
    transport wire;
    wire.give(make_job("odd", "nobody runs this"));
    event failing;
    event go;
    const auto ended = std::make_shared<counter>();
    wire.on.fail = [&](const ojs::fail_request&, ojs::time_point) -> transport::settling {
        thread_local const counts_at_end at_end(ended);
        failing.set();
        go.wait();
        return ojs::error{ojs::errc::timed_out, 0, "no answer"};
    };
    ojs::worker_options settings = options();
    settings.times.stop_timeout = 4s;  // of which the last heartbeat has its part
    settings.times.shutdown_grace_period = 0ms;
    ojs::worker worker(settings, wire);
    worker.register_handler("work", [](ojs::job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(failing.wait());
    CHECK(worker.stop(guard / 2).status ==
          ojs::stop_status::unreported);  // in much less than the request could take
    CHECK(worker.exit_code() == ojs::exit_status::unreported);
    CHECK(worker.report().unreported == std::vector<std::string>{"odd"});
    check_last_word(wire);
    const std::size_t calls = wire.calls().size();
    go.set();
    REQUIRE(ended->wait_for(1));
    CHECK(wire.calls().size() == calls);
}

TEST_CASE("edge: a duration too short to use is refused by the name of its variable") {
    for (const char* variable : {"OJS_HEARTBEAT_INTERVAL", "OJS_POLL_INTERVAL", "OJS_VISIBILITY_TIMEOUT",
                                 "OJS_REQUEST_TIMEOUT", "OJS_STOP_TIMEOUT", "OJS_PROGRESS_INTERVAL"}) {
        const std::string wanted = variable;
        const auto read = ojs::worker_options::from_environment(
            [wanted](const char* name) -> const char* { return name == wanted ? "0s" : nullptr; });
        CAPTURE(wanted);
        REQUIRE_FALSE(read);
        CAPTURE(read.error().text);
        CHECK(read.error().code == ojs::errc::invalid_argument);
        CHECK(read.error().text.find(wanted) != std::string::npos);
        CHECK(read.error().text.find("0s") != std::string::npos);
    }
}

TEST_CASE("edge: empty std::functions as hooks and callbacks count as none") {
    transport wire;
    wire.give(make_job("told"));
    event running;
    ojs::worker_options settings = options();
    settings.times.shutdown_grace_period = 0ms;
    settings.times.cancel_wait = guard;
    settings.stuck_after = 10ms;  // so that on_stuck_job is called
    settings.on_transition = std::function<void(const ojs::lifecycle_state&)>();
    settings.on_stuck_job = std::function<ojs::stuck_action(const ojs::stuck_job&)>();
    settings.log.hook = std::function<void(const ojs::log_record&)>();
    CHECK(settings.log.hook == nullptr);  // the ordinary log, then
    event told;
    counter thrown;
    settings.log.level = ojs::log_level::warn;
    settings.log.hook = [&](const ojs::log_record& record) {
        if (record.message.find("job is stuck") == 0) told.set();
        if (record.message.find(" threw") != std::string::npos) thrown.add();
    };
    ojs::worker worker(settings, wire);
    worker.register_handler("work", [&](ojs::job_context& job) {
        const ojs::cancel_registration kept = job.on_cancel(std::function<void()>());
        running.set();
        CHECK_FALSE(job.sleep_for(guard));
        CHECK(told.wait());
    });
    REQUIRE(worker.start());
    REQUIRE(running.wait());
    CHECK(worker.stop(guard));
    CHECK(thrown.count() == 0);
    CHECK(worker.report().interrupted == 1);
    check_last_word(wire);
}

}  // namespace

#if !OJS_SHUTDOWN_SEPARATE  // tests an internal, which the separate form does not declare
TEST_CASE("edge: the end of a long queue of jobs needs no long stack") {
    using namespace ojs::detail;
    const auto group = make_ref<job_cancel_group>();
    job_queue* const queue = new job_queue;
    for (int i = 0; i < 20000; ++i)
        queue->push(
            make_ref<active_job>(ojs::job(), ojs::time_point(), 1s, ref<registered_handler>(), group));
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, std::size_t{256} * 1024);
    pthread_t thread{};
    const auto destroy = [](void* taken) -> void* { return delete static_cast<job_queue*>(taken), nullptr; };
    REQUIRE(pthread_create(&thread, &small, destroy, queue) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&small);
}
#endif
