// A launcher, and the tool that administrates it: `launcher --help`.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "launcher.hpp"

namespace launcher_program {
namespace {

constexpr const char* usage =
    "usage: launcher run --config FILE [--admin ADDRESS] [--token-file FILE] [--status-page FILE]\n"
    "       launcher status [ID|GROUP]\n"
    "       launcher stop ID|GROUP [--force] [--reason TEXT] [--no-wait]\n"
    "       launcher roll GROUP [--canary N] [--canary-time TIME] [--retry POLICY] [--retries N]\n"
    "                           [--reason TEXT] [--no-wait]\n"
    "       launcher cancel GROUP [--reason TEXT] [--no-wait]\n"
    "       launcher dry-run ID|GROUP\n"
    "       launcher watch\n"
    "Keeps groups of processes running, and is asked about them.\n"
    "\n"
    "  run      keeps the groups of the configuration until SIGTERM, which its processes get first\n"
    "  status   all groups, one of them, or one process\n"
    "  stop     asks a process, or all of a group, to shut down; it is not restarted\n"
    "  roll     replaces a group, a few at a time, by its configuration as the file has it now\n"
    "  cancel   lets a roll go no further: what was replaced stays, and so does what was not\n"
    "  dry-run  what a stop, or of a group a roll, would drain, and what that has in hand\n"
    "  watch    groups and phases as they change: drawn in a terminal, else a line for each change\n"
    "\n"
    "  --config FILE       JSON, see read_launcher_config() in ojs_shutdown.hpp\n"
    "  --admin ADDRESS     unix:/PATH or HOST:PORT; else, for run, what the file has; else $LAUNCHER_ADMIN,\n"
    "                      else ojs-launcher.sock in $XDG_RUNTIME_DIR, or for root in /run\n"
    "  --token-file FILE   one line, the token that an operator must know; needed where other machines can "
    "connect\n"
    "  --force             nothing is drained: SIGTERM now, SIGKILL after the group's kill_delay\n"
    "  --status-page FILE  what a browser is shown at http://ADDRESS/: tools/launcher/status.html\n"
    "  --canary N          so many first, then a wait of --canary-time (10s) in which they must stay ready\n"
    "  --retry POLICY      where a new process does not become ready: manual (it is rolled back), immediate "
    "or\n"
    "                      backoff (another is tried, at most --retries times); else as the file has it\n"
    "  --reason TEXT       for the logs\n"
    "  --no-wait           returns when it has begun, not when it has ended\n"
    "run logs as OJS_LOG_LEVEL (info) and OJS_LOG_FORMAT say, which its processes have as well.\n"
    "Exit status: 0 done; 1 refused, or it ended otherwise (forced without --force, rolled back, cancelled\n"
    "by another); 64 a wrong flag or value; 69 no launcher answers. Of run: 0 every process has ended, 75 "
    "one\n"
    "could not be ended.\n";

ojs::error wrong(const std::string& what) {
    return {ojs::errc::invalid_argument, 0, what + "; see launcher --help"};
}

struct command_form {
    const char* name;
    std::size_t least;
    std::size_t most;
    const char* operand;
};
constexpr command_form commands[] = {
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
        const ojs::result<std::chrono::milliseconds> read = ojs::parse_duration(value);
        if (!read) return wrong("--canary-time: " + read.error().text);
        out.canary_time = *read;
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

ojs::result<void> check_flags(const settings& how) {
    const bool rolls = how.command == "roll";
    if (!rolls && how.canary > 0) return wrong("--canary is for roll");
    if (!rolls && how.canary_time.count() > 0) return wrong("--canary-time is for roll");
    if (!rolls && how.retry != ojs::retry_policy::as_configured) return wrong("--retry is for roll");
    if (!rolls && how.retries > 0) return wrong("--retries is for roll");
    if (how.canary == 0 && how.canary_time.count() > 0) return wrong("--canary-time needs --canary N");
    if (how.retry == ojs::retry_policy::manual && how.retries > 0)
        return wrong("--retries: with --retry manual there are none");
    if (how.force && how.command != "stop") return wrong("--force is for stop");
    const bool changes = rolls || how.command == "stop" || how.command == "cancel";
    if (!changes && !how.reason.empty()) return wrong("--reason is for stop, roll and cancel");
    if (!changes && !how.wait) return wrong("--no-wait is for stop, roll and cancel");
    return {};
}

ojs::result<void> check(const settings& how) {
    if (how.command.empty()) return wrong("no command");
    for (const command_form& each : commands) {
        if (how.command != each.name) continue;
        if (how.operands.size() < each.least)
            return wrong(how.command + " needs an operand: " + each.operand);
        if (how.operands.size() > each.most) return wrong("too many operands: " + how.operands[each.most]);
        const bool runs = how.command == "run";
        if (runs && how.config.empty()) return wrong("run needs --config FILE");
        if (!runs && !how.config.empty()) return wrong("--config is for run; the launcher has read it");
        if (!runs && !how.status_page.empty()) return wrong("--status-page is for run");
        return check_flags(how);
    }
    return wrong("no such command: " + how.command);
}

int run_program(int argc, char** argv) {
    settings how;
    ojs::result<void> read = read_arguments(how, argc, argv);
    if (read) read = check(how);
    if (!read) return ojs::report_usage(read.error());
    if (how.command == "run") return run_launcher(how);
    if (how.admin.empty()) {
        const ojs::result<std::string> address = default_address();
        if (!address) return ojs::report_usage(address.error());
        how.admin = *address;
    }
    return run_client(how);
}

}  // namespace

ojs::result<std::string> default_address() {
    if (const char* const given = ::getenv("LAUNCHER_ADMIN")) {
        if (*given != '\0') return std::string(given);
    }
    const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && *runtime == '/') return std::string("unix:") + runtime + "/ojs-launcher.sock";
    if (::geteuid() == 0) return std::string("unix:/run/ojs-launcher.sock");
    return wrong("where is the launcher? Say --admin ADDRESS, or set LAUNCHER_ADMIN or XDG_RUNTIME_DIR");
}

}  // namespace launcher_program

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(launcher_program::usage, stdout);
        return 0;
    }
    return launcher_program::run_program(argc, argv);
}
