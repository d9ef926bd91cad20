// rolling_replace: new processes for old ones, a few at a time, and back again where that fails. [RFC-041 "Rolling
// Replacement Algorithm"]
//
// At any moment at least min_healthy are ready, as far as that hangs on what is done here, and at most desired + max_surge
// are there, those that drain included. The new ones have proven themselves before the old ones are asked to end, and those
// have ended before the next are started.
#pragma once

#include "process_group.ipp"

namespace ojs::detail {

// ---- its steps, by reconcile() and with the group's mutex held ----

inline void process_group::advance(time_point now, todo& left) {
    rollout& r = *rollout_;
    if (r.at == rollout::stage::ending) {
        drop_unready(left);
        if (!drains(now)) finish(left);
        return;
    }
    if (goes_forward() && replacement_.cancelling) {
        conclude(replacement_end::cancelled);
        return drop_unready(left);
    }
    if (held_) return;
    find_faults(now, left);
    if (r.failed) retry_or_roll_back(now, left);
    drop_unready(left);
    if (goes_forward()) watch_canaries(now, left);
    if (!replacing() || !is_complete(now)) return;
    conclude(goes_forward() ? replacement_end::done : replacement_end::rolled_back);
    if (r.result == replacement_end::done) finish(left);  // while all of it is ready
}

// Of the processes that it has started.
inline void process_group::find_faults(time_point now, todo& left) {
    for (const ref<member>& each : members_) {
        if (!each->fresh || each->leaving || each->generation != wanted_generation()) continue;
        bool late = !each->proven && now >= proven_by(*each);
        if (late && each->process && each->answer_by == time_point()) {
            // Where this process stood still, nobody was asked meanwhile.
            each->answer_by = now + options_of(each->generation).process.rpc_timeout;
            left.ask_ready.push_back(each);
            late = false;
        }
        if (late && !each->was_ready) note_failed(*each);
        if (late) note_fault(*each, each->was_ready ? "did not stay ready" : "was not ready in time");
        const bool ill = each->info.state == instance_state::unhealthy;
        const bool timed_out =
            now >= each->place->started + options_of(each->generation).health_check_timeout;
        if (ill)
            note_fault(*each, each->was_ready ? "did not stay ready"
                              : timed_out     ? "was not ready in time"
                                              : "failed before it was ready");
        if (!late && !ill) continue;
        mark_leaving({each}, {"rolled back", {}, {}});
        left.force.push_back(each);
    }
    const bool all_proven = count_of(wanted_generation()) == count([&](const member& each) {
                                return each.generation == wanted_generation() && each.proven;
                            });
    const bool wants_room = count_of(wanted_generation()) < wanted() && all_proven;
    bool is_held_up = false;  // by what should have ended long ago
    for (const ref<member>& each : members_) is_held_up = is_held_up || each->leaving;
    if (!wants_room || !is_held_up || drains(now)) return;
    if (static_cast<int>(members_.size()) < rollout_->max_total) return;
    rollout_->may_retry = false;
    fail_rollout("", "others did not end in time");
}

// It counts where it is of a process that the rollout has started, and still needs.
inline void process_group::note_fault(const member& of, const char* why) {
    if (of.fresh && replacing() && of.generation == wanted_generation()) fail_rollout(of.id, why);
}
inline void process_group::fail_rollout(const std::string& id, std::string why) {
    rollout_->failed = true;
    if (!goes_forward()) return;  // what it was rolled back for stays the reason
    rollout_->report.failed_id = id;
    rollout_->report.why = std::move(why);
}

inline void process_group::retry_or_roll_back(time_point now, todo& left) {
    rollout& r = *rollout_;
    r.failed = false;
    if (now < r.paused_until) return;  // it failed beside another
    if (r.may_retry && r.retries_left > 0) {
        --r.retries_left;
        ++replacement_.retries;
        r.paused_until = now + r.pauses.next();
        return tell(left, log_level::warn, "a new process did not become ready, another is tried");
    }
    if (!goes_forward()) return conclude(replacement_end::rolled_back);
    tell(left, log_level::error, "rolling replace failed, rolling back");
    r.report.rolled_back = true;
    r.begin_stage(rollout::stage::rolling_back);
}

inline void process_group::watch_canaries(time_point now, todo& left) {
    rollout& r = *rollout_;
    using step = rollout::canary_step;
    if (r.canaries == step::passed) return;
    const int proven =
        count([&](const member& each) { return each.proven && each.generation == r.generation; });
    if (proven < canaries()) {
        r.canaries = step::starting;
    } else if (r.canaries == step::starting) {
        r.canaries = step::watched;
        r.watched_until = now + r.options.canary_wait;
        tell(left, log_level::info, "canaries are watched");
    }
    if (r.canaries != step::watched || now < r.watched_until) return;
    r.canaries = r.options.canary_check ? step::check_due : step::passed;
    touch();
}

inline bool process_group::all_replaced() const {
    const int proven = count([&](const member& each) { return each.fresh && each.proven; });
    const bool watched = rollout_->canaries == rollout::canary_step::passed;
    return goes_forward() && watched && proven == wanted() &&
           proven == count([](const member&) { return true; });
}

// Of a group that becomes as it was, what is ready of the new configuration may be all there is: that is kept.
inline bool process_group::is_complete(time_point now) const {
    if (drains(now)) return false;
    if (goes_forward()) return all_replaced();
    members staying;
    const group_plan plan = plan_at(now, staying);
    if (plan.starts > 0 || !plan.ends.empty() || now < rollout_->paused_until) return false;
    return count([](const member& each) { return each.fresh && !each.proven; }) == 0;
}

// What is left to do is to wait for those that drain. From here on the group has the configuration that it will keep.
inline void process_group::conclude(replacement_end result) {
    rollout& r = *rollout_;
    r.at = rollout::stage::ending;
    r.result = result;
    for (const ref<member>& each : members_) {
        each->fresh = false;
        tell_routing(*each);
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
    const int old = count([](const member&) { return true; }) - fresh;
    const bool done = r.result == replacement_end::done;
    rolling_report& report = r.report;
    report.cancelled = r.result == replacement_end::cancelled;
    report.replaced = done ? report.of : report.rolled_back ? fresh : at_least_zero(report.of - old);
    report.mixed = !done && fresh > 0 && (report.rolled_back || old > 0);
    const std::string counts = cat({report.replaced, " of ", report.of});
    message_ = done               ? cat({"replaced ", counts})
               : report.cancelled ? cat({"cancelled, replaced ", counts})
                                  : cat({report.mixed ? "rolled back in part, " : "rolled back, ",
                                         report.failed_id, report.failed_id.empty() ? "" : ": ", report.why});
    replacement_.phase = done               ? replacement_phase::done
                         : report.cancelled ? replacement_phase::cancelled
                                            : replacement_phase::rolled_back;
    replacement_.replaced = report.replaced;
    replacement_.cancelling = false;
    metrics_.replaced(r.result);
    if (report.rolled_back && report.mixed)
        tell(left, log_level::error, "rolling back failed too, processes of both configurations run");
    tell(left, done ? log_level::info : log_level::warn, "rolling replace ended",
         replacement_end_names[static_cast<std::size_t>(r.result)]);
    r.at = rollout::stage::ended;
    rollout_ = {};
    touch();
}

// New ones that are not ready have nothing in hand, and nobody needs them once it is taken back or cancelled.
inline void process_group::drop_unready(todo& left) {
    const rollout& r = *rollout_;
    const bool cancelled = r.at == rollout::stage::ending && r.result != replacement_end::done;
    if (!cancelled && r.at != rollout::stage::rolling_back) return;
    for (const ref<member>& each : members_) {
        if (each->leaving || each->generation != r.generation || is_ready(*each)) continue;
        mark_leaving({each}, {"rolled back", {}, {}});
        left.force.push_back(each);
    }
}

// How far it has come.
inline void process_group::show_rollout(time_point now, todo& left) {
    rollout& r = *rollout_;
    const int old = count([&](const member& each) { return each.generation != r.generation; });
    r.report.replaced = at_least_zero(r.report.of - old);
    replacement_.phase = r.report.rolled_back    ? replacement_phase::rolling_back
                         : now < r.paused_until  ? replacement_phase::pausing
                         : r.watched_until > now ? replacement_phase::canaries
                         : drains(now)           ? replacement_phase::draining
                                                 : replacement_phase::starting;
    replacement_.replaced = r.report.replaced;
    replacement_.of = r.report.of;
    replacement_.failed_id = r.report.failed_id;
    replacement_.why = r.report.why;
    if (!goes_forward() || drains(now) || r.report.replaced <= r.told_replaced || old == 0) return;
    r.told_replaced = r.report.replaced;
    tell(left, log_level::info, "rolling replace goes on");
}

inline void process_group::tell(todo& left, log_level level, const char* message, const char* result) const {
    const rolling_report& report = rollout_->report;
    log_record record;
    record.level = level;
    record.message = message;
    record.fields = {field("group", options_.name), field("replaced", report.replaced),
                     field("of", report.of), field("process_id", report.failed_id),
                     field("reason", report.why)};
    left.records.push_back(std::move(record));
    around_->events->tell(options_.name, message,
                          cat({",\"replaced\":", report.replaced, ",\"of\":", report.of,
                               ",\"failedId\":", json_quote(report.failed_id),
                               ",\"reason\":", json_quote(report.why), ",\"result\":", json_quote(result)}));
}

// ---- by other threads ----

inline result<ref<rollout>> process_group::begin_rollout(const group_options& to,
                                                         const rolling_options& options) {
    todo left;
    ref<rollout> out;
    {
        const lock_guard held(mutex_);
        if (rollout_) return error{errc::busy, 0, "a replacement is under way in this group"};
        if (stopping_) return error{errc::busy, 0, "the group is stopping"};
        if (held_) return error{errc::busy, 0, "the launcher is quiet: SIGCONT or resume() ends that"};
        out = rollout_ = make_ref<rollout>(to, options, options_, ++last_generation_);
        replacement_ = replacement_status();
        replacement_.of = out->report.of = count([](const member&) { return true; });
        tell(left, log_level::info, "rolling replace begins");
        touch();
    }
    write(left.records);
    around_->wake();
    return out;
}

// It is the program's, and what it throws must not leave the group in the middle of a replacement.
inline result<void> ask_check(const rollout& of, const std::vector<process_info>& canaries) {
    try {
        return of.options.canary_check(canaries);
    } catch (...) {
        pass_on_thread_end();
        return error{errc::system, 0, "it threw"};
    }
}

inline rolling_report process_group::await_rollout(const ref<rollout>& of, const cancel_token& until) {
    const cancel_registration told = until.on_cancel([&] { static_cast<void>(cancel_rollout(of.get())); });
    lock_guard held(mutex_);
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
        const result<void> passed = ask_check(*of, canaries);
        held.lock();
        if (of->canaries != rollout::canary_step::checking) continue;  // one of them failed meanwhile
        of->canaries = rollout::canary_step::passed;
        if (!passed && goes_forward()) {
            of->may_retry = false;
            fail_rollout("", cat({"the canaries' check: ", passed.error().text}));
        }
        touch();
        around_->wake();
    }
    return of->report;
}

inline result<void> process_group::cancel_rollout(const rollout* which) {
    {
        const lock_guard held(mutex_);
        if (!rollout_ || (which != nullptr && which != rollout_.get()))
            return error{errc::busy, 0, "no replacement is under way in this group"};
        if (rollout_->report.rolled_back)
            return error{errc::busy, 0, "the replacement is being rolled back already"};
        if (all_replaced() || (!replacing() && rollout_->result == replacement_end::done))
            return error{errc::busy, 0, "the replacement is done already; old processes drain"};
        replacement_.cancelling = true;
        touch();
    }
    around_->wake();
    return {};
}

// ---- what a launcher and its operators ask for ----

// errc::invalid_argument: as check_group(), another name, or options that contradict each other.
inline result<void> check_rollout(const process_group& group, const group_options& to,
                                  const rolling_options& options) {
    const auto fault = [](const char* text) { return error{errc::invalid_argument, 0, text}; };
    const result<void> sound = check_group(to);
    if (!sound) return sound;
    if (to.name != group.options().name) return fault("a group keeps its name");
    if (options.canary < 0 || options.retries < -1) return fault("canary and retries are not negative");
    if (options.retry_last < options.retry_first)
        return fault("the last pause between retries is not the shortest");
    if (options.retry_last > longest_pause) return fault("a pause between retries is longer than 24 days");
    return {};
}

inline rolling_report preview_rollout(const process_group& group) {
    rolling_report out;
    const time_point deadline = deadline_after(std::chrono::seconds(2));  // for all of them
    for (const ref<member>& each : group.staying()) {
        drain_preview found;
        found.id = each->id;
        const ref<instance> target = group.process_of(*each);
        const result<shutdown_status> status =
            target ? target->ask_status(deadline)
                   : result<shutdown_status>(error{errc::unavailable, 0, "is being started"});
        if (status) found.in_flight = status->metrics;
        if (!status) found.error = status.error().text;
        out.would_drain.push_back(std::move(found));
        ++out.of;
    }
    return out;
}

// Until it has ended. errc::busy, as begin_rollout(); errc::invalid_argument, as check_rollout().
inline result<rolling_report> roll(process_group& group, const group_options& to,
                                   const rolling_options& options, const cancel_token& until) {
    const result<void> sound = check_rollout(group, to, options);
    if (!sound) return sound.error();
    if (options.dry_run) return preview_rollout(group);
    const result<ref<rollout>> begun = group.begin_rollout(to, options);
    if (!begun) return begun.error();
    return group.await_rollout(*begun, until);
}

}  // namespace ojs::detail
