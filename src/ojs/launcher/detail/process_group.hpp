// process_group: keeps so many processes of one kind. What changes them goes through here.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>

#include "../../base/detail/array.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/log.hpp"
#include "group_member.hpp"
#include "group_plan.hpp"
#include "instance.hpp"
#include "launcher_events.ipp"
#include "launcher_metrics.ipp"
#include "rollout.hpp"
#include "routing.ipp"
#include "state_file.ipp"

namespace ojs::detail {

// What all groups of a launcher share.
struct group_surroundings : ref_counted {
    instance_starter starter;
    ref<ojs::detail::routing> routing;
    ref<launcher_events> events = make_ref<launcher_events>();
    logger log;
    ref<state_file> state;            // may be none
    const lifecycle* life = nullptr;  // of the launcher
    function<void()> wake;            // the supervisor: something is to be looked at
    std::string socket_folder;
    std::string launcher_address;
};

// Its own mutex is held for no call to a process, a hook or the log. Whatever a process says comes by told(). What becomes of
// it is decided by reconcile() alone, from plan_group(), in the supervisor's thread and by the time that it is given.
class process_group : public ref_counted {
  public:
    process_group(group_options options, ref<group_surroundings> around)
        : around_(std::move(around)), options_(std::move(options)) {
        if (options_.id_prefix.empty()) options_.id_prefix = options_.name;
        if (options_.max_surge == 0) options_.max_surge = 1;  // [RFC-041 "maxSurge == 0"]
        ended_.reserve(ended_kept);
        fill_places();
    }

    // ---- for the supervisor ----

    // Starts and ends what the plan says, and takes the rollout a step further. When it wants to be called again.
    time_point reconcile(time_point now) {
        forget_gone();
        group_options options;
        // What fails at once has its turn the next time. A start may wait for the forks of others, so a stop precedes the next.
        for (int left = decide(now); left > 0 && !is_stopped(); --left) {
            const ref<member> added = admit(now, options);
            if (!added) break;
            static_cast<void>(launch(added, options));
        }
        return next_due(now);
    }
    // Nothing is started, given up or replaced, until it is false again.
    void hold(bool yes) {
        const lock_guard held(mutex_);
        held_ = yes;
        changed_.notify_all();
    }
    // From here on nothing is started any more.
    void stop_starting();
    // Waits for threads of processes that ended. Not from one of those.
    void forget_gone() {
        for (;;) {
            ref<instance> gone;  // ends when the mutex is open again
            const lock_guard held(mutex_);
            if (gone_.empty()) return;
            gone = std::move(gone_.back());
            gone_.pop_back();
        }
    }
    bool empty() const {
        const lock_guard held(mutex_);
        return members_.empty();
    }

    // ---- for everybody ----

    group_options options() const {
        const lock_guard held(mutex_);
        return options_;
    }
    std::uint64_t generation() const {
        const lock_guard held(mutex_);
        return generation_;
    }
    members running() const {
        const lock_guard held(mutex_);
        return members_;
    }
    // What its processes may take to end. Those of a rollout keep the times they were started with, whatever became of it.
    std::chrono::milliseconds max_stop_time() const {
        std::chrono::milliseconds out{0};
        const lock_guard held(mutex_);
        for (const ref<member>& each : members_) {
            if (each->stop_time > out) out = each->stop_time;
        }
        return out;
    }
    // Adds its ready ones. False: they are fewer than min_healthy.
    bool count_ready_into(int& sum) const {
        const lock_guard held(mutex_);
        const int ready = count(is_ready);
        sum += ready;
        return ready >= options_.min_healthy;
    }
    group_info info() const {
        const lock_guard held(mutex_);
        group_info out;
        out.options = options_;
        out.replacing = static_cast<bool>(rollout_);
        out.degraded = is_degraded();
        out.quiet = held_;
        out.generation = generation_;
        out.message = message_;
        out.replacement = replacement_;
        for (const ref<member>& each : members_) {
            out.processes.push_back(each->info);
            out.ready += is_ready(*each) ? 1 : 0;
        }
        for (const process_info& each : ended_) out.processes.push_back(each);
        return out;
    }
    bool find(const std::string& id, process_info& out) const {
        const lock_guard held(mutex_);
        if (const ref<member> running = find_running(id)) return out = running->info, true;
        for (const process_info& each : ended_) {
            if (each.id == id) return out = each, true;
        }
        return false;
    }

    // One says that it is `what.process_id`. `from`: its process group; 0: not to be known. False: it is none of ours.
    template <class Notification>
    bool notified(pid_t from, const Notification& what) {
        ref<instance> target;
        {
            const lock_guard held(mutex_);
            const ref<member> found = find_running(what.process_id);
            if (!found) return false;
            const pid_t pid = found->info.pid;
            if (from != 0 && pid != 0 && ::getpgid(pid) != from) return false;
            target = found->process;
            found->notified = true;
        }
        if (target) target->notified(what);
        return true;
    }

    // Takes them off the routing, and asks them to end. Their places stay empty until the group is replaced as a whole.
    void drain(const members& all, const shutdown_order& order) {
        leave(all, order);
        around_->routing->await_told(deadline_after(max_hook_time));
        ask_to_end(all);
    }
    // The two halves of it, so that many groups wait for the hooks together.
    void leave(const members& all, const shutdown_order& order) {
        const lock_guard held(mutex_);
        for (const ref<member>& each : all) {
            if (!each->leaving) give_up_place(*each);
        }
        mark_leaving(all, order);
    }
    void ask_to_end(const members& all) {
        for (const ref<member>& each : all) {
            lock_guard held(mutex_);
            if (each->asked) continue;
            const ref<instance> target = each->process;
            each->asked = static_cast<bool>(target);
            const shutdown_order order = each->order;
            held.unlock();
            if (target) target->shut_down(order);
        }
    }
    void force(const members& all) {
        for (const ref<member>& each : all) {
            lock_guard held(mutex_);
            each->forced = true;
            const ref<instance> target = each->process;
            held.unlock();
            if (target) target->force();
        }
    }

    // All of them, and nothing is started for them until a replacement. errc::busy: one is under way.
    result<void> shut_down(const shutdown_order& order) {
        members all;
        {
            const lock_guard held(mutex_);
            if (rollout_) return error{errc::busy, 0, "a replacement is under way in this group"};
            stopped_ = true;
            stopped_places_ = 0;
            vacancies_.clear();
            all = members_;
            mark_leaving(all, order);
        }
        around_->routing->await_told(deadline_after(max_hook_time));
        ask_to_end(all);
        return {};
    }

    // ---- for a replacement: see rolling_replace ----

    // errc::busy: there is one, or the group stops.
    result<ref<rollout>> begin_rollout(const group_options& to, const rolling_options& options);
    // Asks the canaries' check in this thread. The token cancels, as cancel_rollout().
    rolling_report await_rollout(const ref<rollout>& of, const cancel_token& until);
    // That one, or whichever is under way. errc::busy: there is none, or it is rolled back, or done, already.
    result<void> cancel_rollout(const rollout* which = nullptr);

    // Those that stay, oldest first.
    members staying() const {
        const lock_guard held(mutex_);
        members out;
        for (const ref<member>& each : members_) {
            if (!each->leaving) out.push_back(each);
        }
        return out;
    }
    ref<instance> process_of(const member& of) const {
        const lock_guard held(mutex_);
        return of.process;
    }
    const logger& log() const noexcept { return around_->log; }
    group_metrics& metrics() noexcept { return metrics_; }
    launcher_events& events() noexcept { return *around_->events; }

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
        members ask_ready;  // once more
    };

    // ---- starting ----

    bool is_stopped() const noexcept {
        return around_->life != nullptr && around_->life->phase() >= phase::draining;
    }
    result<ref<member>> launch(const ref<member>& added, const group_options& of);
    result<void> start_process(const ref<member>& added, const group_options& of);
    void write_down(instance_spec& spec) const;
    void settle_in(member& added, const ref<instance>& started);
    void not_started(const ref<member>& added, const error& why);

    // ---- what processes say ----

    void told(const ref<member>& of, const process_info& now);
    void tell_routing(member& of);
    void remove(const ref<member>& of) noexcept;
    static how_ended how_it_ended(const member& of);

    // ---- what is decided, with the mutex held but for the first three ----

    int decide(time_point now);
    ref<member> admit(time_point now, group_options& options);
    time_point next_due(time_point now);
    void judge_ended(time_point now, todo& left);
    void look_at_members(time_point now);
    void take_ill(todo& left);
    void pick_asked(time_point now, todo& left);
    time_point proven_at(const member& of) const;
    time_point proven_by(const member& of) const;
    group_goal goal_at(time_point now) const;
    group_plan plan_at(time_point now, members& staying) const;
    shutdown_order order_of_surplus() const;
    void fill_places();
    void give_up_place(const member& of);

    // ---- the rollout ----

    void advance(time_point now, todo& left);
    void find_faults(time_point now, todo& left);
    void note_fault(const member& of, const char* why);
    void fail_rollout(const std::string& id, std::string why);
    void retry_or_roll_back(time_point now, todo& left);
    void watch_canaries(time_point now, todo& left);
    bool all_replaced() const;
    bool is_complete(time_point now) const;
    void conclude(replacement_end result);
    void finish(todo& left);
    void drop_unready(todo& left);
    void show_rollout(time_point now, todo& left);
    void tell(todo& left, log_level level, const char* message, const char* result = "") const;

    // It decides what runs.
    bool replacing() const noexcept { return rollout_ && rollout_->at < rollout::stage::ending; }
    bool goes_forward() const noexcept { return rollout_ && rollout_->at == rollout::stage::forward; }
    std::uint64_t wanted_generation() const noexcept {
        return goes_forward() ? rollout_->generation : generation_;
    }
    const group_options& options_of(std::uint64_t generation) const noexcept {
        return rollout_ && rollout_->generation == generation ? rollout_->to : options_;
    }
    int canaries() const noexcept {
        return rollout_->options.canary < wanted() ? rollout_->options.canary : wanted();
    }
    // Processes of the configuration that is wanted.
    int wanted() const noexcept {
        if (goes_forward()) return at_least_zero(rollout_->to.desired - stopped_places_);
        const int places = stopped_ ? 0 : at_least_zero(options_.desired - stopped_places_);
        return replacing() ? at_least_zero(places - static_cast<int>(vacancies_.size())) : places;
    }

    // ---- ending ----

    void mark_leaving(const members& all, const shutdown_order& order) {
        for (const ref<member>& each : all) {
            if (!each->leaving) each->order = order;
            each->leaving = true;
            tell_routing(*each);
        }
        touch();
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
    bool is_here(const member& of) const noexcept {
        for (const ref<member>& each : members_) {
            if (each.get() == &of) return true;
        }
        return false;
    }
    // Of those that stay.
    template <class Holds>
    int count(Holds holds) const {
        int out = 0;
        for (const ref<member>& each : members_) out += !each->leaving && holds(*each) ? 1 : 0;
        return out;
    }
    int count_of(std::uint64_t generation) const {
        return count([&](const member& each) { return each.generation == generation; });
    }
    bool is_degraded() const noexcept {
        for (const vacancy& each : vacancies_) {
            if (each.degraded) return true;
        }
        return false;
    }
    // One of those that leave has time left for it.
    bool drains(time_point now) const noexcept {
        for (const ref<member>& each : members_) {
            if (each->leaving && (each->gone_by == time_point() || now < each->gone_by)) return true;
        }
        return false;
    }
    void note_failed(member& of) noexcept {
        if (!of.failed_readiness) count_one(metrics_.readiness_failures);
        of.failed_readiness = true;
    }
    void write(const array<log_record>& records) const {
        for (const log_record& each : records) around_->log.write(each);
    }
    void touch() noexcept {
        touched_ = true;
        changed_.notify_all();
    }

    static constexpr std::size_t ended_kept = 32;  // for whoever asks how one ended
    // At a time: more only wait for each other, and all of them may hang in exec().
    static constexpr int max_starting = 8;

    const ref<group_surroundings> around_;
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
    ref<rollout> rollout_;  // under way
    std::string message_;
    replacement_status replacement_;
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
