// Measurements, each beside a floor measured in the same run, alternating with it. Figures, never a test: the exit
// status is 0 whatever they are, and 1 only where something could not be measured. Linux only; run from the repository.
//
//   bench [--only NAME]...      OJS_BENCH_INCLUDE: the folder of ojs_shutdown.hpp (default .)      CXX: the compiler
//                               OJS_BENCH_PERCENT: so much of the rounds that a launcher is measured by (default 100)
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench.hpp"

namespace bench {
namespace {

// clang-format off: two lines of text each
constexpr measurement measurements[] = {
    {"signal_to_phase",
     "pthread_kill() of TSTP, CONT, ... to this thread until it reads the new phase, the handler included; "
     "medians of\n"
     "400 signals, a fresh lifecycle each round. Floor: a handler that stores an atomic and writes an "
     "eventfd.",
     signal_to_phase},
    {"signal_to_awake",
     "pthread_kill() until another thread, asleep in poll() on signals::fd(), runs again; medians of 400 "
     "signals.\n"
     "medians of 400 signals. Floor: the same with the bare handler and its eventfd.",
     signal_to_awake},
    {"barrier",
     "drain_barrier::enter() and its ticket's end, a million times on one thread, then on two at once.\n"
     "Floor: fetch_add(1) and fetch_sub(1) on one atomic.",
     barrier},
    {"throughput",
     "jobs a second of a worker process whose handler does nothing, from its 500th job to its 8500th, on "
     "dev_backend.\n"
     "Floor: threads with a blocking socket each, as many, that send the same FETCH (count 1) and ACK; same "
     "process set-up.",
     throughput},
    {"backend_rate",
     "the floor of that, against dev_backend in memory and with --store. Floor: the same client of a server "
     "on the "
     "same\n"
     "socket code whose handler does nothing, with answers of the same size.",
     backend_rate},
    {"server_rate",
     "requests a second that a draining_server answers, on connections that each send their next request "
     "with the\n"
     "answer to the last. Floor: one thread that reads and writes in a loop on epoll, and parses nothing.",
     server_rate},
    {"spool",
     "one job of a spool directory: FETCH (the file is examined, read and claimed) and ACK, on one thread, "
     "100 files\n"
     "waiting. Floor: the bare renames and fsyncs that takes, and for an ACK with a result the new file. "
     "With TMPDIR in\n"
     "memory it shows the processor's part, which a disk hides.",
     spool},
    {"settled_to_gone",
     "a drain whose only job ends on SIGTERM: from the ACK in the backend's ledger until the parent sees the "
     "process\n"
     "end, by pidfd. The last heartbeat and all clean-up are in it.",
     settled_to_gone},
    {"term_to_gone",
     "SIGTERM to an idle worker until the parent sees the process end. Floor: a process of the same program "
     "that polls\n"
     "an eventfd which its SIGTERM handler writes, and returns from main.",
     term_to_gone},
    {"forced_stop",
     "1,000 jobs asleep on their token, SIGTERM, and a second one: from that until the backend has received "
     "the last\n"
     "of 1,000 FAILs. Answers come at once, or 50 ms late.",
     forced_stop},
    {"termination_decision",
     "reading and judging the termination-mode file; floor: open, read, close. Then, with one job at work, "
     "from SIGTERM\n"
     "with SPOT_RECLAIM in the file until the job's FAIL goes out; floor: the same from SIGUSR1, which reads "
     "no file.",
     termination_decision},
    {"idle_wakeups",
     "context switches of all threads of an idle worker in 20 s, scaled to a minute, default intervals. Each "
     "beat and\n"
     "each poll's two wake-ups are subtracted: its thread sleeps until it is due, and again until it is "
     "answered.",
     idle_wakeups},
    {"memory",
     "VmRSS, and its peak, of programs/noop_worker.cpp at concurrency 10 after 500 jobs, once it is idle "
     "again;\n"
     "linked dynamically and statically, at -O2.",
     memory},
    {"binary_size",
     "bytes of examples/hello_worker.cpp, header-only, linked with -static -s: at -O2, and at -Os.",
     binary_size},
    {"compile_time",
     "user and system time of `$CXX -std=c++17 -fsyntax-only` on a file that includes the header alone: "
     "header-only and\n"
     "with OJS_SHUTDOWN_SEPARATE. Floor: a file that includes <picojson.h> alone.",
     compile_time},
    {"rolling_jobs",
     "100 rolling replacements of 8 workers (tools/fleet) that take jobs of dev_backend all the while; "
     "lost and\n"
     "doubled by what each wrote down at the end of its handler.",
     rolling_jobs},
    {"rolling_requests",
     "100 rolling replacements of 8 keyvalue_runners under requests of four clients, through a router that "
     "goes by the\n"
     "launcher's hooks; then 10 of which the fifth process fails, and which are taken back.",
     rolling_requests},
    {"launcher_times",
     "a child that is ready at once, from before its fork until the launcher's on_routable, where readiness "
     "is pushed\n"
     "or not seen (floor: the start of a process until its first line is read); then from the state "
     "SHUTDOWN_REQUESTED until\n"
     "the child's drain function (floor: a question and its answer).",
     launcher_times},
    {"launcher_cost",
     "a launcher in a process of its own with 100 children: VmRSS, and its processor time while an operator "
     "asks\n"
     "GetProcessStatus 1,000 times a second for 10 s.",
     launcher_cost},
    {"launcher_polls",
     "the processor time of such a launcher while it polls the status of 100 draining children, each "
     "ten times a\n"
     "second, for 5 s.",
     launcher_polls},
    {"launcher_stop",
     "request_stop() of a launcher with 100 processes that take 1 s to drain, until all have ended. Floor: "
     "the same with\n"
     "one process.",
     launcher_stop},
    {"launcher_leaks",
     "descriptors, threads and children of a launcher's process after 10,000 children that were started and "
     "stopped,\n"
     "half of them through the protocol, half by SIGTERM.",
     launcher_leaks},
    {"launcher_shutdowns",
     "500 lifecycle_runners of seven behaviours, shut down 28 at a time: how they ended, how long it took "
     "(grace 1 s,\n"
     "maximum 3 s, SIGKILL 0.2 s later), and whether every change of a state stands in the log.",
     launcher_shutdowns},
};
// clang-format on

void print_usage() {
    std::puts("usage: bench [--only NAME]...\n");
    for (const measurement& each : measurements) std::printf("%s\n%s\n\n", each.name, each.how);
}

// A shell or a supervisor may have left them ignored or blocked, and children would inherit that.
void reset_signals() {
    for (const int number : {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGPIPE}) ::signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

// Workers are configured by the environment, and only as a measurement wants them.
void forget_worker_settings() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const bool ours = text.substr(0, 4) == "OJS_" && text.substr(0, 10) != "OJS_BENCH_";
        if (ours) names.emplace_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
}

// False where it could not be made.
bool make(const measurement& one, table& out) {
    progress(one.name);
    try {
        one.run(out);
        return true;
    } catch (const std::exception& why) {
        out.add_failed(one.name, why.what());
        return false;
    }
}

int measure(const std::vector<std::string>& only) {
    forget_worker_settings();
    table out;
    bool made_all = true;
    for (const measurement& each : measurements) {
        const bool wanted = only.empty() || std::find(only.begin(), only.end(), each.name) != only.end();
        if (wanted) made_all = make(each, out) && made_all;
    }
    out.print();
    return made_all ? 0 : 1;
}

bool is_known(const std::string& name) {
    return std::any_of(std::begin(measurements), std::end(measurements),
                       [&](const measurement& each) { return each.name == name; });
}

int run(const std::vector<std::string>& arguments) {
    if (arguments.size() > 1 && arguments[0] == "--as")
        return run_as(arguments[1], {arguments.begin() + 2, arguments.end()});
    std::vector<std::string> only;
    for (std::size_t i = 0; i < arguments.size(); i += 2) {
        if (arguments[i] != "--only" || i + 1 == arguments.size() || !is_known(arguments[i + 1])) {
            print_usage();
            return arguments[i] == "--help" ? 0 : 64;
        }
        only.push_back(arguments[i + 1]);
    }
    return measure(only);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    bench::reset_signals();
    return bench::run({argv + 1, argv + argc});
}
