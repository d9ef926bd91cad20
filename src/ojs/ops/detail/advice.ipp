// advice: the settings of a stop, and what an unknown variable or URL was probably meant to be.
#pragma once

#include "../../stop/detail/stop_phase.ipp"
#include "../../worker/worker_options.ipp"
#include "../doctor.hpp"
#include "startup_findings.ipp"

namespace ojs::detail {
// The Levenshtein distance of two words of at most 64 letters.
inline std::size_t edit_distance(std::string_view a, std::string_view b) noexcept {
    std::size_t row[65];
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = detail::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = detail::min(changed, detail::min(row[j], row[j - 1]) + 1);
        }
    }
    return row[b.size()];
}

// The known name with the fewest edits from `name`, within a third of its letters; empty: none.
inline std::string_view nearest_name(std::string_view name, const array<std::string>& known) noexcept {
    std::string_view nearest;
    std::size_t limit = name.size() / 3 + 1;
    for (const std::string& candidate : known) {
        if (name.size() > 64 || candidate.size() > 64) continue;
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < limit) nearest = candidate;
        limit = detail::min(limit, distance);
    }
    return nearest;
}

inline void check_variable_names(std::vector<finding>& out) {
    const array<std::string> known = known_variables();
    for (finding& each : unknown_variables(known)) {
        std::string_view name = each.problem;
        const std::string_view nearest = nearest_name(next_part(name, " "), known);
        if (!nearest.empty()) each.fix = cat({"did you mean ", nearest, "?"});
        out.push_back(std::move(each));
    }
}

// Without slashes at the end and the path that the transport appends.
inline std::string_view without_api_path(std::string_view url) noexcept {
    constexpr std::string_view api_path = "/ojs/v1";
    while (!url.empty() && url.back() == '/') url.remove_suffix(1);
    const std::size_t rest = url.size() < api_path.size() ? 0 : url.size() - api_path.size();
    return url.substr(rest) == api_path ? without_api_path(url.substr(0, rest)) : url;
}

inline std::string http_url(std::string_view scheme, std::string_view address) {
    address = without_api_path(address.substr(detail::min(address.find_first_not_of(":/"), address.size())));
    std::string out = cat({scheme, "://", address});
    return address.size() <= 100 && parse_url(out, true) ? out : "";
}

// What was probably meant by a URL without a valid scheme; empty: unknown, or it may contain a password.
inline std::string suggest_url(std::string_view text, const array<std::string>& schemes) {
    if (text.find('@') != std::string_view::npos) return {};
    std::string_view address = text;
    std::string scheme(next_part(address, ":/"));
    for (char& c : scheme) c = lower_ascii(c);
    const std::string_view known = nearest_name(scheme, schemes);
    const bool is_http = known == "http" || known == "https";
    if (!is_http && !known.empty()) return cat({known, ":", printable(address, 100)});
    if (is_http) return http_url(known, address);
    return text.front() != '/' || text.substr(0, 2) == "//" ? http_url("http", text) : "";  // else a file
}

// What to set instead of the URL; empty: it is valid, or nothing like it is.
inline std::string url_fix(const worker_options& options) {
    const backend_url url = split_url(options);
    if (options.url.empty() || read_url(options)) return {};
    const bool is_http_url = url.is_http() && url.address.substr(0, 2) == "//";
    array<std::string> schemes = {"http", "https", "unix"};
    for (const transport_scheme& each : options.transports) schemes.push_back(each.name);
    const std::string found = is_http_url ? redacted(without_api_path(options.url)) : suggest_url(options.url, schemes);
    return found.empty() || found == options.url ? std::string() : cat({"did you mean ", found, "?"});
}

inline std::chrono::milliseconds time_after_drain(const stop_times& times, std::chrono::milliseconds steps_timeout,
                                                  std::chrono::milliseconds min) noexcept {
    return detail::max(min, capped_sum(times.stop_timeout, steps_timeout));
}

// A stop's part of the time from SIGTERM to SIGKILL. [GS 6.3]
struct stop_budget {
    std::chrono::milliseconds granted;
    std::chrono::milliseconds drain;
    std::chrono::milliseconds reports;  // and all else that follows the drain

    bool fits() const noexcept { return drain < granted && capped_sum(drain, reports) <= granted; }
};

// `platform` counts unless the options say what is granted.
inline stop_budget budget_of(const loop_options& options, const stop_platform* platform,
                             std::chrono::milliseconds steps_timeout) noexcept {
    const std::chrono::milliseconds set = options.container_grace_period;
    return {set.count() > 0 || platform == nullptr ? set : platform->grant,
            capped_sum(options.times.shutdown_grace_period, options.prestop_delay),
            time_after_drain(options.times, steps_timeout, std::chrono::seconds(5))};
}

// The setting that changes what the platform grants; empty: none does.
inline std::string_view setting_of(const stop_platform& platform) noexcept {
    constexpr std::string_view settings[][2] = {
        {"fly", "kill_timeout in fly.toml"},
        {"heroku", ""},
        {"kubernetes", "terminationGracePeriodSeconds"},
        {"ecs", "stopTimeout"},
        {"cloud-run", ""},
        {"nomad", "kill_timeout"},
        {"docker", "stop_grace_period or docker stop -t"},
        {"podman", "--stop-timeout or podman stop -t"},
    };
    for (const auto& [id, setting] : settings)
        if (id == platform.id) return setting;
    return "terminationGracePeriodSeconds, stop_grace_period or docker stop -t";
}

inline std::string describe_need(const loop_options& options) {
    std::string out = "the unlimited grace period";
    if (options.times.shutdown_grace_period != no_limit)
        out = cat({"the grace period of ", format_duration(options.times.shutdown_grace_period)});
    if (options.prestop_delay.count() > 0)
        append(out, {" plus the preStop delay of ", format_duration(options.prestop_delay)});
    return out;
}

// Two fixes: a longer grant of the container or, if possible, a shorter grace period of the worker.
inline std::string budget_fix(const loop_options& options, const stop_platform& platform,
                              std::chrono::milliseconds granted, std::chrono::milliseconds steps_timeout) {
    const auto other_time =
        capped_sum(options.prestop_delay, time_after_drain(options.times, steps_timeout, std::chrono::seconds(10)));
    const auto need = capped_sum(options.times.shutdown_grace_period, other_time);
    std::string out;
    if (setting_of(platform).empty()) {
        out = cat({platform.name, " grants no more time: let longer jobs save checkpoints"});
    } else if (need < no_limit) {
        out = cat({"raise ", setting_of(platform), " of ", platform.name, " to ", format_duration(need),
                   " and set OJS_CONTAINER_GRACE_PERIOD to the same"});
    }
    if (other_time < granted)
        append(out, {out.empty() ? "" : "; or ", "set OJS_SHUTDOWN_GRACE_PERIOD to ",
                     format_duration(granted - other_time), " or less"});
    return out;
}

// Checks against what the container grants, or else what its platform grants by default. [GS 6.3]
inline void check_grant(const loop_options& options, std::chrono::milliseconds steps_timeout,
                        const stop_platform& platform, std::vector<finding>& out) {
    const bool is_known = options.container_grace_period.count() > 0;
    const stop_budget budget = budget_of(options, &platform, steps_timeout);
    if (is_known && budget.fits()) return;
    const std::string_view setting = setting_of(platform);
    const bool is_fixed = setting.empty();
    const std::string need = describe_need(options);
    const std::string grant = format_duration(budget.granted);
    const std::string reports = format_duration(budget.reports);
    const std::string by_default =
        cat({grant, " that ", platform.name, " grants", is_fixed ? "" : cat({" unless ", setting, " says otherwise"})});
    finding found{severity::warning, "budget-tight", "", budget_fix(options, platform, budget.granted, steps_timeout)};
    if (budget.fits()) {
        found = {severity::info, cat({"budget-", platform.id}), cat({need, " fits into the ", by_default}),
                 is_fixed ? "let jobs that take longer save checkpoints"
                          : cat({"where jobs take longer, set OJS_SHUTDOWN_GRACE_PERIOD, ", setting,
                                 " to 10s more, and OJS_CONTAINER_GRACE_PERIOD to that"})};
    } else if (!is_known) {
        found.id = "budget-unknown";
        found.problem = cat({need, " and the ", reports, " for reporting need more than the ", by_default,
                             "; OJS_CONTAINER_GRACE_PERIOD is unset"});
    } else if (budget.drain >= budget.granted) {
        found.severity = severity::error;
        found.id = "budget-exceeded";
        found.problem =
            cat({need, " cannot fit into the ", grant, " the container grants: SIGKILL comes before the drain ends"});
    } else {
        found.problem = cat({need, " leaves ", format_duration(budget.granted - budget.drain), " of the ", grant,
                             " the container grants; interrupting, reporting and exiting may take ", reports});
    }
    out.push_back(std::move(found));
}

inline void check_cancel_wait(const loop_options& options, std::vector<finding>& out) {
    const auto requested = detail::max(options.times.cancel_grace, options.times.reclaim_grace);
    const auto left = options.times.stop_timeout - last_beat_time(options.times);
    const auto granted = left - std::chrono::duration_cast<std::chrono::milliseconds>(report_time(left));
    if (requested <= granted) return;
    out.push_back(
        {severity::warning, "cancel-grace-cut",
         cat({"cancelled handlers have ", format_duration(requested), " to return, but the stop_timeout of ",
              format_duration(options.times.stop_timeout), " leaves them ", format_duration(granted)}),
         cat({"set OJS_STOP_TIMEOUT to ", format_duration(capped_sum(requested, std::chrono::milliseconds(3500))),
              ", or shorten the wait"})});
}

inline void check_heartbeat(const worker_options& options, std::vector<finding>& out) {
    if (options.times.shutdown_grace_period > options.heartbeat_interval) return;
    out.push_back({severity::warning, "grace-below-heartbeat",
                   cat({"the grace period of ", format_duration(options.times.shutdown_grace_period),
                        " is not longer than the heartbeat interval of ", format_duration(options.heartbeat_interval)}),
                   cat({"set OJS_SHUTDOWN_GRACE_PERIOD to your longest job and ",
                        format_duration(capped_sum(options.heartbeat_interval, std::chrono::seconds(10))),
                        " more (the heartbeat interval plus 10s)"})});
}

// Brings durations that are out of bounds, which is a finding of its own, to where their sums cannot overflow.
struct duration_clamp {
    void operator()(const char*, const char*, std::chrono::milliseconds& value, std::chrono::milliseconds,
                    std::chrono::milliseconds max = {}) const {
        constexpr std::chrono::milliseconds longest{max_duration_ms};
        if (value != no_limit || max != no_limit) value = detail::max(detail::min(value, longest), longest.zero());
    }
    template <class... Row>
    void operator()(const char*, const char*, Row&&...) const {}
};

inline void check_stop_budget(loop_options options, std::chrono::milliseconds steps_timeout, const container_info& info,
                              std::vector<finding>& out) {
    const duration_clamp clamp;
    visit_loop_options(options, clamp);
    const stop_platform* platform = info.platform;
    if (platform == nullptr && options.container_grace_period.count() > 0)
        platform = std::end(stop_platforms) - 1;  // any container
    if (platform != nullptr) check_grant(options, steps_timeout, *platform, out);
    check_cancel_wait(options, out);
}

// Before any stop. The file may be written later, so a missing one is not yet an error.
inline void check_mode_file(const loop_options& options, std::vector<finding>& out) {
    static constexpr struct {
        severity level;
        const char* id;
    } faults[] = {{severity::info, ""},  // indexed by termination_evidence, whose first value is not an error
                  {severity::warning, "mode-file-stale"},
                  {severity::info, "mode-file-missing"},
                  {severity::error, "mode-file-unreadable"},
                  {severity::warning, "mode-file-content"}};
    if (options.termination_mode_file.empty()) return;
    const termination_mode mode = read_termination_mode(options.termination_mode_file);
    if (!mode.is_reclaim()) return;
    const auto& fault = faults[static_cast<std::size_t>(mode.evidence)];
    out.push_back({fault.level, fault.id, describe_mode_file(mode), mode_file_fix});
}

inline void check_settings(const loop_options& options, const container_info& info, const container_probe& probe,
                           std::vector<finding>& out) {
    check_stop_budget(options, {}, info, out);
    bool has_ops = false;
    for (const worker_extension_factory& each : options.extensions) has_ops = has_ops || each.name == "ops";
    if (find_variable(probe.environment, "NOTIFY_SOCKET") != nullptr && !has_ops)
        out.push_back({severity::warning, "service-unnotified",
                       "NOTIFY_SOCKET is set, but readiness is not reported: add ojs::ops() to the options",
                       "include ojs_ops.hpp and write options->extensions.add(ojs::ops())"});
    if (!probe.environment) check_variable_names(out);
}
}  // namespace ojs::detail
