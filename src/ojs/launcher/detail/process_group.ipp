#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// ---- starting ----

// Address space that must be left during a start: one that takes the last leaves none for those that run. Not of the heap,
// which threads that found no arena cannot share.
class spare_memory {
  public:
    spare_memory() = default;
    spare_memory(const spare_memory&) = delete;
    spare_memory& operator=(const spare_memory&) = delete;
    ~spare_memory() {
        if (is_there()) ::munmap(at_, size);
    }
    bool is_there() const noexcept { return at_ != MAP_FAILED; }

  private:
    static constexpr std::size_t size = 8 * 1024 * 1024;
    void* const at_ = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

inline result<ref<member>> process_group::launch(const ref<member>& added, const group_options& of) {
    const result<void> started = unless_out_of_memory([&] { return start_process(added, of); });
    if (started) return added;
    not_started(added, started.error());
    around_->log.write(
        log_level::error, "process not started",
        {field("process_id", added->id), field("group", of.name), field("error", started.error().text)});
    return started.error();
}

inline result<void> process_group::start_process(const ref<member>& added, const group_options& of) {
    const ref<process_group> self(this);
    const spare_memory spare;
    if (!spare.is_there()) return error{errc::unavailable, ENOMEM, "out of memory"};
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
    if (!started) return started.error();
    settle_in(*added, *started);
    return {};
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
    const ref<member> added =
        make_ref<member>(cat({options_.id_prefix, "-", last_number_ + 1}), generation, std::move(place));
    added->info.id = added->id;
    added->info.group = of.name;
    added->info.generation = generation;
    // What fails for want of memory shall fail here: its end then needs none.
    vacancies_.reserve(vacancies_.size() + members_.size() + 1);
    gone_.reserve(gone_.size() + members_.size() + 1);
    members_.push_back(added);
    added->place->started = steady_clock::now();
    ++last_number_;
    ++starting_;
    return added;
}

// What was asked of it before it was there is said now.
inline void process_group::settle_in(member& added, const ref<instance>& started) {
    lock_guard held(mutex_);
    if (!is_here(added)) {  // it has ended already
        gone_.push_back(started);
        return;
    }
    added.process = started;
    added.leaving = added.leaving || stopping_;
    const bool leaves = added.leaving;
    const bool forced = added.forced;
    const bool notified = added.notified;
    const shutdown_order order = added.order;
    held.unlock();
    if (notified) started->notified(ready_notification{added.id, {}});
    if (leaves) started->shut_down(order);
    if (forced) started->force();
}

inline void process_group::not_started(const ref<member>& added, const error& why) {
    const lock_guard held(mutex_);
    if (!is_here(*added)) return;
    if (added->info.state == instance_state::spawning) --starting_;
    added->info.state = instance_state::crashed;
    attempt([&] {
        added->info.message = why.text;
        around_->events->tell(added->info, instance_state::spawning);
    });
    note_failed(*added);
    remove(added);
    changed_.notify_all();
}

// ---- what processes say ----

inline void process_group::told(const ref<member>& of, const process_info& now) {
    bool degraded = false;
    if (around_->ledger && is_over(now.state)) around_->ledger->remove(of->id);
    {
        const lock_guard held(mutex_);
        if (!is_here(*of)) return;
        process_info next = now;
        around_->events->tell(now, of->info.state);
        metrics_.told(of->info, now, of->was_ready);
        if (of->info.state == instance_state::spawning && now.state != instance_state::spawning) --starting_;
        const bool fails = now.state == instance_state::unhealthy || now.state == instance_state::crashed;
        if (fails && !of->was_ready && !of->leaving) note_failed(*of);
        of->info = std::move(next);
        of->was_ready = of->was_ready || now.state == instance_state::ready;
        tell_routing(*of);
        around_->routing->post(routing::kind::changed, now);
        if (is_over(now.state)) {
            const bool was_degraded = degraded_;
            remove(of);
            degraded = degraded_ && !was_degraded;
        }
        changed_.notify_all();
    }
    if (degraded) {
        around_->log.write(log_level::error, "group degraded, it goes on with fewer",
                           {field("group", now.group), field("process_id", now.id)});
        around_->events->tell(now.group, "group degraded", "");
    }
    around_->wake();
}

inline void process_group::tell_routing(member& of) {
    const bool takes_work = is_ready(of);
    if (takes_work == of.told_routable) return;
    around_->routing->post(takes_work ? routing::kind::routable : routing::kind::unroutable, of.info);
    of.told_routable = takes_work;
}

// It is over: what becomes of its place. Needs no memory.
inline void process_group::remove(const ref<member>& of) noexcept {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == of) members_.remove(i);
    }
    if (of->process) gone_.push_back(of->process);
    of->process = {};  // it holds what holds us
    if (ended_.size() == ended_kept) ended_.remove(0);
    const how_ended how = how_it_ended(*of);
    ended_.push_back(std::move(of->info));
    if (replacing_ || stopping_) return;
    const restart_decision next = restart_after(options_.restart, how, *of->place, steady_clock::now());
    add_vacancy(of->place, next.when);
    degraded_ = degraded_ || next.degraded;
}

inline how_ended process_group::how_it_ended(const member& of) {
    if (of.leaving) return how_ended::asked_for;
    const bool failed =
        of.given_up || of.info.state == instance_state::forced || !of.info.exit.ok() || of.info.pid == 0;
    return failed ? how_ended::failed : how_ended::by_itself;
}

// ---- what is due ----

// One place at a time: while a process is being started, others may shut the group down, hold it or replace it. In the
// moment that a place is taken, its process is one of the group, with the configuration the group then has.
inline ref<member> process_group::admit_due(time_point now, group_options& of) {
    const lock_guard held(mutex_);
    if (!may_start() || vacancies_.back().due > now) return {};
    const ref<restart_history> place = vacancies_.back().place;
    const bool restarts = place->started != time_point();
    of = options_;
    const ref<member> added = add(place, of, generation_);
    vacancies_.pop_back();
    if (restarts) count_one(metrics_.restarts);
    return added;
}

// Those that are unhealthy end by force, and the policy restarts them. While fewer than min_healthy are ready, one that
// was ready once is given up only when no other is on its way: half a process beats none. [RFC-041 "Unhealthy at any
// point"]
inline members process_group::take_ill() {
    const lock_guard held(mutex_);
    members out;
    if (stopping_ || held_) return out;
    bool one_on_its_way = false;
    for (const ref<member>& each : members_) {
        const bool waits = each->info.state < instance_state::ready || each->given_up || each->leaving;
        one_on_its_way = one_on_its_way || waits;
    }
    for (const vacancy& each : vacancies_) one_on_its_way = one_on_its_way || each.due != time_point::max();
    for (const ref<member>& each : members_) {
        const bool ill = each->info.state == instance_state::unhealthy && !each->given_up && !each->leaving;
        if (!ill) continue;
        const bool may_go = !each->was_ready || count_ready() >= least_ready() || !one_on_its_way;
        if (!may_go) continue;
        out.push_back(each);
        one_on_its_way = each->given_up = true;
    }
    return out;
}

// Of another configuration first, the youngest of them first; then the oldest.
inline members process_group::find_surplus() const {
    members out;
    int staying = 0;
    for (const ref<member>& each : members_) staying += each->leaving ? 0 : 1;
    for (std::size_t i = members_.size(); i > 0 && staying > options_.desired; --i) {
        const ref<member>& each = members_[i - 1];
        if (each->leaving || each->generation == generation_) continue;
        out.push_back(each);
        --staying;
    }
    for (const ref<member>& each : members_) {
        if (staying <= options_.desired) break;
        if (each->leaving || each->generation != generation_) continue;
        out.push_back(each);
        --staying;
    }
    return out;
}

// ---- the groups of a launcher, and how one of them, or a process, is found ----

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
