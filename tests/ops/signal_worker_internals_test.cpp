// signal_worker: which process it finds, in made-up /proc trees.
#include "file_tree.hpp"

#if OJS_SHUTDOWN_USE_PROC

using namespace test;

namespace {
// We are process 50, called ./worker.
file_tree& with_me(file_tree& tree, int parent = 0) {
    tree.process("self", 50, parent, "worker", "./worker|--signal|quiet", "worker");
    return tree.process("50", 50, parent, "worker", "./worker|--signal|quiet", "worker");
}

result<pid_t> find(const file_tree& tree) { return ojs::detail::find_other_process(tree.root()); }
}  // namespace

TEST_CASE("signal_worker: PID 1 or the only other run of the program is found, and several runs are refused") {
    const struct {
        int our_parent;
        const char* others;  // id, parent and program of each
        pid_t found;         // 0: none
        int sys_errno = 0;
    } rows[] = {{0, "1 0 worker 7 1 worker 8 0 worker", 1},
                {0, "1 0 tini 7 1 worker 8 1 other", 7},
                // Not the processes it started: what run_as_init() or a handler forked.
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
            tree.process(others[i], std::stoi(others[i]), std::stoi(others[i + 1]), others[i + 2], "./" + others[i + 2],
                         others[i + 2]);
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

TEST_CASE("signal_worker: reclaim is sent to an init only if it forwards signals and a child handles SIGUSR1") {
    // In sigwait() none is shown as blocked.
    const std::string unprepared = "Name:\tw\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t";
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

#endif
