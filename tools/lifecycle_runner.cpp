// A process with a configurable behavior while a launcher stops it: to try out and test launchers. [RFC-041 "Test Runner"]
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
    R"(usage: lifecycle_runner [--process-id ID] [--port PORT | --socket PATH]
                        [options]
Without --port or --socket it uses OJS_LIFECYCLE_ADDR, OJS_PROCESS_ID and
OJS_LAUNCHER_ADDR, as set by a launcher.
  --behavior clean         finish the work and exit (default)
             slow-drain    drain for --drain-duration and exit
             hang          exit only on SIGKILL
             request-more  as slow-drain, but request 5 s more
             crash         exit with status 2 in the middle of the drain
  --initial-work N         requests in flight (5), each of --work-duration
                           (100ms)
  --drain-duration TIME    (2s)
  --ready-after TIME       stay WARMING for TIME
  --never-ready            stay WARMING forever
  --ignore-sigterm         ignore SIGTERM
  --spawn-grandchild       start a process in the same process group and leave
                           it running
Exit status:
  0   drained
  1   not drained in time
  2   crashed
  64  wrong options
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

ojs::error usage_error(const std::string& problem) {
    return {ojs::errc::invalid_argument, 0, problem + "; see --help"};
}

ojs::result<void> read_duration(milliseconds& out, const std::string& text) {
    const ojs::result<milliseconds> read = ojs::parse_duration(text);
    if (!read) return read.error();
    out = *read;
    return {};
}

bool is_behavior(const std::string& name) {
    for (const char* known : {"clean", "slow-drain", "hang", "request-more", "crash"}) {
        if (name == known) return true;
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
        if (!is_behavior(value)) return usage_error("unknown behavior: " + value);
        out.behavior = value;
    } else if (name == "--initial-work") {
        char* end = nullptr;
        out.initial_work = std::strtoul(value.c_str(), &end, 10);
        if (value.empty() || *end != '\0' || out.initial_work > 1000000) return usage_error("not a number: " + value);
    } else {
        return usage_error("unknown option " + name);
    }
    return {};
}

bool read_switch(settings& out, const std::string& name) {
    bool* const values[] = {&out.never_ready, &out.ignore_sigterm, &out.spawn_grandchild};
    const char* const names[] = {"--never-ready", "--ignore-sigterm", "--spawn-grandchild"};
    for (int i = 0; i < 3; ++i) {
        if (name != names[i]) continue;
        *values[i] = true;
        return true;
    }
    return false;
}

ojs::result<void> read_arguments(settings& out, int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::string name = argv[i];
        if (read_switch(out, name)) continue;
        const std::size_t equals = name.find('=');
        if (equals == std::string::npos && i + 1 == argc) return usage_error("unknown option " + name);
        const std::string value = equals == std::string::npos ? argv[++i] : name.substr(equals + 1);
        const ojs::result<void> read = read_value(out, name.substr(0, equals), value);
        if (!read) return read;
    }
    return {};
}

void print_line(const std::string& line) {
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
        print_line("grandchild " + std::to_string(child));
    }
}

class drain {
  public:
    drain(const settings& options, ojs::shutdown_coordinator& coordinator)
        : options_(options), coordinator_(coordinator), remaining_(options.initial_work) {}

    ojs::result<void> run(const ojs::cancel_token& token) {
        print_line("draining");
        report_remaining();
        if (options_.behavior == "hang") hang();
        if (options_.behavior == "request-more") coordinator_.need_more_time(std::chrono::seconds(5));
        const bool is_slow = this->is_slow();
        const auto count = static_cast<std::int64_t>(remaining_ > 0 ? remaining_ : 1);
        const auto duration = is_slow ? std::chrono::nanoseconds(options_.drain_duration) / count
                                      : std::chrono::nanoseconds(options_.work_duration);
        const auto started_at = ojs::steady_clock::now();
        for (std::int64_t done = 1; remaining_ > 0 || (is_slow && done == 1); ++done) {
            if (!token.sleep_until(started_at + duration * done)) return timeout_error();
            if (options_.behavior == "crash") ::_exit(2);
            if (remaining_ > 0) --remaining_;
            report_remaining();
        }
        if (options_.behavior == "crash") ::_exit(2);
        return {};
    }

    std::chrono::seconds estimate() const {
        const milliseconds time =
            is_slow() ? options_.drain_duration : options_.work_duration * static_cast<std::int64_t>(remaining_);
        return std::chrono::ceil<std::chrono::seconds>(time);
    }
    void report_remaining() {
        ojs::shutdown_metrics metrics;
        metrics.in_flight_requests = static_cast<std::int32_t>(remaining_);
        coordinator_.set_metrics(metrics);
    }

  private:
    [[noreturn]] void hang() {
        coordinator_.report_blocked("waiting for nothing");
        for (;;) ::pause();
    }
    bool is_slow() const { return options_.behavior == "slow-drain" || options_.behavior == "request-more"; }
    ojs::result<void> timeout_error() const {
        return ojs::error{ojs::errc::timed_out, 0, "drain timeout with " + std::to_string(remaining_) + " in-flight"};
    }

    const settings& options_;
    ojs::shutdown_coordinator& coordinator_;
    std::uint64_t remaining_;
};

// Reports ready after `ready_after`, unless cancelled first.
void become_ready(const settings& options, ojs::shutdown_coordinator& coordinator, const ojs::cancel_token& token) {
    if (options.ready_after.count() > 0 || options.never_ready) coordinator.report_warming();
    if (options.never_ready || !token.sleep_for(options.ready_after)) return;
    coordinator.report_ready();
    print_line("ready");
}

int work(const settings& options, ojs::lifecycle& life) {
    auto coordinator = ojs::shutdown_coordinator::start(options.coordinator, life);
    if (!coordinator) {
        std::fprintf(stderr, "lifecycle_runner: %s\n", coordinator.error().text.c_str());
        return 1;
    }
    print_line("listening on " + coordinator->address());
    if (options.spawn_grandchild) start_grandchild();
    drain draining(options, *coordinator);
    draining.report_remaining();
    coordinator->set_estimate(draining.estimate());
    ojs::cancel_source stop;
    std::thread readiness([&] { become_ready(options, *coordinator, stop.token()); });
    const ojs::result<void> drained =
        coordinator->run([&](const ojs::cancel_token& token) { return draining.run(token); });
    stop.cancel(ojs::cancel_reason::cancelled);
    readiness.join();
    print_line(drained ? "drained" : drained.error().text);
    return drained ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    settings options;
    auto coordinator = ojs::coordinator_options::from_environment();
    if (!coordinator) return ojs::report_startup_error(coordinator.error());
    options.coordinator = *coordinator;
    const ojs::result<void> read = read_arguments(options, argc, argv);
    if (!read) return ojs::report_startup_error(read.error());
    if (options.ignore_sigterm) ::signal(SIGTERM, SIG_IGN);
    ojs::lifecycle life;
    auto signals = ojs::signals::install(life);
    if (!signals) return ojs::report_startup_error(signals.error());
    return work(options, life);
}
