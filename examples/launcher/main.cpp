// A launcher, and the tool that administrates it: `launcher --help`.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "launcher.hpp"

namespace launcher_program {
namespace {

constexpr const char* usage =
    "usage: launcher run --config FILE [--admin ADDRESS] [--token-file FILE]\n"
    "       launcher status [ID|GROUP]\n"
    "       launcher stop ID|GROUP [--reason TEXT] [--no-wait]\n"
    "       launcher roll GROUP [--canary N] [--canary-time TIME] [--reason TEXT] [--no-wait]\n"
    "       launcher dry-run ID|GROUP\n"
    "       launcher watch\n"
    "Keeps groups of processes running, and is asked about them.\n"
    "\n"
    "  run      keeps the groups of the configuration until SIGTERM, which its processes get first\n"
    "  status   all groups, one of them, or one process\n"
    "  stop     asks a process, or all of a group, to shut down; it is not restarted\n"
    "  roll     replaces a group, a few at a time, by its configuration as the file has it now\n"
    "  dry-run  what a stop, or of a group a roll, would drain, and what that has in hand\n"
    "  watch    groups and phases as they change: drawn in a terminal, else a line for each change\n"
    "\n"
    "  --config FILE       JSON, see read_launcher_config() in ojs_shutdown.hpp\n"
    "  --admin ADDRESS     unix:/PATH or HOST:PORT; else $LAUNCHER_ADMIN, else ojs-launcher.sock in\n"
    "                      $XDG_RUNTIME_DIR, or for root in /run\n"
    "  --token-file FILE   one line, the token that an operator must know; needed where other machines can "
    "connect\n"
    "  --canary N          so many first, then a wait of --canary-time (10s) in which they must stay ready\n"
    "  --reason TEXT       for the logs\n"
    "  --no-wait           returns when it has begun, not when it has ended\n"
    "Exit status: 0 done; 1 refused, or it ended otherwise (forced, rolled back); 64 a wrong flag or value; "
    "69 no\n"
    "launcher answers. Of run: 0 every process has ended, 75 one could not be ended.\n";

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
    {"run", 0, 0, ""},       {"status", 0, 1, "ID or GROUP"},  {"stop", 1, 1, "ID or GROUP"},
    {"roll", 1, 1, "GROUP"}, {"dry-run", 1, 1, "ID or GROUP"}, {"watch", 0, 0, ""}};

ojs::result<void> read_flag(settings& out, const std::string& name, const std::string& value) {
    if (name == "--config") {
        out.config = value;
    } else if (name == "--admin") {
        out.admin = value;
    } else if (name == "--token-file") {
        out.token_file = value;
    } else if (name == "--reason") {
        out.reason = value;
    } else if (name == "--canary") {
        char* end = nullptr;
        const long number = std::strtol(value.c_str(), &end, 10);
        if (value.empty() || *end != '\0' || number < 1 || number > 1000000)
            return wrong("--canary takes a number from 1, not '" + value + "'");
        out.canary = static_cast<int>(number);
        if (out.canary_time.count() == 0) out.canary_time = std::chrono::seconds(10);
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
        if (how.canary > 0 && how.command != "roll") return wrong("--canary is for roll");
        return {};
    }
    return wrong("no such command: " + how.command);
}

ojs::result<std::string> default_address() {
    if (const char* const given = ::getenv("LAUNCHER_ADMIN")) {
        if (*given != '\0') return std::string(given);
    }
    const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && *runtime == '/') return std::string("unix:") + runtime + "/ojs-launcher.sock";
    if (::geteuid() == 0) return std::string("unix:/run/ojs-launcher.sock");
    return wrong("where is the launcher? Say --admin ADDRESS, or set LAUNCHER_ADMIN or XDG_RUNTIME_DIR");
}

int run_program(int argc, char** argv) {
    settings how;
    ojs::result<void> read = read_arguments(how, argc, argv);
    if (read) read = check(how);
    if (!read) return ojs::report_usage(read.error());
    if (how.admin.empty()) {
        const ojs::result<std::string> address = default_address();
        if (!address) return ojs::report_usage(address.error());
        how.admin = *address;
    }
    return how.command == "run" ? run_launcher(how) : run_client(how);
}

}  // namespace
}  // namespace launcher_program

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(launcher_program::usage, stdout);
        return 0;
    }
    return launcher_program::run_program(argc, argv);
}
