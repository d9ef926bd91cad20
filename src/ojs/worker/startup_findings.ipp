#pragma once

#include <unistd.h>

#include "../base/detail/light.hpp"
#include "../base/detail/text.hpp"
#include "../host/termination_mode.hpp"
#include "budget.hpp"
#include "startup_findings.hpp"
#include "worker_options.ipp"

extern "C" char** environ;

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr const char* probe_advice =
    "for probes, set OJS_HEALTH_ADDR=0.0.0.0:8081, and let the liveness probe ask /livez";

// ---- variables ----

// How many letters have to change to make one word of the other. Neither is longer than 64.
inline std::size_t edit_distance(std::string_view a, std::string_view b) noexcept {
    std::size_t row[65];
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = detail::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            const std::size_t longer = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = changed < longer ? changed : longer;
        }
    }
    return row[b.size()];
}

inline std::string_view nearest_variable(std::string_view name, const array<std::string>& known) noexcept {
    std::string_view nearest;
    std::size_t least = name.size() / 3 + 1;
    for (const std::string& each : known) {
        const std::size_t distance = edit_distance(name, each);
        if (distance >= least) continue;
        nearest = each;
        least = distance;
    }
    return nearest;
}

// Kubernetes sets some for every service, which may well be called "ojs".
inline bool is_of_service(std::string_view name) noexcept {
    return name.find("_SERVICE_") != std::string_view::npos || name.find("_PORT") != std::string_view::npos;
}

// `variables` as in environ(7).
inline void check_variables(const char* const* variables, std::vector<finding>& out) {
    const array<std::string> known = known_variables();
    for (; variables != nullptr && *variables != nullptr; ++variables) {
        const std::string_view all = *variables;
        const std::string_view name = all.substr(0, all.find('='));
        if (name.substr(0, 4) != "OJS_" || name.size() > 64 || is_of_service(name)) continue;
        const std::string_view nearest = nearest_variable(name, known);
        if (nearest == name) continue;
        out.push_back(
            {severity::warning, "variable-unknown",
             cat({printable(name), " is set, but no such variable is read"}),
             nearest.empty() ? "see the list of variables, or unset it" : cat({"was ", nearest, " meant?"})});
    }
}

// ---- mode file ----

// What the file says before any stop. It may be written later, so that none is no fault yet.
inline void check_mode_file(const worker_options& options, std::vector<finding>& out) {
    if (options.termination_mode_file.empty()) return;
    const termination_mode mode = read_termination_mode(options.termination_mode_file);
    const auto add = [&](severity level, const char* id, std::string_view so) {
        out.push_back({level, id, cat({mode.message, so}),
                       "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts"});
    };
    switch (mode.evidence) {
        case termination_evidence::normal: return;
        case termination_evidence::missing:
            return add(severity::info, "mode-file-missing",
                       ": without it every stop hands jobs back at once");
        case termination_evidence::reclaim:
            return add(severity::warning, "mode-file-stale", ": left over from an earlier stop?");
        case termination_evidence::unreadable: return add(severity::error, "mode-file-unreadable", "");
        case termination_evidence::other: return add(severity::warning, "mode-file-content", "");
    }
}

// What was set, and what was not, as far as that can be judged where it is.
inline void check_settings(const worker_options& options, const container_info& info,
                           const container_probe& where, std::chrono::milliseconds closing,
                           std::vector<finding>& out) {
    for (finding& each : check_budget(options, closing, info)) out.push_back(std::move(each));
    if (info.runtime == "kubernetes" && options.health_address.empty())
        out.push_back({severity::info, "health-kubernetes",
                       "no health address is set: the pod's probes would not be answered", probe_advice});
    for (const worker_part_factory& each : options.parts.factories()) {
        if (each.inspect) each.inspect(options, info, out);
    }
    if (!where.environment) check_variables(environ, out);
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::vector<finding> startup_findings(const worker_options& options,
                                                          const container_probe& where,
                                                          std::chrono::milliseconds closing) {
    std::vector<finding> out;
    const container_info info = detect_container(where);
    detail::check_settings(options, info, where, closing, out);
    std::vector<finding> more = check_pid1(info);
    detail::check_mode_file(options, more);
    for (finding& each : more) {
        if (each.severity > severity::info) out.push_back(std::move(each));
    }
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
