#pragma once

#include "../base/detail/light.hpp"
#include "../base/detail/text.hpp"
#include "../net/json_view.hpp"
#include "../server/detail/listener.ipp"
#include "../worker/worker_options.ipp"
#include "group_options.ipp"
#include "launcher_config.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Each reader returns what is wrong, with the rest of the way to it; empty if nothing is.
struct config_key {
    const char* name = "";
    function<std::string(std::string_view source)> read;
};
using config_keys = array<config_key>;

inline std::string named_key(std::string_view name) {
    return cat({".", printable(name, 60)});
}

inline std::string read_config_object(std::string_view source, const config_keys& keys) {
    if (source.front() != '{') return ": not an object";
    std::vector<std::string> seen;
    std::string_view key;
    std::string_view value;
    while (next_raw_member(source, key, value)) {
        std::string name;
        static_cast<void>(raw_string(key, name));
        for (const std::string& each : seen) {
            if (each == name) return named_key(name) + ": duplicate key";
        }
        const config_key* found = nullptr;
        for (const config_key& each : keys) {
            if (name == each.name) found = &each;
        }
        if (found == nullptr) return named_key(name) + ": no such key";
        const std::string fault = found->read(value);
        if (!fault.empty()) return named_key(name) + fault;
        seen.push_back(std::move(name));
    }
    return "";
}

inline config_key text_key(const char* name, std::string& into) {
    return {name, [&into](std::string_view source) {
                return std::string(raw_string(source, into) ? "" : ": not a string");
            }};
}

inline config_key flag_key(const char* name, bool& into) {
    return {name, [&into](std::string_view source) {
                into = source == "true";
                return std::string(into || source == "false" ? "" : ": not true or false");
            }};
}

inline config_key number_key(const char* name, int& into) {
    return {name, [&into](std::string_view source) {
                std::uint64_t number = 0;
                if (!parse_number(source, 1000000, number))
                    return std::string(": not a whole number up to 1000000");
                into = static_cast<int>(number);
                return std::string();
            }};
}

inline config_key duration_key(const char* name, std::chrono::milliseconds& into) {
    return {name, [&into](std::string_view source) {
                std::string text(source);
                if (source.front() == '"' && !raw_string(source, text)) text.clear();
                const result<std::chrono::milliseconds> read = parse_duration(text);
                if (!read) return ": " + read.error().text;
                into = *read;
                return std::string();
            }};
}

inline config_key texts_key(const char* name, std::vector<std::string>& into) {
    return {name, [&into](std::string_view source) {
                if (source.front() != '[') return std::string(": not a list of strings");
                std::string_view element;
                while (next_raw_element(source, element)) {
                    into.emplace_back();
                    if (!raw_string(element, into.back())) return std::string(": not a list of strings");
                    if (into.back().find('\0') != std::string::npos)
                        return std::string(": holds a zero byte");
                }
                return std::string();
            }};
}

inline std::string read_config_variable(std::string_view key, std::string_view value, std::string& out) {
    std::string text;
    static_cast<void>(raw_string(key, out));
    if (out.empty() || out.find('=') != std::string::npos) return ": not the name of a variable";
    if (!raw_string(value, text)) return ": not a string";
    out += "=" + text;
    return out.find('\0') == std::string::npos ? "" : ": holds a zero byte";
}

inline config_key environment_key(std::vector<std::string>& into) {
    return {"environment", [&into](std::string_view source) {
                if (source.front() != '{') return std::string(": not an object");
                std::string_view key;
                std::string_view value;
                while (next_raw_member(source, key, value)) {
                    std::string variable;
                    const std::string fault = read_config_variable(key, value, variable);
                    const std::string name = variable.substr(0, variable.find('='));
                    if (!fault.empty()) return named_key(name) + fault;
                    for (const std::string& each : into) {
                        if (each.compare(0, name.size() + 1, name + "=") == 0)
                            return named_key(name) + ": duplicate key";
                    }
                    into.push_back(std::move(variable));
                }
                return std::string();
            }};
}

inline config_key policy_key(restart_policy& into) {
    return {"restart_policy", [&into](std::string_view source) {
                std::string name;
                static_cast<void>(raw_string(source, name));
                if (name == "on-failure") name = "on_failure";  // [RFC-041, open question 4]
                for (const restart_policy each :
                     {restart_policy::never, restart_policy::on_failure, restart_policy::always}) {
                    into = each;
                    if (name == to_string(each)) return std::string();
                }
                return std::string(": not never, on-failure or always");
            }};
}

// What stands there without a policy that gives it a meaning is refused by check_retry().
struct retry_given {
    retry_policy policy = retry_policy::manual;
    retry_options options;
    bool any = false;
    bool first = false;
    bool last = false;
    bool limit = false;
};

inline config_key retry_policy_key(retry_policy& into) {
    return {"retry_policy", [&into](std::string_view source) {
                std::string name;
                static_cast<void>(raw_string(source, name));
                into = name == "immediate" ? retry_policy::immediate
                       : name == "backoff" ? retry_policy::backoff
                                           : retry_policy::manual;
                const bool known = name == "manual" || into != retry_policy::manual;
                return std::string(known ? "" : ": not manual, immediate or backoff");
            }};
}

inline config_key noted(config_key key, bool& there) {
    return {key.name, [read = std::move(key.read), &there](std::string_view source) {
                there = true;
                return read(source);
            }};
}

inline config_key address_key(const char* name, std::string& into) {
    return {name, [&into](std::string_view source) {
                if (!raw_string(source, into)) return std::string(": not a string");
                const result<endpoint> where = parse_listen_address(into);
                return where ? std::string() : cat({": ", where.error().text});
            }};
}

inline config_key object_key(const char* name, config_keys keys) {
    return {name,
            [keys = std::move(keys)](std::string_view source) { return read_config_object(source, keys); }};
}

inline config_keys shutdown_keys(shutdown_timeouts& into) {
    return {duration_key("grace_period", into.grace_period),
            duration_key("max_duration", into.max_duration),
            duration_key("report_time", into.report_time),
            duration_key("poll_interval", into.poll_interval),
            duration_key("kill_delay", into.kill_delay),
            flag_key("force_without_request", into.force_without_request)};
}

inline config_keys restart_keys(restart_options& into) {
    return {duration_key("first_pause", into.first), duration_key("last_pause", into.last),
            duration_key("stable", into.stable), number_key("limit", into.limit)};
}

inline config_keys retry_keys(retry_given& into) {
    return {noted(duration_key("first_pause", into.options.first), into.first),
            noted(duration_key("last_pause", into.options.last), into.last),
            noted(number_key("limit", into.options.limit), into.limit)};
}

inline std::string check_retry(const retry_given& given) {
    if (given.any && given.policy == retry_policy::manual)
        return ".retry: retry_policy is manual, so it has no meaning";
    const bool pauses = given.first || given.last;
    if (pauses && given.policy == retry_policy::immediate)
        return cat({".retry.", given.first ? "first_pause" : "last_pause",
                    ": retry_policy is immediate, so there is no pause"});
    if (given.limit && given.options.limit == 0) return ".retry.limit: 0 is retry_policy manual";
    if (pauses && given.options.last.count() == 0) return ".retry.last_pause: 0 is retry_policy immediate";
    return "";
}

inline std::string read_config_group(std::string_view source, group_options& out) {
    bool restart_given = false;
    retry_given retry;
    child_options& child = out.process.child;
    const config_keys keys{text_key("name", out.name),
                           text_key("id_prefix", out.id_prefix),
                           texts_key("command", child.command),
                           environment_key(child.environment),
                           text_key("working_directory", child.working_directory),
                           flag_key("participates", out.process.participates),
                           text_key("ready_url", out.process.ready_url),
                           duration_key("rpc_timeout", out.process.rpc_timeout),
                           number_key("desired_instances", out.desired),
                           number_key("min_healthy_instances", out.min_healthy),
                           number_key("max_surge", out.max_surge),
                           duration_key("health_check_timeout", out.health_check_timeout),
                           duration_key("min_ready_time", out.min_ready_time),
                           duration_key("health_interval", out.process.health_interval),
                           number_key("unhealthy_after", out.process.unhealthy_after),
                           object_key("shutdown", shutdown_keys(out.process.shutdown)),
                           policy_key(out.restart.policy),
                           noted(object_key("restart", restart_keys(out.restart)), restart_given),
                           retry_policy_key(retry.policy),
                           noted(object_key("retry", retry_keys(retry)), retry.any)};
    const std::string fault = read_config_object(source, keys);
    if (!fault.empty()) return fault;
    if (restart_given && out.restart.policy == restart_policy::never)
        return ".restart: restart_policy is never, so it has no meaning";
    const std::string retry_fault = check_retry(retry);
    if (!retry_fault.empty()) return retry_fault;
    out.retry = retry_of(retry.policy, retry.options);
    const std::string wrong = fault_in_group(out);
    return wrong.empty() ? "" : cat({".", wrong});
}

inline const std::string& prefix_of(const group_options& group) noexcept {
    return group.id_prefix.empty() ? group.name : group.id_prefix;
}

// PREFIX-N, as the group numbers its processes.
inline bool is_id_of(const group_options& group, std::string_view name) noexcept {
    const std::string& prefix = prefix_of(group);
    std::uint64_t number = 0;
    return name.size() > prefix.size() && name.substr(0, prefix.size()) == prefix &&
           name[prefix.size()] == '-' && parse_number(name.substr(prefix.size() + 1), UINT64_MAX, number);
}

// Names and ids are not shared, and no name is an id as well: `stop kv-1` has one meaning.
inline std::string clash_in(const std::vector<group_options>& groups) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
        for (std::size_t other = 0; other < groups.size(); ++other) {
            if (is_id_of(groups[other], groups[i].name))
                return cat({"[", i, "].name: could also be a process of [", other, "]"});
            const bool same_name = groups[i].name == groups[other].name;
            if (other >= i || (!same_name && prefix_of(groups[i]) != prefix_of(groups[other]))) continue;
            return cat({"[", i, "].", same_name ? "name" : "id_prefix", ": as that of [", other, "]"});
        }
    }
    return "";
}

inline config_key groups_key(std::vector<group_options>& into) {
    return {"process_groups", [&into](std::string_view source) {
                if (source.front() != '[') return std::string(": not a list");
                std::string_view element;
                while (next_raw_element(source, element)) {
                    into.emplace_back();
                    const std::string fault = read_config_group(element, into.back());
                    if (!fault.empty()) return cat({"[", into.size() - 1, "]", fault});
                }
                return clash_in(into);
            }};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<launcher_options> read_launcher_config(std::string_view json,
                                                                  const environment_lookup& lookup) {
    launcher_options out;
    const result<void> read = detail::read_log_options(lookup, out.log);
    if (!read) return read.error();
    const result<void> checked = detail::check_json(json);
    if (!checked) return error{errc::invalid_argument, 0, checked.error().text};
    if (!detail::is_utf8(json)) return error{errc::invalid_argument, 0, "not UTF-8"};
    const detail::config_keys keys{detail::address_key("admin", out.admin_address),
                                   detail::text_key("socket_folder", out.socket_folder),
                                   detail::text_key("state_file", out.state_file),
                                   detail::flag_key("end_left_behind", out.end_left_behind),
                                   detail::duration_key("left_behind_grace", out.left_behind_grace),
                                   detail::groups_key(out.groups)};
    std::string fault = detail::read_config_object(json.substr(detail::skip_json_blanks(json, 0)), keys);
    if (fault.empty() && out.groups.empty()) fault = ".process_groups: is empty";
    if (fault.empty()) return out;
    return error{errc::invalid_argument, 0, fault.substr(fault.front() == '.' ? 1 : 2)};
}

}  // namespace v0_1_0
}  // namespace ojs
