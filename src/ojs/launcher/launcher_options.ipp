#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "../net/http_client.ipp"
#include "../server/detail/listener.ipp"
#include "../worker/worker_options.ipp"
#include "launcher_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE const char* to_string(restart_policy policy) noexcept {
    constexpr const char* names[] = {"never", "on_failure", "always"};
    return names[static_cast<std::size_t>(policy)];
}

namespace detail {
// Whether the text can be part of ids and file names.
inline bool is_plain_name(std::string_view text) noexcept {
    if (text.empty() || text.size() > 48 || text.front() == '.') return false;
    constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return text.find_first_not_of(plain) == std::string_view::npos;
}

// The limit of max_backoff, in `restart` and `retry`.
inline constexpr std::chrono::milliseconds max_pause{max_duration_ms};

inline std::chrono::milliseconds min_ready_time(const group_options& group) noexcept {
    if (group.min_ready_time.count() >= 0) return group.min_ready_time;
    return std::chrono::seconds(group.process.has_coordinator || !group.process.ready_url.empty() ? 5 : 1);
}

// A ready_url, split for http_client.
struct ready_address {
    std::string url;
    std::string target;
};

// With the process id for each {id}.
inline std::string with_process_id(std::string text, const std::string& id) {
    for (std::size_t at = 0; (at = text.find("{id}", at)) != std::string::npos; at += id.size())
        text.replace(at, 4, id);
    return text;
}

inline ready_address address_of_ready_url(const std::string& given, const std::string& id) {
    const std::string url = with_process_id(given, id);
    const bool is_unix = url.compare(0, 5, "unix:") == 0;
    const std::size_t end = is_unix ? url.find(":/", 5) : url.find('/', url.find("//") + 2);
    if (end == std::string::npos) return {url, "/"};
    return {url.substr(0, end), url.substr(is_unix ? end + 1 : end)};
}

inline std::string fault_in_ready_url(const process_options& options) {
    if (options.ready_url.empty()) return "";
    if (options.has_coordinator) return "ready_url: has_coordinator is true, so its coordinator is asked";
    const ready_address address = address_of_ready_url(options.ready_url, "id-1");
    if (!is_target(address.target)) return "ready_url: contains a space or a control character";
    const result<http_client> client = http_client::create(address.url);
    return client ? "" : cat({"ready_url: ", client.error().text});
}

inline std::string fault_in_process(const process_options& options) {
    constexpr std::chrono::milliseconds zero{0};
    const shutdown_timeouts& times = options.shutdown;
    if (options.child.command.empty()) return "command: must not be empty";
    std::string url_fault = fault_in_ready_url(options);
    if (!url_fault.empty()) return url_fault;
    if (options.rpc_timeout <= zero) return "rpc_timeout: must be greater than 0";
    if (options.readiness_interval <= zero) return "readiness_interval: must be greater than 0";
    if (options.health_interval < zero) return "health_interval: must not be negative";
    if (options.unhealthy_after < 1) return "unhealthy_after: must be greater than 0";
    if (options.pre_shutdown_timeout <= zero) return "pre_shutdown.timeout: must be greater than 0";
    if (times.grace_period <= zero) return "shutdown.grace_period: must be greater than 0";
    if (times.max_duration < times.grace_period)
        return cat({"shutdown.max_duration (", format_duration(times.max_duration),
                    "): must not be below shutdown.grace_period (", format_duration(times.grace_period), ")"});
    if (times.report_time < zero) return "shutdown.report_time: must not be negative";
    if (times.poll_interval <= zero) return "shutdown.poll_interval: must be greater than 0";
    return times.kill_delay < zero ? "shutdown.kill_delay: must not be negative" : "";
}

inline std::string fault_in_backoff(const char* prefix, std::chrono::milliseconds first,
                                    std::chrono::milliseconds last) {
    if (first.count() < 0) return cat({prefix, "initial_backoff: must not be negative"});
    if (last < first)
        return cat({prefix, "max_backoff (", format_duration(last), "): must not be below ", prefix,
                    "initial_backoff (", format_duration(first), ")"});
    return last > max_pause ? cat({prefix, "max_backoff: must be at most 24 days"}) : "";
}

// Returns the first error, or an empty text.
inline std::string fault_in_group(const group_options& group) {
    if (!is_plain_name(group.name)) return "name: must be 1 to 48 letters, digits, '.', '_' or '-'";
    if (!group.id_prefix.empty() && !is_plain_name(group.id_prefix))
        return "id_prefix: must be 1 to 48 letters, digits, '.', '_' or '-'";
    if (group.desired < 0) return "desired_instances: must not be negative";
    if (group.min_healthy < 0) return "min_healthy_instances: must not be negative";
    if (group.min_healthy > group.desired)
        return cat({"min_healthy_instances (", group.min_healthy, "): must not be above desired_instances (",
                    group.desired, ")"});
    if (group.max_surge < 0) return "max_surge: must not be negative";
    if (group.health_check_timeout.count() <= 0) return "health_check_timeout: must be greater than 0";
    if (group.min_ready_time.count() < -1) return "min_ready_time: must not be below -1 ms";
    std::string fault = fault_in_process(group.process);
    const restart_options& restart = group.restart;
    const retry_options& retry = group.retry;
    if (fault.empty()) fault = fault_in_backoff("restart.", restart.initial_backoff, restart.max_backoff);
    if (fault.empty() && restart.max_restarts < 0) return "restart.max_restarts: must not be negative";
    if (fault.empty() && restart.stable_after.count() < 0) return "restart.stable_after: must not be negative";
    if (fault.empty()) fault = fault_in_backoff("retry.", retry.initial_backoff, retry.max_backoff);
    return fault.empty() && retry.max_retries < 0 ? "retry.max_retries: must not be negative" : fault;
}

inline retry_policy policy_of(const retry_options& options) noexcept {
    if (options.max_retries == 0) return retry_policy::manual;
    return options.max_backoff.count() == 0 ? retry_policy::immediate : retry_policy::backoff;
}
// Takes defaults for values that the policy needs and `given` lacks.
inline retry_options retry_of(retry_policy policy, const retry_options& given) noexcept {
    constexpr int default_retries = 3;
    constexpr std::chrono::milliseconds none{0};
    if (policy == retry_policy::manual) return {};
    const int limit = given.max_retries > 0 ? given.max_retries : default_retries;
    if (policy == retry_policy::immediate) return {limit, none, none};
    const retry_options backoff = given.max_backoff > none ? given : retry_options();
    return {limit, backoff.initial_backoff, backoff.max_backoff};
}

// UINT64_MAX: unlimited.
struct machine_limits {
    std::uint64_t descriptors = UINT64_MAX;
    std::uint64_t processes = UINT64_MAX;      // and threads
    std::uint64_t address_space = UINT64_MAX;  // bytes, of this process
    std::uint64_t memory = UINT64_MAX;         // bytes, of the machine
};

inline machine_limits read_machine_limits() {
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

// Estimates the needs of the smallest programs. Returns an error text, or an empty text.
inline std::string fault_in_capacity(const std::vector<group_options>& groups, const machine_limits& limits) {
    std::uint64_t instances = 0;
    std::uint64_t descriptors = 128;  // for all else
    for (const group_options& group : groups) {
        const auto count = static_cast<std::uint64_t>(group.desired) + static_cast<std::uint64_t>(group.max_surge);
        instances += count;
        descriptors += count * (group.process.has_coordinator ? 5 : 3);
    }
    const struct {
        std::uint64_t needed;
        std::uint64_t limit;
        const char* resource;
        const char* fix;
    } needs[] = {
        {descriptors, limits.descriptors, "descriptors", "raise LimitNOFILE= (ulimit -n)"},
        {16 + instances * 2, limits.processes, "processes and threads", "raise LimitNPROC= (ulimit -u)"},
        {instances * 320 / 1024, limits.address_space / 1048576, "MiB of address space", "raise LimitAS= (ulimit -v)"},
        {instances / 4, limits.memory / 1048576, "MiB of memory", "use a larger machine"},
    };
    for (const auto& each : needs) {
        if (each.needed <= each.limit) continue;
        return cat({instances, " instances (desired_instances and max_surge) need ", each.needed, " ", each.resource,
                    ", but only ", each.limit, " are available: ", each.fix, " or lower desired_instances"});
    }
    return {};
}

// ---- config values: each reader returns an empty text, or the rest of the path and the error ----

inline std::string read_or_fault(std::string_view source, std::string& out) {
    return read_json_string(source, out) ? "" : ": must be a string";
}
inline std::string read_or_fault(std::string_view source, bool& out) {
    out = source == "true";
    return out || source == "false" ? "" : ": must be true or false";
}
inline std::string read_or_fault(std::string_view source, int& out) {
    std::uint64_t number = 0;
    if (!parse_number(source, 1000000, number)) return ": must be an integer from 0 to 1000000";
    out = static_cast<int>(number);
    return "";
}
inline std::string read_or_fault(std::string_view source, std::chrono::milliseconds& out) {
    std::string text(source);
    if (source.front() == '"' && !read_json_string(source, text)) text.clear();
    const result<std::chrono::milliseconds> read = parse_duration(text);
    if (!read) return ": " + read.error().text;
    out = *read;
    return "";
}
inline std::string read_or_fault(std::string_view source, std::vector<std::string>& out) {
    if (source.front() != '[') return ": must be a list of strings";
    for (const auto& each : json_view(source)) {
        out.emplace_back();
        if (!read_json_string(each.value.text(), out.back())) return ": must be a list of strings";
        if (out.back().find('\0') != std::string::npos) return ": must not contain a NUL byte";
    }
    return "";
}
inline std::string read_or_fault(std::string_view source, restart_policy& out) {
    std::string name;
    static_cast<void>(read_json_string(source, name));
    if (name == "on-failure") name = "on_failure";  // [RFC-041, open question 4]
    out = name == "never"    ? restart_policy::never
          : name == "always" ? restart_policy::always
                             : restart_policy::on_failure;
    return name == to_string(out) ? "" : ": must be never, on-failure or always";
}
inline std::string read_or_fault(std::string_view source, retry_policy& out) {
    std::string name;
    static_cast<void>(read_json_string(source, name));
    out = name == "immediate" ? retry_policy::immediate
          : name == "backoff" ? retry_policy::backoff
                              : retry_policy::manual;
    return name == "manual" || out != retry_policy::manual ? "" : ": must be manual, immediate or backoff";
}

inline std::string read_or_fault(std::string_view source, std::vector<group_options>& out);

struct config_key {
    template <class Value>
    config_key(const char* key, Value& value)
        : name(key),
          into(&value),
          read([](std::string_view source, void* at) { return read_or_fault(source, *static_cast<Value*>(at)); }) {}

    const char* name;
    void* into;
    std::string (*read)(std::string_view source, void* into);
    bool given = false;
};

inline std::string key_path(std::string_view name) { return cat({".", printable(name, 60)}); }

struct config_object {
    template <std::size_t Count>
    explicit config_object(config_key (&all)[Count]) : keys(all), count(Count) {}

    config_key* find(std::string_view name) const noexcept {
        for (config_key* each = keys; each != keys + count; ++each) {
            if (name == each->name) return each;
        }
        return nullptr;
    }
    bool has(std::string_view name) const noexcept {
        const config_key* const found = find(name);
        return found != nullptr && found->given;
    }
    config_key* keys;
    std::size_t count;
};
inline std::string read_or_fault(std::string_view source, const config_object& out) {
    if (source.front() != '{') return ": must be an object";
    for (const auto& each : json_view(source)) {
        const std::string name = each.key.string().value_or("");
        config_key* const found = out.find(name);
        if (found == nullptr) return key_path(name) + ": unknown key";
        if (exchange(found->given, true)) return key_path(name) + ": duplicate key";
        const std::string fault = found->read(each.value.text(), found->into);
        if (!fault.empty()) return key_path(name) + fault;
    }
    return "";
}

struct config_environment {
    std::vector<std::string>& into;
};
inline std::string read_or_fault(std::string_view source, const config_environment& out) {
    if (source.front() != '{') return ": must be an object";
    for (const auto& member : json_view(source)) {
        const std::string key = member.key.string().value_or("");
        const std::string name = key.substr(0, key.find('='));
        const auto fault = [&](const char* text) { return key_path(name) + text; };
        const auto has_name = [&](std::string_view each) { return each.substr(0, each.find('=')) == name; };
        std::string value;
        if (name.empty() || name != key) return fault(": must be the name of a variable");
        if (!read_json_string(member.value.text(), value)) return fault(": must be a string");
        if (cat({name, value}).find('\0') != std::string::npos) return fault(": must not contain a NUL byte");
        if (std::any_of(out.into.begin(), out.into.end(), has_name)) return fault(": duplicate key");
        out.into.push_back(cat({name, "=", value}));
    }
    return "";
}

struct config_address {
    std::string& into;
};
inline std::string read_or_fault(std::string_view source, const config_address& out) {
    if (!read_json_string(source, out.into)) return ": must be a string";
    const result<endpoint> where = parse_listen_address(out.into);
    return where ? "" : ": " + where.error().text;
}

// Keys that have no effect with the policy.
inline std::string fault_in_retry_keys(retry_policy policy, const retry_options& read, const config_object& keys) {
    const bool first = keys.has("initial_backoff");
    const bool pauses = first || keys.has("max_backoff");
    if (pauses && policy == retry_policy::immediate)
        return cat(
            {first ? ".initial_backoff" : ".max_backoff", ": retry_policy is immediate, so there is no back-off"});
    if (keys.has("max_retries") && read.max_retries == 0) return ".max_retries: 0 is retry_policy manual";
    return pauses && read.max_backoff.count() == 0 ? ".max_backoff: 0 is retry_policy immediate" : "";
}

inline std::string read_or_fault(std::string_view source, group_options& out) {
    using key = config_key;
    process_options& run = out.process;
    shutdown_timeouts& times = run.shutdown;
    retry_policy policy = retry_policy::manual;
    retry_options retry_read;
    config_key shutdown_keys[] = {
        key("grace_period", times.grace_period), key("max_duration", times.max_duration),
        key("report_time", times.report_time),   key("poll_interval", times.poll_interval),
        key("kill_delay", times.kill_delay),     key("force_without_request", times.force_without_request)};
    config_key hook_keys[] = {key("command", run.pre_shutdown), key("timeout", run.pre_shutdown_timeout)};
    config_key restart_keys[] = {
        key("initial_backoff", out.restart.initial_backoff), key("max_backoff", out.restart.max_backoff),
        key("stable_after", out.restart.stable_after), key("max_restarts", out.restart.max_restarts)};
    config_key retry_keys[] = {key("initial_backoff", retry_read.initial_backoff),
                               key("max_backoff", retry_read.max_backoff), key("max_retries", retry_read.max_retries)};
    config_environment environment{run.child.environment};
    config_object shutdown(shutdown_keys);
    config_object hook(hook_keys);
    config_object restart(restart_keys);
    config_object retry(retry_keys);
    config_key keys[] = {key("name", out.name),
                         key("id_prefix", out.id_prefix),
                         key("command", run.child.command),
                         key("environment", environment),
                         key("working_directory", run.child.working_directory),
                         key("has_coordinator", run.has_coordinator),
                         key("ready_url", run.ready_url),
                         key("rpc_timeout", run.rpc_timeout),
                         key("desired_instances", out.desired),
                         key("min_healthy_instances", out.min_healthy),
                         key("max_surge", out.max_surge),
                         key("health_check_timeout", out.health_check_timeout),
                         key("min_ready_time", out.min_ready_time),
                         key("health_interval", run.health_interval),
                         key("unhealthy_after", run.unhealthy_after),
                         key("pre_shutdown", hook),
                         key("shutdown", shutdown),
                         key("restart_policy", out.restart.policy),
                         key("restart", restart),
                         key("retry_policy", policy),
                         key("retry", retry)};
    const config_object all(keys);
    std::string fault = read_or_fault(source, all);
    if (!fault.empty()) return fault;
    if (all.has("pre_shutdown") && run.pre_shutdown.empty()) return ".pre_shutdown.command: must not be empty";
    if (all.has("restart") && out.restart.policy == restart_policy::never)
        return ".restart: not allowed with restart_policy never";
    if (all.has("retry") && policy == retry_policy::manual) return ".retry: not allowed with retry_policy manual";
    fault = fault_in_retry_keys(policy, retry_read, retry);
    if (!fault.empty()) return ".retry" + fault;
    out.retry = retry_of(policy, retry_read);
    fault = fault_in_group(out);
    return fault.empty() ? "" : "." + fault;
}

inline const std::string& prefix_of(const group_options& group) noexcept {
    return group.id_prefix.empty() ? group.name : group.id_prefix;
}

// Whether the name is PREFIX-N of this group.
inline bool is_id_of(const group_options& group, std::string_view name) noexcept {
    const std::string& prefix = prefix_of(group);
    std::uint64_t number = 0;
    return name.size() > prefix.size() && name.substr(0, prefix.size()) == prefix && name[prefix.size()] == '-' &&
           parse_number(name.substr(prefix.size() + 1), UINT64_MAX, number);
}

// Names and prefixes must be unique, and no name may be a process id: `stop kv-1` must be unambiguous.
inline std::string find_name_conflict(const std::vector<group_options>& groups) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
        for (std::size_t other = 0; other < groups.size(); ++other) {
            if (is_id_of(groups[other], groups[i].name))
                return cat({"[", i, "].name: could also be a process of [", other, "]"});
            const bool same_name = groups[i].name == groups[other].name;
            if (other >= i || (!same_name && prefix_of(groups[i]) != prefix_of(groups[other]))) continue;
            return cat({"[", i, "].", same_name ? "name" : "id_prefix", ": same as in [", other, "]"});
        }
    }
    return "";
}

inline std::string read_or_fault(std::string_view source, std::vector<group_options>& out) {
    if (source.front() != '[') return ": must be a list";
    for (const auto& each : json_view(source)) {
        out.emplace_back();
        const std::string fault = read_or_fault(each.value.text(), out.back());
        if (!fault.empty()) return cat({"[", out.size() - 1, "]", fault});
    }
    return find_name_conflict(out);
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<void> check_group(const group_options& group) {
    const std::string fault = detail::fault_in_group(group);
    if (fault.empty()) return {};
    return error{errc::invalid_argument, 0,
                 detail::cat({"group \"", detail::printable(group.name, 48), "\": ", fault})};
}

OJS_SHUTDOWN_INLINE result<launcher_options> read_launcher_config(std::string_view json,
                                                                  const environment_lookup& lookup) {
    launcher_options out;
    detail::option_visitor read(lookup);
    detail::visit_log_options(out.log, read);
    if (!read.status) return read.status.error();
    const result<void> checked = detail::check_json(json);
    if (!checked)
        return error{errc::invalid_argument, 0,
                     detail::cat({checked.error().text, "; the launcher reads JSON, not YAML"})};
    if (!detail::is_utf8(json)) return error{errc::invalid_argument, 0, "not UTF-8"};
    using key = detail::config_key;
    detail::config_address admin{out.admin_address};
    detail::config_key keys[] = {key("admin", admin),
                                 key("socket_folder", out.socket_folder),
                                 key("state_file", out.state_file),
                                 key("reap_orphans", out.reap_orphans),
                                 key("orphan_grace_period", out.orphan_grace_period),
                                 key("process_groups", out.groups)};
    std::string fault = detail::read_or_fault(json_view(json).text(), detail::config_object(keys));
    if (fault.empty() && out.groups.empty()) fault = ".process_groups: must not be empty";
    if (fault.empty()) return out;
    return error{errc::invalid_argument, 0, fault.substr(fault.front() == '.' ? 1 : 2)};
}
}  // namespace v0_1_0
}  // namespace ojs
