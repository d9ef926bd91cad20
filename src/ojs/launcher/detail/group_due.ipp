// group_due: what a group has to do: places to fill, processes to give up, and those that are too many.
#pragma once

#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline std::size_t process_group::count_due(time_point now) const {
    const lock_guard held(mutex_);
    std::size_t out = 0;
    for (const vacancy& each : vacancies_) out += each.due > now ? 0U : 1U;
    return out;
}

// One place at a time: while a process is being started, others may shut the group down, hold it or replace it. In the
// moment that a place is taken, its process is one of the group, with the configuration the group then has.
inline ref<member> process_group::admit_due(time_point now, group_options& of) {
    const lock_guard held(mutex_);
    if (held_ || replacing_ || stopping_) return {};
    for (std::size_t i = 0; i < vacancies_.size(); ++i) {
        if (vacancies_[i].due > now) continue;
        const ref<restart_history> place = vacancies_[i].place;
        vacancies_.remove(i);
        if (place->started != time_point()) count_one(metrics_.restarts);
        of = options_;
        return add(place, of, generation_);
    }
    return {};
}

inline time_point process_group::next_due() const {
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
inline members process_group::take_ill() {
    const lock_guard held(mutex_);
    members out;
    if (stopping_) return out;
    bool one_on_its_way = false;
    for (const ref<member>& each : members_) {
        const bool waits = each->info.state < instance_state::ready || each->given_up || each->leaving;
        one_on_its_way = one_on_its_way || waits;
    }
    for (const vacancy& each : vacancies_) one_on_its_way = one_on_its_way || each.due != time_point::max();
    for (const ref<member>& each : members_) {
        const bool ill = each->info.state == instance_state::unhealthy && !each->given_up && !each->leaving;
        if (!ill) continue;
        const bool may_go = !each->was_ready || count_ready() >= least_ready() || !one_on_its_way;
        if (!may_go) continue;
        one_on_its_way = true;
        each->given_up = true;
        out.push_back(each);
    }
    return out;
}

inline int process_group::least_ready() const noexcept {
    return options_.min_healthy > 1 ? options_.min_healthy : 1;
}

// Every place that nobody has or will have.
inline void process_group::fill_up() {
    int taken = static_cast<int>(vacancies_.size());
    for (const ref<member>& each : members_) taken += each->leaving ? 0 : 1;
    for (; taken < options_.desired && !stopping_; ++taken) {
        vacancies_.push_back({make_ref<restart_history>(options_.restart), time_point::min()});
    }
}

// Of another configuration first, the youngest of them first; then the oldest.
inline members process_group::find_surplus() const {
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

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
