#pragma once

#include "process_group.hpp"

namespace ojs::detail {
inline result<void> process_group::start_process(const ref<group_member>& added, const group_options& group) {
    const ref<process_group> self(this);
    instance_spec spec;
    spec.id = added->id;
    spec.group = group.name;
    spec.options = group.process;
    spec.options.readiness_timeout = group.health_check_timeout;
    spec.generation = added->generation;
    if (group.process.has_coordinator) {
        spec.address = cat({"unix:", context_->socket_folder, "/", added->id, ".sock"});
        spec.launcher_address = context_->launcher_address;
    }
    if (context_->state) {
        spec.record = [file = context_->state, id = spec.id, group = spec.group, address = spec.address](
                          pid_t pid, int interrupt_fd) {
            return file->add({id, group, address, pid, 0, 0}, interrupt_fd);
        };
    }
    const result<ref<instance>> started = context_->starter(
        spec, [self, added](const process_info& now, instance_state) { self->on_process_changed(added, now); });
    if (!started) return started.error();
    on_started(*added, *started);
    return {};
}

// Passes on the requests that came during the start.
inline void process_group::on_started(group_member& added, const ref<instance>& started) {
    unique_lock held(mutex_);
    if (!find_running(added.id)) {  // it has exited already
        exited_instances_.push_back(started);
        return;
    }
    added.process = started;
    const bool leaves = added.leaving = added.shutdown_requested = added.leaving || stopping_;
    const bool forced = added.forced;
    const bool poll_due = added.poll_due;
    const shutdown_options options = added.shutdown;
    held.unlock();
    if (poll_due) started->poll();
    if (leaves) started->shut_down(options);
    if (forced) started->force();
}

inline void process_group::on_start_failed(const ref<group_member>& added, const error& why) {
    attempt([&] {
        context_->log.write(
            log_level::error, "cannot start the process",
            {field("process_id", added->id), field("group", added->info.group), field("error", why.text)});
    });
    const unique_lock held(mutex_);
    if (!find_running(added->id)) return;
    if (added->info.state == instance_state::spawning) --starting_;
    added->info.state = instance_state::crashed;
    attempt([&] {
        added->info.message = why.text;
        context_->events->record_change(added->info, instance_state::spawning);
    });
    count_unready(*added);
    remove(added);
    mark_dirty();
}

inline void process_group::on_process_changed(const ref<group_member>& member, const process_info& now) {
    {
        const unique_lock held(mutex_);
        if (!find_running(member->id)) return;
        process_info next = now;
        context_->events->record_change(now, member->info.state);
        metrics_.on_process_changed(member->info, now, member->was_ready);
        if (member->info.state == instance_state::spawning && now.state != instance_state::spawning) --starting_;
        const bool fails = now.state == instance_state::unhealthy || now.state == instance_state::crashed;
        if (fails && !member->was_ready && !member->leaving) count_unready(*member);
        member->info = std::move(next);
        member->was_ready = member->was_ready || now.state == instance_state::ready;
        if (!is_ready(*member)) member->ready_since = {};
        announce_routability(*member);
        context_->routing->post(routing_hooks::kind::changed, now);
        if (is_final(now.state)) remove(member);
        mark_dirty();
    }
    if (context_->state && is_final(now.state)) context_->state->remove(member->id);
    context_->wake();
}

// For an exited process; the next reconciliation decides about its slot. Allocates nothing.
inline void process_group::remove(const ref<group_member>& member) noexcept {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == member) members_.remove(i);
    }
    if (member->process) exited_instances_.push_back(member->process);
    member->process = {};  // breaks a cycle of references
    if (ended_.size() == max_ended) ended_.remove(0);
    attempt([&] { ended_.push_back(member->info); });
    if (!member->leaving && !stopping_) exited_.push_back(member);
}

// Returns how many processes to start.
inline int process_group::apply_plan(time_point now) {
    pending_actions actions;
    int starts = 0;
    {
        const unique_lock held(mutex_);
        dirty_ = false;
        handle_exited(now, actions);
        update_availability(now);
        collect_unhealthy(actions);
        if (rollout_) {
            advance_rollout(now, actions);
            if (!rollout_) update_availability(now);  // by the min_ready_time of the configuration that is kept
        }
        if (!is_replacing()) fill_slots();
        group_members staying;
        group_members surplus;
        const group_plan plan = plan_at(now, staying);
        for (const std::size_t each : plan.stops) surplus.push_back(staying[each]);
        if (!surplus.empty()) mark_leaving(surplus, surplus_options());
        if (rollout_ &&
            rollout_->update_status(now, count_staying() - count_of(rollout_->generation), is_draining(now)))
            log_rollout(actions, log_level::info, "rollout in progress");
        collect_shutdown_requests(now, actions);
        starts = plan.starts;
    }
    write(actions.records);
    force_shutdown(actions.force);
    request_shutdown(actions.shut_down);
    for (const ref<instance>& running : actions.poll) running->poll();
    return starts;
}

// Null: none is due. One per call, because other threads may change the group while a process starts.
inline ref<group_member> process_group::add_next_member(time_point now, group_options& options) {
    const unique_lock held(mutex_);
    group_members staying;
    if (plan_at(now, staying).starts == 0) return {};
    options = options_of(target_generation());
    ref<restart_history> history;
    if (is_replacing()) history = make_ref<restart_history>(options.restart);
    for (std::size_t i = 0; i < vacancies_.size() && !history; ++i) {
        if (vacancies_[i].due > now) continue;
        history = vacancies_[i].history;
        vacancies_.remove(i);
        if (!exchange(history->never_ran, false) && history->started_at != time_point()) count_one(metrics_.restarts);
    }
    ref<group_member> added =
        make_ref<group_member>(cat({options_.id_prefix, "-", ++last_number_}), target_generation(), std::move(history));
    added->info.group = options.name;
    added->from_rollout = is_replacing();
    added->times = options.process.shutdown;
    added->stop_time = stop_time(options.process);
    added->history->started_at = now;
    // Reserves now, so that the exit needs no memory.
    exited_instances_.reserve(exited_instances_.size() + members_.size() + 1);
    exited_.reserve(exited_.size() + members_.size() + 1);
    members_.push_back(added);
    ++starting_;
    return added;
}

inline time_point process_group::next_due(time_point now) {
    const unique_lock held(mutex_);
    if (!exited_.empty() || (rollout_ && dirty_)) return now;
    time_point out = time_point::max();
    const auto consider = [&](time_point due) {
        if (due > now && due < out) out = due;
    };
    for (const ref<group_member>& member : members_) {
        if (member->leaving) {
            if (!member->shutdown_requested) consider(member->request_by);
            if (rollout_) consider(member->exit_by);
        } else if (!member->available) {
            if (is_ready(*member)) consider(member->ready_since + min_ready_time(options_of(member->generation)));
            if (member->from_rollout) consider(must_be_available_by(*member));
        }
    }
    if (rollout_) consider(rollout_->paused_until);
    if (rollout_) consider(rollout_->watched_until);
    if (is_replacing() || quiet_) return out;
    for (const vacancy& slot : vacancies_) consider(slot.due);
    return out;
}

// For processes that exited by themselves: applies the restart policy, or fails the rollout.
inline void process_group::handle_exited(time_point now, pending_actions& actions) {
    for (const ref<group_member>& member : exited_) {
        const process_info& info = member->info;
        if (member->from_rollout) {
            fail_rollout(*member, failure_reason(*member));
            continue;
        }
        const bool failed = member->given_up || info.state == instance_state::forced || !info.exit.ok();
        const bool never_ran = info.state == instance_state::crashed && info.pid == 0;
        const restart_decision next = never_ran ? plan_start_retry(options_.restart, *member->history, now)
                                                : plan_restart(options_.restart, failed, *member->history, now);
        vacancies_.push_back({member->history, next.restart_at, next.degraded});
        if (!next.degraded || next.restart_at != time_point::max()) continue;
        actions.records.push_back({log_level::error,
                                   "group degraded: too many restarts; a slot stays empty until the next rollout",
                                   {field("group", options_.name), field("process_id", member->id)},
                                   {}});
        context_->events->record_event(options_.name, "group degraded", "");
    }
    exited_.clear();
}

inline void process_group::update_availability(time_point now) {
    for (const ref<group_member>& member : members_) {
        const bool ready = is_ready(*member);
        if (ready && member->ready_since == time_point()) member->ready_since = now;
        const bool available = ready && now >= member->ready_since + min_ready_time(options_of(member->generation));
        if (member->available && !available && !member->leaving) fail_rollout(*member, failure_reason(*member));
        member->available = available;
        announce_routability(*member);
    }
}

// Forces unhealthy processes; the policy restarts them. While fewer than min_healthy are ready, forces one that was
// ready before only when no other is stopping or starting. [RFC-041 "Unhealthy at any point"]
inline void process_group::collect_unhealthy(pending_actions& actions) {
    if (stopping_ || quiet_) return;
    const int min_ready = std::max(options_.min_healthy, 1);
    bool one_in_transition = false;
    for (const ref<group_member>& member : members_) {
        const bool in_transition = member->info.state < instance_state::ready || member->given_up || member->leaving;
        one_in_transition = one_in_transition || in_transition;
    }
    for (const vacancy& slot : vacancies_) one_in_transition = one_in_transition || slot.due != time_point::max();
    for (const ref<group_member>& member : members_) {
        const bool unhealthy = member->info.state == instance_state::unhealthy && !member->given_up;
        if (!unhealthy || member->leaving || member->from_rollout) continue;
        if (member->was_ready && count(is_ready) < min_ready && one_in_transition) continue;
        one_in_transition = true;
        member->given_up = true;
        actions.force.push_back(member);
    }
}

// Collects the leaving members whose on_unroutable has returned or timed out.
inline void process_group::collect_shutdown_requests(time_point now, pending_actions& actions) {
    for (const ref<group_member>& member : members_) {
        if (!member->leaving) continue;
        if (member->exit_by == time_point()) {
            member->request_by = now + hook_timeout;
            member->exit_by = now + member->stop_time;
        }
        if (member->shutdown_requested || member->forced || !member->process) continue;
        if (context_->routing->was_called(member->unroutable_call) || now >= member->request_by)
            actions.shut_down.push_back(member);
    }
}

// ---- the rollout, by reconcile() ----
// At any time the rollout itself keeps min_healthy processes ready, and runs at most desired + max_surge, including
// draining ones. New processes are available before old ones are shut down, and those have exited before the next
// start.

inline void process_group::advance_rollout(time_point now, pending_actions& actions) {
    rollout& r = *rollout_;
    if (r.current_stage == rollout::stage::ending) {
        force_unready(actions);
        if (!is_draining(now)) finish_rollout(actions);
        return;
    }
    if (is_forward() && r.status.cancelling) {
        begin_ending(rollout_result::cancelled);
        return force_unready(actions);
    }
    if (quiet_) return;
    fail_late_or_unhealthy(now, actions);
    switch (r.handle_failure(now)) {
        case rollout::failure_step::none: break;
        case rollout::failure_step::retry:
            log_rollout(actions, log_level::warn, "new process did not become ready; retrying");
            break;
        case rollout::failure_step::roll_back:
            log_rollout(actions, log_level::error, "rollout failed; rolling back");
            actions.records.back().fields.push_back(field("old_instance", oldest_of_old()));
            actions.records.back().fields.push_back(field("new_instance", r.report.failed_id));
            actions.records.back().fields.push_back(field("reason", r.report.error));
            break;
        case rollout::failure_step::give_up: begin_ending(rollout_result::rolled_back); break;
    }
    force_unready(actions);
    if (is_forward() && r.watch_canaries(now, count_available(r.generation), canary_count())) {
        if (r.canary == rollout::canary_step::watched) log_rollout(actions, log_level::info, "watching canaries");
        mark_dirty();
    }
    if (!is_replacing() || !is_rollout_complete(now)) return;
    begin_ending(is_forward() ? rollout_result::done : rollout_result::rolled_back);
    if (r.outcome == rollout_result::done) finish_rollout(actions);  // while all are ready
}

inline void process_group::fail_late_or_unhealthy(time_point now, pending_actions& actions) {
    for (const ref<group_member>& member : members_) {
        if (!member->from_rollout || member->leaving || member->generation != target_generation()) continue;
        const group_options& options = options_of(member->generation);
        bool late = !member->available && now >= must_be_available_by(*member);
        if (late && member->process && member->readiness_deadline == time_point()) {
            // If the launcher itself was suspended, poll once more.
            member->readiness_deadline = now + options.process.rpc_timeout;
            actions.poll.push_back(member->process);
            late = false;
        }
        const bool unhealthy = member->info.state == instance_state::unhealthy;
        if (!late && !unhealthy) continue;
        if (late && !member->was_ready) count_unready(*member);
        const bool timed_out = late || now >= member->history->started_at + options.health_check_timeout;
        fail_rollout(*member, timed_out && !member->was_ready ? late_reason(*member, options.health_check_timeout)
                                                              : failure_reason(*member));
        mark_leaving({member}, {"rolled back", {}, {}});
        actions.force.push_back(member);
    }
    const int current = count_of(target_generation());
    const bool needs_room = current < target_count() && current == count_available(target_generation());
    const bool full = static_cast<int>(members_.size()) >= rollout_->max_total;
    const bool some_leave = static_cast<int>(members_.size()) > count_staying();
    // The leaving processes are overdue.
    if (needs_room && full && some_leave && !is_draining(now))
        rollout_->fail_without_retry("old processes did not exit in time");
}

// Sets the configuration that the group keeps. Only draining processes are still awaited.
inline void process_group::begin_ending(rollout_result result) {
    rollout& r = *rollout_;
    r.current_stage = rollout::stage::ending;
    r.outcome = result;
    for (const ref<group_member>& member : members_) {
        member->from_rollout = false;
        announce_routability(*member);
    }
    mark_dirty();
    if (result != rollout_result::done) return;
    std::string prefix = std::move(options_.id_prefix);
    options_ = r.target;
    options_.id_prefix = std::move(prefix);
    if (options_.max_surge == 0) options_.max_surge = 1;
    generation_ = r.generation;
    stopped_ = false;
    vacancies_.clear();
}

inline void process_group::finish_rollout(pending_actions& actions) {
    rollout& r = *rollout_;
    const int fresh = count_of(r.generation);
    message_ = r.finish(fresh, count_staying() - fresh);
    metrics_.count_rollout(r.outcome);
    if (r.report.rolled_back && r.report.mixed)
        log_rollout(actions, log_level::error, "rollback failed: processes of both configurations are running");
    log_rollout(actions, r.outcome == rollout_result::done ? log_level::info : log_level::warn, "rollout finished",
                rollout_result_names[static_cast<std::size_t>(r.outcome)]);
    rollout_ = {};
    mark_dirty();
}

// After a rollback or a cancellation, forces new processes that are not ready: they have nothing in flight.
inline void process_group::force_unready(pending_actions& actions) {
    const rollout& r = *rollout_;
    const bool cancelled = r.current_stage == rollout::stage::ending && r.outcome != rollout_result::done;
    if (!cancelled && r.current_stage != rollout::stage::rolling_back) return;
    for (const ref<group_member>& member : members_) {
        if (member->leaving || member->generation != r.generation || is_ready(*member)) continue;
        mark_leaving({member}, {"rolled back", {}, {}});
        actions.force.push_back(member);
    }
}

// ---- the rollout, by other threads ----

inline rollout_report process_group::preview_rollout() const {
    rollout_report out;
    const time_point deadline = deadline_after(std::chrono::seconds(2));  // for all processes
    for (const ref<group_member>& member : staying()) {
        drain_preview found;
        found.id = member->id;
        const result<shutdown_status> status = request_status(*member, deadline);
        if (status) found.in_flight = status->metrics;
        if (!status) found.error = status.error().text;
        out.would_drain.push_back(std::move(found));
        ++out.total;
    }
    return out;
}

inline result<ref<rollout>> process_group::begin_rollout(const group_options& target, const rollout_options& options) {
    pending_actions actions;
    ref<rollout> out;
    {
        const unique_lock held(mutex_);
        if (rollout_) return error{errc::busy, 0, "a rollout is in progress in this group"};
        if (stopping_) return error{errc::busy, 0, "the group is stopping"};
        if (quiet_) return error{errc::busy, 0, "the launcher is quiet; send SIGCONT or call resume() first"};
        out = last_rollout_ = rollout_ = make_ref<rollout>(target, options, options_, ++last_generation_);
        out->status.total = out->report.total = count_staying();
        log_rollout(actions, log_level::info, "rollout started");
        mark_dirty();
    }
    write(actions.records);
    context_->wake();
    return out;
}

inline rollout_report process_group::await_rollout(const ref<rollout>& awaited, const cancel_token& until) {
    const cancel_registration registration =
        until.on_cancel([&] { static_cast<void>(cancel_rollout("the caller cancelled the rollout", awaited.get())); });
    unique_lock held(mutex_);
    while (awaited->current_stage != rollout::stage::ended) {
        if (awaited->canary != rollout::canary_step::check_due) {
            changed_.wait(held);
            continue;
        }
        awaited->canary = rollout::canary_step::checking;
        std::vector<process_info> canaries;
        for (const ref<group_member>& member : members_) {
            if (member->generation == awaited->generation && !member->leaving) canaries.push_back(member->info);
        }
        held.unlock();
        const result<void> passed = awaited->run_canary_check(canaries);
        held.lock();
        if (awaited->canary != rollout::canary_step::checking) continue;  // a canary failed meanwhile
        awaited->canary = rollout::canary_step::passed;
        if (!passed && is_forward()) awaited->fail_without_retry(cat({"canary check failed: ", passed.error().text}));
        mark_dirty();
        context_->wake();
    }
    return awaited->report;
}

inline result<void> process_group::cancel_rollout(const std::string& reason, const rollout* which) {
    {
        const unique_lock held(mutex_);
        if (!rollout_ || (which != nullptr && which != rollout_.get()))
            return error{errc::busy, 0, "no rollout is in progress in this group"};
        if (rollout_->report.rolled_back) return error{errc::busy, 0, "the rollout is already being rolled back"};
        if (all_replaced() || (!is_replacing() && rollout_->outcome == rollout_result::done))
            return error{errc::busy, 0, "the rollout is already done; old processes drain"};
        rollout_->status.cancelling = true;
        mark_dirty();
    }
    const std::string name = options().name;
    context_->log.write(log_level::warn, "rollout cancelled", {field("group", name), field("reason", reason)});
    context_->events->record_event(name, "rollout cancelled", cat({",\"reason\":", json_quote(reason)}));
    context_->wake();
    return {};
}
}  // namespace ojs::detail
