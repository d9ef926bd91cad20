// Stops of real processes that shutdown-probe does not judge: terminals, steps that hang, several workers, other signals.
#include <stdlib.h>
#include <sys/ioctl.h>

#include "harness.hpp"

using namespace test;

namespace {

// Returns once the first beat of `worker` is in the ledger: it runs, and the backend knows it.
void await_beat(backend& jobs, const std::string& worker) {
    REQUIRE(jobs.event(worker_event(worker, "beat")).what == json::kind::object);
}

// A worker whose standard streams are a pseudo-terminal of its own, which Ctrl-C reaches.
class terminal {
  public:
    static bool possible() {
        const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        const bool out = master >= 0 && ::grantpt(master) == 0;
        ::close(master);
        if (!out) MESSAGE("skipped: no pseudo-terminals here");
        return out;
    }
    terminal(const std::string& url, const environment& extra) {
        master_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(master_ >= 0);
        REQUIRE(::grantpt(master_) == 0);
        REQUIRE(::unlockpt(master_) == 0);
        const std::string slave = ::ptsname(master_);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) run_worker(slave, url, extra);
        worker_ = process(child, slave);
    }
    terminal(const terminal&) = delete;
    terminal& operator=(const terminal&) = delete;
    ~terminal() { ::close(master_); }

    void press_ctrl_c() const { REQUIRE(::write(master_, "\3", 1) == 1); }
    // Waits until the terminal shows it.
    bool shows(const std::string& text) {
        const auto end = clock::now() + guard;
        while (shown_.find(text) == std::string::npos && read_until(end)) {
        }
        return shown_.find(text) != std::string::npos;
    }
    // Reads to the end of the worker. Returns its exit status.
    int wait() {
        const auto end = clock::now() + guard;
        while (read_until(end)) {
        }
        return worker_.wait();
    }

  private:
    [[noreturn]] static void run_worker(const std::string& slave, const std::string& url,
                                        const environment& extra) {
        ::setsid();
        const int fd = ::open(slave.c_str(), O_RDWR);  // becomes the controlling terminal
        ::ioctl(fd, TIOCSCTTY, 0);
        for (const int stream : {0, 1, 2}) ::dup2(fd, stream);
        ::signal(SIGINT, SIG_DFL);
        ::setenv("OJS_URL", url.c_str(), 1);
        ::setenv("OJS_POLL_INTERVAL", "20ms", 1);
        ::setenv("OJS_SIGNAL_DEBOUNCE", "0s", 1);
        for (const auto& [name, value] : extra) ::setenv(name.c_str(), value.c_str(), 1);
        ::execl(program("test_worker").c_str(), "test_worker", nullptr);
        ::_exit(127);
    }
    // False: nothing follows by then.
    bool read_until(clock::time_point end) {
        pollfd ready{master_, POLLIN, 0};
        const auto left = std::chrono::duration_cast<milliseconds>(end - clock::now()).count();
        if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
        char bytes[4096];
        const ssize_t got = ::read(master_, bytes, sizeof bytes);
        if (got > 0) shown_.append(bytes, static_cast<std::size_t>(got));
        return got > 0;  // EIO: the other end is closed
    }

    int master_ = -1;
    process worker_;
    std::string shown_;
};

}  // namespace

TEST_CASE("worker: Ctrl-C on a terminal begins a drain, and a second one hands the jobs back") {
    if (!terminal::possible()) return;
    backend jobs;
    // No FETCH in flight: it has as many jobs as it takes.
    terminal worker(jobs.url(), {{"OJS_SHUTDOWN_GRACE_PERIOD", "1h"}, {"OJS_CONCURRENCY", "2"}});
    for (const std::string& id : jobs.push("test.sleep", "[600000]", 2)) REQUIRE(worker.shows("start " + id));
    worker.press_ctrl_c();
    REQUIRE(worker.shows("phase draining"));
    worker.press_ctrl_c();
    CHECK(worker.shows("worker stopped"));
    CHECK(worker.wait() == 0);
    CHECK(jobs.summary()["requeued"].number == 2);
}

TEST_CASE("shutdown steps: steps run even if no thread can be created") {
    process threadless({program("deprived"), "threads"}, {});
    CHECK(threadless.wait() == 0);
    CHECK(threadless.count("flush: done, ran: 1") == 1);
}

TEST_CASE(
    "worker: a stop signal after run() ends the process, but not within signal_debounce of the first one") {
    backend jobs;
    process late =
        start_worker(jobs.url(), "late", {{"TEST_MODE", "late_flush"}, {"OJS_SIGNAL_DEBOUNCE", "20ms"}});
    await_beat(jobs, "late");
    late.signal(SIGTERM);
    CHECK(late.wait() == -SIGTERM);
    CHECK(late.prints("phase terminated"));
    CHECK(late.count("flushed") == 0);
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "flush"}, {"OJS_SIGNAL_DEBOUNCE", "1h"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(worker.prints("flushed"));
    CHECK(worker.prints("child: \"signal 15\""));  // a child is not the worker: it is ended as ever
    CHECK(worker.prints("taken again"));
}

TEST_CASE(
    "signals: an installer destroyed after a stop signal keeps its handlers only during signal_debounce") {
    backend jobs;
    for (const auto& [gap, result] : {std::pair("1h", "kept"), std::pair("0s", "given back")}) {
        process worker =
            start_worker(jobs.url(), result, {{"TEST_MODE", "host"}, {"OJS_SIGNAL_DEBOUNCE", gap}});
        REQUIRE(worker.prints("started"));
        worker.signal(SIGTERM);
        CHECK(worker.wait() == 0);
        CHECK(worker.prints(result));
    }
}

TEST_CASE(
    "worker: the signals of OJS_STOP_SIGNALS count alike: one stops, a 2nd escalates, a 3rd exits with "
    "128+n") {
    backend jobs;
    const auto start = [&](const std::string& name, const std::string& mode) {
        process worker = start_worker(jobs.url(), name,
                                      {{"OJS_STOP_SIGNALS", "QUIT, SIGUSR2,RTMIN+3,HUP"},
                                       {"OJS_SIGNAL_DEBOUNCE", "0s"},
                                       {"TEST_MODE", mode}});
        await_beat(jobs, name);
        return worker;
    };
    for (const char* mode : {"", "claimed"}) {
        process worker = start(std::string("w") + mode, mode);
        worker.signal(SIGRTMIN + 3);
        CHECK(worker.wait() == 0);
        CHECK(worker.prints("signal=SIGRTMIN+3"));
    }
    process hung = start("w2", "endless_step");
    hung.signal(SIGQUIT);
    REQUIRE(hung.prints("step hang"));
    hung.signal(SIGUSR2);
    REQUIRE(hung.prints("stop escalated"));
    hung.signal(SIGHUP);
    CHECK(hung.wait() == 128 + SIGHUP);
    process plain = start("w3", "");
    plain.signal(SIGTERM);
    CHECK(plain.wait() == -SIGTERM);  // not among them
}

TEST_CASE("worker: SIGTSTP and SIGCONT come in quick succession -> after the last SIGCONT it takes jobs") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_CONCURRENCY", "10"}});
    await_beat(jobs, "w");
    for (const std::string& id : jobs.push("test.sleep", "[600000]", 9))
        REQUIRE(worker.prints("start " + id));  // as many threads that a signal may interrupt
    for (int round = 0; round < 150; ++round) {
        for (int pair = 0; pair < 10; ++pair) {
            worker.signal(SIGTSTP);
            worker.signal(SIGCONT);
        }
        REQUIRE(jobs.reaches(jobs.push_one("test.result", "[]"), "completed"));
    }
}

#ifdef __linux__
TEST_CASE("worker: a handler starts a program by popen() -> no signal is blocked in it") {
    backend jobs;
    const process worker = start_worker(jobs.url(), "w");
    const std::string id = jobs.push_one("test.mask", "[]");
    REQUIRE(jobs.reaches(id, "completed"));
    CHECK(jobs.job(id)["result"].text == "0000000000000000");
}
#endif

// [Spot SIGTERM]
TEST_CASE("worker: SIGHUP stops the worker, unless SIGHUP was ignored at start-up (nohup)") {
    backend jobs;
    process plain = start_worker(jobs.url(), "w", {});
    await_beat(jobs, "w");
    plain.signal(SIGHUP);
    CHECK(plain.wait() == 0);
    process ignoring = start_worker(jobs.url(), "v", {{"TEST_IGNORE", "1"}, {"OJS_LOG_FORMAT", "logfmt"}});
    REQUIRE(ignoring.prints("level=info msg=\"signal stays ignored"));  // SIGHUP, as nohup does
    REQUIRE(ignoring.prints("level=warn msg=\"signal stays ignored"));  // SIGINT
    await_beat(jobs, "v");
    ignoring.signal(SIGHUP);
    ignoring.signal(SIGTERM);
    CHECK(ignoring.wait() == 0);
    CHECK(ignoring.prints("cause=SIGTERM"));
}

// [WP 3.1 (c)]
TEST_CASE("worker: after fork() each child runs a worker of its own, and all stop with the parent") {
    backend jobs;
    process parent({program("test_worker")}, {{"OJS_URL", jobs.url()},
                                              {"OJS_CONCURRENCY", "1"},
                                              {"OJS_POLL_INTERVAL", "10ms"},
                                              {"OJS_HEARTBEAT_INTERVAL", "100ms"},
                                              {"TEST_MODE", "prefork"}});
    std::set<std::string> workers;
    jobs.event([&](const json& event) {
        if (event["event"].is("beat")) workers.insert(event["worker_id"].text);
        return workers.size() == 3;
    });
    CHECK(workers.size() == 3);
    const std::vector<std::string> ids = jobs.push("test.pid", "[]", 30);
    std::set<std::int64_t> pids;
    for (const std::string& id : ids) {
        CHECK(jobs.reaches(id, "completed"));
        CHECK(jobs.count(job_event(id, "ack")) == 1);
        pids.insert(jobs.job(id)["result"].number);
    }
    CHECK(pids.count(parent.pid()) == 0);
    parent.signal(SIGTERM);
    CHECK(parent.wait() == 0);
    CHECK(parent.count("child: \"exit 0\"") == 3);
}
