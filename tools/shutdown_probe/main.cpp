// shutdown-probe: starts a worker against its own backend, stops it in many ways, and reports which requirements hold.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "report.hpp"
#include "session.hpp"

namespace {

using probe::clock;

constexpr const char* usage =
    "usage: shutdown-probe [--scenario NAME]... [--json FILE] [--junit FILE] [--list] [--help] -- "
    "COMMAND...\n"
    "Starts COMMAND, an Open Job Spec worker, against its own backend, stops it in many ways, and prints\n"
    "for each requirement on graceful shutdown whether it holds. Each scenario starts COMMAND again.\n"
    "\n"
    "The worker must\n"
    "  speak the OJS worker protocol over HTTP (POST OJS_URL/ojs/v1/workers/{fetch,ack,nack,heartbeat}),\n"
    "  run jobs of two types, with one argument each:\n"
    "    probe.sleep [ms]   sleeps for that time; returns at once when cancelled: it is then interrupted\n"
    "    probe.spin  [ms]   keeps a processor busy for that time, ignores its cancellation; then completes\n"
    "  and take its settings from the environment (durations as 500ms, 30s, 1m30s):\n"
    "    OJS_URL                    the backend, http://127.0.0.1:PORT\n"
    "    OJS_QUEUES                 the queues to fetch from, comma-separated\n"
    "    OJS_CONCURRENCY            jobs at a time\n"
    "    OJS_SHUTDOWN_GRACE_PERIOD  how long a drain may take; 30s if not set\n"
    "    OJS_HEARTBEAT_INTERVAL     between heartbeats\n"
    "  These are set as well; a worker may ignore them, but some scenarios then take longer or fail:\n"
    "    OJS_POLL_INTERVAL          between FETCHes that return no job\n"
    "    OJS_VISIBILITY_TIMEOUT     how long a claim holds without a heartbeat\n"
    "    OJS_STOP_TIMEOUT           how long a stop may take after the drain\n"
    "    OJS_PROGRESS_INTERVAL      between the lines about a drain in progress; 5s if not set\n"
    "    OJS_HEALTH_ADDR            HOST:PORT of GET /readyz (or /healthz), /livez\n"
    "  Other variables OJS_* are removed; to set one: -- env OJS_X=... COMMAND.\n"
    "  Signals go to the started process, not to its group: a shell around the worker must exec it.\n"
    "\n"
    "Exit status: 0 every requirement holds; 1 some fail; 64 usage error; 70 the probe failed;\n"
    "130 interrupted (the worker is killed).\n";

struct arguments {
    std::vector<std::string> scenarios;
    std::string json;
    std::string junit;
    std::vector<std::string> command;
    bool help = false;
    bool list = false;
};

// False, and why, if the arguments are invalid.
bool parse(int argc, char** argv, arguments& out, std::string& why) {
    int i = 1;
    for (; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
        const std::string flag = argv[i];
        std::string value;
        if (flag == "--help" || flag == "--list") {
            (flag == "--help" ? out.help : out.list) = true;
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
    for (const probe::requirement& each : probe::requirements) std::printf("%-11s %s\n", each.id, each.what);
}

// Plays one scenario; requirements it could not judge fail.
void play(const probe::scenario& one, probe::findings& out) {
    try {
        one.play(out);
    } catch (const probe::gives_up& stopped) {
        const std::vector<probe::finding> all = out.all();
        for (const char* id : one.judges) {
            const bool judged = std::any_of(all.begin(), all.end(), [&](const probe::finding& each) {
                return each.id == id && each.scenario == one.name;
            });
            if (!judged) out.add({id, one.name, probe::fails(stopped.why), stopped.last_lines});
        }
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

void leave(int number) {
    probe::child::kill_all();
    ::_exit(128 + number);
}

// A scenario in the background; what it throws is kept for the main thread.
class background {
  public:
    background(const probe::scenario& one, probe::findings& out)
        : thread_([this, &one, &out] {
              try {
                  play(one, out);
              } catch (...) {
                  thrown_ = std::current_exception();
              }
          }) {}
    void join() {
        thread_.join();
        if (thrown_) std::rethrow_exception(thrown_);
    }

  private:
    std::exception_ptr thrown_;
    std::thread thread_;
};

void play_all(const std::vector<std::string>& names, probe::findings& out) {
    std::vector<const probe::scenario*> chosen;
    for (const probe::scenario& each : probe::scenarios) {
        if (names.empty() || std::find(names.begin(), names.end(), each.name) != names.end())
            chosen.push_back(&each);
    }
    std::vector<background*> beside;
    for (const probe::scenario* each : chosen) {
        if (!each->in_background) continue;
        std::fprintf(stderr, "%s: %s (in the background)\n", each->name, each->what);
        beside.push_back(new background(*each, out));
    }
    int number = 0;
    for (const probe::scenario* each : chosen) {
        ++number;
        if (each->in_background) continue;
        std::fprintf(stderr, "[%d/%d] %s: %s\n", number, static_cast<int>(chosen.size()), each->name,
                     each->what);
        play(*each, out);
    }
    for (background* each : beside) each->join();
    for (background* each : beside) delete each;
}

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
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, leave);
    ::signal(SIGPIPE, SIG_IGN);

    const clock::time_point began = clock::now();
    probe::findings out(given.command);
    try {
        play_all(given.scenarios, out);
    } catch (const probe::cannot_work& failure) {
        std::fprintf(stderr, "shutdown-probe: %s\n", failure.why.c_str());
        probe::child::kill_all();
        std::fflush(nullptr);
        ::_exit(70);  // a scenario may still run in the background
    }
    const double seconds = probe::milliseconds_between(began, clock::now()) / 1000;
    const std::vector<probe::row> rows = probe::rows_of(out.all());
    const std::string text = probe::as_text(rows, out, seconds);
    const bool printed = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!write_file(given.json, probe::as_json(rows, out, seconds)) ||
        !write_file(given.junit, probe::as_junit(rows, seconds)) || !printed)
        return 70;
    return probe::count(rows, probe::verdict::kind::fails) == 0 ? 0 : 1;
}
