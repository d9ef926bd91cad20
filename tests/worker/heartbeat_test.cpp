// Heartbeats that must arrive: the first to say `quiet`, and the last of all.
#include <dlfcn.h>
#include <pthread.h>

#include <cstring>

#include "recorder.hpp"

using namespace ojs;
using namespace recorder;

namespace {

// A worker with one job in its handler, which asks for one heartbeat and then waits for `let_go`.
struct beating_worker {
    explicit beating_worker(const worker_options& options = recorder::options()) : body(options, wire) {
        wire.give(make_job("a"));
        body.register_handler("work", [this](job_context& job) {
            REQUIRE(wire.wait_for("beat", 1));
            job.heartbeat();
            REQUIRE(let_go.wait());
        });
    }
    ~beating_worker() {
        hung_may_end.set();
        let_go.set();
    }
    void end() {
        let_go.set();
        REQUIRE(body.stop(guard));
    }

    recorder::event hung_may_end;
    recorder::event let_go;
    recorder::transport wire;
    worker body;
};

}  // namespace

TEST_CASE("heartbeat: quiet and the last one overtake a beat without a response") {
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    options.times.stop_timeout = 500ms;
    beating_worker tested(options);
    counter began;
    tested.wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state == "running" && began.add() == 2) CHECK(tested.hung_may_end.wait());
        return heartbeat_response();
    };
    REQUIRE(tested.body.start());
    REQUIRE(began.wait_for(2));
    CHECK(tested.body.quiet());
    REQUIRE(tested.wire.wait_for("beat", 1, "quiet"));  // while the other one hangs
    tested.end();
    CHECK(tested.body.exit_code() == 0);
    check_last_word(tested.wire);
}

TEST_CASE("heartbeat: an overtaken beat is followed by one with the current state") {
    recorder::event hung_may_end;
    recorder::event let_go;
    recorder::event began;
    recorder::transport wire;
    wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state == "running") began.set(), CHECK(hung_may_end.wait());
        return heartbeat_response();
    };
    wire.give(make_job("a"));
    const auto tested = start_worker(wire, [&](job_context& job) {  // a beat an hour
        CHECK(wire.wait_for("beat", 1, "quiet"));
        job.heartbeat();
        CHECK(let_go.wait());
    });
    REQUIRE(began.wait());
    REQUIRE(wire.wait_for("fetch", 1));
    CHECK(tested->quiet());
    REQUIRE(wire.wait_for("beat", 2, "quiet"));  // the first of them has been answered
    hung_may_end.set();                          // the backend may have noted "running" last
    CHECK(wire.wait_for("beat", 3, "quiet"));
    let_go.set();
    CHECK(tested->stop(guard));
}

TEST_CASE("heartbeat: a quiet beat that failed is retried before the next interval") {
    beating_worker tested;  // a beat an hour
    tested.wire.refuse("quiet", 1, {errc::disconnected, 0, "it broke"});
    REQUIRE(tested.body.start());
    REQUIRE(tested.wire.wait_for("fetch", 1));
    CHECK(tested.body.quiet());
    REQUIRE(tested.wire.wait_for("beat", 2, "quiet"));
    tested.end();
    check_last_word(tested.wire);
}

TEST_CASE("heartbeat: the last one is sent again when its connection broke") {
    recorder::transport wire;
    wire.refuse("terminate", 1, {errc::disconnected, 0, "it broke"});
    run_until("fetch", 1, wire, do_nothing);
    const std::vector<call> all = wire.calls();
    REQUIRE(all.size() > 2);
    CHECK(all[all.size() - 1].state == "terminate");
    CHECK(all[all.size() - 2].state == "terminate");
    CHECK(all[all.size() - 3].what == "deregister");
}

TEST_CASE("heartbeat: a registration that hangs does not cost the last beat") {
    worker_options options = recorder::options();
    options.times.stop_timeout = 500ms;
    recorder::event asked;
    recorder::event let_go;
    recorder::transport wire;
    wire.on.register_worker = [&] {
        asked.set();
        CHECK(let_go.wait());
    };
    const auto tested = start_worker(wire, options, do_nothing);
    REQUIRE(asked.wait());
    CHECK(tested->stop(guard));
    CHECK(tested->exit_code() == 0);
    check_last_word(wire);
    let_go.set();
}

#ifdef __GLIBC__  // elsewhere the tests are static, and there is no other pthread_setname_np() to call
namespace {

std::atomic<recorder::event*> late_until{nullptr};  // for the next thread that is to register a worker

}  // namespace

extern "C" int pthread_setname_np(pthread_t thread, const char* name) noexcept {
    using signature = int(pthread_t, const char*);
    static auto* const real = reinterpret_cast<signature*>(::dlsym(RTLD_NEXT, "pthread_setname_np"));
    recorder::event* const late =
        std::strcmp(name, "ojs-heartbeat") == 0 ? late_until.exchange(nullptr) : nullptr;
    if (late != nullptr) late->wait();
    return real(thread, name);
}

TEST_CASE("heartbeat: a thread that is late does not register the worker after its last beat") {
    recorder::event last_beat;
    recorder::transport wire;
    wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state == "terminate") last_beat.set();
        return heartbeat_response();
    };
    late_until = &last_beat;
    CHECK(start_worker(wire, do_nothing)->stop(guard));
    CHECK(late_until == nullptr);
    check_last_word(wire);
}
#endif

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

TEST_CASE("heartbeat: workers that started together send the second beat apart, and keep that distance") {
    std::chrono::milliseconds shortest = 1h;
    std::chrono::milliseconds longest = 0h;
    for (int i = 0; i < 100; ++i) {
        const detail::beat_schedule tested(1h);
        const std::chrono::milliseconds gap = tested.gap_after(1);
        CHECK(gap > 30min);
        CHECK(gap <= 1h);
        CHECK(tested.gap_after(2) == 1h);
        shortest = std::min(shortest, gap);
        longest = std::max(longest, gap);
    }
    CHECK(longest - shortest > 15min);  // all within half of the range: once in 10^28
}

#endif  // !OJS_SHUTDOWN_SEPARATE
