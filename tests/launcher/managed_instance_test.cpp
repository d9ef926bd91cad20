#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "events.hpp"
#include "files.hpp"
#include "test.hpp"

using namespace ojs;
using namespace ojs::detail;
using namespace std::chrono_literals;

namespace {

using state = instance_state;
using states = std::vector<state>;

time_point soon() {
    return steady_clock::now() + test::hang_guard;
}

bool over(state now) {
    return is_final(now);
}
template <state Wanted>
bool is(state now) {
    return now == Wanted;
}

http_response answer(const std::string& body) {
    http_response out;
    out.headers = {{"Content-Type", "application/json"}};
    out.body = body;
    return out;
}

std::string says(readiness_state now) {
    readiness_response out;
    out.state = now;
    return write_message(out);
}

std::string says(shutdown_state now) {
    shutdown_status out;
    out.state = now;
    return write_message(out);
}

const std::string ack = R"({"acknowledged":true})";

// One process, its coordinator, which is here, and what was told of it.
class fixture {
  public:
    // By method name; what is not there answers as an unknown method.
    using answers = std::map<std::string, std::function<http_response(const std::string& body)>>;

    explicit fixture(answers how = {}) : answers_(std::move(how)) {
        spec.id = "kv-1";
        spec.group = "kv";
        spec.address = "unix:" + folder.file("child.sock");
        spec.options.rpc_timeout = 1h;
        spec.options.readiness_interval = 10ms;
        spec.options.health_interval = 10ms;
        spec.options.shutdown.poll_interval = 10ms;
        spec.options.child.output = child_stream::lines([this](std::string_view) { up.set(); });
        REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
        reader_ = unique_fd(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
        writer_ = unique_fd(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
        // Ends with the status that it is sent.
        runs({"sh", "-c", "echo up; read x < \"$0\"; exit \"$x\"", fifo});
        if (answers_.empty()) return;
        result<http_server> made =
            http_server::start(spec.address, [this](const http_request& asked) { return reply(asked); });
        REQUIRE(made);
        server_ = std::make_unique<http_server>(std::move(*made));
    }

    void listens_no_more() { server_.reset(); }
    void runs(std::vector<std::string> command) { spec.options.child.command = std::move(command); }
    ref<instance> launch() {
        log_options log;
        log.level = log_level::debug;
        log.hook = [this](const log_record& record) {
            const std::lock_guard<std::mutex> held(mutex);
            texts.push_back(record.message);
        };
        const result<ref<instance>> made = start_instance(
            spec,
            [this](const process_info& now, state before) {
                if (memory_fails > 0 && memory_fails-- > 0) throw std::bad_alloc();
                const std::lock_guard<std::mutex> held(mutex);
                if (now.state != before) seen.push_back(now.state);
                if (now.state == before) ++other_changes;
                pid = now.pid;
                changes_.notify_all();
                if (is_final(now.state)) told_over.set();
            },
            logger(log, "launcher"));
        REQUIRE(made);
        return *made;
    }
    ref<instance> start() {
        const ref<instance> made = launch();
        REQUIRE(up.wait());
        await(made, [](state now) { return now != state::spawning; });
        pid = made->info().pid;
        return made;
    }
    // Until it holds of the state, or that is final.
    state await(const ref<instance>& of, bool (*holds)(state)) {
        std::unique_lock<std::mutex> held(mutex);
        state now{};
        changes_.wait_until(held, soon(), [&] {
            now = of->info().state;
            return holds(now) || is_final(now);
        });
        return now;
    }
    // Waits for nobody: it may be said once more, by a handler that is asked again before the child's end is seen.
    void end_child(const std::string& status) const {
        REQUIRE(::write(writer_.get(), (status + "\n").data(), status.size() + 1) > 0);
    }
    states seen_states() {
        const std::lock_guard<std::mutex> held(mutex);
        return seen;
    }
    bool logged(const std::string& text) {
        const std::lock_guard<std::mutex> held(mutex);
        return std::find(texts.begin(), texts.end(), text) != texts.end();
    }

    test::temporary_folder folder;
    const std::string fifo = folder.file("fifo");
    instance_spec spec;
    test::event up;
    test::event told_over;
    std::atomic<int> memory_fails{0};  // calls that find none
    std::mutex mutex;
    states seen;
    std::vector<std::string> texts;
    int other_changes = 0;
    std::atomic<pid_t> pid{0};

  private:
    http_response reply(const http_request& asked) {
        const auto found = answers_.find(asked.target.substr(asked.target.rfind('/') + 1));
        if (found != answers_.end()) return found->second(asked.body);
        http_response out = answer(R"({"code":"unimplemented"})");
        out.status = 404;
        return out;
    }

    std::condition_variable changes_;
    const answers answers_;
    unique_fd reader_;
    unique_fd writer_;
    std::unique_ptr<http_server> server_;  // its handlers use the rest: ended first
};

auto always(std::string body) {
    return [body = std::move(body)](const std::string&) { return answer(body); };
}

std::size_t entries_of(const char* path) {
    std::size_t out = 0;
    for (const auto& each : std::filesystem::directory_iterator(path)) out += each.path().empty() ? 0U : 1U;
    return out;
}

}  // namespace

#if !OJS_SHUTDOWN_SEPARATE
TEST_CASE("managed_instance: TestShutdownStateMachine: every event in every state") {
    using event = instance_event;
    state now = state::spawning;
    states path;
    for (const event each : {event::spawned, event::warming, event::ready, event::shutdown_requested,
                             event::draining, event::completed})
        path.push_back(now = next_state(now, each));
    CHECK(path == states{state::starting, state::warming, state::ready, state::shutdown_requested,
                         state::draining, state::complete});

    // How far it is. Ready and unhealthy are as far, and lead to each other.
    const auto rank = [](state of) {
        return is_final(of) ? 6 : of == state::unhealthy ? 3 : of > state::unhealthy ? int(of) - 1 : int(of);
    };
    for (int i = 0; i <= int(state::crashed); ++i) {
        const state from = state(i);
        CAPTURE(i);
        for (int what = 0; what <= int(event::forced); ++what) {
            const state to = next_state(from, event(what));
            CAPTURE(what);
            CHECK(rank(to) >= rank(from));
            if (is_final(from)) CHECK(to == from);
            if (is_stopping(from)) CHECK(is_stopping(to));
        }
        if (is_final(from)) continue;
        CHECK(next_state(from, event::forced) == state::forced);
        CHECK(next_state(from, event::crashed) == state::crashed);
        const bool may_end = is_stopping(from) || from == state::spawning;  // before it ran
        CHECK(next_state(from, event::completed) == (may_end ? state::complete : state::crashed));
        CHECK(next_state(from, event::shutdown_requested) ==
              (is_stopping(from) ? from : state::shutdown_requested));
        CHECK(next_state(from, event::draining) == (is_stopping(from) ? state::draining : from));
    }
}
#endif

TEST_SUITE("managed_instance") {
    TEST_CASE("a process becomes ready, is asked, drains and ends: every step is seen and logged") {
        std::atomic<int> looks{0};
        std::string request;
        fixture* self = nullptr;
        fixture f({{"GetReadinessStatus",
                    [&](const std::string&) {
                        const int n = looks++;
                        return answer(says(n == 0   ? readiness_state::starting
                                           : n == 1 ? readiness_state::warming
                                                    : readiness_state::ready));
                    }},
                   {"Shutdown",
                    [&](const std::string& body) {
                        request = body;
                        return answer(ack);
                    }},
                   {"GetShutdownStatus", [&](const std::string&) {
                        const bool drains = self->seen_states().back() == state::draining;
                        if (drains) self->end_child("0");
                        return answer(says(drains ? shutdown_state::complete : shutdown_state::draining));
                    }}});
        self = &f;
        ref<instance> it = f.start();
        CHECK(f.await(it, is<state::ready>) == state::ready);
        CHECK(it->info().routable);
        CHECK(it->info().startup.count() > 0);
        it->shut_down({"a test", 1500ms, 1h});  // longer than granted
        CHECK(f.await(it, over) == state::complete);
        const result<shutdown_request> asked = read_message<shutdown_request>(request);
        REQUIRE(asked);
        CHECK(asked->process_id == "kv-1");
        CHECK(asked->reason == "a test");
        CHECK(asked->grace_period_seconds == 2);
        CHECK(asked->max_shutdown_seconds == 10);
        const process_info end = it->info();
        CHECK(end.exit.ok());
        CHECK_FALSE(end.killed);
        CHECK(end.shutdown_took.count() > 0);
        CHECK_FALSE(end.routable);
        // The thread tells of a change after the state is there to see.
        it = ref<instance>();
        CHECK(f.seen_states() == states{state::starting, state::warming, state::ready,
                                        state::shutdown_requested, state::draining, state::complete});
        for (const char* text : {"process spawned", "process warming", "process ready", "shutdown requested",
                                 "process draining", "shutdown progress", "process complete"}) {
            INFO(text);
            CHECK(f.logged(text));
        }
    }

    TEST_CASE("a push brings the look forward, and is not believed alone") {
        std::atomic<bool> is_ready{false};
        test::counter looks;
        fixture f({{"GetReadinessStatus", [&](const std::string&) {
                        const bool now = is_ready;
                        looks.add();
                        return answer(says(now ? readiness_state::ready : readiness_state::starting));
                    }}});
        f.spec.options.readiness_interval = 1h;
        f.spec.options.readiness_timeout = 2h;
        const ref<instance> it = f.start();
        REQUIRE(looks.wait_for(1));
        it->poll();
        REQUIRE(looks.wait_for(2));
        CHECK(it->info().state == state::starting);
        is_ready = true;
        it->poll();
        CHECK(f.await(it, is<state::ready>) == state::ready);
    }

    TEST_CASE("a process that dies is seen to, at any point") {
        const auto die = [](fixture& of) {
            REQUIRE(::kill(of.pid, SIGKILL) == 0);
            return answer("{}");
        };
        fixture* self = nullptr;
        for (const std::string at : {"GetReadinessStatus", "Shutdown", "GetShutdownStatus"}) {
            INFO(at);
            fixture::answers how{{"GetReadinessStatus", always(says(readiness_state::ready))},
                                 {"Shutdown", always(ack)},
                                 {"GetShutdownStatus", always(says(shutdown_state::draining))}};
            how[at] = [&](const std::string&) {
                self->up.wait();
                return die(*self);
            };
            fixture f(how);
            self = &f;
            const ref<instance> it = f.start();
            if (at != "GetReadinessStatus") {
                f.await(it, is<state::ready>);
                it->shut_down({});
            }
            CHECK(f.await(it, over) == state::crashed);
            CHECK(it->info().exit.signal == SIGKILL);
            CHECK_FALSE(it->info().routable);
        }
    }

    TEST_CASE("an end that nobody asked for is a crash, whatever its status") {
        for (const std::string status : {"0", "3"}) {
            fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))}});
            const ref<instance> it = f.start();
            f.end_child(status);
            CHECK(f.await(it, over) == state::crashed);
            CHECK(it->info().exit.code == std::stoi(status));
            if (status == "0") CHECK(it->info().message == "exited by itself with status 0");
        }
    }

    TEST_CASE("TestShutdownExtensionRequest: more time is granted up to the hard deadline, and not past it") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))},
                   {"Shutdown", always(ack)},
                   {"GetShutdownStatus",
                    always(R"({"state":"SHUTDOWN_BLOCKED","needMoreTime":true,"additionalSeconds":3600})")}});
        f.spec.options.shutdown.grace_period = 1s;  // in which the request must be delivered
        f.spec.options.shutdown.max_duration = 2s;
        SUBCASE("as the RFC's code") {}
        SUBCASE("only what was asked for, which must be asked within the grace period") {
            f.spec.options.shutdown.force_without_request = true;
            f.spec.options.shutdown.grace_period = 5s;
            f.spec.options.shutdown.max_duration = 5100ms;
        }
        const ref<instance> it = f.start();
        f.await(it, is<state::ready>);
        it->shut_down({});
        CHECK(f.await(it, over) == state::forced);
        CHECK(it->info().exit.signal == SIGTERM);
        CHECK_FALSE(it->info().killed);
        CHECK(it->info().shutdown_took >= f.spec.options.shutdown.max_duration);
        CHECK(f.logged("more time asked for"));
        CHECK(f.logged("past its grace period"));
        CHECK(f.logged("forcing shutdown with SIGTERM"));
    }

    TEST_CASE("what is strict forces after the grace period where no more time was asked for") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))},
                   {"Shutdown", always(ack)},
                   {"GetShutdownStatus", always(says(shutdown_state::draining))}});
        f.spec.options.shutdown.force_without_request = true;
        f.spec.options.shutdown.grace_period = 50ms;
        f.spec.options.shutdown.max_duration = 1h;
        const ref<instance> it = f.start();
        f.await(it, is<state::ready>);
        it->shut_down({});
        CHECK(f.await(it, over) == state::forced);
    }

    TEST_CASE("who says COMPLETE and stays is ended") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))},
                   {"Shutdown", always(ack)},
                   {"GetShutdownStatus", always(says(shutdown_state::complete))}});
        f.spec.options.shutdown.max_duration = 1h;
        f.spec.options.shutdown.kill_delay = 100ms;
        const ref<instance> it = f.start();
        f.await(it, is<state::ready>);
        it->shut_down({});
        CHECK(f.await(it, over) == state::forced);
        CHECK(it->info().exit.signal == SIGTERM);
    }

    TEST_CASE("a coordinator that answers rubbish does not hold up the end") {
        fixture f({{"GetReadinessStatus", always("[[[")}, {"Shutdown", always("\xff{")}});
        f.spec.options.shutdown.grace_period = f.spec.options.shutdown.max_duration = 100ms;
        const ref<instance> it = f.start();
        it->shut_down({});
        CHECK(f.await(it, over) == state::forced);
        CHECK(f.logged("shutdown not acknowledged"));
    }

    TEST_CASE("a Shutdown whose answer is late has arrived: the process has all of its time") {
        fixture* self = nullptr;
        test::event drained;
        std::atomic<int> asked{0};
        fixture f({{"Shutdown",
                    [&](const std::string&) {
                        ++asked;
                        drained.wait();
                        return answer(ack);
                    }},
                   {"GetShutdownStatus", [&](const std::string&) {
                        const bool late = self->logged("past its grace period");
                        if (!late) drained.wait_until(steady_clock::now() + 50ms);  // as late
                        if (late) self->end_child("0");
                        return answer(says(shutdown_state::draining));
                    }}});
        self = &f;
        f.spec.options.rpc_timeout = 20ms;
        f.spec.options.shutdown.grace_period = 100ms;
        f.spec.options.shutdown.max_duration = 1h;
        const ref<instance> it = f.start();
        it->shut_down({});
        CHECK(f.await(it, over) == state::complete);
        CHECK(it->info().exit.ok());
        CHECK(asked == 1);
        CHECK_FALSE(f.logged("forcing shutdown with SIGTERM"));
        drained.set();
    }

    TEST_CASE("a Shutdown that got lost is sent again, once the process says that it runs") {
        fixture* self = nullptr;
        std::atomic<int> asked{0};
        fixture f({{"Shutdown",
                    [&](const std::string&) {
                        http_response out = answer(ack);
                        out.drop = asked++ < 2;  // one call tries twice
                        return out;
                    }},
                   {"GetShutdownStatus", [&](const std::string&) {
                        if (asked < 3) return answer(says(shutdown_state::running));
                        self->end_child("0");
                        return answer(says(shutdown_state::draining));
                    }}});
        self = &f;
        f.spec.options.shutdown.max_duration = 1h;
        const ref<instance> it = f.start();
        it->shut_down({});
        CHECK(f.await(it, over) == state::complete);
        CHECK(asked == 3);
    }

    TEST_CASE("who answered before and listens no more is asked with SIGTERM at once") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))}});
        f.runs({"sh", "-c", "trap 'exit 0' TERM; sh -c 'echo up; exec sleep 1000' & wait"});
        f.spec.options.shutdown.max_duration = 1h;
        const ref<instance> it = f.start();
        f.await(it, is<state::ready>);
        f.listens_no_more();
        it->shut_down({});
        CHECK(f.await(it, over) == state::complete);
        CHECK(f.logged("asking with SIGTERM"));
    }

    TEST_CASE("what max_duration cut short may still be reported before SIGTERM") {
        fixture* self = nullptr;
        fixture f({{"Shutdown", always(ack)}, {"GetShutdownStatus", [&](const std::string&) {
                                                   if (self->logged("past its maximum, it may still report"))
                                                       self->end_child("0");
                                                   return answer(says(shutdown_state::draining));
                                               }}});
        self = &f;
        f.spec.options.shutdown.grace_period = f.spec.options.shutdown.max_duration = 50ms;
        f.spec.options.shutdown.report_time = 1h;
        const ref<instance> it = f.start();
        it->shut_down({});
        CHECK(f.await(it, over) == state::complete);
    }

    TEST_CASE("a stopped process whose coordinator never answers is ended, without SIGKILL") {
        test::event release;
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))},
                   {"Shutdown", [&](const std::string&) {
                        release.wait();
                        return answer(ack);
                    }}});
        f.spec.options.shutdown.grace_period = f.spec.options.shutdown.max_duration = 100ms;
        f.spec.options.shutdown.kill_delay = 20s;
        const ref<instance> it = f.start();
        f.await(it, is<state::ready>);
        REQUIRE(::kill(f.pid, SIGSTOP) == 0);
        it->shut_down({});
        CHECK(f.await(it, over) == state::forced);
        CHECK(it->info().exit.signal == SIGTERM);
        release.set();
    }

    TEST_CASE("an order does not wait for a coordinator that is silent") {
        std::chrono::milliseconds best = 1h;
        for (int i = 0; i < 5;
             ++i) {  // the quickest counts: a machine may stand still for a moment, a question lasts 1 s
            test::event release;
            test::counter asked;
            const auto silent = [&](const std::string&) {
                asked.add();
                release.wait();
                return answer("{}");
            };
            fixture f({{"GetReadinessStatus", silent}, {"Shutdown", silent}});
            const ref<instance> it = f.start();
            REQUIRE(asked.wait_for(1));
            const time_point before = steady_clock::now();
            it->shut_down({});
            REQUIRE(asked.wait_for(2));
            it->force();
            CHECK(f.await(it, over) == state::forced);
            const auto took =
                std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - before);
            best = std::min(best, took);
            release.set();
        }
        CHECK(best < 700ms);
    }

    TEST_CASE("who does not speak the protocol is asked with SIGTERM, and has its whole time") {
        fixture f;  // nobody listens
        f.runs({"sh", "-c", "trap 'exit 0' TERM; sh -c 'echo up; exec sleep 1000' & wait"});
        SUBCASE("as is found out") {
            f.spec.options.has_coordinator = true;
        }
        SUBCASE("as is known") {
            f.spec.options.has_coordinator = false;
        }
        const ref<instance> it = f.start();
        if (!f.spec.options.has_coordinator) CHECK(f.await(it, is<state::ready>) == state::ready);
        it->shut_down({});
        CHECK(f.await(it, over) == state::complete);
        CHECK(f.logged("asking with SIGTERM"));
    }

    TEST_CASE("TestShutdownTimeoutForceKill: who ignores SIGTERM is killed, with all that it has started") {
        fixture f;
        f.spec.options.has_coordinator = false;
        f.spec.options.shutdown.max_duration = 1h;
        f.spec.options.shutdown.kill_delay = 100ms;
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        const unique_fd ours(ends[0]);
        unique_fd theirs(ends[1]);  // open as long as one of them lives
        f.spec.options.child.keep_descriptors = {theirs.get()};
        f.runs({"sh", "-c", "trap '' TERM; sleep 1000 & echo up; wait"});
        const ref<instance> it = f.start();
        theirs.reset();
        SUBCASE("forced at once") {}
        SUBCASE("forced while it was being asked") {
            it->shut_down({});
            f.await(it, is<state::shutdown_requested>);
        }
        it->force();
        CHECK(f.await(it, over) == state::forced);
        CHECK(it->info().killed);
        CHECK(f.logged("SIGTERM timeout, sending SIGKILL"));
        pollfd last{ours.get(), POLLIN, 0};
        CHECK(::poll(&last, 1, 30000) == 1);
    }

    TEST_CASE("who is forced while only what it has started is left is not waited for any longer") {
        if (OJS_SHUTDOWN_USE_PROC == 0) return;  // nothing tells who is left: it is over when its leader is
        fixture f;
        f.spec.options.has_coordinator = false;
        f.spec.options.shutdown.max_duration = 1h;
        f.spec.options.shutdown.kill_delay = 50ms;
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        const unique_fd ours(ends[0]);
        unique_fd theirs(ends[1]);  // open as long as one of them lives
        f.spec.options.child.keep_descriptors = {theirs.get()};
        f.runs({"sh", "-c", "trap 'exit 0' TERM; sh -c 'trap \"\" TERM; echo up; exec sleep 1000' & wait"});
        const ref<instance> it = f.start();
        theirs.reset();
        it->shut_down({});
        siginfo_t about{};
        while (::waitid(P_PID, static_cast<id_t>(f.pid), &about, WEXITED | WNOWAIT) != 0)
            REQUIRE(errno == EINTR);
        it->force();
        CHECK(f.await(it, over) == state::forced);
        pollfd last{ours.get(), POLLIN, 0};
        CHECK(::poll(&last, 1, 30000) == 1);
    }

    TEST_CASE("health comes and goes, and the routing with it") {
        std::atomic<readiness_state> now{readiness_state::ready};
        fixture f({{"GetReadinessStatus", [&](const std::string&) { return answer(says(now)); }}});
        const ref<instance> it = f.start();
        CHECK(f.await(it, is<state::ready>) == state::ready);
        now = readiness_state::unhealthy;
        CHECK(f.await(it, is<state::unhealthy>) == state::unhealthy);
        CHECK_FALSE(it->info().routable);
        now = readiness_state::ready;
        CHECK(f.await(it, is<state::ready>) == state::ready);
        CHECK(it->info().routable);
    }

    TEST_CASE("who is not ready in time, or does not answer any more, is unhealthy") {
        std::atomic<bool> answers{false};
        fixture f({{"GetReadinessStatus", [&](const std::string&) {
                        return answer(answers ? says(readiness_state::ready) : "rubbish");
                    }}});
        f.spec.options.readiness_timeout = 100ms;
        const ref<instance> it = f.start();
        CHECK(f.await(it, is<state::unhealthy>) == state::unhealthy);
        answers = true;
        CHECK(f.await(it, is<state::ready>) == state::ready);
        answers = false;
        CHECK(f.await(it, is<state::unhealthy>) == state::unhealthy);
    }

    TEST_CASE("a program that does not take part is ready when its ready_url is answered with 200") {
        fixture f;
        f.spec.options.has_coordinator = false;
        int later = 0;  // silent
        SUBCASE("and unhealthy when it is not any more") {
            later = 404;
        }
        SUBCASE("and unhealthy when nothing is answered") {
            f.spec.options.rpc_timeout = 20ms;
        }
        std::atomic<int> status{503};
        std::atomic<bool> as_said{true};
        test::event release;
        test::counter asked;
        const auto serve = [&](const http_request& request) {
            if (request.method != "GET" || request.target != "/ready?all") as_said = false;
            asked.add();
            if (status == 0) release.wait();  // silent
            http_response out;
            out.status = status;
            return out;
        };
        result<http_server> server = http_server::start("unix:" + f.folder.file("kv-1.web"), serve);
        REQUIRE(server);
        f.spec.options.ready_url = "unix:" + f.folder.file("{id}.web") + ":/ready?all";
        const ref<instance> it = f.start();
        REQUIRE(asked.wait_for(2));
        CHECK(it->info().state == state::starting);
        if (later != 0) CHECK(it->info().message == "ready_url answered with status 503");
        status = 200;
        CHECK(f.await(it, is<state::ready>) == state::ready);
        CHECK(as_said);
        status = later;
        CHECK(f.await(it, is<state::unhealthy>) == state::unhealthy);
        it->force();
        CHECK(f.await(it, over) == state::forced);
        release.set();
    }

    TEST_CASE("a process ends with the last who knows it") {
        fixture f;
        f.spec.options.has_coordinator = false;
        ref<instance> it = f.start();
        CHECK_FALSE(it->ask_status(soon()));
        it = ref<instance>();
        CHECK(::kill(f.pid, 0) != 0);
        CHECK(f.seen_states().back() == state::forced);
    }

    TEST_CASE("a program that is not there has crashed, and was no process") {
        fixture f;
        f.runs({"/nowhere/at/all"});
        const ref<instance> it = f.launch();
        CHECK(f.await(it, over) == state::crashed);
        CHECK(it->info().pid == 0);
        CHECK(it->info().message.find("No such file") != std::string::npos);
        CHECK(f.logged("process not started"));
    }

    TEST_CASE("one that is late is asked once more, as the launcher may have stood still") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))}});
        f.spec.options.readiness_timeout = 0ms;  // over before the first look
        const ref<instance> it = f.start();
        CHECK(f.await(it, is<state::ready>) == state::ready);
        f.end_child("0");
        REQUIRE(f.told_over.wait());
        CHECK(f.seen_states() == states{state::starting, state::ready, state::crashed});
    }

    TEST_CASE("what is told is told again where there was no memory for it") {
        fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))}});
        f.memory_fails = 3;
        const ref<instance> it = f.start();
        CHECK(f.await(it, is<state::ready>) == state::ready);
        f.memory_fails = 3;
        f.end_child("0");
        REQUIRE(f.told_over.wait());
        CHECK(f.seen_states().back() == state::crashed);
    }

#ifdef __linux__
    TEST_CASE("a program whose exec() hangs holds up nobody, and is ended at once") {
        fixture f;
        const std::string program = f.folder.file("program");
        const unique_fd file(::open(program.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0755));
        REQUIRE(::write(file.get(), "#!/bin/sh\n", 10) == 10);
        // Whoever opens the file, as exec() does, waits until the lease is given back, which this process never does.
        ::signal(SIGIO, SIG_IGN);
        if (::fcntl(file.get(), F_SETLEASE, F_WRLCK) != 0) {
            MESSAGE("skipped: no lease on a file here");
        } else {
            f.runs({program});
            f.spec.options.child.start_timeout = 10 * test::hang_guard;
            const ref<instance> asked = f.launch();
            const ref<instance> forced = f.launch();
            CHECK(asked->info().state == state::spawning);
            asked->shut_down({});
            CHECK(f.await(asked, over) == state::complete);
            forced->force();
            CHECK(f.await(forced, over) == state::forced);
            static_cast<void>(f.launch());  // is ended by the last who knows it
        }
        ::signal(SIGIO, SIG_DFL);
    }
#endif

#ifdef __linux__
    TEST_CASE("cycles leave no descriptor, thread or process behind") {
        const auto cycle = [] {
            fixture f({{"GetReadinessStatus", always(says(readiness_state::ready))}});
            const ref<instance> it = f.start();
            f.await(it, is<state::ready>);
            it->force();
            CHECK(f.await(it, over) == state::forced);
        };
        cycle();  // what is made once
        const std::size_t descriptors = entries_of("/proc/self/fd");
        const std::size_t threads = entries_of("/proc/self/task");
        for (int i = 0; i < 30; ++i) cycle();
        CHECK(entries_of("/proc/self/fd") == descriptors);
        // The kernel lists a joined thread a moment longer.
        const time_point deadline = soon();
        while (entries_of("/proc/self/task") > threads && steady_clock::now() < deadline)
            std::this_thread::yield();
        CHECK(entries_of("/proc/self/task") == threads);
        CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
        CHECK(errno == ECHILD);
    }
#endif
}
