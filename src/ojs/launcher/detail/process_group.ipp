#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "process_group.hpp"

namespace ojs::detail {

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
    if (around_->state) write_down(spec);
    const result<ref<instance>> started = around_->starter(
        spec, [self, added](const process_info& now, instance_state) { self->told(added, now); });
    if (!started) return started.error();
    settle_in(*added, *started);
    return {};
}

inline void process_group::write_down(instance_spec& spec) const {
    const state_entry entry{spec.id, spec.group, spec.address, 0, 0, 0};
    spec.options.child.before_exec = [file = around_->state, entry,
                                      given = spec.options.child.before_exec](pid_t pid) {
        state_entry now = entry;
        now.pid = pid;
        result<void> known = file->add(std::move(now));
        return known && given ? given(pid) : known;
    };
}

// What was asked of it before it was there is said now.
inline void process_group::settle_in(member& added, const ref<instance>& started) {
    lock_guard held(mutex_);
    if (!is_here(added)) {  // it has ended already
        gone_.push_back(started);
        return;
    }
    added.process = started;
    const bool leaves = added.leaving = added.asked = added.leaving || stopping_;
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
    touch();
}

// ---- what processes say ----

inline void process_group::told(const ref<member>& of, const process_info& now) {
    if (around_->state && is_over(now.state)) around_->state->remove(of->id);
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
        if (!is_ready(*of)) of->ready_since = {};
        tell_routing(*of);
        around_->routing->post(routing::kind::changed, now);
        if (is_over(now.state)) remove(of);
        touch();
    }
    around_->wake();
}

// A new one of a rollout is given work once it has proven itself: until then the others do it.
inline void process_group::tell_routing(member& of) {
    const bool takes_work = is_ready(of) && (!of.fresh || of.proven);
    if (takes_work == of.told_routable) return;
    of.unrouted =
        around_->routing->post(takes_work ? routing::kind::routable : routing::kind::unroutable, of.info);
    of.told_routable = takes_work;
}

// It is over: the next reconciliation decides what becomes of its place. Needs no memory.
inline void process_group::remove(const ref<member>& of) noexcept {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == of) members_.remove(i);
    }
    if (of->process) gone_.push_back(of->process);
    of->process = {};  // it holds what holds us
    if (ended_.size() == ended_kept) ended_.remove(0);
    attempt([&] { ended_.push_back(of->info); });
    if (!of->leaving && !stopping_) over_.push_back(of);
}

inline how_ended process_group::how_it_ended(const member& of) {
    const bool failed =
        of.given_up || of.info.state == instance_state::forced || !of.info.exit.ok() || of.info.pid == 0;
    return failed ? how_ended::failed : how_ended::by_itself;
}

// ---- what is decided ----

// How many may be started.
inline int process_group::decide(time_point now) {
    todo left;
    int starts = 0;
    {
        const lock_guard held(mutex_);
        touched_ = false;
        judge_ended(now, left);
        look_at_members(now);
        take_ill(left);
        if (rollout_) advance(now, left);
        if (!replacing()) fill_places();
        members staying;
        members surplus;
        const group_plan plan = plan_at(now, staying);
        for (const std::size_t each : plan.ends) surplus.push_back(staying[each]);
        if (!surplus.empty()) mark_leaving(surplus, order_of_surplus());
        if (rollout_) show_rollout(now, left);
        pick_asked(now, left);
        starts = plan.starts;
    }
    write(left.records);
    force(left.force);
    ask_to_end(left.ask);
    for (const ref<member>& each : left.ask_ready) {
        if (const ref<instance> target = process_of(*each))
            target->notified(ready_notification{each->id, {}});
    }
    return starts;
}

// One at a time: while a process is being started, others may shut the group down, hold it or replace it. In the moment that
// a place is taken, its process is one of the group, with the configuration the group then has.
inline ref<member> process_group::admit(time_point now, group_options& options) {
    const lock_guard held(mutex_);
    members staying;
    if (plan_at(now, staying).starts == 0) return {};
    options = options_of(wanted_generation());
    ref<restart_history> place;
    if (replacing()) place = make_ref<restart_history>(options.restart);
    for (std::size_t i = 0; i < vacancies_.size() && !place; ++i) {
        if (vacancies_[i].due > now) continue;
        place = vacancies_[i].place;
        vacancies_.remove(i);
        if (place->started != time_point()) count_one(metrics_.restarts);
    }
    const ref<member> added = make_ref<member>(cat({options_.id_prefix, "-", ++last_number_}),
                                               wanted_generation(), std::move(place));
    added->info.id = added->id;
    added->info.group = options.name;
    added->info.generation = added->generation;
    added->fresh = replacing();
    added->stop_time = stop_time(options.process.shutdown);
    added->place->started = now;
    // What fails for want of memory shall fail here: its end then needs none.
    gone_.reserve(gone_.size() + members_.size() + 1);
    over_.reserve(over_.size() + members_.size() + 1);
    members_.push_back(added);
    ++starting_;
    return added;
}

inline time_point process_group::next_due(time_point now) {
    const lock_guard held(mutex_);
    if (!over_.empty() || (rollout_ && touched_)) return now;
    time_point out = time_point::max();
    const auto look_at = [&](time_point due) {
        if (due > now && due < out) out = due;
    };
    for (const ref<member>& each : members_) {
        if (each->leaving) {
            if (!each->asked) look_at(each->ask_by);
            if (rollout_) look_at(each->gone_by);
        } else if (!each->proven) {
            if (is_ready(*each)) look_at(proven_at(*each));
            if (each->fresh) look_at(proven_by(*each));
        }
    }
    if (rollout_) look_at(rollout_->paused_until);
    if (rollout_) look_at(rollout_->watched_until);
    if (replacing() || held_) return out;
    for (const vacancy& each : vacancies_) look_at(each.due);
    return out;
}

// What nobody asked to end: its place is taken again by the policy, or the rollout has failed.
inline void process_group::judge_ended(time_point now, todo& left) {
    for (const ref<member>& each : over_) {
        if (each->fresh) {
            note_fault(*each, each->was_ready       ? "did not stay ready"
                              : each->info.pid == 0 ? each->info.message.c_str()
                                                    : "failed before it was ready");
            continue;
        }
        const bool was_degraded = is_degraded();
        const restart_decision next = restart_after(options_.restart, how_it_ended(*each), *each->place, now);
        vacancies_.push_back({each->place, next.when, next.degraded});
        if (was_degraded || !next.degraded) continue;
        log_record record;
        record.level = log_level::error;
        record.message = "group degraded, it goes on with fewer";
        record.fields = {field("group", options_.name), field("process_id", each->id)};
        left.records.push_back(std::move(record));
        around_->events->tell(options_.name, "group degraded", "");
    }
    over_.clear();
}

inline void process_group::look_at_members(time_point now) {
    for (const ref<member>& each : members_) {
        const bool ready = is_ready(*each);
        if (ready && each->ready_since == time_point()) each->ready_since = now;
        const bool proven = ready && now >= proven_at(*each);
        if (each->proven && !proven && !each->leaving) note_fault(*each, "did not stay ready");
        each->proven = proven;
        tell_routing(*each);
    }
}

inline time_point process_group::proven_at(const member& of) const {
    return of.ready_since + min_ready_time(options_of(of.generation));
}
// When a fresh one must be.
inline time_point process_group::proven_by(const member& of) const {
    const group_options& options = options_of(of.generation);
    const time_point timeout = of.place->started + options.health_check_timeout;
    const time_point ready_by = timeout > of.answer_by ? timeout : of.answer_by;
    return is_ready(of) ? ready_by + min_ready_time(options) : ready_by;
}

// Those that are unhealthy end by force, and the policy restarts them. While fewer than min_healthy are ready, one that
// was ready once is given up only when no other is on its way: half a process beats none. [RFC-041 "Unhealthy at any
// point"]
inline void process_group::take_ill(todo& left) {
    if (stopping_ || held_) return;
    const int min_ready = options_.min_healthy > 1 ? options_.min_healthy : 1;
    bool one_on_its_way = false;
    for (const ref<member>& each : members_) {
        const bool waits = each->info.state < instance_state::ready || each->given_up || each->leaving;
        one_on_its_way = one_on_its_way || waits;
    }
    for (const vacancy& each : vacancies_) one_on_its_way = one_on_its_way || each.due != time_point::max();
    for (const ref<member>& each : members_) {
        const bool ill = each->info.state == instance_state::unhealthy && !each->given_up && !each->leaving &&
                         !each->fresh;
        if (!ill) continue;
        const bool may_go = !each->was_ready || count(is_ready) >= min_ready || !one_on_its_way;
        if (!may_go) continue;
        one_on_its_way = true;
        each->given_up = true;
        left.force.push_back(each);
    }
}

// Those that no hook routes to any more, or whose hook takes too long.
inline void process_group::pick_asked(time_point now, todo& left) {
    for (const ref<member>& each : members_) {
        if (!each->leaving) continue;
        if (each->gone_by == time_point()) {
            each->ask_by = now + max_hook_time;
            each->gone_by = now + each->stop_time;
        }
        if (each->asked || each->forced || !each->process) continue;
        if (around_->routing->was_told(each->unrouted) || now >= each->ask_by) left.ask.push_back(each);
    }
}

inline group_goal process_group::goal_at(time_point now) const {
    group_goal out;
    out.may_end = !held_ && !stopping_;
    if (!out.may_end) return out;
    const int free = max_starting - starting_;
    out.wanted = wanted();
    out.replaces = replacing();
    const int min_healthy = out.replaces ? rollout_->min_healthy : options_.min_healthy;
    out.min_healthy = min_healthy < out.wanted ? min_healthy : out.wanted;
    if (!out.replaces) {
        for (const vacancy& each : vacancies_) out.max_starts += each.due > now ? 0 : 1;
        if (out.max_starts > free) out.max_starts = free;
        return out;
    }
    const rollout& r = *rollout_;
    out.max_others = r.max_others;
    if (now >= r.paused_until) out.max_starts = r.max_total - static_cast<int>(members_.size());
    if (out.max_starts > free) out.max_starts = free;
    if (!goes_forward() || r.canaries == rollout::canary_step::passed) return out;
    const int more = canaries() - count_of(r.generation);
    out.may_end = more > 0;  // those that they are to replace still run while they are watched
    if (more < out.max_starts) out.max_starts = more;
    return out;
}

inline group_plan process_group::plan_at(time_point now, members& staying) const {
    array<plan_member> facts;
    for (const ref<member>& each : members_) {
        if (each->leaving) continue;
        staying.push_back(each);
        facts.push_back({each->generation == wanted_generation(), is_ready(*each), each->proven});
    }
    return plan_group(facts, goal_at(now));
}

inline shutdown_order process_group::order_of_surplus() const {
    if (!replacing()) return {"more than desired", {}, {}};
    if (!goes_forward()) return {"rolled back", {}, {}};
    const std::string& reason = rollout_->options.reason;
    return {reason.empty() ? "rolling replacement" : reason, {}, {}};
}

// Without a replacement each place has a process, or waits for one: neither more nor fewer.
inline void process_group::fill_places() {
    int missing = wanted() - static_cast<int>(vacancies_.size()) - count([](const member&) { return true; });
    for (; missing > 0 && !stopping_; --missing)
        vacancies_.push_back({make_ref<restart_history>(options_.restart), time_point(), false});
    for (; missing < 0 && !vacancies_.empty(); ++missing) vacancies_.pop_back();
}

// An operator ends it. While there are more processes than places, a new one of the rollout has none yet.
inline void process_group::give_up_place(const member& of) {
    const int taken = static_cast<int>(vacancies_.size()) + count([](const member&) { return true; });
    if (of.fresh && taken > options_.desired - stopped_places_) return note_fault(of, "was stopped");
    if (!stopping_) ++stopped_places_;
}

inline void process_group::stop_starting() {
    todo left;
    {
        const lock_guard held(mutex_);
        stopping_ = true;
        vacancies_.clear();
        over_.clear();
        if (replacing())
            conclude(rollout_->report.rolled_back ? replacement_end::rolled_back
                                                  : replacement_end::cancelled);
        if (rollout_) finish(left);
        touch();
    }
    write(left.records);
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

}  // namespace ojs::detail
