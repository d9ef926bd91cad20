#pragma once

#include <unistd.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../../host/termination_mode.hpp"
#include "../worker_options.ipp"
#include "startup_findings.hpp"

extern "C" char** environ;

namespace ojs::detail {

// The parts of stop_timeout: first for the last heartbeat, then for reporting cancelled handlers.
inline std::chrono::milliseconds last_beat_time(std::chrono::milliseconds stop_timeout) noexcept {
    return detail::min(stop_timeout / 5, std::chrono::milliseconds(500));
}
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return detail::min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}

// Counts negative values as 0 and returns the maximum instead of overflowing.
inline std::chrono::milliseconds capped_sum(std::chrono::milliseconds a,
                                            std::chrono::milliseconds b) noexcept {
    constexpr auto none = std::chrono::milliseconds::zero();
    a = detail::max(a, none);
    b = detail::max(b, none);
    return a > no_limit - b ? no_limit : a + b;
}

inline std::chrono::milliseconds after_drain(const worker_options& options,
                                             std::chrono::milliseconds steps_timeout,
                                             std::chrono::milliseconds min) noexcept {
    return detail::max(min, capped_sum(options.times.stop_timeout, steps_timeout));
}

// The drain and what follows it must fit into the time from SIGTERM to SIGKILL. doctor() says more. [GS 6.3]
inline void check_stop_time(const worker_options& options, const stop_platform* platform,
                            std::chrono::milliseconds steps_timeout, std::vector<finding>& out) {
    const bool is_known = options.container_grace_period.count() > 0;
    if (!is_known && platform == nullptr) return;
    const auto granted = is_known ? options.container_grace_period : platform->grant;
    const auto drain = capped_sum(options.times.shutdown_grace_period, options.prestop_delay);
    const auto tail = after_drain(options, steps_timeout, std::chrono::seconds(5));
    if (drain < granted && capped_sum(drain, tail) <= granted) return;
    const std::string grace = drain == no_limit ? "no limit" : format_duration(drain);
    out.push_back({severity::warning,
                   !is_known          ? "budget-unknown"
                   : drain >= granted ? "budget-exceeded"
                                      : "budget-tight",
                   cat({"the drain (", grace, ") and the reports after it (", format_duration(tail),
                        ") need more than the ", format_duration(granted), " that ",
                        is_known ? "the container grants" : cat({platform->name, " grants by default"})}),
                   drain == no_limit
                       ? "set OJS_SHUTDOWN_GRACE_PERIOD"
                       : cat({"raise that time to ",
                              format_duration(capped_sum(
                                  drain, after_drain(options, steps_timeout, std::chrono::seconds(10)))),
                              " and set OJS_CONTAINER_GRACE_PERIOD to the same, or lower "
                              "OJS_SHUTDOWN_GRACE_PERIOD"})});
}

// Calls take(name, known names) for each variable OJS_* that is not one of a worker.
template <class Take>
void for_each_unknown_variable(Take take) {
    known_variables known;
    const worker_options unused;
    visit_options(unused, known);
    for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        std::string_view name = *entry;
        name = next_part(name, "=");
        // Kubernetes sets some for every service, which may be named "ojs".
        bool is_known = name.find("_SERVICE_") != name.npos || name.find("_PORT") != name.npos;
        for (const std::string& each : known.names) is_known = is_known || each == name;
        if (name.substr(0, 4) == "OJS_" && !is_known) take(name, known.names);
    }
}
inline finding unknown_variable(std::string_view name) {
    return {severity::warning, "variable-unknown",
            cat({printable(name), " is set, but the worker reads no such variable"}),
            "unset it, or see docs/options.md"};
}

inline constexpr const char* mode_file_fix =
    "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts";
// Not in the words of a stop, which operators search for.
inline std::string describe_mode_file(const termination_mode& mode) {
    const bool is_old = mode.evidence == termination_evidence::reclaim;
    return cat({mode.found, is_old ? " (left over from an earlier stop?)" : "",
                ": a stop by signal hands jobs back at once"});
}

// From a terminal, and not by a supervisor or a platform that adapts, which runs no such processes.
inline bool is_started_by_hand(const container_probe& probe, const container_info& info) {
    return info.in_container && info.supervisor.empty() && !find_platform(info)->adapts_grace_period &&
           read_stat(probe.root, "self").has_terminal;
}

OJS_SHUTDOWN_INLINE std::vector<finding> startup_findings(const worker_options& options,
                                                          const container_probe& probe,
                                                          std::chrono::milliseconds steps_timeout) {
    std::vector<finding> out;
    const container_info info = detect_container(probe);
    const bool by_hand = is_started_by_hand(probe, info);
    check_stop_time(options, by_hand ? nullptr : find_platform(info), steps_timeout, out);
    if (by_hand)
        out.push_back({severity::info, "started-by-hand",
                       "started by hand in a container, whose own command is not checked",
                       "for its findings, run it with --doctor, or call ojs::doctor()"});
    for (const finding& found : info.findings) {
        if (!by_hand) out.push_back(found);
    }
    for (const worker_part_factory& factory : options.parts) {
        if (factory.inspect) factory.inspect(options, info, out);
    }
    const std::string& file = options.termination_mode_file;
    const termination_mode mode = file.empty() ? termination_mode() : read_termination_mode(file);
    if (mode.is_reclaim() && mode.evidence != termination_evidence::missing)  // it may be written later
        out.push_back({severity::warning, "mode-file", describe_mode_file(mode), mode_file_fix});
    if (!probe.environment)
        for_each_unknown_variable(
            [&](std::string_view name, const array<std::string>&) { out.push_back(unknown_variable(name)); });
    return out;
}

}  // namespace ojs::detail
