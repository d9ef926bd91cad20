// Stops that meet trouble: handlers that never return, a backend that is gone or loses answers, supervisors with
// habits of their own, frozen and killed workers.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

double milliseconds_between(clock::time_point from, clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

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
        ::setenv("OJS_REPEAT_SIGNAL_GAP", "0s", 1);
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

TEST_CASE("Ctrl-C on a terminal says what is waited for, how long, and what the next one does") {
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

TEST_CASE("Ctrl-C says nothing of it to a log that is not text on a terminal") {
    if (!terminal::possible()) return;
    backend jobs;
    SUBCASE("JSON on a terminal") {
        terminal worker(jobs.url(), {{"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}, {"OJS_LOG_FORMAT", "json"}});
        REQUIRE(worker.shows("start " + jobs.push_one("test.sleep", "[600000]")));
        worker.press_ctrl_c();
        CHECK(worker.wait() == 0);
        CHECK(worker.shown().find("Ctrl-C") == std::string::npos);
    }
    SUBCASE("text in a file") {
        process worker = start_worker(jobs.url(), "w", {{"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}});
        REQUIRE(worker.prints("start " + jobs.push_one("test.sleep", "[600000]")));
        worker.signal(SIGINT);
        CHECK(worker.wait() == 0);
        CHECK(worker.count("Ctrl-C") == 0);
    }
    SUBCASE("SIGTERM") {
        terminal worker(jobs.url(), {{"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}});
        REQUIRE(worker.shows("start " + jobs.push_one("test.sleep", "[600000]")));
        worker.terminate();
        CHECK(worker.wait() == 0);
        CHECK(worker.shown().find("Ctrl-C") == std::string::npos);
    }
}

TEST_CASE("a job deaf to its cancellation does not hold up the exit") {
    backend jobs;
    // A stop that waited for the handler would take all of its time, which is more than wait() has.
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}, {"OJS_STOP_TIMEOUT", "10m"}});
    const std::string id = jobs.push_one("test.deaf", "[]");
    REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    const auto sent = clock::now();
    CHECK(worker.wait() == 0);
    MESSAGE("exit " << milliseconds_between(sent, clock::now()) - 300
                    << " ms after the grace deadline; at most 250 are wanted");
    const json failed = jobs.event(job_event(id, "nack"));
    CHECK(failed["details"]["reason"].is("grace_period_expired"));
    CHECK(jobs.state_of(id) == "available");
    CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
    CHECK(worker.prints("handlers have not returned"));
}

TEST_CASE("what the application closes at the end is closed beside a deaf job and a step that hangs") {
    backend jobs;
    process worker = start_worker(
        jobs.url(), "w",
        {{"TEST_MODE", "steps"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"}, {"OJS_STOP_TIMEOUT", "10m"}});
    const std::string id = jobs.push_one("test.deaf", "[]");
    REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(jobs.event(job_event(id, "nack"))["details"]["reason"].is("grace_period_expired"));
    CHECK(worker.count("step flush") == 1);
    CHECK(worker.count("step close") == 1);
    CHECK(worker.prints("steps=\"flush: done, hang: timed out, close: done\""));
}

TEST_CASE(
    "shutdown steps run where no thread can be created; one that cannot run is reported, with status 71") {
    process threadless({program("threadless_worker")}, {});
    CHECK(threadless.wait() == 0);
    CHECK(threadless.count("flush: done, ran: 1") == 1);
    process starved({program("threadless_worker"), "starved"}, {});
    CHECK(starved.wait() == 71);
    CHECK(starved.count("flush: not started, ran: 0") == 1);
}

TEST_CASE("a third signal ends a program whose last step never does") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"TEST_MODE", "endless_step"}, {"OJS_REPEAT_SIGNAL_GAP", "0s"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("step hang"));
    CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("stop event"));
    CHECK_FALSE(worker.ended());
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 128 + SIGTERM);
    CHECK(worker.count("step close") == 0);
}

namespace {

// Two workers in one process; the first has a deaf job, and has ended beside it. The gate's job is the second's.
struct two_workers {
    two_workers(const char* mode, const char* dialect)
        : worker(start_worker(jobs.url(), "w",
                              {{"TEST_MODE", mode},
                               {"OJS_DIALECT", dialect},
                               {"OJS_REPEAT_SIGNAL_GAP", "0s"},
                               {"OJS_CANCEL_WAIT", "0s"},
                               {"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"}})) {
        const std::string deaf = jobs.push_one("test.deaf", "[]");
        gated = jobs.push("test.gate", "[\"" + gate + "\"]", 1, R"(,"options":{"queue":"second"})").front();
        REQUIRE(worker.prints("start " + deaf));
        REQUIRE(worker.prints("start " + gated));
        worker.signal(SIGTERM);
        REQUIRE(worker.prints("worker stopped"));
        CHECK(worker.prints("first ended"));  // who waits for it is not kept waiting
        CHECK(jobs.state_of(deaf) == "available");
        CHECK_FALSE(worker.ended());
    }

    backend jobs;
    const std::string gate = scratch_file("gate");
    std::string gated;
    process worker;
};

}  // namespace

TEST_CASE(
    "a worker that leaves a handler behind ends the process after the last one, with the worst status") {
    for (const auto& [dialect, status] : {std::pair("graceful_shutdown", 0), {"river", 70}}) {
        two_workers two("two", dialect);
        write_file(two.gate, "");
        CHECK(two.worker.wait() == status);
        CHECK(two.jobs.state_of(two.gated) == "completed");
        CHECK(two.worker.count("worker stopped") == 2);
        CHECK(two.worker.count("first returned") == 0);
    }
}

TEST_CASE("a third signal leaves at once, though one worker of two waits for the other") {
    two_workers two("two_hang", "graceful_shutdown");
    two.worker.signal(SIGTERM);
    REQUIRE(two.worker.prints("step hang"));
    two.worker.signal(SIGTERM);
    CHECK(two.worker.wait() == 128 + SIGTERM);
}

TEST_CASE("the backend is gone during the drain: bounded, status 75, the job named") {
    auto jobs = std::make_unique<backend>();
    process worker = start_worker(jobs->url(), "w",
                                  {{"OJS_STOP_TIMEOUT", "500ms"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "200ms"}});
    const std::string id = jobs->push_one("test.sleep", "[600000]");
    REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase draining"));
    jobs.reset();
    CHECK(worker.wait() == 75);
    INFO(worker.output());
    const std::string& log = worker.output();
    const std::size_t named = log.find("job could not be reported");
    REQUIRE(named != std::string::npos);
    CHECK(log.find(id, named) < log.find('\n', named));
}

TEST_CASE("a FETCH on the wire at SIGTERM: what it claims is requeued") {
    backend jobs;
    relay between(jobs.url(), "/workers/fetch");
    const std::vector<std::string> ids = jobs.push("test.sleep", "[0]", 3);
    process worker = start_worker(between.url(), "w", {{"OJS_REQUEST_TIMEOUT", "1m"}});
    REQUIRE(between.holds());
    REQUIRE(jobs.event(worker_event("w", "fetch"))["jobs"].items.size() == 3);
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase draining"));
    between.let_go();
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    for (const std::string& id : ids) {
        const json returned = jobs.event(job_event(id, "nack"));
        CHECK(returned["requeue"].flag);
        CHECK(returned["details"]["reason"].is("not_started"));
        CHECK(jobs.state_of(id) == "available");
        CHECK(jobs.job(id)["attempt"].number == 0);
        CHECK(worker.count("start " + id) == 0);
    }
    CHECK(jobs.summary()["requeued"].number == 3);
    CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
}

TEST_CASE("an empty FETCH on the wire at SIGTERM does not delay the exit") {
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

TEST_CASE("the answer to an ACK is lost: the second gets 409, and the job counts as settled") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_HEARTBEAT_INTERVAL", "1s"}, {"OJS_VISIBILITY_TIMEOUT", "60s"}});
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(worker.prints("start " + id));
    jobs.post("/dev/faults", "{\"faults\":\"lose:1000\"}");
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase draining"));
    end.open();
    CHECK(eventually([&] { return jobs.count(job_event(id, "ack")) >= 2; }));
    jobs.post("/dev/faults", "{\"faults\":\"\"}");
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(jobs.state_of(id) == "completed");
    CHECK(jobs.event(job_event(id, "ack"))["status"].number == 200);
    CHECK(jobs.count([&](const json& event) {
        return job_event(id, "ack")(event) && event["status"].number == 409;
    }) >= 1);
    CHECK(jobs.count(job_event(id, "nack")) == 0);
}

TEST_CASE("SIGTERM while the program starts: exit 0 without a FETCH") {
    backend jobs;
    const std::string id = jobs.push_one("test.sleep", "[0]");
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "early_term"}});
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(jobs.count(worker_event("w", "fetch")) == 0);
    CHECK(jobs.count(worker_event("w", "refused_fetch")) == 0);
    CHECK(jobs.state_of(id) == "available");
}

TEST_CASE("SIGTSTP while the program starts: it begins quiet, and SIGCONT lets it work") {
    backend jobs;
    const std::string id = jobs.push_one("test.sleep", "[0]");
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "early_tstp"}});
    await_beat(jobs, "w");
    CHECK(eventually([&] { return jobs.count(beat_in_state("w", "quiet")) >= 3; }));
    CHECK(jobs.count(worker_event("w", "fetch")) == 0);
    worker.signal(SIGCONT);
    CHECK(jobs.reaches(id, "completed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("SIGCONT right after SIGTERM, as systemd sends it: the drain continues") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(worker.prints("start " + id));
    // ThreadSanitizer loses signals that come in a thread's first wait; by the second beat no thread is at its first.
    CHECK(eventually([&] { return jobs.count(worker_event("w", "beat")) >= 2; }));
    worker.signal(SIGTERM);
    worker.signal(SIGCONT);
    REQUIRE(worker.prints("phase draining"));
    end.open();
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(id) == "completed");
    CHECK(phase_moment(worker, "running") == 0);
}

TEST_CASE("directives of the backend: quiet and terminate are obeyed, running does not un-quiet") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    await_beat(jobs, "w");
    jobs.post("/dev/directive", "{\"worker_id\":\"w\",\"directive\":\"quiet\"}");
    REQUIRE(worker.prints("phase quiet"));
    jobs.post("/dev/directive", "{\"worker_id\":\"w\",\"directive\":\"running\"}");
    const int beats = jobs.count(beat_in_state("w", "quiet"));
    CHECK(eventually([&] { return jobs.count(beat_in_state("w", "quiet")) >= beats + 3; }));
    CHECK_FALSE(worker.ended());
    CHECK(phase_moment(worker, "running") == 0);
    // But the operator's SIGCONT does.
    worker.signal(SIGCONT);
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(worker.prints("start " + id));
    jobs.post("/dev/directive", "{\"worker_id\":\"*\",\"directive\":\"terminate\"}");
    REQUIRE(worker.prints("phase draining"));
    end.open();
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(id) == "completed");
    CHECK(worker.prints("cause=directive"));
}

TEST_CASE("a directive that names queues quiets those alone") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_QUEUES", "a,b"}});
    await_beat(jobs, "w");
    jobs.post("/dev/directive", R"({"worker_id":"w","directive":"quiet","queues":["a","nobody's"]})");
    REQUIRE(worker.prints("queue paused by directive  queue=a"));
    // A FETCH that was on its way by then names both; the next ones are sent after its answer.
    const json without_a = jobs.event([](const json& event) {
        return worker_event("w", "fetch")(event) && event["queues"].holds("b") && !event["queues"].holds("a");
    });
    REQUIRE(without_a.what == json::kind::object);
    const auto push = [&](const std::string& queue) {
        return jobs.push("test.result", "[]", 1, R"(,"options":{"queue":")" + queue + "\"}").front();
    };
    const std::string of_a = push("a");
    const std::string of_b = push("b");
    REQUIRE(jobs.reaches(of_b, "completed"));
    CHECK(jobs.state_of(of_a) == "available");
    CHECK(phase_moment(worker, "quiet") == 0);
    jobs.post("/dev/directive", R"({"worker_id":"w","directive":"running"})");
    const int beats = jobs.count(worker_event("w", "beat"));
    REQUIRE(eventually([&] { return jobs.count(worker_event("w", "beat")) >= beats + 2; }));
    CHECK(jobs.state_of(of_a) == "available");  // no answer un-quiets
    worker.signal(SIGCONT);
    CHECK(jobs.reaches(of_a, "completed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("a signal ignored when the program started stays ignored") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"TEST_IGNORE", "INT"}});
    REQUIRE(worker.prints("stays so  signal=SIGINT"));
    worker.signal(SIGINT);
    await_beat(jobs, "w");
    const int beats = jobs.count(beat_in_state("w", "running"));
    CHECK(eventually([&] { return jobs.count(beat_in_state("w", "running")) >= beats + 3; }));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.prints("signal=SIGTERM"));
}

TEST_CASE("a stop signal sent twice does not end what main() does after run()") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "flush"}, {"OJS_REPEAT_SIGNAL_GAP", "1h"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(worker.prints("flushed"));
    CHECK(worker.prints("child: \"signal 15\""));  // a child is not the worker: it is ended as ever
    CHECK(worker.prints("taken anew"));
}

TEST_CASE("a stop signal that comes after repeat_signal_gap is a new one: it ends the process") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"TEST_MODE", "late_flush"}, {"OJS_REPEAT_SIGNAL_GAP", "20ms"}});
    await_beat(jobs, "w");
    worker.signal(SIGTERM);
    CHECK(worker.wait() == -SIGTERM);
    CHECK(worker.prints("phase terminated"));
    CHECK(worker.count("flushed") == 0);
}

TEST_CASE(
    "a host that starts its worker has its signals back when its guard goes, though one has just come") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "host"}, {"OJS_REPEAT_SIGNAL_GAP", "1h"}});
    REQUIRE(worker.prints("started"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.prints("given back"));
}

TEST_CASE("OJS_STOP_SIGNALS: each of them stops, the second forces, the third leaves with 128+n") {
    backend jobs;
    const auto start = [&](const std::string& name, const std::string& mode) {
        process worker = start_worker(jobs.url(), name,
                                      {{"OJS_STOP_SIGNALS", "QUIT, SIGUSR2,RTMIN+3,HUP"},
                                       {"OJS_REPEAT_SIGNAL_GAP", "0s"},
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
    REQUIRE(hung.prints("stop event"));
    hung.signal(SIGHUP);
    CHECK(hung.wait() == 128 + SIGHUP);
    process plain = start("w3", "");
    plain.signal(SIGTERM);
    CHECK(plain.wait() == -SIGTERM);  // not among them
}

TEST_CASE("SIGHUP stops a worker, but not under nohup") {
    backend jobs;
    process plain = start_worker(jobs.url(), "w", {});
    await_beat(jobs, "w");
    plain.signal(SIGHUP);
    CHECK(plain.wait() == 0);
    process ignoring = start_worker(jobs.url(), "v", {{"TEST_IGNORE", "HUP"}});
    REQUIRE(ignoring.prints("stays so  signal=SIGHUP"));
    await_beat(jobs, "v");
    ignoring.signal(SIGHUP);
    ignoring.signal(SIGTERM);
    CHECK(ignoring.wait() == 0);
    CHECK(ignoring.prints("cause=SIGTERM"));
}

// The job waits at a gate: however late the signal that freezes comes, its handler has not returned, and returns once the
// worker is thawed.
TEST_CASE("a worker frozen past its lease does not report the job that another one has by now") {
    backend jobs;
    process frozen = start_worker(jobs.url(), "frozen", {{"OJS_VISIBILITY_TIMEOUT", "1s"}});
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(frozen.prints("start " + id));
    frozen.freeze();
    REQUIRE(jobs.event(job_event(id, "expired")).what == json::kind::object);
    process heir = start_worker(jobs.url(), "heir");
    REQUIRE(heir.prints("start " + id));
    SUBCASE("the other one still works on it") {
        heir.freeze();  // before the gate
        end.open();
        frozen.signal(SIGCONT);
        CHECK(frozen.prints("reservation is gone"));
        CHECK(jobs.state_of(id) == "active");
        heir.signal(SIGCONT);
        CHECK(jobs.reaches(id, "completed"));
    }
    SUBCASE("the other one is through with it") {
        end.open();
        CHECK(jobs.reaches(id, "completed"));
        frozen.signal(SIGCONT);
        CHECK(frozen.prints("reservation is gone"));
    }
    // The heir may have to repeat its report, where the answer takes too long; the other one sends none.
    INFO(jobs.history(id));
    CHECK(jobs.count([&](const json& event) {
        return job_event(id, "ack")(event) && event["status"].number == 200 && event["from"].is("heir");
    }) == 1);
    CHECK(jobs.count([&](const json& event) {
        return event["job_id"].is(id.c_str()) && event["from"].is("frozen");
    }) == 0);
    CHECK(jobs.count(job_event(id, "nack")) == 0);
    for (process* worker : {&frozen, &heir}) {
        worker->signal(SIGTERM);
        const int status = worker->wait();
        CHECK_MESSAGE(status == 0, worker->output());
    }
}

TEST_CASE("a worker killed with SIGKILL: the backend takes its jobs back, another one completes them") {
    backend jobs({"--dead-after", "300ms"});
    process victim = start_worker(jobs.url(), "victim", {{"OJS_CONCURRENCY", "3"}});
    const gate end;
    const std::vector<std::string> ids = jobs.push("test.gate", end.args(), 3);
    for (const std::string& id : ids) REQUIRE(victim.prints("start " + id));
    await_beat(jobs, "victim");  // the backend misses only whom it has heard
    victim.signal(SIGKILL);
    CHECK(victim.wait() == -SIGKILL);
    end.open();
    process heir = start_worker(jobs.url(), "heir");
    for (const std::string& id : ids) {
        CHECK(jobs.reaches(id, "completed"));
        // Not how many ACKs there were: an heir who was silent for a moment counts as dead as well, and claims again.
        const auto by_heir = [&](const json& event) {
            return job_event(id, "ack")(event) && worker_event("heir", "ack")(event) &&
                   event["status"].number == 200;
        };
        CHECK(jobs.count(by_heir) == 1);
    }
    heir.signal(SIGTERM);
    CHECK(heir.wait() == 0);
}
