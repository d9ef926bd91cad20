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

    void terminate() const { worker_.signal(SIGTERM); }
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
    const std::string& shown() const { return shown_; }

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

TEST_CASE(
    "worker: Ctrl-C on a terminal prints the number of jobs, the time limit and a hint to press again") {
    if (!terminal::possible()) return;
    backend jobs;
    terminal worker(jobs.url(),
                    {{"OJS_SHUTDOWN_GRACE_PERIOD", "1h"}, {"OJS_CONCURRENCY", "2"}});  // no FETCH in flight
    for (const std::string& id : jobs.push("test.sleep", "[600000]", 2)) REQUIRE(worker.shows("start " + id));
    worker.press_ctrl_c();
    const std::string notice =
        "draining: waiting for 2 jobs, at most 1h; press Ctrl-C again to hand them back now\r\n";
    CHECK(worker.shows(notice));
    worker.press_ctrl_c();
    CHECK(worker.shows("worker stopped"));
    CHECK(worker.wait() == 0);
    INFO(worker.shown());
    CHECK(worker.shown().find("draining: waiting") == worker.shown().rfind("draining: waiting"));
    CHECK(jobs.summary()["requeued"].number == 2);
}

TEST_CASE("worker: the Ctrl-C hint is printed only for Ctrl-C on a terminal with a text log") {
    if (!terminal::possible()) return;
    backend jobs;
    for (const char* format : {"json", "text"}) {
        CAPTURE(format);
        terminal worker(jobs.url(), {{"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"}, {"OJS_LOG_FORMAT", format}});
        REQUIRE(worker.shows("start " + jobs.push_one("test.sleep", "[600000]")));
        format == std::string("json") ? worker.press_ctrl_c() : worker.terminate();
        CHECK(worker.wait() == 0);
        CHECK(worker.shown().find("Ctrl-C") == std::string::npos);
    }
    process worker = start_worker(jobs.url(), "w", {{"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"}});
    REQUIRE(worker.prints("start " + jobs.push_one("test.sleep", "[600000]")));
    worker.signal(SIGINT);
    CHECK(worker.wait() == 0);
    CHECK(worker.count("Ctrl-C") == 0);
}

TEST_CASE("shutdown steps: steps run even if no thread can be created; without memory the status is 71") {
    process threadless({program("threadless_worker")}, {});
    CHECK(threadless.wait() == 0);
    CHECK(threadless.count("flush: done, ran: 1") == 1);
    process starved({program("threadless_worker"), "starved"}, {});
    CHECK(starved.wait() == 71);
    CHECK(starved.count("flush: not started, ran: 0") == 1);
}

// [GS 12.3]
TEST_CASE("worker: an empty FETCH in flight at SIGTERM does not delay the exit") {
    backend jobs;
    for (int round = 0; round < 10; ++round) {
        process worker = start_worker(jobs.url(), "w",
                                      {{"OJS_POLL_INTERVAL", "1ms"},
                                       {"OJS_SHUTDOWN_GRACE_PERIOD", "1h"},
                                       {"OJS_PROGRESS_INTERVAL", "1h"}});
        REQUIRE(worker.prints("worker started"));
        worker.signal(SIGTERM);
        REQUIRE(worker.wait() == 0);
    }
}

TEST_CASE(
    "worker: a stop signal repeated within signal_debounce does not end the rest of main() after run()") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "flush"}, {"OJS_SIGNAL_DEBOUNCE", "1h"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(worker.prints("flushed"));
    CHECK(worker.prints("child: \"signal 15\""));  // a child is not the worker: it is ended as ever
    CHECK(worker.prints("taken again"));
}

TEST_CASE("worker: a stop signal after run() and after signal_debounce ends the process") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"TEST_MODE", "late_flush"}, {"OJS_SIGNAL_DEBOUNCE", "20ms"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    CHECK(worker.wait() == -SIGTERM);
    CHECK(worker.prints("phase terminated"));
    CHECK(worker.count("flushed") == 0);
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

// [Spot SIGTERM]
TEST_CASE("worker: SIGHUP stops the worker, unless SIGHUP was ignored at start-up (nohup)") {
    backend jobs;
    process plain = start_worker(jobs.url(), "w", {});
    await_beat(jobs, "w");
    plain.signal(SIGHUP);
    CHECK(plain.wait() == 0);
    process ignoring = start_worker(jobs.url(), "v", {{"TEST_IGNORE", "1"}});
    REQUIRE(ignoring.prints("signal=SIGHUP"));
    await_beat(jobs, "v");
    ignoring.signal(SIGHUP);
    ignoring.signal(SIGTERM);
    CHECK(ignoring.wait() == 0);
    CHECK(ignoring.prints("cause=SIGTERM"));
}
