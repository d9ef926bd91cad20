// startup_findings: what ops() warns of when a worker starts, beside the warnings of every worker.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../host/termination_mode.hpp"
#include "../../worker/worker_options.ipp"
#include "../finding.hpp"
#include "../ops.hpp"

extern "C" char** environ;

namespace ojs::detail {
template <class Options, class Visit>
void visit_ops_options(Options& o, Visit& visit) {
    visit("address", "OJS_HEALTH_ADDR", o.address, text_kind::name);
    visit("control", "OJS_HEALTH_CONTROL", o.control, "off on");
    visit("token", "OJS_HEALTH_TOKEN", o.token, text_kind::secret);
}

// Collects the variables of the options.
struct variable_names {
    array<std::string> names;

    template <class... Row>
    void operator()(const char*, std::string_view variables, Row&&...) {
        while (!variables.empty()) names.push_back(std::string(next_part(variables, " ")));
    }
};
// The variables of a worker, a loop, and the programs of this library.
inline array<std::string> known_variables() {
    variable_names known{{"OJS_JOB_TYPES", "OJS_LIFECYCLE_ADDR", "OJS_PROCESS_ID", "OJS_LAUNCHER_ADDR",
                          "OJS_SERVER_SHUTDOWN_TIMEOUT", "OJS_SPOOL_GROUP_WRITE", "OJS_CONTROLLER_CONFIG"}};
    const worker_options unused;
    visit_options(unused, known);
    const ops_options unused_too;
    visit_ops_options(unused_too, known);
    return std::move(known.names);
}

// "variable-unknown" for each variable OJS_* that is not one of these.
inline std::vector<finding> unknown_variables(const array<std::string>& known) {
    std::vector<finding> out;
    for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        std::string_view name = *entry;
        name = next_part(name, "=");
        // Kubernetes sets some for every service, which may be named "ojs".
        bool is_known = name.find("_SERVICE_") != name.npos || name.find("_PORT") != name.npos;
        for (const std::string& each : known) is_known = is_known || each == name;
        if (starts_with(name, "OJS_") && !is_known)
            out.push_back({severity::warning, "variable-unknown",
                           cat({printable(name), " is set, but the worker does not know this variable"}),
                           "unset it, or see docs/options.md"});
    }
    return out;
}

// An operator may set an empty list.
inline std::string missing_handlers(const std::vector<std::string>& job_types) {
    const char* const listed = find_variable(nullptr, "OJS_JOB_TYPES");
    std::string out;
    for (const std::string& type : split_list(listed == nullptr ? "" : listed)) {
        if (!type.empty() && !contains(job_types, type)) append(out, {out.empty() ? "" : ",", printable(type)});
    }
    return out;
}

inline constexpr const char* mode_file_fix =
    "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts";
// Not in the words of a stop, which operators search for.
inline std::string describe_mode_file(const termination_mode& mode) {
    const bool is_old = mode.evidence == termination_evidence::reclaim;
    return cat(
        {mode.found, is_old ? " (left over from an earlier stop?)" : "", ": a stop by signal requeues jobs at once"});
}

// Thread-safe while the environment is stable.
inline std::vector<finding> startup_findings(const loop_options& options) {
    std::vector<finding> out = unknown_variables(known_variables());
    const std::string& file = options.termination_mode_file;
    const termination_mode mode = file.empty() ? termination_mode() : read_termination_mode(file);
    if (mode.is_reclaim() && !file.empty() && mode.evidence != termination_evidence::missing)
        out.push_back({severity::warning, "mode-file", describe_mode_file(mode), mode_file_fix});
    return out;
}
}  // namespace ojs::detail
