// process_group: keeps so many processes of one kind. What changes them goes through here.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>

#include "../../base/detail/array.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/log.hpp"
#include "group_member.hpp"
#include "instance.hpp"
#include "launcher_events.ipp"
#include "launcher_metrics.ipp"
#include "routing.ipp"
#include "state_file.ipp"

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

// Its own mutex is held for no call to a process, a hook or the log. Whatever a process says comes by told(), and that
// alone counts: a thread that waits here has seen what the hooks were told.
class process_group : public ref_counted {
  public:
    process_group(group_options options, ref<group_surroundings> around)
        : around_(std::move(around)), options_(std::move(options)) {
        if (options_.id_prefix.empty()) options_.id_prefix = options_.name;
        if (options_.max_surge == 0) options_.max_surge = 1;  // [RFC-041 "maxSurge == 0"]
        ended_.reserve(ended_kept);
        fill_up();
    }

    // ---- for the supervisor ----

    // Starts what is due, gives up what is ill, forgets what is gone. When it wants to be called again.
    time_point reconcile(time_point now) {
        forget_gone();
        group_options of;
        // What fails at once has its turn the next time.
        for (int left = max_starting; left > 0; --left) {
            const ref<member> added = admit_due(now, of);
            if (!added) break;
            static_cast<void>(launch(added, of));
        }
        force(take_ill());
        return next_due();
    }
    // Nothing is started, given up or replaced, until it is false again.
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
    // Adds its ready ones. False: they are fewer than min_healthy.
    bool count_ready_into(int& sum) const {
        const lock_guard held(mutex_);
        const int ready = count_ready();
        sum += ready;
        return ready >= options_.min_healthy;
    }
    group_info info() const {
        const lock_guard held(mutex_);
        group_info out;
        out.options = options_;
        out.ready = count_ready();
        out.replacing = replacing_;
        out.degraded = degraded_;
        out.quiet = held_;
        out.generation = generation_;
        out.message = message_;
        out.replacement = replacement_;
        for (const ref<member>& each : members_) out.processes.push_back(each->info);
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
            lock_guard held(mutex_);
            const ref<instance> target = each->process;
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
        if (held_) return error{errc::busy, 0, "the launcher is quiet: SIGCONT or resume() ends that"};
        replacing_ = true;
        replacement_ = replacement_status();
        return ++last_generation_;
    }
    // errc::busy: there is none, or it is taken back already.
    result<void> cancel_replacement() {
        const lock_guard held(mutex_);
        if (!replacing_ || replacement_.phase >= replacement_phase::done)
            return error{errc::busy, 0, "no replacement is under way in this group"};
        if (replacement_.phase == replacement_phase::rolling_back)
            return error{errc::busy, 0, "the replacement is being rolled back already"};
        replacement_.cancelling = true;
        changed_.notify_all();
        return {};
    }
    // How far it has come. False: it was cancelled.
    bool show_replacement(replacement_status now) {
        const lock_guard held(mutex_);
        now.cancelling = replacement_.cancelling;
        if (now.cancelling && now.phase == replacement_phase::rolling_back) return false;
        replacement_ = std::move(now);
        return !replacement_.cancelling;
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
            replacement_.cancelling = false;
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
        ref<member> added;
        {
            lock_guard held(mutex_);
            await(held, time_point::max(), [&] { return stopping_ || starting_ < max_starting; });
            if (stopping_) return error{errc::cancelled, 0, "the group is stopping"};
            added = add(make_ref<restart_history>(of.restart), of, generation);
        }
        return launch(added, of);
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
        if (decided) return out;
        held.unlock();
        const time_point answer_by = deadline_after(options().process.rpc_timeout);
        const bool are_ready = ask_once_more(all, answer_by, until);
        held.lock();
        if (are_ready) await(held, answer_by, [&] { return readiness_of(all, failed) != readiness::late; });
        return readiness_of(all, failed) == readiness::ready ? readiness::ready : readiness::late;
    }
    // Where this process stood still, nobody was asked meanwhile.
    bool ask_once_more(const members& all, time_point deadline, const cancel_token& until) const {
        const auto decided = [](instance_state now) { return now >= instance_state::ready; };
        bool out = true;
        for (const ref<member>& each : all) {
            const ref<instance> asked = process_of(*each);
            if (asked) asked->notified(ready_notification{each->id, {}});
            out = out && asked && asked->await(decided, deadline, until) == instance_state::ready;
        }
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

    result<ref<member>> launch(const ref<member>& added, const group_options& of);
    result<void> start_process(const ref<member>& added, const group_options& of);
    void write_down(instance_spec& spec) const;
    ref<member> add(ref<restart_history> place, const group_options& of, std::uint64_t generation);
    void settle_in(member& added, const ref<instance>& started);
    void not_started(const ref<member>& added, const error& why);

    // ---- what processes say ----

    void told(const ref<member>& of, const process_info& now);
    void tell_routing(member& of);
    void remove(const ref<member>& of) noexcept;
    static how_ended how_it_ended(const member& of);

    // ---- what is due ----

    // Those that are due last come first.
    void add_vacancy(ref<restart_history> place, time_point due) {
        vacancies_.push_back({std::move(place), due});
        for (std::size_t i = vacancies_.size() - 1; i > 0 && vacancies_[i - 1].due < due; --i)
            swap(vacancies_[i - 1], vacancies_[i]);
    }
    ref<member> admit_due(time_point now, group_options& of);
    time_point next_due() const {
        const lock_guard held(mutex_);
        return may_start() ? vacancies_[vacancies_.size() - 1].due : time_point::max();
    }
    bool may_start() const noexcept {
        return !held_ && !replacing_ && !stopping_ && starting_ < max_starting && !vacancies_.empty();
    }
    members take_ill();
    int least_ready() const noexcept { return options_.min_healthy > 1 ? options_.min_healthy : 1; }

    // Every place that nobody has or will have.
    void fill_up() {
        int taken = static_cast<int>(vacancies_.size());
        for (const ref<member>& each : members_) taken += each->leaving ? 0 : 1;
        for (; taken < options_.desired && !stopping_; ++taken) {
            add_vacancy(make_ref<restart_history>(options_.restart), time_point::min());
        }
    }
    members find_surplus() const;

    // ---- ending ----

    void mark_leaving(const members& all, const shutdown_order& order) {
        for (const ref<member>& each : all) {
            if (!each->leaving) each->order = order;
            each->leaving = true;
            tell_routing(*each);
        }
        changed_.notify_all();
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
    int count_ready() const noexcept { return ready_of(members_); }
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
        return stopping_ || replacement_.cancelling || until.cancelled();
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
    // At a time: more only wait for each other, and all of them may hang in exec().
    static constexpr int max_starting = 8;

    const ref<group_surroundings> around_;
    group_metrics metrics_;
    mutable mutex mutex_;
    condition changed_;
    group_options options_;
    members members_;   // by age; each is here from before its start until it is over
    int starting_ = 0;  // of those: have neither run nor failed
    array<vacancy> vacancies_;
    array<process_info> ended_;
    array<ref<instance>> gone_;
    std::string message_;
    replacement_status replacement_;
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
