// signal_worker: finds in made-up /proc trees, signals to real processes.
#include <climits>

#include "environment.hpp"
#include "file_tree.hpp"
#include "processes.hpp"
#include "text.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace test;
using ojs::errc;
using ojs::result;
using ojs::signal_worker;

namespace {

// We are process 50, called ./worker.
file_tree& with_me(file_tree& tree, int parent = 0) {
    tree.process("self", 50, parent, "worker", "./worker|--signal|quiet", "worker");
    return tree.process("50", 50, parent, "worker", "./worker|--signal|quiet", "worker");
}

result<pid_t> find(const file_tree& tree) {
    return ojs::detail::find_other_process(tree.root());
}

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

TEST_CASE(
    "signal_worker: each command sends its signal, and stop sends the first of a valid OJS_STOP_SIGNALS") {
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
    const pid_t stranger = forked([] { return ::pause(); });
    CHECK(code_of(signal_worker("reclaim", stranger)) == errc::unsupported);
    CHECK(::kill(stranger, SIGTERM) == 0);
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
    for (const pid_t pid : {-1, -50, INT_MIN})
        CHECK(signal_worker("stop", pid).error().code == errc::invalid_argument);
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

TEST_CASE("signal_worker: signalling a process of another user without permission fails with EPERM" *
          doctest::skip(::getuid() != 0)) {
    const target other;
    const pid_t nobody = forked([&] {
        if (::setuid(65534) != 0) return 2;
        const result<pid_t> refused = signal_worker("stop", other.pid);
        return !refused && refused.error().sys_errno == EPERM && holds(refused.error().text, "not allowed")
                   ? 0
                   : 1;
    });
    CHECK(status_of(nobody) == 0);
    CHECK(signal_worker("quiet", other.pid));
    CHECK(other.received() == SIGTSTP);
}

#if OJS_SHUTDOWN_USE_PROC

TEST_CASE(
    "signal_worker: PID 1 or the only other run of the program is found, and several runs are refused") {
    const struct {
        int our_parent;
        const char* others;  // id, parent and program of each
        pid_t found;         // 0: none
        int sys_errno = 0;
    } rows[] = {{0, "1 0 worker 7 1 worker 8 0 worker", 1},
                {0, "1 0 tini 7 1 worker 8 1 other", 7},
                // Not the processes it started: what as_init() or a handler forked.
                {0, "1 0 tini 7 1 worker 8 1 other 9 7 worker 10 9 worker", 7},
                {8, "1 0 tini 7 1 worker 8 7 sh", 7},
                {0, "1 0 systemd 7 1 other", 0, ESRCH},
                {0, "1 0 systemd 7 1 worker 8 1 worker", 0}};
    for (const auto& row : rows) {
        CAPTURE(row.others);
        file_tree tree;
        with_me(tree, row.our_parent);
        const std::vector<std::string> others = words(row.others);
        for (std::size_t i = 0; i < others.size(); i += 3)
            tree.process(others[i], std::stoi(others[i]), std::stoi(others[i + 1]), others[i + 2],
                         "./" + others[i + 2], others[i + 2]);
        const result<pid_t> found = find(tree);
        CHECK(found.value_or(0) == row.found);
        if (found) continue;
        CHECK(found.error().sys_errno == row.sys_errno);
        if (row.sys_errno != 0) continue;  // else there are several
        CHECK(found.error().code == errc::busy);
        for (const char* id : {"7", "8"}) CHECK(holds(found.error().text, id));
        CHECK(!holds(found.error().text, "50"));
    }
}

TEST_CASE("signal_worker: an init gets a reclaim only if it forwards signals and a child handles SIGUSR1") {
    // In sigwait() none is shown as blocked.
    const std::string unprepared =
        "Name:\tw\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t";
    const std::string waiting = unprepared + "0000000000000000\n";
    const std::string prepared = unprepared + "0000000000000200\n";
    for (const std::string init : {"ojs-init", "tini", "dumb-init"}) {
        CAPTURE(init);
        file_tree tree;
        const std::string& shown = init == "dumb-init" ? prepared : waiting;  // that one has handlers
        const auto check = [&tree] { return ojs::detail::check_prepared(tree.root(), 1, SIGUSR1); };
        tree.process("1", 1, 0, init, init).file("/proc/1/status", shown);
        tree.process("9", 9, 5, "other", "other").file("/proc/9/status", prepared);  // no child of its
        REQUIRE(!check());
        CHECK(check().error().sys_errno == ESRCH);
        tree.process("7", 7, 1, "orphan", "orphan").file("/proc/7/status", waiting);
        REQUIRE(!check());
        CHECK(check().error().code == errc::unsupported);
        tree.process("8", 8, 1, "worker", "worker").file("/proc/8/status", prepared);
        CHECK(check());
    }
    file_tree shell;
    shell.process("1", 1, 0, "sh", "sh").file("/proc/1/status", waiting);
    shell.process("8", 8, 1, "worker", "worker").file("/proc/8/status", prepared);
    CHECK(ojs::detail::check_prepared(shell.root(), 1, SIGUSR1).error().code == errc::unsupported);
}

TEST_CASE("signal_worker: a process whose executable cannot be read is recognised by its command line") {
    file_tree tree;
    with_me(tree).process("1", 1, 0, "sh", "sh").process("7", 7, 1, "x", "/app/worker|--init");
    tree.process("8", 8, 1, "worker", "other");
    REQUIRE(find(tree));
    CHECK(*find(tree) == 7);
    tree.link("/proc/7/exe", "/nowhere/at/all");
    CHECK(find(tree));
}

TEST_CASE("signal_worker: a missing /proc is unsupported, and malformed entries in /proc are skipped") {
    CHECK(find(file_tree()).error().code == errc::unsupported);
    file_tree garbage;
    with_me(garbage).file("/proc/7/stat", std::string(100, ')')).fifo("/proc/8/stat").folder("/proc/9/stat");
    garbage.file("/proc/10", "");
    for (const char* odd : {"99999999999999999999", "-1", "0", "11"})
        garbage.folder(std::string("/proc/") + odd);
    CHECK(find(garbage).error().sys_errno == ESRCH);
}

#else

TEST_CASE("signal_worker: without /proc a call without a process id is refused as unsupported") {
    CHECK(code_of(signal_worker("resume")) == errc::unsupported);
}

#endif

#endif
