// A process that behaves as it is told while a launcher stops it: for trying out launchers, and for tests. [RFC-041 "Test
// Runner"]
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "ojs_coordinator.hpp"

namespace {

using std::chrono::milliseconds;

const char usage[] =
    R"(usage: lifecycle_runner [--process-id ID] [--port PORT | --socket PATH] [options]
Without --port and --socket it looks at OJS_LIFECYCLE_ADDR, OJS_PROCESS_ID and OJS_LAUNCHER_ADDR, as a launcher sets them.
  --behavior clean         finishes its work, and ends (the default)
             slow-drain    takes the whole --drain-duration, and ends
             hang          never ends, whatever it is sent but SIGKILL
             request-more  as slow-drain, and asks for 5 s more
             crash         leaves with status 2 in the middle of the drain
  --initial-work N         pieces of work in hand (5), of --work-duration each (100ms)
  --drain-duration TIME    (2s)
  --ready-after TIME       is WARMING so long
  --never-ready            is WARMING for ever
  --ignore-sigterm         as a program that does not handle it well
  --spawn-grandchild       starts a process of its own, in its process group, and leaves it behind
Status: 0 drained, 1 not drained in time, 2 crashed, 64 wrong options.
)";

struct settings {
    std::string behavior = "clean";
    milliseconds drain_duration{2000};
    milliseconds work_duration{100};
    milliseconds ready_after{0};
    std::uint64_t initial_work = 5;
    bool never_ready = false;
    bool ignore_sigterm = false;
    bool spawn_grandchild = false;
    ojs::coordinator_options coordinator;
};

ojs::error wrong(const std::string& what) {
    return {ojs::errc::invalid_argument, 0, what + "; see --help"};
}

ojs::result<void> read_duration(milliseconds& out, const std::string& text) {
    const ojs::result<milliseconds> read = ojs::parse_duration(text);
    if (!read) return read.error();
    out = *read;
    return {};
}

bool is_behavior(const std::string& name) {
    for (const char* each : {"clean", "slow-drain", "hang", "request-more", "crash"}) {
        if (name == each) return true;
    }
    return false;
}

ojs::result<void> read_value(settings& out, const std::string& name, const std::string& value) {
    if (name == "--process-id") {
        out.coordinator.process_id = value;
    } else if (name == "--port") {
        out.coordinator.address = "127.0.0.1:" + value;
    } else if (name == "--socket") {
        out.coordinator.address = "unix:" + value;
    } else if (name == "--drain-duration") {
        return read_duration(out.drain_duration, value);
    } else if (name == "--work-duration") {
        return read_duration(out.work_duration, value);
    } else if (name == "--ready-after") {
        return read_duration(out.ready_after, value);
    } else if (name == "--behavior") {
        if (!is_behavior(value)) return wrong("no such behavior: " + value);
        out.behavior = value;
    } else if (name == "--initial-work") {
        char* end = nullptr;
        out.initial_work = std::strtoul(value.c_str(), &end, 10);
        if (value.empty() || *end != '\0' || out.initial_work > 1000000)
            return wrong("not a number: " + value);
    } else {
        return wrong("unknown option " + name);
    }
    return {};
}

bool read_switch(settings& out, const std::string& name) {
    bool* const places[] = {&out.never_ready, &out.ignore_sigterm, &out.spawn_grandchild};
    const char* const names[] = {"--never-ready", "--ignore-sigterm", "--spawn-grandchild"};
    for (int i = 0; i < 3; ++i) {
        if (name != names[i]) continue;
        *places[i] = true;
        return true;
    }
    return false;
}

ojs::result<void> read_arguments(settings& out, int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::string name = argv[i];
        if (read_switch(out, name)) continue;
        const std::size_t equals = name.find('=');
        if (equals == std::string::npos && i + 1 == argc) return wrong("unknown option " + name);
        const std::string value = equals == std::string::npos ? argv[++i] : name.substr(equals + 1);
        const ojs::result<void> read = read_value(out, name.substr(0, equals), value);
        if (!read) return read;
    }
    return {};
}

void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

void start_grandchild() {
    char name[] = "sleep";
    char time[] = "600";
    char* const arguments[] = {name, time, nullptr};
    char* const environment[] = {nullptr};
    pid_t child = 0;
    if (::posix_spawnp(&child, name, nullptr, nullptr, arguments, environment) == 0) {
        say("grandchild " + std::to_string(child));
    }
}

class drain {
  public:
    drain(const settings& how, ojs::shutdown_coordinator& coordinator)
        : how_(how), coordinator_(coordinator), left_(how.initial_work) {}

    ojs::result<void> run(const ojs::cancel_token& token) {
        say("draining");
        tell_left();
        if (how_.behavior == "hang") hang();
        if (how_.behavior == "request-more") coordinator_.need_more_time(std::chrono::seconds(5));
        const bool is_slow = how_.behavior == "slow-drain" || how_.behavior == "request-more";
        const auto pieces = static_cast<std::int64_t>(left_ > 0 ? left_ : 1);
        const auto each = is_slow ? std::chrono::nanoseconds(how_.drain_duration) / pieces
                                  : std::chrono::nanoseconds(how_.work_duration);
        const auto began = ojs::steady_clock::now();
        for (std::int64_t done = 1; left_ > 0 || (is_slow && done == 1); ++done) {
            if (!token.sleep_until(began + each * done)) return not_in_time();
            if (how_.behavior == "crash") ::_exit(2);
            if (left_ > 0) --left_;
            tell_left();
        }
        if (how_.behavior == "crash") ::_exit(2);
        return {};
    }

    void tell_left() {
        ojs::shutdown_metrics now;
        now.in_flight_requests = static_cast<std::int32_t>(left_);
        coordinator_.set_metrics(now);
    }

  private:
    [[noreturn]] void hang() {
        coordinator_.blocked("waiting for nothing");
        for (;;) ::pause();
    }
    ojs::result<void> not_in_time() const {
        return ojs::error{ojs::errc::timed_out, 0,
                          "drain timeout with " + std::to_string(left_) + " in-flight"};
    }

    const settings& how_;
    ojs::shutdown_coordinator& coordinator_;
    std::uint64_t left_;
};

// Ready in its time, unless the end comes first.
void become_ready(const settings& how, ojs::shutdown_coordinator& coordinator,
                  const ojs::cancel_token& until) {
    if (how.ready_after.count() > 0 || how.never_ready) coordinator.warming();
    if (how.never_ready || !until.sleep_for(how.ready_after)) return;
    coordinator.ready();
    say("ready");
}

int work(const settings& how, ojs::lifecycle& life) {
    auto coordinator = ojs::shutdown_coordinator::start(how.coordinator, life);
    if (!coordinator) {
        std::fprintf(stderr, "lifecycle_runner: %s\n", coordinator.error().text.c_str());
        return 1;
    }
    say("listening on " + coordinator->address());
    if (how.spawn_grandchild) start_grandchild();
    drain work(how, *coordinator);
    work.tell_left();
    ojs::cancel_source ends;
    std::thread readiness([&] { become_ready(how, *coordinator, ends.token()); });
    const ojs::result<void> drained =
        coordinator->run([&](const ojs::cancel_token& token) { return work.run(token); });
    ends.cancel(ojs::cancel_reason::cancelled);
    readiness.join();
    say(drained ? "drained" : drained.error().text);
    return drained ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    settings how;
    auto options = ojs::coordinator_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    how.coordinator = *options;
    const ojs::result<void> read = read_arguments(how, argc, argv);
    if (!read) return ojs::report_usage(read.error());
    if (how.ignore_sigterm) ::signal(SIGTERM, SIG_IGN);
    ojs::lifecycle life;
    auto signals = ojs::signals::install(life);
    if (!signals) return ojs::report_usage(signals.error());
    return work(how, life);
}
