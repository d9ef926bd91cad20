// process_group: keeps so many processes of one kind. What changes them goes through here.
#pragma once

#include <signal.h>
#include <unistd.h>

#include "../../base/detail/array.hpp"
#include "../../base/detail/sync.hpp"
#include "instance.hpp"
#include "launcher_events.ipp"
#include "launcher_metrics.ipp"
#include "restart_policy.ipp"
#include "routing.ipp"
#include "state_ledger.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What all groups of a launcher share.
struct group_surroundings : ref_counted {
    instance_starter starter;
    ref<ojs::detail::routing> routing;
    ref<launcher_events> events = make_ref<launcher_events>();
    logger log;
    ref<state_ledger> ledger;  // may be none
    function<void()> wake;     // the supervisor: something is to be looked at
    std::string socket_folder;
    std::string launcher_address;
};

// One process of a group. Its fields are under the group's mutex, but for `id` and what is const.
struct member : ref_counted {
    member(std::string name, std::uint64_t of, ref<restart_history> where)
        : id(std::move(name)), generation(of), place(std::move(where)) {}

    const std::string id;
    const std::uint64_t generation;
    const ref<restart_history> place;
    ref<instance> process;  // none until it was started
    process_info info;      // as last told
    bool was_ready = false;
    bool failed_readiness = false;  // and was counted as that
    bool told_routable = false;     // to the hooks
    bool leaving = false;           // was asked to end: it is not restarted
    bool given_up = false;          // forced for its ill health: it is
    bool forced = false;
    bool notified = false;  // before it was there to be told
    shutdown_order order;   // while it leaves
};

using members = array<ref<member>>;

// Its own mutex is held for no call to a process, a hook or the log. Whatever a process says comes by told(), and that
// alone counts: a thread that waits here has seen what the hooks were told.
class process_group : public ref_counted {
  public:
    process_group(group_options options, ref<group_surroundings> around)
        : around_(std::move(around)), options_(std::move(options)) {
        if (options_.id_prefix.empty()) options_.id_prefix = options_.name;
        if (options_.max_surge == 0) options_.max_surge = 1;  // [RFC-041 "maxSurge == 0"]
        fill_up();
    }

    // ---- for the supervisor ----

    // Starts what is due, gives up what is ill, forgets what is gone. When it wants to be called again.
    time_point reconcile(time_point now) {
        forget_gone();
        for (const ref<restart_history>& place : take_due(now)) {
            if (place->started != time_point()) count_one(metrics_.restarts);
            static_cast<void>(launch(place, options(), generation()));
        }
        for (const ref<member>& ill : take_ill()) force({ill});
        return next_due();
    }
    // No restarts and no replacement goes on, until it is false again.
    void hold(bool yes) {
        const lock_guard held(mutex_);
        held_ = yes;
        changed_.notify_all();
    }
    // From here on nothing is started any more.
    void stop_starting() {
        const lock_guard held(mutex_);
        stopping_ = true;
        vacancies_.clear();
        changed_.notify_all();
    }
    bool await_empty(time_point deadline) {
        lock_guard held(mutex_);
        return await(held, deadline, [this] { return members_.empty(); });
    }
    // Waits for threads of processes that ended. Not from one of those.
    void forget_gone() {
        array<ref<instance>> gone;
        const lock_guard held(mutex_);
        gone.swap(gone_);  // the references go when the mutex is open again: `gone` is older
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
    group_info info() const {
        const lock_guard held(mutex_);
        group_info out;
        out.options = options_;
        out.ready = count_ready();
        out.replacing = replacing_;
        out.degraded = degraded_;
        out.generation = generation_;
        out.message = message_;
        for (const ref<member>& each : members_) out.processes.push_back(each->info);
        for (const process_info& each : ended_) out.processes.push_back(each);
        return out;
    }
    bool find(const std::string& id, process_info& out) const {
        const lock_guard held(mutex_);
        for (const ref<member>& each : members_) {
            if (each->id == id) return out = each->info, true;
        }
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

    // Takes them off the routing, and asks them to end. They are not restarted.
    void drain(const members& all, const shutdown_order& order) {
        leave(all, order);
        around_->routing->await_told(deadline_after(std::chrono::seconds(1)));
        ask_to_end(all);
    }
    // The two halves of it, so that many groups wait for the hooks together.
    void leave(const members& all, const shutdown_order& order) {
        const lock_guard held(mutex_);
        mark_leaving(all, order);
    }
    void ask_to_end(const members& all) {
        for (const ref<member>& each : all) {
            if (const ref<instance> target = process_of(*each)) target->shut_down(order_of(*each));
        }
    }
    void force(const members& all) {
        for (const ref<member>& each : all) {
            if (const ref<instance> target = mark_forced(*each)) target->force();
        }
    }

    // All of them, and nothing is started for them until a replacement. errc::busy: one is under way.
    result<void> shut_down(const shutdown_order& order) {
        members all;
        {
            const lock_guard held(mutex_);
            if (replacing_) return error{errc::busy, 0, "a replacement is under way in this group"};
            vacancies_.clear();
            all = members_;
            mark_leaving(all, order);
        }
        around_->routing->await_told(deadline_after(std::chrono::seconds(1)));
        ask_to_end(all);
        return {};
    }

    // ---- for a replacement: see rolling_replace ----

    // errc::busy: there is one, or the group stops.
    result<std::uint64_t> begin_replacement() {
        const lock_guard held(mutex_);
        if (replacing_) return error{errc::busy, 0, "a replacement is under way in this group"};
        if (stopping_) return error{errc::busy, 0, "the group is stopping"};
        replacing_ = true;
        return ++last_generation_;
    }
    // The group has what it wants: the new configuration and every place filled, or the old one, with what ended meanwhile.
    void end_replacement(const group_options* wanted, std::uint64_t generation, std::string message) {
        members surplus;
        {
            const lock_guard held(mutex_);
            if (wanted != nullptr) {
                const std::string prefix = options_.id_prefix;
                options_ = *wanted;
                options_.id_prefix = prefix;
                if (options_.max_surge == 0) options_.max_surge = 1;
                generation_ = generation;
                degraded_ = false;
                vacancies_.clear();
            }
            message_ = std::move(message);
            replacing_ = false;
            fill_up();
            surplus = find_surplus();
        }
        drain(surplus, {"more than desired", {}, {}});
        around_->wake();
    }
    // Those that stay, oldest first.
    members staying() const {
        const lock_guard held(mutex_);
        members out;
        for (const ref<member>& each : members_) {
            if (!each->leaving) out.push_back(each);
        }
        return out;
    }
    result<ref<member>> start_one(const group_options& of, std::uint64_t generation) {
        return launch(make_ref<restart_history>(of.restart), of, generation);
    }
    // Waits while the launcher is quiet. False where that was cut short.
    bool await_resumed(const cancel_token& until) {
        const cancel_registration woken = wake_when(until);
        lock_guard held(mutex_);
        await(held, time_point::max(), [&] { return !held_ || interrupted(until); });
        return !interrupted(until);
    }
    // Waits until so many more may be started.
    bool await_room(int more, int most, time_point deadline, const cancel_token& until) {
        const cancel_registration woken = wake_when(until);
        lock_guard held(mutex_);
        await(held, deadline,
              [&] { return interrupted(until) || static_cast<int>(members_.size()) + more <= most; });
        return !interrupted(until) && static_cast<int>(members_.size()) + more <= most;
    }
    enum class readiness { ready, failed, late, interrupted };
    // Until all of them are ready, or one cannot become it; which one is `failed`, if any.
    readiness await_ready(const members& all, time_point deadline, const cancel_token& until,
                          ref<member>& failed) {
        const cancel_registration woken = wake_when(until);
        lock_guard held(mutex_);
        readiness out = readiness::late;
        const bool decided = await(held, deadline, [&] {
            out = interrupted(until) ? readiness::interrupted : readiness_of(all, failed);
            return out != readiness::late;
        });
        if (!decided) out = readiness_of(all, failed);
        return out;
    }
    // Whether they stay ready for so long.
    readiness await_steady(const members& all, time_point end, const cancel_token& until,
                           ref<member>& failed) {
        const cancel_registration woken = wake_when(until);
        lock_guard held(mutex_);
        const auto changed = [&] {
            return interrupted(until) || readiness_of(all, failed) != readiness::ready;
        };
        if (!await(held, end, changed)) return readiness::ready;
        return interrupted(until) ? readiness::interrupted : readiness::failed;
    }
    // Waits until so many stay ready without `old`, and takes those off in the same moment. False: that never was so.
    bool retire(const members& old, int min_healthy, time_point deadline, const cancel_token& until,
                const shutdown_order& order) {
        {
            const cancel_registration woken = wake_when(until);
            lock_guard held(mutex_);
            const bool enough = await(held, deadline, [&] {
                return interrupted(until) || count_ready() - ready_of(old) >= min_healthy;
            });
            if (!enough || interrupted(until)) return false;
            mark_leaving(old, order);
        }
        around_->routing->await_told(deadline_after(std::chrono::seconds(1)));
        ask_to_end(old);
        return true;
    }
    bool await_gone(const members& all, time_point deadline) {
        bool out = false;
        {
            lock_guard held(mutex_);
            out = await(held, deadline, [&] {
                for (const ref<member>& each : all) {
                    if (is_here(*each)) return false;
                }
                return true;
            });
        }
        forget_gone();
        return out;
    }
    // Waits; false where that was cut short.
    bool pause(time_point until_then, const cancel_token& until) {
        const cancel_registration woken = wake_when(until);
        lock_guard held(mutex_);
        return !await(held, until_then, [&] { return interrupted(until); });
    }
    bool was_interrupted(const cancel_token& until) const {
        const lock_guard held(mutex_);
        return interrupted(until);
    }
    // Of `all`, those that are ready, or those that are not.
    members pick(const members& all, bool ready) const {
        const lock_guard held(mutex_);
        members out;
        for (const ref<member>& each : all) {
            if (is_ready(*each) == ready) out.push_back(each);
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
    // It was not ready in time, or never will be.
    void count_failed(const ref<member>& of) {
        const lock_guard held(mutex_);
        if (of && !of->was_ready) note_failed(*of);
    }

  private:
    struct vacancy {
        ref<restart_history> place;
        time_point due = time_point::min();  // max(): it stays empty
    };

    // ---- starting ----

    result<ref<member>> launch(ref<restart_history> place, const group_options& of,
                               std::uint64_t generation) {
        const ref<process_group> self(this);
        const result<ref<member>> made = admit(std::move(place), of, generation);
        if (!made) return made;
        const ref<member>& added = *made;
        instance_spec spec;
        spec.id = added->id;
        spec.group = of.name;
        spec.options = of.process;
        spec.options.readiness_timeout = of.health_check_timeout;
        spec.generation = generation;
        spec.address = cat({"unix:", around_->socket_folder, "/", added->id, ".sock"});
        spec.launcher_address = around_->launcher_address;
        if (!of.process.participates) spec.address.clear();
#ifdef __linux__
        // A launcher that is killed takes its children along.
        if (spec.options.child.death_signal == 0) spec.options.child.death_signal = SIGTERM;
#endif
        if (around_->ledger) write_down(spec);
        const result<ref<instance>> started = around_->starter(
            spec, [self, added](const process_info& now, instance_state) { self->told(added, now); });
        if (!started) {
            around_->log.write(log_level::error, "process not started",
                               {field("process_id", added->id), field("group", of.name),
                                field("error", started.error().text)});
            if (around_->ledger) around_->ledger->remove(added->id);
            not_started(added, started.error());
            return started.error();
        }
        settle_in(*added, *started);
        return added;
    }
    void write_down(instance_spec& spec) const {
        const state_entry entry{spec.id, spec.group, spec.address, 0, 0, 0};
        spec.options.child.before_exec = [ledger = around_->ledger, entry,
                                          given = spec.options.child.before_exec](pid_t pid) {
            state_entry now = entry;
            now.pid = pid;
            result<void> known = ledger->add(std::move(now));
            return known && given ? given(pid) : known;
        };
    }
    result<ref<member>> admit(ref<restart_history> place, const group_options& of, std::uint64_t generation) {
        const lock_guard held(mutex_);
        if (stopping_) return error{errc::cancelled, 0, "the group is stopping"};
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
    void settle_in(member& added, const ref<instance>& started) {
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
    void not_started(const ref<member>& added, const error& why) {
        const lock_guard held(mutex_);
        added->info.state = instance_state::crashed;
        added->info.message = why.text;
        note_failed(*added);
        around_->events->tell(added->info, instance_state::spawning);
        remove(added);
        changed_.notify_all();
    }

    // ---- what processes say ----

    void told(const ref<member>& of, const process_info& now) {
        bool degraded = false;
        if (around_->ledger && is_over(now.state)) around_->ledger->remove(of->id);
        {
            const lock_guard held(mutex_);
            if (!is_here(*of)) return;
            metrics_.told(of->info, now, of->was_ready);
            around_->events->tell(now, of->info.state);
            const bool fails = now.state == instance_state::unhealthy || now.state == instance_state::crashed;
            if (fails && !of->was_ready && !of->leaving) note_failed(*of);
            of->info = now;
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
    void tell_routing(member& of) {
        const bool takes_work = is_ready(of);
        if (takes_work == of.told_routable) return;
        of.told_routable = takes_work;
        around_->routing->post(takes_work ? routing::kind::routable : routing::kind::unroutable, of.info);
    }
    // It is over: what becomes of its place.
    void remove(const ref<member>& of) {
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (members_[i] == of) members_.remove(i);
        }
        if (of->process) gone_.push_back(of->process);
        of->process = {};  // it holds what holds us
        if (ended_.size() == ended_kept) ended_.remove(0);
        ended_.push_back(of->info);
        if (replacing_ || stopping_) return;
        const restart_decision next =
            restart_after(options_.restart, how_it_ended(*of), *of->place, steady_clock::now());
        vacancies_.push_back({of->place, next.when});
        degraded_ = degraded_ || next.degraded;
    }
    static how_ended how_it_ended(const member& of) {
        if (of.leaving) return how_ended::asked_for;
        const bool failed =
            of.given_up || of.info.state == instance_state::forced || !of.info.exit.ok() || of.info.pid == 0;
        return failed ? how_ended::failed : how_ended::by_itself;
    }

    // ---- what is due ----

    array<ref<restart_history>> take_due(time_point now) {
        const lock_guard held(mutex_);
        array<ref<restart_history>> out;
        if (held_ || replacing_ || stopping_) return out;
        for (std::size_t i = 0; i < vacancies_.size();) {
            if (vacancies_[i].due > now) {
                ++i;
                continue;
            }
            out.push_back(vacancies_[i].place);
            vacancies_.remove(i);
        }
        return out;
    }
    time_point next_due() const {
        const lock_guard held(mutex_);
        time_point out = time_point::max();
        if (held_ || replacing_ || stopping_) return out;
        for (const vacancy& each : vacancies_) {
            if (each.due < out) out = each.due;
        }
        return out;
    }
    // Those that are unhealthy end by force, and the policy restarts them. While fewer than min_healthy are ready, one that
    // was ready once is given up only when no other is on its way: half a process beats none. [RFC-041 "Unhealthy at any
    // point"]
    members take_ill() {
        const lock_guard held(mutex_);
        members out;
        if (stopping_) return out;
        bool one_on_its_way = false;
        for (const ref<member>& each : members_) {
            const bool waits = each->info.state < instance_state::ready || each->given_up || each->leaving;
            one_on_its_way = one_on_its_way || waits;
        }
        for (const vacancy& each : vacancies_)
            one_on_its_way = one_on_its_way || each.due != time_point::max();
        for (const ref<member>& each : members_) {
            const bool ill =
                each->info.state == instance_state::unhealthy && !each->given_up && !each->leaving;
            if (!ill) continue;
            const bool may_go = !each->was_ready || count_ready() >= least_ready() || !one_on_its_way;
            if (!may_go) continue;
            one_on_its_way = true;
            each->given_up = true;
            out.push_back(each);
        }
        return out;
    }
    int least_ready() const noexcept {
        return options_.min_healthy > 1 ? options_.min_healthy : 1;
    }

    // Every place that nobody has or will have.
    void fill_up() {
        int taken = static_cast<int>(vacancies_.size());
        for (const ref<member>& each : members_) taken += each->leaving ? 0 : 1;
        for (; taken < options_.desired && !stopping_; ++taken) {
            vacancies_.push_back({make_ref<restart_history>(options_.restart), time_point::min()});
        }
    }
    // Of another configuration first, the youngest of them first; then the oldest.
    members find_surplus() const {
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

    // ---- ending ----

    void mark_leaving(const members& all, const shutdown_order& order) {
        for (const ref<member>& each : all) {
            if (each->leaving) continue;
            each->leaving = true;
            each->order = order;
            tell_routing(*each);
        }
        changed_.notify_all();
    }
    shutdown_order order_of(const member& of) const {
        const lock_guard held(mutex_);
        return of.order;
    }
    ref<instance> mark_forced(member& of) {
        const lock_guard held(mutex_);
        of.forced = true;
        return of.process;
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
    int count_ready() const noexcept {
        return ready_of(members_);
    }
    int ready_of(const members& all) const noexcept {
        int out = 0;
        for (const ref<member>& each : all) out += is_ready(*each) ? 1 : 0;
        return out;
    }
    readiness readiness_of(const members& all, ref<member>& failed) const {
        readiness out = readiness::ready;
        for (const ref<member>& each : all) {
            if (is_ready(*each)) continue;
            failed = each;
            const bool lost =
                !is_here(*each) || each->leaving || each->info.state == instance_state::unhealthy;
            if (lost) return readiness::failed;
            out = readiness::late;
        }
        return out;
    }
    bool interrupted(const cancel_token& until) const noexcept {
        return stopping_ || until.cancelled();
    }

    template <class Holds>
    bool await(lock_guard& held, time_point deadline, Holds holds) {
        for (;;) {
            if (holds()) return true;
            if (!changed_.wait_until(held, deadline)) return holds();
        }
    }
    cancel_registration wake_when(const cancel_token& until) {
        return until.on_cancel([this] {
            const lock_guard held(mutex_);
            changed_.notify_all();
        });
    }

    void note_failed(member& of) noexcept {
        if (!of.failed_readiness) count_one(metrics_.readiness_failures);
        of.failed_readiness = true;
    }

    static constexpr std::size_t ended_kept = 32;  // for whoever asks how one ended

    const ref<group_surroundings> around_;
    group_metrics metrics_;
    mutable mutex mutex_;
    condition changed_;
    group_options options_;
    members members_;  // by age; each is here from before its start until it is over
    array<vacancy> vacancies_;
    array<process_info> ended_;
    array<ref<instance>> gone_;
    std::string message_;
    std::uint64_t generation_ = 1;
    std::uint64_t last_generation_ = 1;
    std::uint64_t last_number_ = 0;
    bool replacing_ = false;
    bool degraded_ = false;
    bool held_ = false;
    bool stopping_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
