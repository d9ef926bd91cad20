#pragma once

#include "process_group.hpp"

namespace ojs::detail {

// ---- starting ----

// Its number is in the state file before it becomes its program.
inline void record_start(instance_spec& spec, const ref<state_file>& file) {
    const state_entry entry{spec.id, spec.group, spec.address, 0, 0, 0};
    spec.options.child.before_exec = [file, entry, given = spec.options.child.before_exec](pid_t pid) {
        state_entry now = entry;
        now.pid = pid;
        result<void> known = file->add(std::move(now));
        return known && given ? given(pid) : known;
    };
}

inline result<void> process_group::start_process(const ref<member>& added, const group_options& of) {
    const ref<process_group> self(this);
    instance_spec spec;
    spec.id = added->id;
    spec.group = of.name;
    spec.options = of.process;
    spec.options.readiness_timeout = of.health_check_timeout;
    spec.generation = added->generation;
    if (of.process.has_coordinator) {
        spec.address = cat({"unix:", context_->socket_folder, "/", added->id, ".sock"});
        spec.launcher_address = context_->launcher_address;
    }
    if (context_->state) record_start(spec, context_->state);
    const result<ref<instance>> started = context_->starter(
        spec,
        [self, added](const process_info& now, instance_state) { self->on_process_changed(added, now); });
    if (!started) return started.error();
    on_started(*added, *started);
    return {};
}

// What was asked of it before it was there is said now.
inline void process_group::on_started(member& added, const ref<instance>& started) {
    unique_lock held(mutex_);
    if (!find_running(added.id)) {  // it has ended already
        gone_.push_back(started);
        return;
    }
    added.process = started;
    const bool leaves = added.leaving = added.asked = added.leaving || stopping_;
    const bool forced = added.forced;
    const bool notified = added.notified;
    const shutdown_options order = added.order;
    held.unlock();
    if (notified) started->poll();
    if (leaves) started->shut_down(order);
    if (forced) started->force();
}

inline void process_group::on_start_failed(const ref<member>& added, const error& why) {
    attempt([&] {
        context_->log.write(
            log_level::error, "process not started",
            {field("process_id", added->id), field("group", added->info.group), field("error", why.text)});
    });
    const unique_lock held(mutex_);
    if (!find_running(added->id)) return;
    if (added->info.state == instance_state::spawning) --starting_;
    added->info.state = instance_state::crashed;
    attempt([&] {
        added->info.message = why.text;
        context_->events->tell(added->info, instance_state::spawning);
    });
    note_failed(*added);
    remove(added);
    touch();
}

// ---- what processes say ----

inline void process_group::on_process_changed(const ref<member>& of, const process_info& now) {
    if (context_->state && is_final(now.state)) context_->state->remove(of->id);
    {
        const unique_lock held(mutex_);
        if (!find_running(of->id)) return;
        process_info next = now;
        context_->events->tell(now, of->info.state);
        metrics_.on_process_changed(of->info, now, of->was_ready);
        if (of->info.state == instance_state::spawning && now.state != instance_state::spawning) --starting_;
        const bool fails = now.state == instance_state::unhealthy || now.state == instance_state::crashed;
        if (fails && !of->was_ready && !of->leaving) note_failed(*of);
        of->info = std::move(next);
        of->was_ready = of->was_ready || now.state == instance_state::ready;
        if (!is_ready(*of)) of->ready_since = {};
        update_routing(*of);
        context_->routing->post(routing::kind::changed, now);
        if (is_final(now.state)) remove(of);
        touch();
    }
    context_->wake();
}

// It is over: the next reconciliation decides what becomes of its place. Needs no memory.
inline void process_group::remove(const ref<member>& of) noexcept {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == of) members_.remove(i);
    }
    if (of->process) gone_.push_back(of->process);
    of->process = {};  // it holds what holds us
    if (ended_.size() == max_ended) ended_.remove(0);
    attempt([&] { ended_.push_back(of->info); });
    if (!of->leaving && !stopping_) over_.push_back(of);
}

// ---- what is decided ----

// How many may be started.
inline int process_group::decide(time_point now) {
    todo left;
    int starts = 0;
    {
        const unique_lock held(mutex_);
        touched_ = false;
        replace_ended(now, left);
        update_proven(now);
        take_unhealthy(left);
        if (rollout_) advance(now, left);
        if (!replacing()) fill_places();
        members staying;
        members surplus;
        const group_plan plan = plan_at(now, staying);
        for (const std::size_t each : plan.ends) surplus.push_back(staying[each]);
        if (!surplus.empty()) mark_leaving(surplus, order_of_surplus());
        if (rollout_ && rollout_->show(now, count_all() - count_of(rollout_->generation), drains(now)))
            tell(left, log_level::info, "rolling replace goes on");
        pick_asked(now, left);
        starts = plan.starts;
    }
    write(left.records);
    force(left.force);
    ask_to_end(left.ask);
    for (const ref<instance>& each : left.poll) each->poll();
    return starts;
}

// One at a time: while a process is being started, others may shut the group down, hold it or replace it.
inline ref<member> process_group::claim_due_slot(time_point now, group_options& options) {
    const unique_lock held(mutex_);
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
    added->info.group = options.name;
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
    const unique_lock held(mutex_);
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
            if (is_ready(*each)) look_at(each->ready_since + min_ready_time(options_of(each->generation)));
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
inline void process_group::replace_ended(time_point now, todo& left) {
    for (const ref<member>& each : over_) {
        const process_info& info = each->info;
        if (each->fresh) {
            note_fault(*each, info.pid == 0 && !each->was_ready ? info.message.c_str() : reason_of(*each));
            continue;
        }
        const bool was_degraded = is_degraded();
        const bool failed =
            each->given_up || info.state == instance_state::forced || !info.exit.ok() || info.pid == 0;
        const restart_decision next = restart_after(options_.restart, failed, *each->place, now);
        vacancies_.push_back({each->place, next.when, next.degraded});
        if (was_degraded || !next.degraded) continue;
        left.records.push_back({log_level::error,
                                "group degraded, it goes on with fewer",
                                {field("group", options_.name), field("process_id", each->id)},
                                {}});
        context_->events->tell(options_.name, "group degraded", "");
    }
    over_.clear();
}

inline void process_group::update_proven(time_point now) {
    for (const ref<member>& each : members_) {
        const bool ready = is_ready(*each);
        if (ready && each->ready_since == time_point()) each->ready_since = now;
        const bool proven = ready && now >= each->ready_since + min_ready_time(options_of(each->generation));
        if (each->proven && !proven && !each->leaving) note_fault(*each, "did not stay ready");
        each->proven = proven;
        update_routing(*each);
    }
}

// Those that are unhealthy end by force, and the policy restarts them. While fewer than min_healthy are ready, one that
// was ready once is given up only when no other is on its way: half a process beats none. [RFC-041 "Unhealthy at any
// point"]
inline void process_group::take_unhealthy(todo& left) {
    if (stopping_ || held_) return;
    const int min_ready = std::max(options_.min_healthy, 1);
    bool one_on_its_way = false;
    for (const ref<member>& each : members_) {
        const bool waits = each->info.state < instance_state::ready || each->given_up || each->leaving;
        one_on_its_way = one_on_its_way || waits;
    }
    for (const vacancy& each : vacancies_) one_on_its_way = one_on_its_way || each.due != time_point::max();
    for (const ref<member>& each : members_) {
        const bool unhealthy = each->info.state == instance_state::unhealthy && !each->given_up;
        if (!unhealthy || each->leaving || each->fresh) continue;
        if (each->was_ready && count(is_ready) < min_ready && one_on_its_way) continue;
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
        if (context_->routing->was_called(each->unrouted) || now >= each->ask_by) left.ask.push_back(each);
    }
}

// ---- the rollout, by reconcile() ----
//
// At any moment at least min_healthy are ready, as far as that hangs on what is done here, and at most
// desired + max_surge are there, those that drain included. The new ones have proven themselves before the
// old ones are asked to end, and those have ended before the next are started.

inline void process_group::advance(time_point now, todo& left) {
    rollout& r = *rollout_;
    if (r.at == rollout::stage::ending) {
        drop_unready(left);
        if (!drains(now)) finish(left);
        return;
    }
    if (goes_forward() && r.status.cancelling) {
        conclude(replacement_end::cancelled);
        return drop_unready(left);
    }
    if (held_) return;
    find_faults(now, left);
    switch (r.after_failure(now)) {
        case rollout::failure_step::none: break;
        case rollout::failure_step::retry:
            tell(left, log_level::warn, "a new process did not become ready, another is tried");
            break;
        case rollout::failure_step::roll_back:
            tell(left, log_level::error, "rolling replace failed, rolling back");
            break;
        case rollout::failure_step::give_up: conclude(replacement_end::rolled_back); break;
    }
    drop_unready(left);
    if (goes_forward() && r.watch_canaries(now, count_proven(r.generation), canaries())) {
        if (r.canaries == rollout::canary_step::watched) tell(left, log_level::info, "canaries are watched");
        touch();
    }
    if (!replacing() || !is_complete(now)) return;
    conclude(goes_forward() ? replacement_end::done : replacement_end::rolled_back);
    if (r.ending == replacement_end::done) finish(left);  // while all of it is ready
}

inline void process_group::find_faults(time_point now, todo& left) {
    for (const ref<member>& each : members_) {
        if (!each->fresh || each->leaving || each->generation != wanted_generation()) continue;
        const group_options& options = options_of(each->generation);
        bool late = !each->proven && now >= proven_by(*each);
        if (late && each->process && each->answer_by == time_point()) {
            // Where this process stood still, nobody was asked meanwhile.
            each->answer_by = now + options.process.rpc_timeout;
            left.poll.push_back(each->process);
            late = false;
        }
        const bool unhealthy = each->info.state == instance_state::unhealthy;
        if (!late && !unhealthy) continue;
        if (late && !each->was_ready) note_failed(*each);
        const bool timed_out = late || now >= each->place->started + options.health_check_timeout;
        note_fault(*each, timed_out && !each->was_ready ? "was not ready in time" : reason_of(*each));
        mark_leaving({each}, {"rolled back", {}, {}});
        left.force.push_back(each);
    }
    const int current = count_of(wanted_generation());
    const bool wants_room = current < wanted() && current == count_proven(wanted_generation());
    const bool full = static_cast<int>(members_.size()) >= rollout_->max_total;
    const bool some_leave = static_cast<int>(members_.size()) > count_all();
    // What leaves should have ended long ago.
    if (wants_room && full && some_leave && !drains(now))
        rollout_->fail_for_good("others did not end in time");
}

// What is left to do is to wait for those that drain. From here on the group has the configuration that it will keep.
inline void process_group::conclude(replacement_end result) {
    rollout& r = *rollout_;
    r.at = rollout::stage::ending;
    r.ending = result;
    for (const ref<member>& each : members_) {
        each->fresh = false;
        update_routing(*each);
    }
    touch();
    if (result != replacement_end::done) return;
    std::string prefix = std::move(options_.id_prefix);
    options_ = r.to;
    options_.id_prefix = std::move(prefix);
    if (options_.max_surge == 0) options_.max_surge = 1;
    generation_ = r.generation;
    stopped_ = false;
    vacancies_.clear();
}

inline void process_group::finish(todo& left) {
    rollout& r = *rollout_;
    const int fresh = count_of(r.generation);
    message_ = r.end(fresh, count_all() - fresh);
    metrics_.replaced(r.ending);
    if (r.report.rolled_back && r.report.mixed)
        tell(left, log_level::error, "rolling back failed too, processes of both configurations run");
    tell(left, r.ending == replacement_end::done ? log_level::info : log_level::warn, "rolling replace ended",
         replacement_end_names[static_cast<std::size_t>(r.ending)]);
    rollout_ = {};
    touch();
}

// New processes that are not ready have nothing in flight: a rollback or a cancellation ends them at once.
inline void process_group::drop_unready(todo& left) {
    const rollout& r = *rollout_;
    const bool cancelled = r.at == rollout::stage::ending && r.ending != replacement_end::done;
    if (!cancelled && r.at != rollout::stage::rolling_back) return;
    for (const ref<member>& each : members_) {
        if (each->leaving || each->generation != r.generation || is_ready(*each)) continue;
        mark_leaving({each}, {"rolled back", {}, {}});
        left.force.push_back(each);
    }
}

// ---- the rollout, by other threads ----

inline rolling_report process_group::preview_rollout() const {
    rolling_report out;
    const time_point deadline = deadline_after(std::chrono::seconds(2));  // for all of them
    for (const ref<member>& each : staying()) {
        drain_preview found;
        found.id = each->id;
        const result<shutdown_status> status = ask_status(*each, deadline);
        if (status) found.in_flight = status->metrics;
        if (!status) found.error = status.error().text;
        out.would_drain.push_back(std::move(found));
        ++out.total;
    }
    return out;
}

inline result<ref<rollout>> process_group::begin_rollout(const group_options& to,
                                                         const rolling_options& options) {
    todo left;
    ref<rollout> out;
    {
        const unique_lock held(mutex_);
        if (rollout_) return error{errc::busy, 0, "a replacement is under way in this group"};
        if (stopping_) return error{errc::busy, 0, "the group is stopping"};
        if (held_) return error{errc::busy, 0, "the launcher is quiet: SIGCONT or resume() ends that"};
        out = last_rollout_ = rollout_ = make_ref<rollout>(to, options, options_, ++last_generation_);
        out->status.total = out->report.total = count_all();
        tell(left, log_level::info, "rolling replace begins");
        touch();
    }
    write(left.records);
    context_->wake();
    return out;
}

inline rolling_report process_group::await_rollout(const ref<rollout>& of, const cancel_token& until) {
    const cancel_registration told =
        until.on_cancel([&] { static_cast<void>(cancel_rollout("the caller cancelled it", of.get())); });
    unique_lock held(mutex_);
    while (of->at != rollout::stage::ended) {
        if (of->canaries != rollout::canary_step::check_due) {
            changed_.wait(held);
            continue;
        }
        of->canaries = rollout::canary_step::checking;
        std::vector<process_info> canaries;
        for (const ref<member>& each : members_) {
            if (each->generation == of->generation && !each->leaving) canaries.push_back(each->info);
        }
        held.unlock();
        const result<void> passed = of->ask_canary_check(canaries);
        held.lock();
        if (of->canaries != rollout::canary_step::checking) continue;  // one of them failed meanwhile
        of->canaries = rollout::canary_step::passed;
        if (!passed && goes_forward()) of->fail_for_good(cat({"the canaries' check: ", passed.error().text}));
        touch();
        context_->wake();
    }
    return of->report;
}

inline result<void> process_group::cancel_rollout(const std::string& reason, const rollout* which) {
    {
        const unique_lock held(mutex_);
        if (!rollout_ || (which != nullptr && which != rollout_.get()))
            return error{errc::busy, 0, "no replacement is under way in this group"};
        if (rollout_->report.rolled_back)
            return error{errc::busy, 0, "the replacement is being rolled back already"};
        if (all_replaced() || (!replacing() && rollout_->ending == replacement_end::done))
            return error{errc::busy, 0, "the replacement is done already; old processes drain"};
        rollout_->status.cancelling = true;
        touch();
    }
    const std::string name = options().name;
    context_->log.write(log_level::warn, "rolling replace is cancelled",
                        {field("group", name), field("reason", reason)});
    context_->events->tell(name, "rolling replace is cancelled", cat({",\"reason\":", json_quote(reason)}));
    context_->wake();
    return {};
}

}  // namespace ojs::detail
