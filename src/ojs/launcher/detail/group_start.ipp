// group_start: a new process, from its place in the group until it runs.
#pragma once

#include <signal.h>

#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline result<ref<member>> process_group::launch(const ref<member>& added, const group_options& of) {
    const ref<process_group> self(this);
    instance_spec spec;
    spec.id = added->id;
    spec.group = of.name;
    spec.options = of.process;
    spec.options.readiness_timeout = of.health_check_timeout;
    spec.generation = added->generation;
    spec.address = cat({"unix:", around_->socket_folder, "/", added->id, ".sock"});
    spec.launcher_address = around_->launcher_address;
    if (!of.process.participates) spec.address.clear();
    if (around_->ledger) write_down(spec);
    const result<ref<instance>> started = around_->starter(
        spec, [self, added](const process_info& now, instance_state) { self->told(added, now); });
    if (!started) {
        around_->log.write(
            log_level::error, "process not started",
            {field("process_id", added->id), field("group", of.name), field("error", started.error().text)});
        if (around_->ledger) around_->ledger->remove(added->id);
        not_started(added, started.error());
        return started.error();
    }
    settle_in(*added, *started);
    return added;
}

inline void process_group::write_down(instance_spec& spec) const {
    const state_entry entry{spec.id, spec.group, spec.address, 0, 0, 0};
    spec.options.child.before_exec = [ledger = around_->ledger, entry,
                                      given = spec.options.child.before_exec](pid_t pid) {
        state_entry now = entry;
        now.pid = pid;
        result<void> known = ledger->add(std::move(now));
        return known && given ? given(pid) : known;
    };
}

// With the mutex held.
inline ref<member> process_group::add(ref<restart_history> place, const group_options& of,
                                      std::uint64_t generation) {
    place->started = steady_clock::now();
    const ref<member> added =
        make_ref<member>(cat({options_.id_prefix, "-", ++last_number_}), generation, std::move(place));
    added->info.id = added->id;
    added->info.group = of.name;
    added->info.generation = generation;
    members_.push_back(added);
    return added;
}

// What was asked of it before it was there is said now.
inline void process_group::settle_in(member& added, const ref<instance>& started) {
    bool leaves = false;
    bool forced = false;
    bool notified = false;
    {
        const lock_guard held(mutex_);
        if (!is_here(added)) {  // it has ended already
            gone_.push_back(started);
            return;
        }
        added.process = started;
        leaves = added.leaving || stopping_;
        forced = added.forced;
        notified = added.notified;
        if (stopping_) added.leaving = true;
    }
    if (notified) started->notified(ready_notification{added.id, {}});
    if (leaves) started->shut_down(order_of(added));
    if (forced) started->force();
}

inline void process_group::not_started(const ref<member>& added, const error& why) {
    const lock_guard held(mutex_);
    added->info.state = instance_state::crashed;
    added->info.message = why.text;
    note_failed(*added);
    around_->events->tell(added->info, instance_state::spawning);
    remove(added);
    changed_.notify_all();
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
