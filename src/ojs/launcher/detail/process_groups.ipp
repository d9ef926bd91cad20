// process_groups: the groups of a launcher, and how one of them, or a process, is found.
#pragma once

#include "process_group.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

using process_groups = array<ref<process_group>>;

inline error no_such(const char* what, const std::string& name) {
    return error{errc::rejected, 0, cat({"no such ", what, ": ", printable(name, 60)})};
}

// None: there is no such group.
inline ref<process_group> find_group(const process_groups& groups, const std::string& name) {
    for (const ref<process_group>& each : groups) {
        if (each->options().name == name) return each;
    }
    return {};
}

// Where it stands is what the group acts on; what it says while it stands there is newer in the process itself.
inline void add_newest(const process_group& group, const member& running, process_info& known) {
    const ref<instance> asked = group.process_of(running);
    if (!asked) return;
    process_info now = asked->info();
    known.readiness = std::move(now.readiness);
    known.shutdown = std::move(now.shutdown);
}

inline group_info newest_info(const process_group& group) {
    const members running = group.running();
    group_info out = group.info();
    for (process_info& each : out.processes) {
        for (const ref<member>& one : running) {
            if (one->id == each.id) add_newest(group, *one, each);
        }
    }
    return out;
}

struct found_process {
    ref<process_group> group;  // none: there is no such process
    ref<member> running;       // none: it has ended
    process_info info;
};

inline found_process find_process(const process_groups& groups, const std::string& id) {
    for (const ref<process_group>& each : groups) {
        found_process out{each, {}, {}};
        for (const ref<member>& one : each->running()) {
            if (one->id == id) out.running = one;
        }
        if (!each->find(id, out.info)) continue;
        if (out.running) add_newest(*each, *out.running, out.info);
        return out;
    }
    return {};
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
