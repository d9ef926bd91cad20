// Corner cases in which two rules meet.
#include <pthread.h>

#include "busy_worker.hpp"

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
        worker.register_handler("work", do_nothing);
        const ojs::result<void> started = worker.start();
        REQUIRE_FALSE(started);
        CHECK(started.error().code == ojs::errc::system);
        CHECK_FALSE(worker.stopped());
        when_gone = wire.calls().size();
    }
    // A complete worker starts and ends meanwhile, which gives a leaked thread time to show.
    transport other;
    run_until("fetch", 1, other, do_nothing);
    CHECK(wire.calls().size() == when_gone);
}

TEST_CASE("edge: a cancel_wait longer than stop_timeout leaves time to report") {
    ojs::worker_options settings = options();
    settings.times.shutdown_grace_period = 0ms;
    settings.times.cancel_wait = 10s;
    settings.times.stop_timeout = 1s;
    const shared_event go = make_event();
    const shared_event back = make_event();
    busy_worker busy(settings, [=](ojs::job_context&) {  // deaf
        go->wait();
        back->set();
    });
    CHECK(busy.body->stop(guard));
    CHECK(busy.body->exit_code() == ojs::exit_status::settled);
    CHECK(busy.body->report().interrupted == 1);
    CHECK(busy.settlement().what == "fail");
    check_last_word(busy.wire);
    go->set();
    CHECK(back->wait());
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
    const auto worker = start_worker(wire, [&](ojs::job_context&) {
        running.set();
        go.wait();
    });
    REQUIRE(running.wait());
    REQUIRE(worker->quiet());
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    std::this_thread::sleep_for(2ms);  // the lease, which no beat renewed, is certainly over
    const std::size_t before = wire.calls("beat").size();
    go.set();
    REQUIRE(wire.wait_for("beat", before + 1));
    const std::vector<call> beats = wire.calls("beat");
    for (std::size_t i = before; i < beats.size(); ++i) CHECK(beats[i].state == "quiet");
    CHECK(worker->stop(guard));
}

TEST_CASE("edge: the grace period of a stop right after a quiet ends") {
    for (int round = 0; round < rounds * 4; ++round) {
        std::atomic<bool> quieted{false};
        ojs::worker_options settings = options();
        settings.times.shutdown_grace_period = 1ms;
        settings.on_transition = [&](const ojs::lifecycle_state& now) {
            if (now.phase == phase::quiet) quieted = true;
        };
        busy_worker busy(settings,
                         [](ojs::job_context& job) { static_cast<void>(job.sleep_for(guard * 2)); });
        busy.body->quiet();
        while (!quieted) std::this_thread::yield();
        // The supervisor is about to look again; the stop comes before, while and after it does.
        for (volatile int spin = 0; spin < round * 97 % 3000; spin = spin + 1) {
        }
        REQUIRE(busy.body->stop(guard));
        CHECK(busy.body->report().interrupted == 1);
    }
}

TEST_CASE("edge: empty std::functions as hooks and callbacks count as none") {
    ojs::worker_options settings = options();
    settings.times.shutdown_grace_period = 0ms;
    settings.times.cancel_wait = guard;
    settings.stuck_after = 10ms;  // so that on_stuck_job is called
    settings.on_transition = std::function<void(const ojs::lifecycle_state&)>();
    settings.on_stuck_job = std::function<ojs::stuck_action(const ojs::stuck_job&)>();
    settings.log.hook = std::function<void(const ojs::log_record&)>();
    CHECK(settings.log.hook == nullptr);  // the ordinary log, then
    const kept_log log(settings, ojs::log_level::warn);
    busy_worker busy(settings, [log](ojs::job_context& job) {
        const ojs::cancel_registration kept = job.on_cancel(std::function<void()>());
        CHECK_FALSE(job.sleep_for(guard));
        CHECK(log.wait_for("warn job is stuck"));
    });
    CHECK(busy.body->stop(guard));
    CHECK(log.text().find(" threw") == std::string::npos);
    CHECK(busy.body->report().interrupted == 1);
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
