// group_told: what a process says, and what becomes of its place when it is over.
#pragma once

#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline void process_group::told(const ref<member>& of, const process_info& now) {
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

inline void process_group::tell_routing(member& of) {
    const bool takes_work = is_ready(of);
    if (takes_work == of.told_routable) return;
    of.told_routable = takes_work;
    around_->routing->post(takes_work ? routing::kind::routable : routing::kind::unroutable, of.info);
}

// It is over: what becomes of its place.
inline void process_group::remove(const ref<member>& of) {
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

inline how_ended process_group::how_it_ended(const member& of) {
    if (of.leaving) return how_ended::asked_for;
    const bool failed =
        of.given_up || of.info.state == instance_state::forced || !of.info.exit.ok() || of.info.pid == 0;
    return failed ? how_ended::failed : how_ended::by_itself;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
