// process_group: keeps a number of processes of one kind running, and replaces them.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>

#include "launcher_context.ipp"
#include "rollout.ipp"

namespace ojs::detail {

// What the newest answers of a process are; where it stands is what its group acts on.
inline void add_newest(const ref<instance>& running, process_info& known) {
    if (!running) return;
    process_info now = running->info();
    known.readiness = std::move(now.readiness);
    known.shutdown = std::move(now.shutdown);
}

// Its mutex is held for no call to a process, a hook or the log. Only reconcile() decides, in the supervisor's
// thread, from plan_group() and the time it is given; on_process_changed() notes what a process says.
class process_group : public ref_counted {
  public:
    process_group(group_options options, ref<launcher_context> context)
        : context_(std::move(context)), options_(std::move(options)) {
        if (options_.id_prefix.empty()) options_.id_prefix = options_.name;
        if (options_.max_surge == 0) options_.max_surge = 1;  // [RFC-041 "maxSurge == 0"]
        ended_.reserve(max_ended);
        fill_places();
    }

    // ---- for the supervisor ----

    // Starts and ends what the plan says, and advances the rollout. Returns when it is due again.
    time_point reconcile(time_point now) {
        forget_gone();
        group_options options;
        // What fails at once has its turn the next time. A start may wait for the forks of others, so a stop
        // precedes the next.
        for (int left = decide(now); left > 0 && !is_stopped(); --left) {
            const ref<member> added = claim_due_slot(now, options);
            if (!added) break;
            const result<void> started = unless_out_of_memory([&] { return start_process(added, options); });
            if (!started) on_start_failed(added, started.error());
        }
        return next_due(now);
    }
    // Nothing is started, given up or replaced, until it is false again.
    void hold(bool yes) {
        const unique_lock held(mutex_);
        held_ = yes;
        changed_.notify_all();
    }
    // From here on nothing is started any more.
    void stop_starting() {
        todo left;
        {
            const unique_lock held(mutex_);
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
    // Waits for threads of processes that ended. Not from one of those.
    void forget_gone() {
        for (;;) {
            ref<instance> gone;  // ends when the mutex is open again
            const unique_lock held(mutex_);
            if (gone_.empty()) return;
            gone = std::move(gone_.back());
            gone_.pop_back();
        }
    }
    bool empty() const {
        const unique_lock held(mutex_);
        return members_.empty();
    }

    // ---- for everybody ----

    group_options options() const {
        const unique_lock held(mutex_);
        return options_;
    }
    members running() const {
        const unique_lock held(mutex_);
        return members_;
    }
    // What its processes may take to end. Those of a rollout keep the times they were started with, whatever
    // became of it.
    std::chrono::milliseconds max_stop_time() const {
        std::chrono::milliseconds out{0};
        const unique_lock held(mutex_);
        for (const ref<member>& each : members_) out = std::max(out, each->stop_time);
        return out;
    }
    // Adds its ready ones. False: they are fewer than min_healthy.
    bool count_ready_into(int& sum) const {
        const unique_lock held(mutex_);
        const int ready = count(is_ready);
        sum += ready;
        return ready >= options_.min_healthy;
    }
    group_info info() const {
        group_info out;
        array<ref<instance>> asked;
        {
            const unique_lock held(mutex_);
            out.options = options_;
            out.replacing = static_cast<bool>(rollout_);
            out.degraded = is_degraded();
            out.quiet = held_;
            out.generation = generation_;
            out.message = message_;
            out.ready = count(is_ready);
            if (last_rollout_) out.replacement = last_rollout_->status;
            for (const ref<member>& each : members_) {
                out.processes.push_back(each->info);
                asked.push_back(each->process);
            }
            for (const process_info& each : ended_) out.processes.push_back(each);
        }
        for (std::size_t i = 0; i < asked.size(); ++i) add_newest(asked[i], out.processes[i]);
        return out;
    }
    // False: no such process. `running`, if given: none where it has ended.
    bool find(const std::string& id, process_info& out, ref<member>* running = nullptr) const {
        unique_lock held(mutex_);
        if (const ref<member> found = find_running(id)) {
            out = found->info;
            const ref<instance> asked = found->process;
            held.unlock();
            add_newest(asked, out);
            if (running != nullptr) *running = found;
            return true;
        }
        for (const process_info& each : ended_) {
            if (each.id == id) return out = each, true;
        }
        return false;
    }
    // Polls the process that notified us. `from`: its process group; 0: unknown. False: none of ours.
    bool notified(pid_t from, const std::string& id) {
        unique_lock held(mutex_);
        const ref<member> found = find_running(id);
        if (!found) return false;
        const pid_t pid = found->info.pid;
        if (from != 0 && pid != 0 && ::getpgid(pid) != from) return false;
        found->notified = true;
        const ref<instance> target = found->process;
        held.unlock();
        if (target) target->poll();
        return true;
    }
    // Asks the process now. errc::unavailable: it is being started.
    result<shutdown_status> ask_status(const member& of, time_point deadline) const {
        unique_lock held(mutex_);
        const ref<instance> target = of.process;
        held.unlock();
        if (!target) return error{errc::unavailable, 0, "is being started"};
        return target->ask_status(deadline);
    }
    group_metrics& metrics() noexcept { return metrics_; }

    // Takes them off the routing, and asks them to end. Their places stay empty until the group is replaced as a whole.
    void drain(const members& all, const shutdown_options& order) {
        leave(all, order);
        context_->routing->await_calls(deadline_after(max_hook_time));
        ask_to_end(all);
    }
    // The two halves of it, so that many groups wait for the hooks together.
    void leave(const members& all, const shutdown_options& order) {
        const unique_lock held(mutex_);
        for (const ref<member>& each : all) {
            if (!each->leaving) give_up_place(*each);
        }
        mark_leaving(all, order);
    }
    void ask_to_end(const members& all) {
        for (const ref<member>& each : all) {
            unique_lock held(mutex_);
            if (each->asked) continue;
            const ref<instance> target = each->process;
            each->asked = static_cast<bool>(target);
            const shutdown_options order = each->order;
            held.unlock();
            if (target) target->shut_down(order);
        }
    }
    void force(const members& all) {
        for (const ref<member>& each : all) {
            unique_lock held(mutex_);
            each->forced = true;
            const ref<instance> target = each->process;
            held.unlock();
            if (target) target->force();
        }
    }
    // All of them, and nothing is started for them until a replacement. errc::busy: one is under way.
    result<void> shut_down(const shutdown_options& order) {
        members all;
        {
            const unique_lock held(mutex_);
            if (rollout_) return error{errc::busy, 0, "a replacement is under way in this group"};
            stopped_ = true;
            stopped_places_ = 0;
            vacancies_.clear();
            all = members_;
            mark_leaving(all, order);
        }
        context_->routing->await_calls(deadline_after(max_hook_time));
        ask_to_end(all);
        return {};
    }

    // ---- rolling replacements ----

    // Oldest first.
    members staying() const {
        const unique_lock held(mutex_);
        members out;
        for (const ref<member>& each : members_) {
            if (!each->leaving) out.push_back(each);
        }
        return out;
    }
    rolling_report preview_rollout() const;
    // errc::busy: there is one, or the group stops or is held.
    result<ref<rollout>> begin_rollout(const group_options& to, const rolling_options& options);
    // Until it has ended. Asks the canaries' check in this thread. The token cancels, as cancel_rollout().
    rolling_report await_rollout(const ref<rollout>& of, const cancel_token& until);
    // All of that; only the preview for a dry run.
    result<rolling_report> roll(const group_options& to, const rolling_options& options,
                                const cancel_token& until) {
        const result<void> sound = check_rollout(this->options(), to, options);
        if (!sound) return sound.error();
        if (options.dry_run) return preview_rollout();
        const result<ref<rollout>> begun = begin_rollout(to, options);
        if (!begun) return begun.error();
        return await_rollout(*begun, until);
    }
    // That one, or whichever is under way. errc::busy: there is none, or it is rolled back, or done, already.
    result<void> cancel_rollout(const std::string& reason, const rollout* which = nullptr);

  private:
    // A place without a process.
    struct vacancy {
        ref<restart_history> place;
        time_point due{};  // max(): it stays empty
        bool degraded = false;
    };
    // What is left to do when the mutex is open.
    struct todo {
        array<log_record> records;
        members force;
        members ask;
        array<ref<instance>> poll;  // whether they are ready
    };

    // ---- starting, and what processes say ----

    bool is_stopped() const noexcept {
        return context_->life != nullptr && context_->life->phase() >= phase::draining;
    }
    result<void> start_process(const ref<member>& added, const group_options& of);
    void on_started(member& added, const ref<instance>& started);
    void on_start_failed(const ref<member>& added, const error& why);
    void on_process_changed(const ref<member>& of, const process_info& now);
    // A new one of a rollout is given work once it has proven itself: until then the others do it.
    void update_routing(member& of) {
        const bool takes_work = is_ready(of) && (!of.fresh || of.proven);
        if (takes_work == of.shown_routable) return;
        of.unrouted = context_->routing->post(
            takes_work ? routing::kind::routable : routing::kind::unroutable, of.info);
        of.shown_routable = takes_work;
    }
    void remove(const ref<member>& of) noexcept;

    // ---- what is decided, with the mutex held but for the first three ----

    int decide(time_point now);
    ref<member> claim_due_slot(time_point now, group_options& options);
    time_point next_due(time_point now);
    void replace_ended(time_point now, todo& left);
    void update_proven(time_point now);
    void take_unhealthy(todo& left);
    void pick_asked(time_point now, todo& left);
    time_point proven_by(const member& of) const {
        const group_options& options = options_of(of.generation);
        const time_point timeout = of.place->started + options.health_check_timeout;
        const time_point ready_by = std::max(timeout, of.answer_by);
        return is_ready(of) ? ready_by + min_ready_time(options) : ready_by;
    }
    group_goal goal_at(time_point now) const {
        group_goal out;
        out.may_end = !held_ && !stopping_;
        if (!out.may_end) return out;
        const int free = max_starting - starting_;
        out.wanted = wanted();
        out.replaces = replacing();
        out.min_healthy = std::min(out.replaces ? rollout_->min_healthy : options_.min_healthy, out.wanted);
        if (!out.replaces) {
            for (const vacancy& each : vacancies_) out.max_starts += each.due > now ? 0 : 1;
            out.max_starts = std::min(out.max_starts, free);
            return out;
        }
        const rollout& r = *rollout_;
        out.max_others = r.max_others;
        if (now >= r.paused_until)
            out.max_starts = std::min(r.max_total - static_cast<int>(members_.size()), free);
        if (!goes_forward() || r.canaries == rollout::canary_step::passed) return out;
        const int more = canaries() - count_of(r.generation);
        out.may_end = more > 0;  // those that they are to replace still run while they are watched
        out.max_starts = std::min(out.max_starts, more);
        return out;
    }
    group_plan plan_at(time_point now, members& staying) const {
        array<plan_member> facts;
        for (const ref<member>& each : members_) {
            if (each->leaving) continue;
            staying.push_back(each);
            facts.push_back({each->generation == wanted_generation(), is_ready(*each), each->proven});
        }
        return plan_group(facts, goal_at(now));
    }
    shutdown_options order_of_surplus() const {
        if (!replacing()) return {"more than desired", {}, {}};
        if (!goes_forward()) return {"rolled back", {}, {}};
        const std::string& reason = rollout_->options.reason;
        return {reason.empty() ? "rolling replacement" : reason, {}, {}};
    }
    // Without a replacement each place has a process, or waits for one: neither more nor fewer.
    void fill_places() {
        int missing = wanted() - static_cast<int>(vacancies_.size()) - count_all();
        for (; missing > 0 && !stopping_; --missing)
            vacancies_.push_back({make_ref<restart_history>(options_.restart), time_point(), false});
        for (; missing < 0 && !vacancies_.empty(); ++missing) vacancies_.pop_back();
    }
    // An operator ends it. While there are more processes than places, a new one of the rollout has none yet.
    void give_up_place(const member& of) {
        const int taken = static_cast<int>(vacancies_.size()) + count_all();
        if (of.fresh && taken > options_.desired - stopped_places_) return note_fault(of, "was stopped");
        if (!stopping_) ++stopped_places_;
    }
    void mark_leaving(const members& all, const shutdown_options& order) {
        for (const ref<member>& each : all) {
            if (!each->leaving) each->order = order;
            each->leaving = true;
            update_routing(*each);
        }
        touch();
    }

    // ---- the rollout, the same ----

    void advance(time_point now, todo& left);
    void find_faults(time_point now, todo& left);
    static const char* reason_of(const member& failed) noexcept {
        return failed.was_ready ? "did not stay ready" : "failed before it was ready";
    }
    // It counts where it is of a process that the rollout has started, and still needs.
    void note_fault(const member& of, const char* why) {
        if (of.fresh && replacing() && of.generation == wanted_generation()) rollout_->fail(of.id, why);
    }
    bool all_replaced() const {
        const int proven = count([](const member& each) { return each.fresh && each.proven; });
        return goes_forward() && rollout_->canaries == rollout::canary_step::passed && proven == wanted() &&
               proven == count_all();
    }
    // Of a group that becomes as it was, what is ready of the new configuration may be all there is: that is kept.
    bool is_complete(time_point now) const {
        if (drains(now)) return false;
        if (goes_forward()) return all_replaced();
        members staying;
        const group_plan plan = plan_at(now, staying);
        if (plan.starts > 0 || !plan.ends.empty() || now < rollout_->paused_until) return false;
        return count([](const member& each) { return each.fresh && !each.proven; }) == 0;
    }
    void conclude(replacement_end result);
    void finish(todo& left);
    void drop_unready(todo& left);
    void tell(todo& left, log_level level, const char* message, const char* result = "") const {
        const rolling_report& now = rollout_->report;
        left.records.push_back(
            {level,
             message,
             {field("group", options_.name), field("replaced", now.replaced), field("total", now.total),
              field("process_id", now.failed_id), field("reason", now.error)},
             {}});
        context_->events->tell(options_.name, message,
                               cat({",\"replaced\":", now.replaced, ",\"total\":", now.total,
                                    ",\"failedId\":", json_quote(now.failed_id), ",\"reason\":",
                                    json_quote(now.error), ",\"result\":", json_quote(result)}));
    }

    // It decides what runs.
    bool replacing() const noexcept { return rollout_ && rollout_->at < rollout::stage::ending; }
    bool goes_forward() const noexcept { return rollout_ && rollout_->at == rollout::stage::forward; }
    std::uint64_t wanted_generation() const noexcept {
        return goes_forward() ? rollout_->generation : generation_;
    }
    const group_options& options_of(std::uint64_t generation) const noexcept {
        return rollout_ && rollout_->generation == generation ? rollout_->to : options_;
    }
    int canaries() const noexcept { return std::min(rollout_->options.canary, wanted()); }
    // Processes of the configuration that is wanted.
    int wanted() const noexcept {
        if (goes_forward()) return std::max(0, rollout_->to.desired - stopped_places_);
        const int places = stopped_ ? 0 : std::max(0, options_.desired - stopped_places_);
        return replacing() ? std::max(0, places - static_cast<int>(vacancies_.size())) : places;
    }

    // ---- counting, with the mutex held ----

    static bool is_ready(const member& of) noexcept {
        return of.info.state == instance_state::ready && of.info.routable && !of.leaving;
    }
    ref<member> find_running(const std::string& id) const {
        for (const ref<member>& each : members_) {
            if (each->id == id) return each;
        }
        return {};
    }
    // Of those that stay.
    template <class Holds>
    int count(Holds holds) const {
        int out = 0;
        for (const ref<member>& each : members_) out += !each->leaving && holds(*each) ? 1 : 0;
        return out;
    }
    int count_all() const {
        return count([](const member&) { return true; });
    }
    int count_of(std::uint64_t generation) const {
        return count([&](const member& each) { return each.generation == generation; });
    }
    int count_proven(std::uint64_t generation) const {
        return count([&](const member& each) { return each.generation == generation && each.proven; });
    }
    bool is_degraded() const noexcept {
        const auto degrades = [](const vacancy& each) { return each.degraded; };
        return std::any_of(vacancies_.begin(), vacancies_.end(), degrades);
    }
    // One of those that leave has time left for it.
    bool drains(time_point now) const noexcept {
        for (const ref<member>& each : members_) {
            if (each->leaving && (each->gone_by == time_point() || now < each->gone_by)) return true;
        }
        return false;
    }
    void note_failed(member& of) noexcept {
        if (!exchange(of.failed_readiness, true)) count_one(metrics_.readiness_failures);
    }
    void write(const array<log_record>& records) const {
        for (const log_record& each : records) context_->log.write(each);
    }
    void touch() noexcept {
        touched_ = true;
        changed_.notify_all();
    }

    static constexpr std::size_t max_ended = 32;  // whose exit status can still be asked for
    // At a time: more only wait for each other, and all of them may hang in exec().
    static constexpr int max_starting = 8;

    const ref<launcher_context> context_;
    group_metrics metrics_;
    mutable mutex mutex_;
    condition changed_;
    group_options options_;
    members members_;   // by age; each is here from before its start until it is over
    members over_;      // since the last reconciliation
    int starting_ = 0;  // of those that are here: have neither run nor failed
    array<vacancy> vacancies_;
    array<process_info> ended_;
    array<ref<instance>> gone_;
    ref<rollout> rollout_;       // under way
    ref<rollout> last_rollout_;  // that one, or the one before
    std::string message_;        // how the last one ended
    std::uint64_t generation_ = 1;
    std::uint64_t last_generation_ = 1;
    std::uint64_t last_number_ = 0;
    int stopped_places_ = 0;  // by an operator, one by one
    bool stopped_ = false;    // as a whole
    bool touched_ = false;    // since the last reconciliation
    bool held_ = false;
    bool stopping_ = false;
};

}  // namespace ojs::detail
