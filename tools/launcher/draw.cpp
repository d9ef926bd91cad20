// The text of groups, processes and changes.
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "client.hpp"

namespace launcher_program {
namespace {
const char* colour_of(ojs::instance_state state) {
    if (state == ojs::instance_state::ready) return "\033[32m";
    if (state == ojs::instance_state::complete) return "\033[2m";
    const bool failed = state == ojs::instance_state::unhealthy || state == ojs::instance_state::forced ||
                        state == ojs::instance_state::crashed;
    return failed ? "\033[31m" : "\033[33m";
}

std::string padded(std::string text, std::size_t width) {
    if (text.size() < width) text.resize(width, ' ');
    return text;
}

std::string uptime(std::int64_t ms) {
    return ojs::format_duration(std::chrono::milliseconds(ms < 1000 ? ms : ms - ms % 1000));
}

// Longer lines would wrap and shift the rest of the screen.
std::string cut_to_terminal(const std::string& text) {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const std::size_t width = known ? size.ws_col : 80U;
    std::string out;
    std::size_t column = 0;
    bool in_escape = false;
    for (const char c : text) {
        if (c == '\033') in_escape = true;
        if (c == '\n') column = 0;
        const bool counts = !in_escape && c != '\n' && (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
        if (counts) ++column;
        if (!counts || column <= width) out += c;
        if (in_escape && c == 'm') in_escape = false;
    }
    return out;
}

// Overwrites the screen, which does not flicker.
std::string in_place(const std::string& text) {
    std::string out = "\033[H";
    for (const char c : text) out += c == '\n' ? "\033[K\n" : std::string(1, c);
    return out + "\033[J";
}

void write_out(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

std::string draw_all(const std::vector<ojs::group_status>& groups, bool coloured) {
    std::string out;
    for (const ojs::group_status& each : groups) out += draw(each, false, coloured);
    return out;
}
}  // namespace

std::string shown(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (static_cast<unsigned char>(c) < 0x20 || c == '\x7f') c = '?';
    }
    return out;
}

std::string in_flight(const ojs::shutdown_metrics& of) {
    std::string out;
    const auto add = [&](std::int64_t count, const char* what) {
        if (count > 0) out += (out.empty() ? "" : ", ") + std::to_string(count) + what;
    };
    add(of.in_flight_requests, " in flight");
    add(of.open_connections, " connections");
    add(of.buffered_bytes, " bytes buffered");
    for (const std::string& each : of.blocking_operations) out += (out.empty() ? "waits: " : ", waits: ") + shown(each);
    return out;
}

std::string draw(const ojs::process_status& of, bool coloured) {
    std::string out = "  " + padded(shown(of.process_id), 14) + " ";
    if (coloured) out += colour_of(of.state);
    out += padded(ojs::to_string(of.state), 18);
    if (coloured) out += "\033[0m";
    out += " " + padded("pid " + std::to_string(of.pid), 11) + " " + padded("up " + uptime(of.uptime_ms), 12);
    const std::string more = of.exit.empty() ? in_flight(of.shutdown.metrics) : shown(of.exit);
    if (!more.empty()) out += " " + more;
    if (!of.message.empty() && of.message != of.exit) out += " (" + shown(of.message) + ")";
    out.resize(out.find_last_not_of(' ') + 1);
    return out + "\n";
}

namespace {
// "1 of 3, PAUSING, retries: 2, failed: kv-4 was not ready within 30s".
std::string progress_of(const ojs::rollout_status& of) {
    std::string out = std::to_string(of.replaced) + " of " + std::to_string(of.total) + ", " + to_string(of.phase);
    if (of.retries > 0) out += ", retries: " + std::to_string(of.retries);
    if (of.cancelling) out += ", cancelling";
    if (!of.error.empty()) out += ", failed: " + shown(of.failed_id) + " " + shown(of.error);
    return out;
}
}  // namespace

std::string draw(const ojs::group_status& of, bool all, bool coloured) {
    std::string out = shown(of.group) + "  ready " + std::to_string(of.ready) + " of " + std::to_string(of.desired) +
                      ", min " + std::to_string(of.min_healthy);
    if (of.replacing) out += "  replacing: " + progress_of(of.rollout);
    if (of.quiet) out += "  QUIET: starts, replaces and kills no process";
    if (of.degraded) out += "  DEGRADED: a slot is empty";
    if (!of.message.empty()) out += "  (last rollout: " + shown(of.message) + ")";
    out += "\n";
    for (const ojs::process_status& each : of.processes) {
        if (all || each.exit.empty()) out += draw(each, coloured);
    }
    return out;
}

std::string line_of(const event& of) {
    std::string out = of.time.size() > 19 ? of.time.substr(11, 8) : of.time;
    out += " " + padded(shown(of.process_id.empty() ? of.group : of.process_id), 14) + " ";
    if (of.missed) return out + "older changes are lost\n";
    if (of.what.empty()) {
        out += of.before == of.state ? shown(of.state) : shown(of.before) + " -> " + shown(of.state);
    } else {
        out += shown(of.what) + (of.result.empty() ? "" : ": " + shown(of.result));
    }
    if (!of.message.empty()) out += " (" + shown(of.message) + ")";
    return out + "\n";
}

int watch(admin_peer& peer) {
    const bool draws = ::isatty(STDOUT_FILENO) == 1;
    const bool coloured = draws && ::getenv("NO_COLOR") == nullptr;
    const ojs::result<std::vector<event>> begun = peer.events(std::chrono::seconds(0));
    if (!begun) return report(begun.error());
    for (bool first = true;; first = false) {
        if (first || draws) {
            const ojs::result<std::vector<ojs::group_status>> groups = ask_groups(peer);
            if (!groups) return first ? report(groups.error()) : (write_out("the launcher has ended\n"), 0);
            const std::string all = draw_all(*groups, coloured);
            write_out(draws ? (first ? "\033[2J" : "") + in_place(cut_to_terminal(all)) : all);
        }
        const ojs::result<std::vector<event>> more = peer.events(std::chrono::seconds(draws ? 1 : 10));
        if (!more) return write_out("the launcher has ended\n"), 0;
        for (const event& each : *more) {
            if (!draws) write_out(line_of(each));
        }
    }
}
}  // namespace launcher_program
