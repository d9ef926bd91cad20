// capacity: whether this machine can hold the processes of a launcher.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "../../base/detail/text.hpp"
#include "process_group.hpp"

namespace ojs::detail {

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

// With one of them as it is to become.
inline result<void> check_capacity(const array<ref<process_group>>& groups, const group_options& wanted) {
    std::vector<group_options> all;
    for (const ref<process_group>& each : groups) {
        all.push_back(each->options());
        if (all.back().name == wanted.name) all.back() = wanted;
    }
    const std::string fault = fault_in_capacity(all, limits_here());
    return fault.empty() ? result<void>() : error{errc::invalid_argument, 0, fault};
}

}  // namespace ojs::detail
