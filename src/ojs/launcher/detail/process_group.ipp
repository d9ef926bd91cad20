#pragma once

#include "group_due.ipp"
#include "group_replacement.ipp"
#include "group_start.ipp"
#include "group_told.ipp"
#include "process_group.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline time_point process_group::reconcile(time_point now) {
    forget_gone();
    group_options of;
    for (std::size_t left = count_due(now); left > 0;
         --left) {  // what fails at once has its turn the next time
        const ref<member> added = admit_due(now, of);
        if (!added) break;
        static_cast<void>(launch(added, of));
    }
    for (const ref<member>& ill : take_ill()) force({ill});
    return next_due();
}

inline void process_group::hold(bool yes) {
    const lock_guard held(mutex_);
    held_ = yes;
    changed_.notify_all();
}

inline void process_group::stop_starting() {
    const lock_guard held(mutex_);
    stopping_ = true;
    vacancies_.clear();
    changed_.notify_all();
}

inline void process_group::forget_gone() {
    array<ref<instance>> gone;
    const lock_guard held(mutex_);
    gone.swap(gone_);  // the references go when the mutex is open again: `gone` is older
}

inline group_options process_group::options() const {
    const lock_guard held(mutex_);
    return options_;
}

inline std::uint64_t process_group::generation() const {
    const lock_guard held(mutex_);
    return generation_;
}

inline members process_group::running() const {
    const lock_guard held(mutex_);
    return members_;
}

inline group_info process_group::info() const {
    const lock_guard held(mutex_);
    group_info out;
    out.options = options_;
    out.ready = count_ready();
    out.replacing = replacing_;
    out.degraded = degraded_;
    out.generation = generation_;
    out.message = message_;
    out.replacement = replacement_;
    for (const ref<member>& each : members_) out.processes.push_back(each->info);
    for (const process_info& each : ended_) out.processes.push_back(each);
    return out;
}

inline bool process_group::find(const std::string& id, process_info& out) const {
    const lock_guard held(mutex_);
    for (const ref<member>& each : members_) {
        if (each->id == id) return out = each->info, true;
    }
    for (const process_info& each : ended_) {
        if (each.id == id) return out = each, true;
    }
    return false;
}

inline void process_group::drain(const members& all, const shutdown_order& order) {
    leave(all, order);
    around_->routing->await_told(deadline_after(std::chrono::seconds(1)));
    ask_to_end(all);
}

inline void process_group::leave(const members& all, const shutdown_order& order) {
    const lock_guard held(mutex_);
    mark_leaving(all, order);
}

inline void process_group::ask_to_end(const members& all) {
    for (const ref<member>& each : all) {
        if (const ref<instance> target = process_of(*each)) target->shut_down(order_of(*each));
    }
}

inline void process_group::force(const members& all) {
    for (const ref<member>& each : all) {
        if (const ref<instance> target = mark_forced(*each)) target->force();
    }
}

inline result<void> process_group::shut_down(const shutdown_order& order) {
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

inline ref<instance> process_group::process_of(const member& of) const {
    const lock_guard held(mutex_);
    return of.process;
}

inline void process_group::mark_leaving(const members& all, const shutdown_order& order) {
    for (const ref<member>& each : all) {
        if (each->leaving) continue;
        each->leaving = true;
        each->order = order;
        tell_routing(*each);
    }
    changed_.notify_all();
}

inline shutdown_order process_group::order_of(const member& of) const {
    const lock_guard held(mutex_);
    return of.order;
}

inline ref<instance> process_group::mark_forced(member& of) {
    const lock_guard held(mutex_);
    of.forced = true;
    return of.process;
}

inline ref<member> process_group::find_running(const std::string& id) const {
    for (const ref<member>& each : members_) {
        if (each->id == id) return each;
    }
    return {};
}

inline bool process_group::is_here(const member& of) const noexcept {
    for (const ref<member>& each : members_) {
        if (each.get() == &of) return true;
    }
    return false;
}

inline cancel_registration process_group::wake_when(const cancel_token& until) {
    return until.on_cancel([this] {
        const lock_guard held(mutex_);
        changed_.notify_all();
    });
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
