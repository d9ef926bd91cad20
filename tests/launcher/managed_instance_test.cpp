#include "processes.hpp"

using namespace ojs::detail;

namespace {
using state = instance_state;
using states = std::vector<state>;

http_response answer(const std::string& body) {
    http_response out;
    out.headers = {{"Content-Type", "application/json"}};
    out.body = body;
    return out;
}

http_response says(const std::string& state) { return answer("{\"state\":\"" + state + "\"}"); }

const http_response ack = answer(R"({"acknowledged":true})");

// One process, its coordinator in this process, and its reported changes.
class fixture {
  public:
    // By method name; others respond as unknown methods.
    using answers = std::map<std::string, std::function<http_response(fixture&)>>;

    explicit fixture(answers how = {}) : answers_(std::move(how)) {
        spec.id = "kv-1";
        spec.group = "kv";
        spec.address = "unix:" + folder.file("child.sock");
        spec.options.rpc_timeout = 1h;
        spec.options.readiness_interval = 10ms;
        spec.options.health_interval = 10ms;
        spec.options.shutdown.poll_interval = 10ms;
        spec.options.shutdown.kill_delay = test::hang_guard;
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
            if (record.level >= log_level::warn) texts.push_back("warning: " + record.message);
            for (const log_field& field : record.fields) texts.push_back(field.name + "=" + field.value);
        };
        const result<ref<instance>> made = start_instance(
            spec,
            [this](const process_info& now, state before) {
                const std::lock_guard<std::mutex> held(mutex);
                if (now.state != before) seen.push_back(now.state);
                pid = now.pid;
                changes_.notify_all();
                if (is_final(now.state)) final_reports.set();
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
    ref<instance> start_ready() {
        const ref<instance> made = start();
        CHECK(await(made, state::ready));
        return made;
    }
    // Until it holds of the state, or that is final.
    template <class Predicate>
    state await(const ref<instance>& of, Predicate holds) {
        std::unique_lock<std::mutex> held(mutex);
        state now{};
        changes_.wait_until(held, deadline_after(test::hang_guard), [&] {
            now = of->info().state;
            return holds(now) || is_final(now);
        });
        return now;
    }
    bool await(const ref<instance>& of, state wanted) {
        return await(of, [wanted](state now) { return now == wanted; }) == wanted;
    }
    state end_of(const ref<instance>& of) {
        return await(of, [](state now) { return is_final(now); });
    }
    state shut_down(const ref<instance>& of) {
        of->shut_down({});
        return end_of(of);
    }
    // Without a wait: it may be logged once more, by a handler that is asked again before the child's end is seen.
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
    test::event final_reports;
    std::mutex mutex;
    states seen;
    std::vector<std::string> texts;
    std::atomic<pid_t> pid{0};
    std::string request;  // to shut down, once that has ended

  private:
    http_response reply(const http_request& asked) {
        const std::string method = asked.target.substr(asked.target.rfind('/') + 1);
        if (method == "Shutdown") request = asked.body;
        const auto found = answers_.find(method);
        if (found != answers_.end()) return found->second(*this);
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

auto always(http_response out) {
    return [out = std::move(out)](fixture&) { return out; };
}

// With the responses of a process that is ready, acknowledges a Shutdown and drains, where `more` has none.
fixture::answers usual(fixture::answers more = {}) {
    more.insert({{"GetReadinessStatus", always(says("READY"))},
                 {"Shutdown", always(ack)},
                 {"GetShutdownStatus", always(says("SHUTDOWN_DRAINING"))}});
    return more;
}

shutdown_timeouts timeouts(std::chrono::milliseconds grace_period, std::chrono::milliseconds max_duration,
                           bool force_without_request = false,
                           std::chrono::milliseconds kill_delay = test::hang_guard) {
    shutdown_timeouts out;
    out.grace_period = grace_period;
    out.max_duration = max_duration;
    out.force_without_request = force_without_request;
    out.poll_interval = 10ms;
    out.kill_delay = kill_delay;
    return out;
}
}  // namespace

TEST_CASE("managed_instance: from start-up to a drained exit, every state is reported and logged") {
    std::atomic<int> polls{0};
    fixture f({{"GetReadinessStatus",
                [&](fixture&) {
                    const int n = polls++;
                    return says(n == 0 ? "STARTING" : n == 1 ? "WARMING" : "READY");
                }},
               {"Shutdown", always(ack)},
               {"GetShutdownStatus", [](fixture& of) {
                    const bool drains = of.seen_states().back() == state::draining;
                    if (drains) of.end_child("0");
                    return says(drains ? "SHUTDOWN_COMPLETE" : "SHUTDOWN_DRAINING");
                }}});
    ref<instance> it = f.start_ready();
    CHECK(it->info().routable);
    CHECK(it->info().startup_duration.count() > 0);
    it->shut_down({"a test", 1500ms, 1h});  // longer than granted
    CHECK(f.end_of(it) == state::complete);
    CHECK(f.request == R"({"processId":"kv-1","reason":"a test","gracePeriodSeconds":2,"maxShutdownSeconds":10})");
    const process_info end = it->info();
    CHECK(end.exit.ok());
    CHECK_FALSE(end.killed);
    CHECK(end.shutdown_duration.count() > 0);
    CHECK_FALSE(end.routable);
    // The thread reports a change after the state is visible.
    it = ref<instance>();
    CHECK(f.seen_states() == states{state::starting, state::warming, state::ready, state::shutdown_requested,
                                    state::draining, state::complete});
    for (const char* text :
         {"process spawned", "process warming", "process ready", "shutdown requested", "process draining",
          "shutdown progress", "process exited after its drain", "waiting for ready", "readiness=WARMING"})
        CHECK_MESSAGE(f.logged(text), text);
}

TEST_CASE("managed_instance: poll() queries the process at once, and only the response changes the state") {
    std::atomic<bool> is_ready{false};
    test::counter polls;
    fixture f({{"GetReadinessStatus", [&](fixture&) {
                    const bool now = is_ready;
                    polls.add();
                    return says(now ? "READY" : "STARTING");
                }}});
    f.spec.options.readiness_interval = 1h;
    f.spec.options.readiness_timeout = 2h;
    const ref<instance> it = f.start();
    REQUIRE(polls.wait_for(1));
    it->poll();
    REQUIRE(polls.wait_for(2));
    CHECK(it->info().state == state::starting);
    is_ready = true;
    it->poll();
    CHECK(f.await(it, state::ready));
}

TEST_CASE("managed_instance: a process that is killed during any coordinator call is reported as crashed") {
    for (const std::string at : {"GetReadinessStatus", "Shutdown", "GetShutdownStatus"}) {
        INFO(at);
        fixture f(usual({{at, [](fixture& of) {
                              of.up.wait();
                              REQUIRE(::kill(of.pid, SIGKILL) == 0);
                              return answer("{}");
                          }}}));
        const ref<instance> it = f.start();
        if (at != "GetReadinessStatus") {
            f.await(it, state::ready);
            it->shut_down({});
        }
        CHECK(f.end_of(it) == state::crashed);
        CHECK(it->info().exit.signal == SIGKILL);
        CHECK_FALSE(it->info().killed);  // not by the launcher
        CHECK_FALSE(it->info().routable);
    }
}

TEST_CASE("managed_instance: max_duration ends requests for more time (TestShutdownExtensionRequest)") {
    const http_response more_time =
        answer(R"({"state":"SHUTDOWN_BLOCKED","needMoreTime":true,"additionalSeconds":3600})");
    test::event release;
    const struct {
        const char* name;
        fixture::answers answers;
        shutdown_timeouts times;
        std::vector<const char*> logged;  // what comes however late the process is polled
        bool stopped = false;
    } rows[] = {{"more time is requested", {{"GetShutdownStatus", always(more_time)}}, timeouts(100ms, 1s), {}},
                // The grace period is sent as 1 s, and the process is polled once more at its end.
                {"more time must be requested, and is",
                 {{"GetShutdownStatus", always(more_time)}},
                 timeouts(1s, 1100ms, true),
                 {"more time requested", "additional_seconds=3600", "shutdown_state=SHUTDOWN_BLOCKED"}},
                {"more time must be requested, and is not", {}, timeouts(50ms, 1h, true), {}},
                {"it reports COMPLETE and stays",
                 {{"GetShutdownStatus", always(says("SHUTDOWN_COMPLETE"))}},
                 timeouts(3s, 1h, false, 100ms),
                 {}},
                {"invalid responses",
                 {{"GetReadinessStatus", always(answer("[[["))}, {"Shutdown", always(answer("\xff{"))}},
                 timeouts(100ms, 100ms),
                 {"no acknowledgement of the shutdown request; polling the process"}},
                {"it says forever that it runs",
                 {{"GetShutdownStatus", always(says("RUNNING"))}},
                 timeouts(100ms, 100ms),
                 {"process exceeded its grace_period"}},
                {"stopped, and its coordinator does not answer",
                 {{"Shutdown", [&](fixture&) { return release.wait(), ack; }}},
                 timeouts(100ms, 100ms),
                 {},
                 true}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fixture f(usual(row.answers));
        f.spec.options.shutdown = row.times;
        const ref<instance> it = f.start();
        if (row.answers.count("GetReadinessStatus") == 0) f.await(it, state::ready);
        if (row.stopped) REQUIRE(::kill(f.pid, SIGSTOP) == 0);
        CHECK(f.shut_down(it) == state::forced);
        const process_info end = it->info();
        CHECK(end.exit.signal == (end.killed ? SIGKILL : SIGTERM));
        if (end.killed) CHECK(end.shutdown_duration >= 2 * row.times.kill_delay);  // after COMPLETE and SIGTERM
        CHECK(end.shutdown.state == shutdown_state::forced);
        if (row.times.max_duration < 1h) CHECK(end.shutdown_duration >= row.times.max_duration);
        for (const char* text : row.logged) CHECK_MESSAGE(f.logged(text), text);
        CHECK(f.logged("forcing shutdown with SIGTERM"));
        if (row.stopped) release.set();
    }
}

TEST_CASE("managed_instance: Shutdown is sent after pre_shutdown has ended or reached its timeout") {
    for (const bool hangs : {false, true}) {
        std::string found;
        fixture f(usual({{"Shutdown", [&](fixture& of) {
                              found = test::read_file(of.folder.file("hook"));
                              of.end_child("0");
                              return ack;
                          }}}));
        f.spec.options.child.environment = {"HERE=/{id}/{id}.sock"};
        f.spec.options.pre_shutdown = {"sh", "-c", "echo $HERE $OJS_PROCESS_PID > \"$0\"; exec \"$1\" 1000",
                                       f.folder.file("hook"), hangs ? "sleep" : "true"};
        f.spec.options.pre_shutdown_timeout = hangs ? 500ms : test::hang_guard;
        const ref<instance> it = f.start_ready();
        CHECK(f.shut_down(it) == state::complete);
        CHECK(f.logged(hangs ? "pre_shutdown failed" : "pre_shutdown ended"));
        if (!hangs) CHECK(found == "/kv-1/kv-1.sock " + std::to_string(f.pid) + "\n");
    }
}

TEST_CASE("managed_instance: force() during pre_shutdown ends the process without a Shutdown request") {
    fixture f(usual());
    f.spec.options.pre_shutdown = {"sh", "-c", "echo > \"$0\"; exec sleep 1000", f.folder.file("hook")};
    f.spec.options.pre_shutdown_timeout = 1h;
    const ref<instance> it = f.start_ready();
    it->shut_down({});
    it->force();
    CHECK(f.end_of(it) == state::forced);
    CHECK(f.request.empty());
}

TEST_CASE("managed_instance: a Shutdown that timed out counts as delivered") {
    const auto timeout = 300ms;
    test::event drained;
    std::atomic<int> asked{0};
    fixture f({{"Shutdown",
                [&](fixture&) {
                    ++asked;
                    drained.wait();
                    return ack;
                }},
               {"GetShutdownStatus", [&](fixture& of) {
                    const bool late = of.logged("process exceeded its grace_period");
                    if (!late) drained.wait_until(steady_clock::now() + 2 * timeout);  // as late
                    if (late) of.end_child("0");
                    return says("SHUTDOWN_DRAINING");
                }}});
    f.spec.options.rpc_timeout = timeout;
    f.spec.options.shutdown = timeouts(timeout + 50ms, 1h);
    const ref<instance> it = f.start();
    CHECK(f.shut_down(it) == state::complete);
    CHECK(it->info().exit.ok());
    CHECK_FALSE(f.logged("forcing shutdown with SIGTERM"));
    CHECK(asked <= 1);  // 0: the machine paused, and it timed out before it was sent
    drained.set();
    f.listens_no_more();
}

TEST_CASE("managed_instance: a lost Shutdown is sent again once the process reports RUNNING") {
    std::atomic<int> asked{0};
    fixture f({{"Shutdown",
                [&](fixture&) {
                    http_response out = ack;
                    if (asked++ < 2) out.status = 0;  // no response; one call tries twice
                    return out;
                }},
               {"GetShutdownStatus", [&](fixture& of) {
                    if (asked < 3) return says("RUNNING");
                    of.end_child("0");
                    return says("SHUTDOWN_DRAINING");
                }}});
    f.spec.options.shutdown = timeouts(1h, 1h);
    CHECK(f.shut_down(f.start()) == state::complete);
    CHECK(asked == 3);
    CHECK_FALSE(f.logged("process exceeded its grace_period"));
}

// Also with force_without_request, where the last poll at the end of the grace period finds the request.
TEST_CASE("managed_instance: a process that exits within report_time is complete, not forced") {
    for (const bool must_request : {false, true}) {
        fixture f(usual({{"GetShutdownStatus", [](fixture& of) {
                              if (of.logged("process exceeded its max_duration; waiting report_time for its report"))
                                  of.end_child("0");
                              return answer(
                                  of.logged("process exceeded its grace_period")
                                      ? R"({"state":"SHUTDOWN_DRAINING","needMoreTime":true,"additionalSeconds":9})"
                                      : R"({"state":"SHUTDOWN_DRAINING"})");
                          }}}));
        f.spec.options.shutdown = timeouts(50ms, must_request ? 1500ms : 50ms, must_request);
        f.spec.options.shutdown.report_time = 1h;
        if (must_request) f.spec.options.shutdown.poll_interval = 1100ms;  // the grace is sent as 1 s
        CHECK(f.shut_down(f.start()) == state::complete);
    }
}

TEST_CASE("managed_instance: shut_down() and force() do not wait for a coordinator that does not respond") {
    test::event release;
    test::counter asked;
    const auto silent = [&](fixture&) {
        asked.add();
        release.wait();
        return answer("{}");
    };
    fixture f({{"GetReadinessStatus", silent}, {"Shutdown", silent}});  // an hour is how long each is waited for
    const ref<instance> it = f.start();
    REQUIRE(asked.wait_for(1));
    it->shut_down({});
    REQUIRE(asked.wait_for(2));
    it->force();
    CHECK(f.end_of(it) == state::forced);
    release.set();
}

TEST_CASE("managed_instance: a process without a reachable coordinator is shut down with SIGTERM") {
    fixture::answers answers;
    bool has_coordinator = true;
    SUBCASE("the launcher finds no coordinator") {}
    SUBCASE("the configuration says so") { has_coordinator = false; }
    SUBCASE("the coordinator stopped listening") { answers["GetReadinessStatus"] = always(says("READY")); }
    fixture f(answers);
    f.runs({"sh", "-c", "trap 'exit 0' TERM; sh -c 'echo up; exec sleep 1000' & wait"});
    f.spec.options.has_coordinator = has_coordinator;
    f.spec.options.shutdown.max_duration = 1h;
    const ref<instance> it = f.start();
    if (!has_coordinator || !answers.empty()) CHECK(f.await(it, state::ready));
    f.listens_no_more();
    CHECK(f.shut_down(it) == state::complete);
    CHECK(f.logged("requesting shutdown with SIGTERM"));
    CHECK(f.logged("warning: requesting shutdown with SIGTERM") == has_coordinator);
}

TEST_CASE("managed_instance: force() ends a process that ignores SIGTERM (TestShutdownTimeoutForceKill)") {
    fixture f;
    f.spec.options.has_coordinator = false;
    f.spec.options.shutdown.max_duration = 1h;
    f.spec.options.shutdown.kill_delay = 100ms;
    test::pipe_ends ends(O_CLOEXEC);  // open as long as one of the group lives
    f.spec.options.child.keep_descriptors = {ends.writer()};
    f.runs({"sh", "-c", "trap '' TERM; sleep 1000 & echo up; wait"});
    const ref<instance> it = f.start();
    ends.close_writer();
    it->shut_down({});
    it->force();
    CHECK(f.end_of(it) == state::forced);
    pollfd last{ends.reader(), POLLIN, 0};
    CHECK(::poll(&last, 1, 30000) == 1);
    CHECK(it->info().killed);
    CHECK(f.logged("still running after SIGTERM; sending SIGKILL"));
}

TEST_CASE("managed_instance: UNHEALTHY, an invalid response or no READY in time makes the process unhealthy") {
    std::atomic<const char*> now{nullptr};  // null: rubbish
    fixture f({{"GetReadinessStatus", [&](fixture&) {
                    const char* const state = now;
                    return state == nullptr ? answer("rubbish") : says(state);
                }}});
    f.spec.options.readiness_timeout = 100ms;
    const ref<instance> it = f.start();
    CHECK(f.await(it, state::unhealthy));
    for (const char* ill : {static_cast<const char*>(nullptr), "UNHEALTHY"}) {
        now = "READY";
        CHECK(f.await(it, state::ready));
        CHECK(it->info().routable);
        now = ill;
        CHECK(f.await(it, state::unhealthy));
        CHECK_FALSE(it->info().routable);
    }
}

TEST_CASE("managed_instance: a process without a coordinator is ready while its ready_url returns 200") {
    fixture f;
    f.spec.options.has_coordinator = false;
    std::atomic<int> status{503};
    test::counter asked;
    const auto serve = [&](const http_request& request) {
        http_response out;
        out.status = request.method == "GET" && request.target == "/ready?all" ? status.load() : 400;
        asked.add();
        return out;
    };
    result<http_server> server = http_server::start("unix:" + f.folder.file("kv-1.web"), serve);
    REQUIRE(server);
    f.spec.options.ready_url = "unix:" + f.folder.file("{id}.web") + ":/ready?all";
    const ref<instance> it = f.start();
    REQUIRE(asked.wait_for(2));
    CHECK(it->info().state == state::starting);
    CHECK(it->info().message == "GET unix:" + f.folder.file("kv-1.web") + " /ready answered 503");
    status = 200;
    CHECK(f.await(it, state::ready));
    status = 404;
    CHECK(f.await(it, state::unhealthy));
    it->force();
    CHECK(f.end_of(it) == state::forced);
}

TEST_CASE("managed_instance: a program that does not exist is reported as crashed, with pid 0") {
    fixture f;
    f.runs({"/nowhere/at/all"});
    const ref<instance> it = f.launch();
    CHECK(f.end_of(it) == state::crashed);
    CHECK(it->info().pid == 0);
    CHECK(it->info().message.find("No such file") != std::string::npos);
    CHECK(f.logged("cannot start the process"));
}

TEST_CASE("managed_instance: a process past its readiness_timeout is polled once more and can become ready") {
    fixture f(usual());
    f.spec.options.readiness_timeout = 0ms;  // over before the first look
    const ref<instance> it = f.start_ready();
    f.end_child("0");
    REQUIRE(f.final_reports.wait());
    CHECK(f.seen_states() == states{state::starting, state::ready, state::complete});  // of itself, by exit 0
}

#ifdef __linux__
TEST_CASE("managed_instance: a process whose exec() hangs can be shut down or forced, and times out") {
    fixture f;
    const std::string program = f.folder.file("program");
    const unique_fd file(::open(program.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0755));
    REQUIRE(::write(file.get(), "#!/bin/sh\n", 10) == 10);
    // Opening the file, as exec() does, waits until the lease is returned, which never happens here.
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
        CHECK(f.end_of(asked) == state::complete);
        forced->force();
        CHECK(f.end_of(forced) == state::forced);
        static_cast<void>(f.launch());  // is ended by the last who knows it
        f.spec.options.child.start_timeout = 50ms;
        const ref<instance> late = f.launch();
        CHECK(f.end_of(late) == state::crashed);
        CHECK(late->info().message.find("no exec() within 50ms") != std::string::npos);
    }
    ::signal(SIGIO, SIG_DFL);
    // A killed process that the kernel holds for longer than a second is left unreaped.
    const time_point deadline = deadline_after(test::hang_guard);
    while (::waitpid(-1, nullptr, WNOHANG) != -1 && steady_clock::now() < deadline) std::this_thread::yield();
}

TEST_CASE("managed_instance: dropping the last reference ends the process and leaks no descriptor") {
    const auto cycle = [] {
        fixture f(usual());
        static_cast<void>(f.start_ready());
        CHECK(f.seen_states().back() == state::forced);
    };
    const auto descriptors = [] {
        const std::filesystem::directory_iterator all("/proc/self/fd");
        return std::distance(begin(all), end(all));
    };
    cycle();  // what is made once
    const auto before = descriptors();
    for (int i = 0; i < 10; ++i) cycle();
    CHECK(descriptors() == before);
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
    CHECK(errno == ECHILD);
}
#endif
