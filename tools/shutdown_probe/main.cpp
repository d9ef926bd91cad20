// shutdown-probe: starts a worker against its own backend, stops it in many ways, and reports which checks pass.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "report.hpp"
#include "session.hpp"

namespace {
using probe::clock;

constexpr const char* usage =
    R"(usage: shutdown-probe [--scenario NAME]... [--all] [--json FILE] [--junit FILE]
                      -- COMMAND...
       shutdown-probe --list | --help
Starts COMMAND, an Open Job Spec worker, against its own backend, stops it in
many ways, and prints for each check of graceful shutdown PASS, FAIL or
skipped: below `lost`, `doubled`, `late` or `comfort`, which is what a failure
costs, and at the end what to fix first. Each scenario starts COMMAND again. The
first start is a handshake: without a FETCH, a BEAT and an ACK in 10 s, the
probe says what is missing, and ends. --all continues: for a COMMAND that takes
up to 30 s to start.

The worker must
  speak the OJS worker protocol over HTTP
  (POST OJS_URL/ojs/v1/workers/{fetch,ack,nack,heartbeat}),
  run jobs of two types, with one argument each:
    probe.sleep [ms]   sleeps for that time; returns at once when cancelled: it
                       is then interrupted
    probe.spin  [ms]   keeps a processor busy for that time, ignores its
                       cancellation; then completes
  and take its settings from the environment (durations as 500ms, 30s, 1m30s):
    OJS_URL                    the backend, http://127.0.0.1:PORT
    OJS_QUEUES                 the queues to fetch from, comma-separated
    OJS_CONCURRENCY            jobs at a time
    OJS_SHUTDOWN_GRACE_PERIOD  how long a drain may take; 30s if not set
    OJS_HEARTBEAT_INTERVAL     between heartbeats
  These are set as well; a worker may ignore them, but some scenarios then take
  longer or fail:
    OJS_POLL_INTERVAL          between FETCHes that return no job
    OJS_VISIBILITY_TIMEOUT     how long a claim holds without a heartbeat
    OJS_STOP_TIMEOUT           how long a stop may take after the drain
    OJS_PROGRESS_INTERVAL      between the lines about a drain in progress; 5s
                               if not set
    OJS_HEALTH_ADDR            HOST:PORT of GET /readyz (or /healthz), /livez
  Other variables OJS_* are removed; to set one: -- env OJS_X=... COMMAND.
  Signals go to the started process, not to its group: a shell around the worker
  must exec it.

Exit status:
  0      no check fails, and at least one passes
  1      a check fails, or none passes
  2      the handshake fails; nothing else was judged
  64     usage error
  70     the probe failed
  128+N  ended by signal N; reports the checks judged so far
)";

struct arguments {
    std::vector<std::string> scenarios;
    std::string json;
    std::string junit;
    std::vector<std::string> command;
    bool all = false;
    bool help = false;
    bool list = false;
};

// False, and why, if the arguments are invalid.
bool parse(int argc, char** argv, arguments& out, std::string& why) {
    int i = 1;
    for (; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
        const std::string flag = argv[i];
        std::string value;
        if (flag == "--help" || flag == "--list" || flag == "--all") {
            (flag == "--help" ? out.help : flag == "--list" ? out.list : out.all) = true;
            continue;
        }
        if (flag != "--scenario" && flag != "--json" && flag != "--junit") {
            why = "unknown argument " + flag;
            return false;
        }
        if (++i == argc) {
            why = flag + " needs a value";
            return false;
        }
        value = argv[i];
        if (flag == "--json") out.json = value;
        if (flag == "--junit") out.junit = value;
        if (flag == "--scenario") out.scenarios.push_back(value);
    }
    for (++i; i < argc; ++i) out.command.emplace_back(argv[i]);
    for (const std::string& name : out.scenarios) {
        const bool known = std::any_of(probe::scenarios.begin(), probe::scenarios.end(),
                                       [&](const probe::scenario& each) { return name == each.name; });
        if (!known) {
            why = "no scenario " + name + "; --list names them";
            return false;
        }
    }
    if (!out.command.empty() || out.help || out.list) return true;
    why = "no COMMAND after --";
    return false;
}

void print_list() {
    for (const probe::scenario& each : probe::scenarios) {
        std::printf("%-16s %s:", each.name, each.what);
        for (const char* id : each.judges) std::printf(" %s", id);
        std::printf("\n");
    }
    std::printf("\n");
    for (const probe::named_check& each : probe::all_checks)
        std::printf("%-11s %-8s %s\n", each.id, probe::findings::name_of(each.costs), each.what);
}

// Plays one scenario; checks it could not judge fail.
void play(const probe::scenario& one, probe::findings& out) {
    if (out.serial() && one.concurrency_for != nullptr) {
        const std::string reason = std::string("the worker runs one job at a time; ") + one.concurrency_for;
        out.add_pending(one.name, probe::skipped(reason));
        return;
    }
    try {
        one.play(out);
    } catch (const probe::gives_up& stopped) {
        out.add_pending(one.name, stopped.why);
    }
}

bool write_file(const std::string& path, const std::string& text) {
    if (path.empty()) return true;
    std::FILE* file = std::fopen(path.c_str(), "we");
    bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file != nullptr) written = std::fclose(file) == 0 && written;
    if (!written) std::perror(path.c_str());
    return written;
}

using plan = std::vector<const probe::scenario*>;

plan chosen(const std::vector<std::string>& names) {
    plan out;
    for (const probe::scenario& each : probe::scenarios) {
        if (names.empty() || std::find(names.begin(), names.end(), each.name) != names.end()) out.push_back(&each);
    }
    return out;
}

std::vector<probe::check> checks_of(const plan& scenarios) {
    std::vector<probe::check> out;
    for (const probe::named_check& each : probe::all_checks) {
        out.push_back({each.id, each.costs, each.what, {}, false, "", {}});
        for (const probe::scenario* one : scenarios) {
            if (std::count(one->judges.begin(), one->judges.end(), std::string(each.id)) != 0)
                out.back().pending.emplace_back(one->name);
        }
    }
    return out;
}

// Without destructors: a scenario may still run in the background.
[[noreturn]] void leave(int status) {
    probe::child::kill_all();
    std::fflush(nullptr);
    ::_exit(status);
}

class run {
  public:
    run(const arguments& given, plan scenarios)
        : given_(given), scenarios_(std::move(scenarios)), findings_(given.command, checks_of(scenarios_)) {}

    [[noreturn]] void play_all() {
        try {
            std::fprintf(stderr, "%s: %s\n", probe::handshake.name, probe::handshake.what);
            play(probe::handshake, findings_);
            const bool judges = given_.all || findings_.count(probe::verdict::kind::fails) == 0;
            if (judges) play_scenarios();
            finish(0, judges ? 1 : 2);
        } catch (const probe::cannot_work& failure) {
            std::fprintf(stderr, "shutdown-probe: %s\n", failure.why.c_str());
            leave(70);
        }
    }

    // For a thread of its own. A second signal ends the probe at once, whatever its output waits for.
    void await_signal(const sigset_t& signals) {
        int number = 0;
        while (::sigwait(&signals, &number) != 0) {
        }
        for (const int each : stop_signals) ::signal(each, SIG_DFL);
        ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        finish(number, 0);
    }

    static constexpr std::array<int, 3> stop_signals = {SIGINT, SIGTERM, SIGHUP};

  private:
    void play_scenarios() {
        for (const probe::scenario* each : scenarios_) {
            if (!each->in_background) continue;
            std::fprintf(stderr, "%s: %s (in the background)\n", each->name, each->what);
            background_.push_back(std::async(std::launch::async, play, std::cref(*each), std::ref(findings_)));
        }
        int number = 0;
        for (const probe::scenario* each : scenarios_) {
            ++number;
            if (each->in_background) continue;
            std::fprintf(stderr, "[%d/%zu] %s: %s\n", number, scenarios_.size(), each->name, each->what);
            play(*each, findings_);
        }
        for (std::future<void>& each : background_) each.get();
    }

    // The first caller prints what was judged, and ends the probe.
    [[noreturn]] void finish(int interrupted, int status_if_bad) {
        findings_.close();
        probe::child::kill_all();
        const double took = probe::milliseconds_between(began_, clock::now()) / 1000;
        const bool printed = findings_.print_end(took, interrupted);
        const bool good =
            findings_.count(probe::verdict::kind::fails) == 0 && findings_.count(probe::verdict::kind::passes) > 0;
        if (!good && status_if_bad == 2)
            std::fputs("Nothing else was judged; tools/shutdown_probe/README.md has five steps to a worker.\n", stderr);
        if (!write_file(given_.json, findings_.as_json(took, interrupted)) ||
            !write_file(given_.junit, findings_.as_junit(took)) || !printed)
            leave(70);
        if (interrupted != 0) leave(128 + interrupted);
        leave(good ? 0 : status_if_bad);
    }

    const clock::time_point began_ = clock::now();
    const arguments& given_;
    const plan scenarios_;
    probe::findings findings_;
    std::vector<std::future<void>> background_;  // never destroyed: that would wait for them
};
}  // namespace

int main(int argc, char** argv) {
    arguments given;
    std::string why;
    if (!parse(argc, argv, given, why)) {
        std::fprintf(stderr, "shutdown-probe: %s; see --help\n", why.c_str());
        return 64;
    }
    if (given.help) return std::fputs(usage, stdout) < 0 ? 70 : 0;
    if (given.list) {
        print_list();
        return 0;
    }
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : run::stop_signals) ::sigaddset(&signals, number);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    run all(given, chosen(given.scenarios));
    std::thread([&] { all.await_signal(signals); }).detach();
    all.play_all();
}
