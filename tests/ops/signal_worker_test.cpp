// signal_worker: signals to real processes.
#include <climits>

#include "environment.hpp"
#include "processes.hpp"

using namespace test;

namespace {
// A child that has handlers for the signals, and ends with the number of the first one.
struct target {
    target() {
        const pipe_ends ready;
        pid = forked([&] {
            for (const int number : {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGUSR1})
                ::signal(number, [](int taken) { ::_exit(taken); });
            if (::write(ready.writer(), "x", 1) != 1) return 1;
            for (;;) ::pause();
        });
        char byte = 0;
        REQUIRE(::read(ready.reader(), &byte, 1) == 1);
    }
    int received() const { return status_of(pid); }
    pid_t pid;
};
}  // namespace

TEST_CASE("signal_worker: each command sends its signal, and stop sends the first of a valid OJS_STOP_SIGNALS") {
    const struct {
        const char *word, *stop_signals;
        int number;
    } cases[] = {{"quiet", "", SIGTSTP},        {"resume", "", SIGCONT},      {"stop", "", SIGTERM},
                 {"reclaim", "", SIGUSR1},      {"stop", "INT,TERM", SIGINT}, {"stop", "TERM", SIGTERM},
                 {"stop", "nonsense", SIGTERM}, {"stop", "KILL", SIGTERM}};
    for (const auto& each : cases) {
        CAPTURE(each.word);
        CAPTURE(each.stop_signals);
        const environment_variable set("OJS_STOP_SIGNALS", each.stop_signals);
        const target child;
        const result<pid_t> sent = signal_worker(each.word, child.pid);
        REQUIRE(sent);
        CHECK(*sent == child.pid);
        CHECK(child.received() == each.number);
    }
}

#if OJS_SHUTDOWN_USE_PROC
TEST_CASE("signal_worker: reclaim is not sent to a process that SIGUSR1 would end") {
    const pid_t stranger = forked([] {
        ::raise(SIGSTOP);
        return ::pause();
    });
    REQUIRE(::waitpid(stranger, nullptr, WUNTRACED) == stranger);  // fork() blocks signals no longer
    CHECK(code_of(signal_worker("reclaim", stranger)) == errc::unsupported);
    CHECK(::kill(stranger, SIGTERM) == 0);
    CHECK(::kill(stranger, SIGCONT) == 0);
    CHECK(status_of(stranger) == -SIGTERM);
}
#endif

TEST_CASE("signal_worker: unknown commands and negative process ids are refused") {
    for (const char* word : {"", "QUIET", "kill", "quiet ", "TSTP", "term\n"}) {
        const result<pid_t> sent = signal_worker(word, ::getpid());
        REQUIRE(code_of(sent) == errc::invalid_argument);
        CHECK(holds(sent.error().text, "quiet, resume, stop, reclaim"));
        CHECK(!holds(sent.error().text, "\n"));
    }
    for (const pid_t pid : {-1, -50, INT_MIN}) CHECK(signal_worker("stop", pid).error().code == errc::invalid_argument);
}

TEST_CASE("find_worker: the process that signal_worker would signal is returned, and no signal is sent") {
    const target child;
    for (const char* word : {"quiet", "resume", "stop", "reclaim"})
        CHECK(ojs::find_worker(word, child.pid).value_or(0) == child.pid);
    REQUIRE(signal_worker("stop", child.pid));
    CHECK(child.received() == SIGTERM);  // the first signal it got
    CHECK(ojs::find_worker("stop", child.pid).error().sys_errno == ESRCH);
    const result<pid_t> sent = signal_worker("stop", child.pid);
    REQUIRE(!sent);
    CHECK(sent.error().sys_errno == ESRCH);
    CHECK(holds(sent.error().text, "there is no process " + std::to_string(child.pid)));
}

#if !OJS_SHUTDOWN_USE_PROC
TEST_CASE("signal_worker: without /proc a call without a process id is refused as unsupported") {
    CHECK(code_of(signal_worker("resume")) == errc::unsupported);
}
#endif
