// process_group: keeps a number of processes of one kind running, and replaces them.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>

#include "launcher_context.ipp"
#include "rollout.ipp"

namespace ojs::detail {
// Takes the last responses from the process; its state stays the one that the group acts on.
inline void refresh_status(const ref<instance>& running, process_info& info) {
    if (!running) return;
    process_info now = running->info();
    info.readiness = std::move(now.readiness);
    info.shutdown = std::move(now.shutdown);
}

// Never holds its mutex during a call to a process, a hook or the log. Only reconcile() decides, in the supervisor's
// thread, by plan_group() and the time it is given; on_process_changed() only records changes.
class process_group : public ref_counted {
  public:
    process_group(const group_options& options, ref<launcher_context> context)
        : context_(std::move(context)), options_(as_kept(options)) {
        if (options_.id_prefix.empty()) options_.id_prefix = options_.name;
        if (options_.max_surge == 0) options_.max_surge = 1;  // [RFC-041 "maxSurge == 0"]
        ended_.reserve(max_ended);
        fill_slots();
    }

    // ---- for the supervisor ----

    // Starts and stops processes by the plan, and advances the rollout. Returns when to call it next.
    time_point reconcile(time_point now) {
        release_exited();
        group_options options;
        // A failed start is retried in the next call. A start may wait for other forks, so check for a stop before
        // each.
        for (int starts = apply_plan(now); starts > 0 && !is_stopped(); --starts) {
            const ref<group_member> added = add_next_member(now, options);
            if (!added) break;
            const result<void> started = unless_out_of_memory([&] { return start_process(added, options); });
            if (!started) on_start_failed(added, started.error());
        }
        return next_due(now);
    }
    // While quiet it starts, kills and replaces nothing.
    void set_quiet(bool quiet) {
        const unique_lock held(mutex_);
        quiet_ = quiet;
        changed_.notify_all();
    }
    // Starts no more processes, and ends the rollout.
    void stop_starting() {
        pending_actions actions;
        {
            const unique_lock held(mutex_);
            stopping_ = true;
            vacancies_.clear();
            exited_.clear();
            if (is_replacing())
                begin_ending(rollout_->report.rolled_back ? rollout_result::rolled_back : rollout_result::cancelled);
            if (rollout_) finish_rollout(actions);
            mark_dirty();
        }
        write(actions.records);
    }
    // Joins the threads of exited processes. Must not be called by one of them.
    void release_exited() {
        for (;;) {
            ref<instance> last;  // released after the mutex
            const unique_lock held(mutex_);
            if (exited_instances_.empty()) return;
            last = std::move(exited_instances_.back());
            exited_instances_.pop_back();
        }
    }
    bool empty() const {
        const unique_lock held(mutex_);
        return members_.empty();
    }

    // ---- for all threads ----

    group_options options() const {
        const unique_lock held(mutex_);
        return options_;
    }
    group_members members() const {
        const unique_lock held(mutex_);
        return members_;
    }
    // The maximum over its processes, each with the timeouts that it was started with.
    std::chrono::milliseconds max_stop_time() const {
        std::chrono::milliseconds out{0};
        const unique_lock held(mutex_);
        for (const ref<group_member>& member : members_) out = std::max(out, member->stop_time);
        return out;
    }
    // Adds the number of ready processes to `sum`. False: fewer than min_healthy.
    bool count_ready_into(int& sum, bool& is_rolling) const {
        const unique_lock held(mutex_);
        is_rolling = is_rolling || rollout_;
        const int ready = count(is_ready);
        sum += ready;
        return ready >= options_.min_healthy;
    }
    group_info info() const {
        group_info out;
        array<ref<instance>> processes;
        {
            const unique_lock held(mutex_);
            out.options = options_;
            out.replacing = static_cast<bool>(rollout_);
            for (const vacancy& slot : vacancies_) out.degraded = out.degraded || slot.degraded;
            out.quiet = quiet_;
            out.generation = generation_;
            out.message = message_;
            out.ready = count(is_ready);
            if (last_rollout_) out.rollout = last_rollout_->status;
            for (const ref<group_member>& member : members_) {
                out.processes.push_back(member->info);
                processes.push_back(member->process);
            }
            for (const process_info& info : ended_) out.processes.push_back(info);
        }
        for (std::size_t i = 0; i < processes.size(); ++i) refresh_status(processes[i], out.processes[i]);
        return out;
    }
    // False: no such process. `member` is null if it has exited.
    bool find(const std::string& id, process_info& out, ref<group_member>* member = nullptr) const {
        unique_lock held(mutex_);
        if (const ref<group_member> found = find_running(id)) {
            out = found->info;
            const ref<instance> target = found->process;
            held.unlock();
            refresh_status(target, out);
            if (member != nullptr) *member = found;
            return true;
        }
        for (const process_info& info : ended_) {
            if (info.id == id) return out = info, true;
        }
        return false;
    }
    // Polls the process that sent a notification. `from`: its process group; 0: unknown. False: not one of ours.
    bool on_notification(pid_t from, const std::string& id) {
        unique_lock held(mutex_);
        const ref<group_member> found = find_running(id);
        if (!found) return false;
        const pid_t pid = found->info.pid;
        if (from != 0 && pid != 0 && ::getpgid(pid) != from) return false;
        found->poll_due = true;
        const ref<instance> target = found->process;
        held.unlock();
        if (target) target->poll();
        return true;
    }
    // Queries the process now. errc::unavailable: it is being started.
    result<shutdown_status> request_status(const group_member& member, time_point deadline) const {
        unique_lock held(mutex_);
        const ref<instance> target = member.process;
        held.unlock();
        if (!target) return error{errc::unavailable, 0, cat({"process ", member.id, " is being started; ask again"})};
        return target->request_status(deadline);
    }
    // The times of a requested shutdown.
    shutdown_timeouts granted(const group_member& member) const {
        const unique_lock held(mutex_);
        return granted_times(member.shutdown, member.times);
    }
    group_metrics& metrics() noexcept { return metrics_; }

    // Removes the processes from the routing, then requests their shutdown. Their slots stay empty until a rollout.
    void drain(const group_members& all, const shutdown_options& options) {
        begin_drain(all, options);
        context_->routing->await_calls(deadline_after(hook_timeout));
        request_shutdown(all);
    }
    // The two halves of drain(), so that many groups can wait for the hooks together.
    void begin_drain(const group_members& all, const shutdown_options& options) {
        const unique_lock held(mutex_);
        for (const ref<group_member>& member : all) {
            if (!member->leaving) keep_slot_empty(*member);
        }
        mark_leaving(all, options);
    }
    void request_shutdown(const group_members& all) {
        for (const ref<group_member>& member : all) {
            unique_lock held(mutex_);
            if (member->shutdown_requested) continue;
            const ref<instance> target = member->process;
            member->shutdown_requested = static_cast<bool>(target);
            const shutdown_options options = member->shutdown;
            held.unlock();
            if (target) target->shut_down(options);
        }
    }
    void force_shutdown(const group_members& all) {
        for (const ref<group_member>& member : all) {
            unique_lock held(mutex_);
            member->forced = true;
            const ref<instance> target = member->process;
            held.unlock();
            if (target) target->force();
        }
    }
    // Shuts down all processes; the group stays empty until a rollout. errc::busy: a rollout is in progress.
    result<void> shut_down(const shutdown_options& options) {
        group_members all;
        {
            const unique_lock held(mutex_);
            if (rollout_) return error{errc::busy, 0, "a rollout is in progress in this group"};
            stopped_ = true;
            stopped_slots_ = 0;
            vacancies_.clear();
            all = members_;
            mark_leaving(all, options);
        }
        context_->routing->await_calls(deadline_after(hook_timeout));
        request_shutdown(all);
        return {};
    }

    // The members that are not leaving, oldest first.
    group_members staying() const {
        const unique_lock held(mutex_);
        group_members out;
        for (const ref<group_member>& member : members_) {
            if (!member->leaving) out.push_back(member);
        }
        return out;
    }
    rollout_report preview_rollout() const;
    // errc::busy: a rollout is in progress, or the group is stopping or quiet.
    result<ref<rollout>> begin_rollout(const group_options& target, const rollout_options& options);
    // Blocks until it has ended, and calls canary_check. `until` cancels it, as cancel_rollout().
    rollout_report await_rollout(const ref<rollout>& awaited, const cancel_token& until);
    // Begins and awaits a rollout, or only previews it.
    result<rollout_report> roll(const group_options& target, const rollout_options& options,
                                const cancel_token& until) {
        const result<void> valid = check_rollout(this->options(), target, options);
        if (!valid) return valid.error();
        if (options.dry_run) {
            const result<void> found = check_programs(target);
            return found ? result<rollout_report>(preview_rollout()) : found.error();
        }
        const result<ref<rollout>> begun = begin_rollout(target, options);
        if (!begun) return begun.error();
        return await_rollout(*begun, until);
    }
    // `which`: null for the current one. errc::busy: there is none, or it is already rolled back or done.
    result<void> cancel_rollout(const std::string& reason, const rollout* which = nullptr);

  private:
    // A slot without a process.
    struct vacancy {
        ref<restart_history> history;
        time_point due{};  // max(): stays empty
        bool degraded = false;
    };
    // To be done after the mutex is released.
    struct pending_actions {
        array<log_record> records;
        group_members force;
        group_members shut_down;
        array<ref<instance>> poll;  // for their readiness
    };

    bool is_stopped() const noexcept { return context_->life != nullptr && context_->life->phase() >= phase::draining; }
    result<void> start_process(const ref<group_member>& added, const group_options& group);
    void on_started(group_member& added, const ref<instance>& started);
    void on_start_failed(const ref<group_member>& added, const error& why);
    void on_process_changed(const ref<group_member>& member, const process_info& now);
    // Queues on_routable or on_unroutable after a change. A process of a rollout is routable once it is available.
    void announce_routability(group_member& member) {
        const bool takes_work = is_ready(member) && (!member.from_rollout || member.available);
        if (takes_work == member.announced_routable) return;
        member.unroutable_call = context_->routing->post(
            takes_work ? routing_hooks::kind::routable : routing_hooks::kind::unroutable, member.info);
        member.announced_routable = takes_work;
    }
    void remove(const ref<group_member>& member) noexcept;

    // ---- decisions; the mutex is held, except by the first three ----

    int apply_plan(time_point now);
    ref<group_member> add_next_member(time_point now, group_options& options);
    time_point next_due(time_point now);
    void handle_exited(time_point now, pending_actions& actions);
    void update_availability(time_point now);
    void collect_unhealthy(pending_actions& actions);
    void collect_shutdown_requests(time_point now, pending_actions& actions);
    time_point must_be_available_by(const group_member& member) const {
        const group_options& options = options_of(member.generation);
        const time_point timeout = member.history->started_at + options.health_check_timeout;
        const time_point ready_by = std::max(timeout, member.readiness_deadline);
        return is_ready(member) ? ready_by + min_ready_time(options) : ready_by;
    }
    group_goal goal_at(time_point now) const {
        group_goal out;
        out.may_stop = !quiet_ && !stopping_;
        if (!out.may_stop) return out;
        int free = max_starting - starting_;
        if (rollout_) free = std::min(free, rollout_->max_total - static_cast<int>(members_.size()));
        out.target = target_count();
        out.replacing = is_replacing();
        out.min_healthy = std::min(out.replacing ? rollout_->min_healthy : options_.min_healthy, out.target);
        if (!out.replacing) {
            for (const vacancy& slot : vacancies_) out.max_starts += slot.due > now ? 0 : 1;
            out.max_starts = std::min(out.max_starts, free);
            return out;
        }
        const rollout& r = *rollout_;
        out.max_old = r.max_old;
        if (now >= r.paused_until) out.max_starts = free;
        if (!is_forward() || r.canary == rollout::canary_step::passed) return out;
        const int more = canary_count() - count_of(r.generation);
        out.may_stop = more > 0;  // the old processes still run while the canaries are watched
        out.max_starts = std::min(out.max_starts, more);
        return out;
    }
    group_plan plan_at(time_point now, group_members& staying) const {
        array<plan_member> facts;
        for (const ref<group_member>& member : members_) {
            if (member->leaving) continue;
            staying.push_back(member);
            facts.push_back({member->generation == target_generation(), is_ready(*member), member->available});
        }
        return plan_group(facts, goal_at(now));
    }
    shutdown_options surplus_options() const {
        if (!is_replacing()) return {"more than desired", {}, {}};
        if (!is_forward()) return {"rolled back", {}, {}};
        const std::string& reason = rollout_->options.reason;
        return {reason.empty() ? "rollout" : reason, {}, {}};
    }
    // Without a rollout, the number of processes and vacancies is the desired size.
    void fill_slots() {
        int missing = target_count() - static_cast<int>(vacancies_.size()) - count_staying();
        for (; missing > 0 && !stopping_; --missing)
            vacancies_.push_back({make_ref<restart_history>(options_.restart), time_point(), false});
        for (; missing < 0 && !vacancies_.empty(); ++missing) vacancies_.pop_back();
    }
    // For an operator's stop. While there are more processes than slots, a new process of the rollout has none yet.
    void keep_slot_empty(const group_member& member) {
        const int taken = static_cast<int>(vacancies_.size()) + count_staying();
        if (member.from_rollout && taken > options_.desired - stopped_slots_)
            return fail_rollout(member, "was stopped");
        if (!stopping_) ++stopped_slots_;
    }
    void mark_leaving(const group_members& all, const shutdown_options& options) {
        for (const ref<group_member>& member : all) {
            if (!member->leaving) member->shutdown = options;
            member->leaving = true;
            announce_routability(*member);
        }
        mark_dirty();
    }

    // ---- the rollout; the mutex is held ----

    void advance_rollout(time_point now, pending_actions& actions);
    void fail_late_or_unhealthy(time_point now, pending_actions& actions);
    // With the process id before it a sentence: "exited with status 3 before it was ready".
    static std::string failure_reason(const group_member& failed) {
        const process_info& info = failed.info;
        const char* const when = failed.was_ready ? " after it was ready" : " before it was ready";
        const std::string more = info.message.empty() ? "" : cat({": ", info.message});
        if (!is_final(info.state)) {
            const bool unhealthy = info.state == instance_state::unhealthy;
            if (failed.was_ready) return cat({unhealthy ? "became unhealthy" : "did not stay ready", more});
            return cat({"was unhealthy before it was ready", more});
        }
        if (info.pid == 0) return cat({"could not be started", more});
        if (info.exit.signal != 0) return cat({"was killed by ", signal_name(info.exit.signal), when});
        const bool known = info.state != instance_state::crashed || info.exit.code != 0;
        return known || more.empty() ? cat({"exited with status ", info.exit.code, when}) : cat({"ended", when, more});
    }
    // The instance's own message at the timeout begins like that, too.
    static std::string late_reason(const group_member& late, std::chrono::milliseconds timeout) {
        const std::string limit = cat({"not ready within ", format_duration(timeout)});
        const std::string& last = late.info.message;
        if (last.compare(0, limit.size(), limit) == 0) return cat({"was ", last});
        return cat({"was ", limit, last.empty() ? "" : ": ", last});
    }
    // Has an effect only for a process that the current stage of the rollout has started.
    void fail_rollout(const group_member& member, const std::string& why) {
        if (member.from_rollout && is_replacing() && member.generation == target_generation())
            rollout_->fail(member.id, why);
    }
    bool all_replaced() const {
        const int available = count([](const auto& member) { return member.from_rollout && member.available; });
        return is_forward() && rollout_->canary == rollout::canary_step::passed && available == target_count() &&
               available == count_staying();
    }
    // After a failed rollback, ready processes of the new configuration are kept.
    bool is_rollout_complete(time_point now) const {
        if (is_draining(now)) return false;
        if (is_forward()) return all_replaced();
        group_members staying;
        const group_plan plan = plan_at(now, staying);
        if (plan.starts > 0 || !plan.stops.empty() || now < rollout_->paused_until) return false;
        return count([](const auto& member) { return member.from_rollout && !member.available; }) == 0;
    }
    void begin_ending(rollout_result result);
    void finish_rollout(pending_actions& actions);
    void force_unready(pending_actions& actions);
    void log_rollout(pending_actions& actions, log_level level, const char* message, const char* result = "") const {
        const rollout_report& now = rollout_->report;
        actions.records.push_back(
            {level,
             message,
             {field("group", options_.name), field("replaced", now.replaced), field("total", now.total),
              field("process_id", now.failed_id), field("reason", now.error)},
             {}});
        context_->events->record_event(
            options_.name, message,
            cat({",\"replaced\":", now.replaced, ",\"total\":", now.total, ",\"failedId\":", json_quote(now.failed_id),
                 ",\"reason\":", json_quote(now.error), ",\"result\":", json_quote(result)}));
    }

    bool is_replacing() const noexcept { return rollout_ && rollout_->current_stage < rollout::stage::ending; }
    bool is_forward() const noexcept { return rollout_ && rollout_->current_stage == rollout::stage::forward; }
    std::uint64_t target_generation() const noexcept { return is_forward() ? rollout_->generation : generation_; }
    const group_options& options_of(std::uint64_t generation) const noexcept {
        return rollout_ && rollout_->generation == generation ? rollout_->target : options_;
    }
    int canary_count() const noexcept { return std::min(rollout_->options.canary, target_count()); }
    // The number of processes that the target configuration shall have.
    int target_count() const noexcept {
        if (is_forward()) return std::max(0, rollout_->target.desired - stopped_slots_);
        const int slots = stopped_ ? 0 : std::max(0, options_.desired - stopped_slots_);
        return is_replacing() ? std::max(0, slots - static_cast<int>(vacancies_.size())) : slots;
    }

    // ---- counts; the mutex is held ----

    static bool is_ready(const group_member& member) noexcept {
        return member.info.state == instance_state::ready && member.info.routable && !member.leaving;
    }
    ref<group_member> find_running(const std::string& id) const {
        for (const ref<group_member>& member : members_) {
            if (member->id == id) return member;
        }
        return {};
    }
    // The process that the next one of the rollout would have replaced.
    std::string oldest_of_old() const {
        for (const ref<group_member>& member : members_) {
            if (!member->leaving && member->generation == generation_) return member->id;
        }
        return {};
    }
    // Counts those that are not leaving.
    template <class Predicate>
    int count(Predicate holds) const {
        int out = 0;
        for (const ref<group_member>& member : members_) out += !member->leaving && holds(*member) ? 1 : 0;
        return out;
    }
    int count_staying() const {
        return count([](const group_member&) { return true; });
    }
    int count_of(std::uint64_t generation) const {
        return count([&](const auto& member) { return member.generation == generation; });
    }
    int count_available(std::uint64_t generation) const {
        return count([&](const auto& member) { return member.generation == generation && member.available; });
    }
    // A leaving process still has time to exit.
    bool is_draining(time_point now) const noexcept {
        for (const ref<group_member>& member : members_) {
            if (member->leaving && (member->exit_by == time_point() || now < member->exit_by)) return true;
        }
        return false;
    }
    void count_unready(group_member& member) noexcept {
        if (!exchange(member.failed_readiness, true)) count_one(metrics_.readiness_failures);
    }
    void write(const array<log_record>& records) const {
        for (const log_record& record : records) context_->log.write(record);
    }
    void mark_dirty() noexcept {
        dirty_ = true;
        changed_.notify_all();
    }

    static constexpr std::size_t max_ended = 32;  // exited processes that are kept
    static constexpr int max_starting = 8;        // at a time: all may hang in exec()

    const ref<launcher_context> context_;
    group_metrics metrics_;
    mutable mutex mutex_;
    condition changed_;
    group_options options_;
    group_members members_;  // by age, from before the start until the exit
    group_members exited_;   // since the last reconciliation
    int starting_ = 0;       // members that have neither run nor failed yet
    array<vacancy> vacancies_;
    array<process_info> ended_;
    array<ref<instance>> exited_instances_;
    ref<rollout> rollout_;       // in progress
    ref<rollout> last_rollout_;  // in progress, or the last one
    std::string message_;        // the result of the last rollout
    std::uint64_t generation_ = 1;
    std::uint64_t last_generation_ = 1;
    std::uint64_t last_number_ = 0;
    int stopped_slots_ = 0;  // by an operator, singly
    bool stopped_ = false;   // by shut_down()
    bool dirty_ = false;     // since the last reconciliation
    bool quiet_ = false;
    bool stopping_ = false;
};
}  // namespace ojs::detail
