// process_group: keeps so many processes of one kind. What changes them goes through here.
#pragma once

#include <signal.h>
#include <unistd.h>

#include "../../base/detail/array.hpp"
#include "../../base/detail/sync.hpp"
#include "group_member.hpp"
#include "group_surroundings.hpp"
#include "launcher_metrics.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

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
    time_point reconcile(time_point now);
    // No restarts and no replacement goes on, until it is false again.
    void hold(bool yes);
    // From here on nothing is started any more.
    void stop_starting();
    // Waits for threads of processes that ended. Not from one of those.
    void forget_gone();

    // ---- for everybody ----

    group_options options() const;
    std::uint64_t generation() const;
    members running() const;
    group_info info() const;
    bool find(const std::string& id, process_info& out) const;

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
    void drain(const members& all, const shutdown_order& order);
    // The two halves of it, so that many groups wait for the hooks together.
    void leave(const members& all, const shutdown_order& order);
    void ask_to_end(const members& all);
    void force(const members& all);

    // All of them, and nothing is started for them until a replacement. errc::busy: one is under way.
    result<void> shut_down(const shutdown_order& order);

    // ---- for a replacement: see rolling_replace ----

    // errc::busy: there is one, or the group stops.
    result<std::uint64_t> begin_replacement();
    // errc::busy: there is none, or it is taken back already.
    result<void> cancel_replacement();
    // How far it has come. False: it was cancelled.
    bool show_replacement(replacement_status now);
    // The group has what it wants: the new configuration and every place filled, or the old one, with what ended meanwhile.
    void end_replacement(const group_options* wanted, std::uint64_t generation, std::string message);
    // Those that stay, oldest first.
    members staying() const;
    result<ref<member>> start_one(const group_options& of, std::uint64_t generation);
    // Waits while the launcher is quiet. False where that was cut short.
    bool await_resumed(const cancel_token& until);
    // Waits until so many more may be started.
    bool await_room(int more, int most, time_point deadline, const cancel_token& until);
    enum class readiness { ready, failed, late, interrupted };
    // Until all of them are ready, or one cannot become it; which one is `failed`, if any.
    readiness await_ready(const members& all, time_point deadline, const cancel_token& until,
                          ref<member>& failed);
    // Whether they stay ready for so long.
    readiness await_steady(const members& all, time_point end, const cancel_token& until,
                           ref<member>& failed);
    // Waits until so many stay ready without `old`, and takes those off in the same moment. False: that never was so.
    bool retire(const members& old, int min_healthy, time_point deadline, const cancel_token& until,
                const shutdown_order& order);
    bool await_gone(const members& all, time_point deadline);
    // Waits; false where that was cut short.
    bool pause(time_point until_then, const cancel_token& until);
    bool was_interrupted(const cancel_token& until) const;
    // Of `all`, those that are ready, or those that are not.
    members pick(const members& all, bool ready) const;
    ref<instance> process_of(const member& of) const;
    const logger& log() const noexcept { return around_->log; }
    group_metrics& metrics() noexcept { return metrics_; }
    launcher_events& events() noexcept { return *around_->events; }
    // It was not ready in time, or never will be.
    void count_failed(const ref<member>& of);

  private:
    struct vacancy {
        ref<restart_history> place;
        time_point due = time_point::min();  // max(): it stays empty
    };

    // ---- starting ----

    result<ref<member>> launch(const ref<member>& added, const group_options& of);
    void write_down(instance_spec& spec) const;
    ref<member> add(ref<restart_history> place, const group_options& of, std::uint64_t generation);
    void settle_in(member& added, const ref<instance>& started);
    void not_started(const ref<member>& added, const error& why);

    // ---- what processes say ----

    void told(const ref<member>& of, const process_info& now);
    void tell_routing(member& of);
    void remove(const ref<member>& of);
    static how_ended how_it_ended(const member& of);

    // ---- what is due ----

    std::size_t count_due(time_point now) const;
    ref<member> admit_due(time_point now, group_options& of);
    time_point next_due() const;
    members take_ill();
    int least_ready() const noexcept;

    void fill_up();
    members find_surplus() const;

    // ---- ending ----

    void mark_leaving(const members& all, const shutdown_order& order);
    shutdown_order order_of(const member& of) const;
    ref<instance> mark_forced(member& of);

    // ---- counting, with the mutex held ----

    static bool is_ready(const member& of) noexcept {
        return of.info.state == instance_state::ready && of.info.routable && !of.leaving;
    }
    ref<member> find_running(const std::string& id) const;
    bool is_here(const member& of) const noexcept;
    int count_ready() const noexcept { return ready_of(members_); }
    int ready_of(const members& all) const noexcept;
    readiness readiness_of(const members& all, ref<member>& failed) const;
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
    cancel_registration wake_when(const cancel_token& until);

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
