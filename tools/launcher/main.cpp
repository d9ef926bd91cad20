// The launcher daemon and its command-line client: `launcher --help`.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "launcher.hpp"

namespace launcher_program {
namespace {
constexpr const char* usage =
    R"(usage: launcher run --config FILE [--admin ADDRESS] [--token-file FILE]
                    [--status-page FILE]
       launcher status [ID|GROUP]
       launcher stop ID|GROUP [--grace TIME] [--max TIME | --force]
                     [--reason TEXT] [--no-wait]
       launcher roll GROUP [--canary N] [--canary-time TIME] [--retry POLICY]
                           [--retries N] [--reason TEXT] [--no-wait]
       launcher cancel GROUP [--reason TEXT] [--no-wait]
       launcher dry-run ID|GROUP
       launcher watch
Runs and supervises groups of processes, and controls a running launcher.

  run      runs the groups of the configuration until SIGTERM, then shuts them
           down
  status   shows all groups, one group, or one process
  stop     shuts down a process or a group; it is not restarted
  roll     starts a rollout: replaces the processes of a group, step by step,
           with those of the current file
  cancel   cancels a rollout; ready processes are kept, up to the group's size
  dry-run  shows what stop ID or roll GROUP would drain, with the work in flight
  watch    shows changes as they happen: a screen in a terminal, else one line
           per change

  --config FILE       JSON, see read_launcher_config() in ojs_launcher.hpp
  --admin ADDRESS     unix:/PATH or HOST:PORT. Default: "admin" of FILE (run
                      only), $LAUNCHER_ADMIN, or ojs-launcher.sock in
                      $XDG_RUNTIME_DIR, for root in /run
  --token-file FILE   one line, the admin token; required if other machines can
                      connect
  --grace TIME        time until the process must request more
  --max TIME          time until the process is forced
                      Both: whole seconds, rounded up; granted up to the group's
                      max_duration. Default: the group's
  --force             skips the drain: SIGTERM now, SIGKILL after the group's
                      kill_delay
  --status-page FILE  HTML served at http://ADDRESS/, such as
                      tools/launcher/status.html
  --canary N          replaces N processes first; they must stay ready for
                      --canary-time (10s)
  --retry POLICY      if a new process does not become ready: manual (roll
                      back), immediate or backoff (start another, at most
                      --retries times). Default: as configured
  --reason TEXT       for the logs
  --no-wait           returns when the command has started, not when it has
                      ended
OJS_LOG_LEVEL (info) and OJS_LOG_FORMAT set the log of run; its processes
inherit them.
Exit status of run:
  0   every process has exited
  64  invalid usage or configuration
  75  a process could not be stopped
  128+N  the third stop signal, N, ended it
Exit status of the other commands:
  0   done
  1   refused, or another end: forced without --force, rolled back, cancelled by
      someone else
  64  invalid usage
  69  no launcher responds
)";

ojs::error wrong(const std::string& what) { return {ojs::errc::invalid_argument, 0, what + "; see launcher --help"}; }

struct command_usage {
    const char* name;
    std::size_t min_operands;
    std::size_t max_operands;
    const char* operand;
};
constexpr command_usage commands[] = {
    {"run", 0, 0, ""},       {"status", 0, 1, "ID or GROUP"}, {"stop", 1, 1, "ID or GROUP"},
    {"roll", 1, 1, "GROUP"}, {"cancel", 1, 1, "GROUP"},       {"dry-run", 1, 1, "ID or GROUP"},
    {"watch", 0, 0, ""}};

ojs::result<void> read_count(int& out, const std::string& name, const std::string& value) {
    char* end = nullptr;
    const long number = std::strtol(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || number < 1 || number > 1000000)
        return wrong(name + " takes a number from 1, not '" + value + "'");
    out = static_cast<int>(number);
    return {};
}

ojs::result<void> read_time(std::chrono::milliseconds& out, const std::string& name, const std::string& value) {
    const ojs::result<std::chrono::milliseconds> read = ojs::parse_duration(value);
    if (!read) return wrong(name + ": " + read.error().text);
    if (*read > std::chrono::hours(24)) return wrong(name + ": longer than a day");
    out = *read;
    return {};
}

ojs::result<void> read_retry(ojs::retry_policy& out, const std::string& value) {
    if (value == "manual") return out = ojs::retry_policy::manual, ojs::result<void>();
    if (value == "immediate") return out = ojs::retry_policy::immediate, ojs::result<void>();
    if (value == "backoff") return out = ojs::retry_policy::backoff, ojs::result<void>();
    return wrong("--retry takes manual, immediate or backoff, not '" + value + "'");
}

ojs::result<void> read_flag(settings& out, const std::string& name, const std::string& value) {
    if (name == "--config") {
        out.config = value;
    } else if (name == "--admin") {
        out.admin = value;
    } else if (name == "--token-file") {
        out.token_file = value;
    } else if (name == "--status-page") {
        out.status_page = value;
    } else if (name == "--reason") {
        out.reason = value;
    } else if (name == "--canary") {
        const ojs::result<void> read = read_count(out.canary, name, value);
        if (!read) return read;
        if (out.canary_time.count() == 0) out.canary_time = std::chrono::seconds(10);
    } else if (name == "--retry") {
        return read_retry(out.retry, value);
    } else if (name == "--retries") {
        return read_count(out.retries, name, value);
    } else if (name == "--canary-time") {
        return read_time(out.canary_time, name, value);
    } else if (name == "--grace") {
        return read_time(out.grace, name, value);
    } else if (name == "--max") {
        return read_time(out.max, name, value);
    } else {
        return wrong("unknown flag " + name);
    }
    return {};
}

ojs::result<void> read_arguments(settings& out, int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--no-wait") {
            out.wait = false;
        } else if (word == "--force") {
            out.force = true;
        } else if (word.compare(0, 8, "--force=") == 0 || word.compare(0, 10, "--no-wait=") == 0) {
            return wrong(word.substr(0, word.find('=')) + " takes no value");
        } else if (word.compare(0, 2, "--") == 0) {
            const std::size_t equals = word.find('=');
            if (equals == std::string::npos && i + 1 == argc) return wrong(word + " needs a value");
            const std::string value = equals == std::string::npos ? argv[++i] : word.substr(equals + 1);
            const ojs::result<void> read = read_flag(out, word.substr(0, equals), value);
            if (!read) return read;
        } else if (out.command.empty()) {
            out.command = word;
        } else {
            out.operands.push_back(word);
        }
    }
    return {};
}

ojs::result<void> check_flags(const settings& given) {
    const bool rolls = given.command == "roll";
    if (!rolls && given.canary > 0) return wrong("--canary is for roll");
    if (!rolls && given.canary_time.count() > 0) return wrong("--canary-time is for roll");
    if (!rolls && given.retry != ojs::retry_policy::as_configured) return wrong("--retry is for roll");
    if (!rolls && given.retries > 0) return wrong("--retries is for roll");
    if (given.canary == 0 && given.canary_time.count() > 0) return wrong("--canary-time needs --canary N");
    if (given.retry == ojs::retry_policy::manual && given.retries > 0)
        return wrong("--retries: not allowed with --retry manual");
    const bool has_times = given.grace.count() > 0 || given.max.count() > 0;
    if (given.force && given.command != "stop") return wrong("--force is for stop");
    if (has_times && given.command != "stop") return wrong("--grace and --max are for stop");
    if (has_times && given.force) return wrong("--force does not drain: no --grace and no --max");
    const bool changes = rolls || given.command == "stop" || given.command == "cancel";
    if (!changes && !given.reason.empty()) return wrong("--reason is for stop, roll and cancel");
    if (!changes && !given.wait) return wrong("--no-wait is for stop, roll and cancel");
    return {};
}

ojs::result<void> check(const settings& given) {
    if (given.command.empty()) return wrong("no command");
    for (const command_usage& known : commands) {
        if (given.command != known.name) continue;
        if (given.operands.size() < known.min_operands)
            return wrong(given.command + " needs an operand: " + known.operand);
        if (given.operands.size() > known.max_operands)
            return wrong("too many operands: " + given.operands[known.max_operands]);
        const bool runs = given.command == "run";
        if (runs && given.config.empty()) return wrong("run needs --config FILE");
        if (!runs && !given.config.empty()) return wrong("--config is for run; the launcher has read it");
        if (!runs && !given.status_page.empty()) return wrong("--status-page is for run");
        return check_flags(given);
    }
    return wrong("no such command: " + given.command);
}

int run_program(int argc, char** argv) {
    settings given;
    ojs::result<void> read = read_arguments(given, argc, argv);
    if (read) read = check(given);
    if (!read) return ojs::report_startup_error(read.error());
    if (given.command == "run") return run_launcher(given);
    if (given.admin.empty()) {
        const ojs::result<std::string> address = default_address();
        if (!address) return ojs::report_startup_error(address.error());
        given.admin = *address;
    }
    return run_client(given);
}
}  // namespace

ojs::result<std::string> default_address() {
    if (const char* const given = ::getenv("LAUNCHER_ADMIN")) {
        if (*given != '\0') return std::string(given);
    }
    const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && *runtime == '/') return std::string("unix:") + runtime + "/ojs-launcher.sock";
    if (::geteuid() == 0) return std::string("unix:/run/ojs-launcher.sock");
    return wrong("no launcher address: set --admin ADDRESS, LAUNCHER_ADMIN or XDG_RUNTIME_DIR");
}
}  // namespace launcher_program

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(launcher_program::usage, stdout);
        return 0;
    }
    return launcher_program::run_program(argc, argv);
}
