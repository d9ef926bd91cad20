// Duress: a stop waits for no busy handler, slow log or missing thread. Edges: corner cases in which two rules meet.
#include "busy_worker.hpp"
#include "processes.hpp"

namespace {

using namespace recorder;

ojs::worker_options small_threads(std::int64_t concurrency) {
    ojs::worker_options out = options(concurrency);
    out.thread_stack_size = 256 * 1024;
    return out;
}

// [Website In-flight (a)] [River no jobs lost]
TEST_CASE("worker: a stop interrupts and requeues all of 160 jobs whose handlers poll for cancellation") {
    constexpr int jobs = 160;
    transport wire;
    counter running;
    for (int i = 0; i < jobs; ++i) wire.give(make_job(std::to_string(i)));
    ojs::worker_options settings = small_threads(jobs);
    settings.times.shutdown_grace_period = 100ms;
    settings.times.stop_timeout = 20s;
    const auto worker = start_worker(wire, settings, [&running](ojs::job_context& job) {
        running.add();
        std::atomic<bool> called{false};
        const ojs::cancel_registration keep = job.on_cancel([&] { called = true; });
        // Each checks for cancellation every millisecond, in its own way.
        const int way = job.id().back() % 4;
        while (way == 0   ? !job.cancel_requested()
               : way == 1 ? job.sleep_for(1ms)
               : way == 2 ? !called
                          : !job.abandoned())
            ::usleep(1000);
    });
    REQUIRE(running.wait_for(jobs));
    REQUIRE(worker->stop(guard));
    CHECK(sums(*worker).rfind("claimed 160 interrupted 160 requeued 160 ", 0) == 0);  // late ones are stuck
    CHECK(worker->exit_code() == 0);
    check_last_word(wire);
}

// [River after a timeout]
TEST_CASE("worker: a stop waits for handlers that saw their cancellation to return") {
    const auto began = make_event();
    const auto saw = make_event();
    const auto rolled_back = make_event();
    const auto go_on = make_event();
    ojs::worker_options settings = options();
    settings.times.shutdown_grace_period = 50ms;
    settings.times.stop_timeout = 20s;
    transport wire;
    wire.give(make_job("a"));
    wire.on.fail = [=](const ojs::fail_request&, ojs::time_point) -> ojs::result<ojs::settle_result> {
        CHECK(saw->wait());
        return ojs::settle_result::accepted;
    };
    const auto worker = start_worker(wire, settings, [=](ojs::job_context& job) {
        began->set();
        CHECK_FALSE(job.sleep_for(1h));
        saw->set();
        CHECK(go_on->wait());
        rolled_back->set();
    });
    REQUIRE(began->wait());
    CHECK(worker->request_stop());
    REQUIRE(wire.wait_for("beat", 1, "terminate"));   // it is reported, and rolls back
    CHECK(worker->stopped_token().sleep_for(200ms));  // it has all that time to end too early
    go_on->set();
    REQUIRE(worker->wait(ojs::deadline_after(guard)));
    CHECK(rolled_back->is_set());
    CHECK(worker->report().stuck.empty());
    CHECK(worker->wait());
    CHECK(worker->stop());
}

TEST_CASE("worker: a log hook blocks during a stop -> the FAILs of all jobs are still sent") {
    transport wire;
    constexpr int jobs = 200;  // more than there are threads to report them
    for (int i = 0; i < jobs; ++i) wire.give(make_job(std::to_string(i)));
    counter running;
    const auto home = std::make_shared<counter>();
    event all_reported;
    std::atomic<int> early{0};
    ojs::worker_options settings = small_threads(jobs);
    settings.times.shutdown_grace_period = 50ms;
    settings.times.stop_timeout = 20s;
    settings.log.level = ojs::log_level::info;
    settings.log.hook = [&](const ojs::log_record& record) {
        if (record.message == "job interrupted" && !all_reported.wait()) ++early;
    };
    const auto worker = start_worker(wire, settings, [&](ojs::job_context& job) {
        thread_local const counts_at_end at_end(home);
        running.add();
        CHECK_FALSE(job.sleep_for(1h));
        if (wire.wait_for("fail", jobs)) all_reported.set();  // though no record of one is through
    });
    REQUIRE(running.wait_for(jobs));
    CHECK(worker->stop(guard));
    CHECK(early == 0);
    CHECK(worker->exit_code() == 0);
    CHECK(home->wait_for(jobs));  // the stop waits for no handler
}

// [WP 4.2 (a)] [WP 5.3]
TEST_CASE(
    "heartbeat: a lease shorter than heartbeat_interval -> heartbeats are sent before the interval ends") {
    transport wire;
    ojs::job given = make_job("a");
    given.visibility_timeout = 200ms;
    wire.give(given);                                              // and a beat an hour
    wire.on.claim = [](const ojs::claim_query&) { return true; };  // one that starts late does start
    const auto worker =
        run_until("ack", 1, wire, [&](ojs::job_context&) { CHECK(wire.wait_for("beat", 4)); });
    CHECK(worker->report().completed == 1);
}

TEST_CASE("heartbeat: 64 jobs whose leases have expired are renewed by fewer than 32 heartbeats") {
    constexpr int jobs = 64;
    transport wire;
    for (int i = 0; i < jobs; ++i) {
        ojs::job given = make_job(std::to_string(i));
        given.visibility_timeout = 300ms;
        wire.give(std::move(given));
    }
    wire.on.claim = [](const ojs::claim_query&) { return true; };  // those that start late do start
    counter through;
    std::atomic<bool> cut_off{true};
    std::atomic<int> renewals{0};
    wire.on.beat = [&](const ojs::heartbeat_request& request) -> ojs::result<ojs::heartbeat_response> {
        if (cut_off && !request.active_jobs.empty()) return ojs::error{ojs::errc::unreachable, 0, "cut off"};
        ojs::heartbeat_response answer;
        answer.jobs_extended = request.active_jobs;
        if (!request.active_jobs.empty()) ++renewals;
        return answer;
    };
    const auto worker = start_worker(wire, small_threads(jobs), [&](ojs::job_context& job) {
        CHECK(job.sleep_for(450ms));  // it is the passing of time that is meant
        if (through.add() == jobs) cut_off = false;
        CHECK(through.wait_for(jobs));
    });
    REQUIRE(wire.wait_for("ack", jobs));
    CHECK(renewals < jobs / 2);
    CHECK(worker->stop(guard));
    CHECK(sums(*worker) == "claimed 64 completed 64 exit 0");
}

TEST_CASE("worker: quick on_cancel callbacks share threads, and callbacks that block do not delay them") {
    constexpr int quick = 400;
    constexpr int slow = 10;
    transport wire;
    for (int i = 0; i < slow; ++i) wire.give(make_job("s" + std::to_string(i)));
    for (int i = 0; i < quick; ++i) wire.give(make_job("q" + std::to_string(i)));
    counter registered;
    event all_called;
    std::atomic<int> called{0};
    std::atomic<int> threads{0};
    ojs::worker_options settings = small_threads(quick + slow);
    settings.times.cancel_wait = 50s;  // all of them return
    settings.times.stop_timeout = 60s;
    const auto worker = start_worker(wire, settings, [&](ojs::job_context& job) {
        const bool is_slow = job.id()[0] == 's';
        const ojs::cancel_registration keep = job.on_cancel([&, is_slow] {
            if (is_slow) {
                CHECK(all_called.wait());
                return;
            }
            static thread_local bool counted = false;
            if (!std::exchange(counted, true)) ++threads;
            if (++called == quick) all_called.set();
        });
        registered.add();
        CHECK_FALSE(job.sleep_for(1h));
        CHECK(all_called.wait());
    });
    REQUIRE(registered.wait_for(quick + slow));
    CHECK(worker->stop_and_cancel(guard));
    CHECK(called == quick);
    CHECK(threads < quick / 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__linux__)
// setrlimit() succeeds without effect, as under qemu-user, which would itself run out of memory first.
bool limit_is_ignored(const rlimit& asked) {
    rlimit kept{};
    return ::setrlimit(RLIMIT_AS, &asked) == 0 && ::getrlimit(RLIMIT_AS, &kept) == 0 &&
           kept.rlim_cur != asked.rlim_cur;
}

// In a separate process, because it limits its memory for a while. Returns how many jobs finally ran at a time.
constexpr int slots = 6;
constexpr int unlimited = 77;  // no limit can be set
constexpr int failed = 99;
int run_short_of_threads() {
    transport wire;
    for (int i = 0; i < 2 * slots; ++i) wire.give(make_job(std::to_string(i)));
    event reduced;
    counter running;
    ojs::worker_options settings = options(slots);
    settings.thread_stack_size = std::size_t{64} << 20;
    settings.log.level = ojs::log_level::warn;
    settings.log.hook = [&](const ojs::log_record& record) {
        if (record.message.find("concurrency reduced") != std::string::npos) reduced.set();
    };
    rlimit before{};
    ::getrlimit(RLIMIT_AS, &before);
    rlimit little = before;
    little.rlim_cur =
        test::memory_used(false) + (rlim_t{364} << 20);  // three service threads, and two or three jobs'
    if (limit_is_ignored(little)) return unlimited;
    ojs::worker worker(settings, wire);
    worker.register_handler("work", [&](ojs::job_context&) {
        running.add();
        static_cast<void>(running.wait_for(slots));
    });
    if (!worker.start() || !reduced.wait()) return failed;
    ::setrlimit(RLIMIT_AS, &before);
    running.wait_for(slots);
    return worker.stop(guard) ? std::min(running.highest(), slots) : failed;
}

TEST_CASE("worker: a shortage of threads reduces the concurrency only until threads can be created") {
    if (test::memory_used(false) == 0) {
        MESSAGE("skipped: no /proc/self/statm");
        return;
    }
    const int at_a_time = test::status_of(test::forked(run_short_of_threads));
    if (at_a_time == unlimited) {
        MESSAGE("skipped: setrlimit(RLIMIT_AS) is without effect here, as it is under qemu-user");
        return;
    }
    CHECK(at_a_time == slots);
}

// In a separate process as well: once the worker runs, no thread can be created, and a report hangs.
int beat_beside_a_hanging_report() {
    transport wire;
    counter beats;
    event reports;
    event hung;
    event let_go;
    std::atomic<bool> hangs{false};
    wire.on.fail = [&](const ojs::fail_request&, ojs::time_point) -> ojs::result<ojs::settle_result> {
        reports.set();
        let_go.wait();
        return ojs::settle_result::accepted;
    };
    wire.on.beat = [&](const ojs::heartbeat_request& request) -> ojs::result<ojs::heartbeat_response> {
        beats.add();
        if (hangs && request.state == "running") hung.set(), let_go.wait();
        return ojs::heartbeat_response();
    };
    ojs::worker_options settings = options();
    settings.thread_stack_size = std::size_t{64} << 20;
    settings.on_unknown_type = ojs::unknown_type_action::discard;
    settings.poll_interval = settings.heartbeat_interval = 20ms;
    ojs::worker worker(settings, wire);
    worker.register_handler("work", do_nothing);
    if (!worker.start() || !wire.wait_for("fetch", 1) || !wire.wait_for("beat", 2)) return failed;
    rlimit before{};
    ::getrlimit(RLIMIT_AS, &before);
    rlimit little = before;
    little.rlim_cur = test::memory_used(false) + (rlim_t{32} << 20);
    if (limit_is_ignored(little)) return unlimited;
    wire.give(make_job("a", "unknown"));
    wire.give(make_job("b", "unknown"));
    if (!reports.wait() || !beats.wait_for(beats.highest() + 5)) return failed;
    hangs = true;
    if (!hung.wait() || !worker.quiet() || !wire.wait_for("beat", 1, "quiet")) return failed;
    if (wire.calls("fail").size() != 1) return failed;  // a second one had a thread
    let_go.set();
    ::setrlimit(RLIMIT_AS, &before);
    return worker.stop(guard) ? 0 : failed;
}

TEST_CASE(
    "heartbeat: no thread can be created and a FAIL hangs -> heartbeats continue, and quiet is announced") {
    if (test::memory_used(false) == 0) return;
    const int status = test::status_of(test::forked(beat_beside_a_hanging_report));
    CHECK((status == 0 || status == unlimited));
}

// In a separate process as well: there is room for the heartbeat's thread, and for no job's.
int fail_to_start() {
    transport wire;
    event returned;
    wire.on.register_worker = [&] { returned.wait_until(ojs::steady_clock::now() + 50ms); };
    ojs::worker_options settings = options();
    settings.thread_stack_size = std::size_t{200} << 20;
    rlimit little{};
    ::getrlimit(RLIMIT_AS, &little);
    little.rlim_cur = test::memory_used(false) + (rlim_t{300} << 20);
    if (limit_is_ignored(little)) return unlimited;
    ojs::worker worker(settings, wire);
    worker.register_handler("work", do_nothing);
    const bool started = worker.start().has_value();
    returned.set();
    return !started && wire.calls("register").size() == 1 && wire.calls().back().state == "terminate"
               ? 0
               : failed;
}

TEST_CASE("worker: no thread for jobs can be created -> start() fails after a last heartbeat") {
    if (test::memory_used(false) == 0) return;
    const int status = test::status_of(test::forked(fail_to_start));
    CHECK((status == 0 || status == unlimited));
}
#endif

#if defined(__SANITIZE_THREAD__)
constexpr int rounds = 15;
#else
constexpr int rounds = 60;
#endif

// [GS 5.1 (b)] [WP 2.1 (b)]
TEST_CASE("heartbeat: heartbeats that renew a lease while the worker is quiet report quiet") {
    transport wire;
    ojs::job brief = make_job("brief");
    brief.visibility_timeout = 1ms;
    wire.give(brief);
    wire.on.claim = [](const ojs::claim_query&) { return true; };  // started though its lease has ended
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

}  // namespace

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare
TEST_CASE("job_queue: 20,000 queued jobs are destroyed on a stack of 256 KiB") {
    using namespace ojs::detail;
    const auto group = make_ref<job_cancel_group>();
    job_queue* const queue = new job_queue;
    for (int i = 0; i < 20000; ++i)
        queue->push(make_ref<active_job>(ojs::job(), ojs::time_point(), ojs::detail::lease_time(), 1s,
                                         ref<registered_handler>(), group));
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
