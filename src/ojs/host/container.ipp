#pragma once

#include <unistd.h>

#include "../base/detail/proc.ipp"
#include "../base/detail/text.hpp"
#include "../base/error.hpp"
#include "container.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// The first that matches counts: the scheduler, not the runtime, stops a container.
inline constexpr stop_platform stop_platforms[] = {
    {"fly", "Fly.io", "FLY_MACHINE_ID", std::chrono::seconds(5), false, false},
    {"heroku", "Heroku", "DYNO", std::chrono::seconds(30), true, false},
    {"kubernetes", "Kubernetes", "KUBERNETES_SERVICE_HOST /var/run/secrets/kubernetes.io/serviceaccount/namespace",
     std::chrono::seconds(30), true},
    {"ecs", "Amazon ECS", "ECS_CONTAINER_METADATA_URI_V4 ECS_CONTAINER_METADATA_URI AWS_EXECUTION_ENV=AWS_ECS_",
     std::chrono::seconds(30), true},
    {"cloud-run", "Cloud Run", "K_REVISION CLOUD_RUN_JOB CLOUD_RUN_WORKER_POOL", std::chrono::seconds(10), true},
    {"nomad", "Nomad", "NOMAD_ALLOC_ID", std::chrono::seconds(5), false, false},
    {"docker", "Docker", "/.dockerenv container=docker", std::chrono::seconds(10)},
    {"podman", "Podman", "/run/.containerenv container=podman", std::chrono::seconds(10)},
    // Any other, with the commonest default.
    {"container", "the container", "/run/systemd/container container=lxc container=oci container=systemd-nspawn",
     std::chrono::seconds(10)},
};

inline bool is_found(std::string_view evidence, const container_probe& probe) {
    while (!evidence.empty()) {
        std::string_view start = next_part(evidence, " ");
        const std::string name(start[0] == '/' ? start : next_part(start, "="));
        if (name[0] == '/' && ::access(cat({probe.root, name}).c_str(), F_OK) == 0) return true;
        const char* const value = find_variable(probe.environment, name.c_str());
        if (value != nullptr && *value != '\0' && starts_with(value, start)) return true;
    }
    return false;
}

OJS_SHUTDOWN_INLINE container_info detect_container(const container_probe& probe) {
    container_info out;
    for (const stop_platform& each : stop_platforms) {
        if (!is_found(each.evidence, probe)) continue;
        if (out.platform == nullptr) out.platform = &each;
        out.in_container = out.in_container || each.is_container;
    }
    return out;
}

inline constexpr const char* shell_names = "sh bash dash ash zsh ksh ksh93 mksh yash fish csh tcsh";
// These pass signals on, or stop what they have started.
inline constexpr const char* forwarder_names =
    "tini tini-static docker-init ojs-init dumb-init catatonit podman-init systemd init s6-svscan s6-supervise "
    "s6-linux-init runit runit-init runsvdir runsv my_init supervisord openrc-init dinit finit procd launcher";

// "/usr/bin/sh" and "-sh" are "sh".
inline std::string program_name(std::string_view path) {
    path.remove_prefix(path.rfind('/') + 1);                          // npos + 1: 0
    if (!path.empty() && path.front() == '-') path.remove_prefix(1);  // a login shell
    return std::string(path);
}

// A script has its own name as comm, and its interpreter's in argv[0].
inline std::string interpreter_name(const process_facts& facts) {
    const array<std::string>& arguments = facts.arguments;
    const std::string out = arguments.empty() ? "" : program_name(arguments[0]);
    return out == "busybox" && arguments.size() > 1 ? program_name(arguments[1]) : out;
}
inline bool is_named(const process_facts& facts, std::string_view names) {
    return is_listed(facts.comm, names) || is_listed(interpreter_name(facts), names);
}

// The ancestor nearest to PID 1 that may not pass signals on; without a pid: none.
inline process_facts find_wrapper(std::string_view root, process_facts each) {
    const std::string self = each.comm;
    process_facts out;
    for (int steps = 0; each.pid > 1 && steps < 64; ++steps) {
        each = read_process(root, cat({each.parent}));
        if (!is_named(each, forwarder_names) && each.comm != self) out = each;
    }
    return each.pid == 1 ? out : process_facts();
}
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
