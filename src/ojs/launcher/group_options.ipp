#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "../base/detail/text.hpp"
#include "../net/http_client.ipp"
#include "group_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(restart_policy policy) noexcept {
    constexpr const char* names[] = {"never", "on_failure", "always"};
    return names[static_cast<std::size_t>(policy)];
}

namespace detail {

// Fit for an id and for a file's name.
inline bool is_plain_name(std::string_view text) noexcept {
    if (text.empty() || text.size() > 48 || text.front() == '.') return false;
    for (const char c : text) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           c == '.' || c == '_' || c == '-';
        if (!plain) return false;
    }
    return true;
}

// Of restarts and retries: they are doubled, and cut by fractions.
inline constexpr std::chrono::milliseconds max_pause{longest_duration_ms};

inline std::chrono::milliseconds min_ready_time(const group_options& of) noexcept {
    if (of.min_ready_time.count() >= 0) return of.min_ready_time;
    return std::chrono::seconds(of.process.participates || !of.process.ready_url.empty() ? 5 : 1);
}

// A ready_url, as an http_client takes it.
struct ready_address {
    std::string url;
    std::string target;
};

inline ready_address address_of_ready_url(std::string url, const std::string& id) {
    for (std::size_t at = 0; (at = url.find("{id}", at)) != std::string::npos;) url.replace(at, 4, id);
    const bool is_unix = url.compare(0, 5, "unix:") == 0;
    const std::size_t end = is_unix ? url.find(":/", 5) : url.find('/', url.find("//") + 2);
    if (end == std::string::npos) return {url, "/"};
    return {url.substr(0, end), url.substr(is_unix ? end + 1 : end)};
}

inline std::string fault_in_ready_url(const process_options& of) {
    if (of.ready_url.empty()) return "";
    if (of.participates) return "ready_url: participates is true, so its coordinator is asked";
    const ready_address address = address_of_ready_url(of.ready_url, "id-1");
    if (!is_target(address.target)) return "ready_url: holds a blank or a control character";
    const result<http_client> client = http_client::create(address.url);
    return client ? "" : cat({"ready_url: ", client.error().text});
}

inline std::string fault_in_process(const process_options& of) {
    constexpr std::chrono::milliseconds zero{0};
    const shutdown_timeouts& times = of.shutdown;
    if (of.child.command.empty()) return "command: is empty";
    const std::string url_fault = fault_in_ready_url(of);
    if (!url_fault.empty()) return url_fault;
    if (of.rpc_timeout <= zero) return "rpc_timeout: is not above 0";
    if (of.readiness_interval <= zero) return "readiness_interval: is not above 0";
    if (of.health_interval < zero) return "health_interval: is negative";
    if (of.unhealthy_after < 1) return "unhealthy_after: is not above 0";
    if (times.grace_period <= zero) return "shutdown.grace_period: is not above 0";
    if (times.max_duration < times.grace_period)
        return cat({"shutdown.max_duration (", format_duration(times.max_duration),
                    ") < shutdown.grace_period (", format_duration(times.grace_period), ")"});
    if (times.report_time < zero) return "shutdown.report_time: is negative";
    if (times.poll_interval <= zero) return "shutdown.poll_interval: is not above 0";
    return times.kill_delay < zero ? "shutdown.kill_delay: is negative" : "";
}

inline std::string fault_in_restart(const restart_options& restart) {
    constexpr std::chrono::milliseconds zero{0};
    if (restart.first < zero || restart.last < restart.first) return "restart: last pause < first pause";
    if (restart.last > max_pause) return "restart: a pause longer than 24 days";
    if (restart.stable < zero) return "restart.stable: is negative";
    return restart.limit < 0 ? "restart.limit: is negative" : "";
}

inline std::string fault_in_retry(const retry_options& retry) {
    if (retry.first.count() < 0 || retry.last < retry.first) return "retry: last pause < first pause";
    if (retry.last > max_pause) return "retry: a pause longer than 24 days";
    return retry.limit < 0 ? "retry.limit: is negative" : "";
}

// The first thing that is wrong with it; empty if nothing is.
inline std::string fault_in_group(const group_options& group) {
    if (!is_plain_name(group.name)) return "name: not 1 to 48 letters, digits, '.', '_' or '-'";
    if (!group.id_prefix.empty() && !is_plain_name(group.id_prefix)) return "id_prefix: as for a name";
    if (group.desired < 0) return "desired_instances: is negative";
    if (group.min_healthy < 0) return "min_healthy_instances: is negative";
    if (group.min_healthy > group.desired)
        return cat(
            {"min_healthy_instances (", group.min_healthy, ") > desired_instances (", group.desired, ")"});
    if (group.max_surge < 0) return "max_surge: is negative";
    if (group.health_check_timeout.count() <= 0) return "health_check_timeout: is not above 0";
    if (group.min_ready_time.count() < -1) return "min_ready_time: is negative";
    const std::string fault = fault_in_process(group.process);
    if (!fault.empty()) return fault;
    const std::string pauses = fault_in_restart(group.restart);
    return pauses.empty() ? fault_in_retry(group.retry) : pauses;
}

// ---- the policies of retry_options, as files and requests name them ----

inline retry_policy policy_of(const retry_options& options) noexcept {
    if (options.limit == 0) return retry_policy::manual;
    return options.last.count() == 0 ? retry_policy::immediate : retry_policy::backoff;
}
// Where `given` says nothing that a policy needs, it has what is usual.
inline retry_options retry_of(retry_policy policy, const retry_options& given) noexcept {
    constexpr int usual_limit = 3;
    constexpr std::chrono::milliseconds none{0};
    if (policy == retry_policy::manual) return {};
    const int limit = given.limit > 0 ? given.limit : usual_limit;
    if (policy == retry_policy::immediate) return {limit, none, none};
    const retry_options pauses = given.last > none ? given : retry_options();
    return {limit, pauses.first, pauses.last};
}

// ---- whether this machine can hold the processes of a launcher ----

// UINT64_MAX: none.
struct machine_limits {
    std::uint64_t descriptors = UINT64_MAX;
    std::uint64_t processes = UINT64_MAX;      // and threads
    std::uint64_t address_space = UINT64_MAX;  // bytes, of this process
    std::uint64_t memory = UINT64_MAX;         // bytes, of the machine
};

inline machine_limits limits_here() {
    const auto limit = [](auto resource) {
        rlimit found{};
        const bool known = ::getrlimit(resource, &found) == 0 && found.rlim_cur != RLIM_INFINITY;
        return known ? static_cast<std::uint64_t>(found.rlim_cur) : UINT64_MAX;
    };
    machine_limits out;
    out.descriptors = limit(RLIMIT_NOFILE);
    if (::geteuid() != 0) out.processes = limit(RLIMIT_NPROC);  // root has none
    out.address_space = limit(RLIMIT_AS);
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page_size = ::sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_size > 0)
        out.memory = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_size);
    return out;
}

// What the smallest programs need; empty: there is enough.
inline std::string fault_in_capacity(const std::vector<group_options>& groups, const machine_limits& limits) {
    std::uint64_t instances = 0;
    std::uint64_t descriptors = 128;  // for everything else
    for (const group_options& each : groups) {
        const auto count =
            static_cast<std::uint64_t>(each.desired) + static_cast<std::uint64_t>(each.max_surge);
        instances += count;
        descriptors += count * (each.process.participates ? 5 : 3);
    }
    const struct {
        std::uint64_t needed;
        std::uint64_t limit;
        const char* of;
        const char* fix;
    } needs[] = {
        {descriptors, limits.descriptors, "descriptors", "raise LimitNOFILE= (ulimit -n)"},
        {16 + instances * 2, limits.processes, "processes and threads", "raise LimitNPROC= (ulimit -u)"},
        {instances * 320 / 1024, limits.address_space / 1048576, "MiB of address space",
         "raise LimitAS= (ulimit -v)"},
        {instances / 4, limits.memory / 1048576, "MiB of memory", "use a larger machine"},
    };
    for (const auto& each : needs) {
        if (each.needed <= each.limit) continue;
        return cat({instances, " instances (desired_instances and max_surge) need ", each.needed, " ",
                    each.of, ", and there are ", each.limit, ": ", each.fix, " or lower desired_instances"});
    }
    return {};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<void> check_group(const group_options& group) {
    const std::string fault = detail::fault_in_group(group);
    if (fault.empty()) return {};
    return error{errc::invalid_argument, 0,
                 detail::cat({"group \"", detail::printable(group.name, 48), "\": ", fault})};
}

}  // namespace v0_1_0
}  // namespace ojs
