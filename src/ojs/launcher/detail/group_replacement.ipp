// group_replacement: what rolling_replace does to a group, and waits for.
#pragma once

#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline result<std::uint64_t> process_group::begin_replacement() {
    const lock_guard held(mutex_);
    if (replacing_) return error{errc::busy, 0, "a replacement is under way in this group"};
    if (stopping_) return error{errc::busy, 0, "the group is stopping"};
    replacing_ = true;
    replacement_ = replacement_status();
    return ++last_generation_;
}

inline result<void> process_group::cancel_replacement() {
    const lock_guard held(mutex_);
    if (!replacing_ || replacement_.phase >= replacement_phase::done)
        return error{errc::busy, 0, "no replacement is under way in this group"};
    if (replacement_.phase == replacement_phase::rolling_back)
        return error{errc::busy, 0, "the replacement is being rolled back already"};
    replacement_.cancelling = true;
    changed_.notify_all();
    return {};
}

inline bool process_group::show_replacement(replacement_status now) {
    const lock_guard held(mutex_);
    now.cancelling = replacement_.cancelling;
    if (now.cancelling && now.phase == replacement_phase::rolling_back) return false;
    replacement_ = std::move(now);
    return !replacement_.cancelling;
}

inline void process_group::end_replacement(const group_options* wanted, std::uint64_t generation,
                                           std::string message) {
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

inline members process_group::staying() const {
    const lock_guard held(mutex_);
    members out;
    for (const ref<member>& each : members_) {
        if (!each->leaving) out.push_back(each);
    }
    return out;
}

inline result<ref<member>> process_group::start_one(const group_options& of, std::uint64_t generation) {
    ref<member> added;
    {
        const lock_guard held(mutex_);
        if (stopping_) return error{errc::cancelled, 0, "the group is stopping"};
        added = add(make_ref<restart_history>(of.restart), of, generation);
    }
    return launch(added, of);
}

inline bool process_group::await_resumed(const cancel_token& until) {
    const cancel_registration woken = wake_when(until);
    lock_guard held(mutex_);
    await(held, time_point::max(), [&] { return !held_ || interrupted(until); });
    return !interrupted(until);
}

inline bool process_group::await_room(int more, int most, time_point deadline, const cancel_token& until) {
    const cancel_registration woken = wake_when(until);
    lock_guard held(mutex_);
    await(held, deadline,
          [&] { return interrupted(until) || static_cast<int>(members_.size()) + more <= most; });
    return !interrupted(until) && static_cast<int>(members_.size()) + more <= most;
}

inline process_group::readiness process_group::await_ready(const members& all, time_point deadline,
                                                           const cancel_token& until, ref<member>& failed) {
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

inline process_group::readiness process_group::await_steady(const members& all, time_point end,
                                                            const cancel_token& until, ref<member>& failed) {
    const cancel_registration woken = wake_when(until);
    lock_guard held(mutex_);
    const auto changed = [&] { return interrupted(until) || readiness_of(all, failed) != readiness::ready; };
    if (!await(held, end, changed)) return readiness::ready;
    return interrupted(until) ? readiness::interrupted : readiness::failed;
}

inline bool process_group::retire(const members& old, int min_healthy, time_point deadline,
                                  const cancel_token& until, const shutdown_order& order) {
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

inline bool process_group::await_gone(const members& all, time_point deadline) {
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

inline bool process_group::pause(time_point until_then, const cancel_token& until) {
    const cancel_registration woken = wake_when(until);
    lock_guard held(mutex_);
    return !await(held, until_then, [&] { return interrupted(until); });
}

inline bool process_group::was_interrupted(const cancel_token& until) const {
    const lock_guard held(mutex_);
    return interrupted(until);
}

inline members process_group::pick(const members& all, bool ready) const {
    const lock_guard held(mutex_);
    members out;
    for (const ref<member>& each : all) {
        if (is_ready(*each) == ready) out.push_back(each);
    }
    return out;
}

inline void process_group::count_failed(const ref<member>& of) {
    const lock_guard held(mutex_);
    if (of && !of->was_ready) note_failed(*of);
}

inline int process_group::ready_of(const members& all) const noexcept {
    int out = 0;
    for (const ref<member>& each : all) out += is_ready(*each) ? 1 : 0;
    return out;
}

inline process_group::readiness process_group::readiness_of(const members& all, ref<member>& failed) const {
    readiness out = readiness::ready;
    for (const ref<member>& each : all) {
        if (is_ready(*each)) continue;
        failed = each;
        const bool lost = !is_here(*each) || each->leaving || each->info.state == instance_state::unhealthy;
        if (lost) return readiness::failed;
        out = readiness::late;
    }
    return out;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
