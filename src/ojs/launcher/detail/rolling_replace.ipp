// rolling_replace: new processes for old ones, a few at a time, and back again where that fails. [RFC-041 "Rolling
// Replacement Algorithm"]
#pragma once

#include "../../base/detail/atomic.hpp"
#include "../group_options.ipp"
#include "process_group.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// One replacement, in the thread that calls run(). At any moment at least min_healthy are ready, as far as that hangs on
// what is done here, and at most desired + max_surge are there, those that drain included. The new ones are ready before
// the old ones are asked to end, and those have ended before the next are started.
class rolling_replacement {
  public:
    rolling_replacement(process_group& group, group_options wanted, const rolling_options& how,
                        const cancel_token& until)
        : group_(group), wanted_(std::move(wanted)), how_(with_retries(how, wanted_)), until_(until) {}

    // errc::busy, as begin_replacement(); errc::invalid_argument, as check_group(), or for another name.
    result<rolling_report> run() {
        if (how_.dry_run) {
            const result<void> sound = check();
            return sound ? preview() : sound.error();
        }
        const result<void> begun = begin();
        if (!begun) return begun.error();
        return go_on();
    }

    // The two halves of it, so that who has it done elsewhere knows first whether it is. One that has begun goes on, or is
    // given up.
    result<void> begin() {
        const result<void> sound = check();
        if (!sound) return sound;
        const result<std::uint64_t> generation = group_.begin_replacement();
        if (!generation) return generation.error();
        generation_ = *generation;
        before_ = group_.options();  // nobody else changes it from here on
        before_generation_ = group_.generation();
        most_ = (before_.desired > wanted_.desired ? before_.desired : wanted_.desired) + surge();
        min_healthy_ = least(before_.min_healthy, wanted_.min_healthy);
        return {};
    }
    void give_up() {
        report_.cancelled = true;
        finish(false);
    }
    rolling_report go_on() {
        const members old = group_.staying();
        report_.of = static_cast<int>(old.size());
        tell(log_level::info, "rolling replace begins");
        now_.of = report_.of;
        members fresh;
        const int canaries = least(how_.canary, least(wanted_.desired, report_.of));  // there are no more
        outcome end =
            old.empty() ? await_place() : roll(old, wanted_, generation_, canaries, fresh, report_.replaced);
        // One that was cancelled meanwhile is not taken back.
        if (end == outcome::failed && !show(replacement_phase::rolling_back)) end = outcome::cancelled;
        if (end == outcome::failed) roll_back(fresh);
        if (end == outcome::cancelled) {
            report_.cancelled = true;
            report_.mixed = report_.replaced > 0 && report_.replaced < report_.of;
        }
        finish(end == outcome::done);
        return report_;
    }

  private:
    enum class outcome { done, failed, cancelled };

    static rolling_options with_retries(rolling_options how, const group_options& wanted) {
        if (how.retries != -1) return how;
        how.retries = wanted.retry.limit;
        how.retry_first = wanted.retry.first;
        how.retry_last = wanted.retry.last;
        return how;
    }
    int surge() const noexcept { return wanted_.max_surge > 0 ? wanted_.max_surge : 1; }

    result<void> check() const {
        result<void> sound = check_group(wanted_);
        if (!sound) return sound;
        if (wanted_.name != group_.options().name) return fault("a group keeps its name");
        if (how_.canary < 0 || how_.retries < 0) return fault("canary and retries are not negative");
        if (how_.retry_last < how_.retry_first)
            return fault("the last pause between retries is not the shortest");
        if (how_.retry_last > longest_pause) return fault("a pause between retries is longer than 24 days");
        return {};
    }
    static result<void> fault(const char* text) { return error{errc::invalid_argument, 0, text}; }

    result<rolling_report> preview() {
        const members old = group_.staying();
        report_.of = static_cast<int>(old.size());
        const time_point deadline = deadline_after(std::chrono::seconds(2));  // for all of them
        for (const ref<member>& each : old) {
            drain_preview found;
            found.id = each->id;
            const ref<instance> target = group_.process_of(*each);
            const result<shutdown_status> status =
                target ? target->ask_status(deadline)
                       : result<shutdown_status>(error{errc::unavailable, 0, "is being started"});
            if (status) found.in_flight = status->metrics;
            if (!status) found.error = status.error().text;
            report_.would_drain.push_back(std::move(found));
        }
        return report_;
    }

    // Replaces `old` one batch after the other; `replaced` counts those that were asked to end, `fresh` are the new ones.
    outcome roll(const members& old, const group_options& to, std::uint64_t generation, int canary,
                 members& fresh, int& replaced) {
        std::size_t next = 0;
        while (next < old.size()) {
            if (!group_.await_resumed(until_)) return outcome::cancelled;
            const int made = static_cast<int>(fresh.size());
            int count = least(surge(), static_cast<int>(old.size() - next));
            if (canary > made) count = least(count, canary - made);
            const int wanted = least(count, to.desired - made);
            members added;
            const outcome started = start_batch(wanted, to, generation, added);
            if (started != outcome::done) return started;
            for (const ref<member>& each : added) fresh.push_back(each);
            members batch;
            for (int i = 0; i < count; ++i) batch.push_back(old[next + static_cast<std::size_t>(i)]);
            const bool last_canary = canary > made && made + wanted >= canary;
            outcome end = last_canary ? watch_canaries(fresh) : outcome::done;
            if (end == outcome::done) end = retire(batch, to);
            if (end != outcome::done) {
                if (end == outcome::failed) {
                    discard(added);
                    for (std::size_t i = 0; i < added.size(); ++i) fresh.pop_back();
                }
                return end;
            }
            replaced += count;
            next += batch.size();
            if (next < old.size() && !report_.rolled_back) tell(log_level::info, "rolling replace goes on");
        }
        return outcome::done;
    }

    // ---- the steps ----

    // For a group that was shut down: nobody is left to replace, but those that still drain count.
    outcome await_place() {
        show(replacement_phase::draining);
        const time_point room_by = deadline_after(stop_time(before_.process.shutdown));
        return group_.await_room(wanted_.desired, most_, room_by, until_)
                   ? outcome::done
                   : not_done("", "others did not end in time");
    }
    // All of them ready, or none of them there; those that fail are tried anew, as often as `how` says.
    outcome start_batch(int count, const group_options& to, std::uint64_t generation, members& out) {
        backoff pauses(how_.retry_first, how_.retry_last);
        for (int tries_left = how_.retries;; --tries_left) {
            out.clear();
            const outcome end = try_batch(count, to, generation, out);
            if (end == outcome::done) return end;
            discard(end == outcome::failed ? out : group_.pick(out, false));
            if (end == outcome::cancelled)
                return end;  // those that are ready are more than desired, and drained as that
            if (tries_left == 0) return end;
            ++now_.retries;
            show(replacement_phase::pausing);
            tell(log_level::warn, "a new process did not become ready, another is tried");
            if (!group_.pause(deadline_after(pauses.next()), until_)) return outcome::cancelled;
        }
    }
    outcome try_batch(int count, const group_options& to, std::uint64_t generation, members& out) {
        show(replacement_phase::starting);
        const time_point room_by = deadline_after(stop_time(to.process.shutdown));
        if (!group_.await_room(count, most_, room_by, until_))
            return not_done("", "others did not end in time");
        const time_point ready_by = deadline_after(to.health_check_timeout);
        for (int i = 0; i < count; ++i) {
            const result<ref<member>> started = group_.start_one(to, generation);
            if (!started) return not_done("", started.error().text);
            out.push_back(*started);
        }
        ref<member> failed;
        const process_group::readiness end = group_.await_ready(out, ready_by, until_, failed);
        if (end == process_group::readiness::ready) return outcome::done;
        if (end == process_group::readiness::late) group_.count_failed(failed);
        process_info known;
        const bool never_ran = failed && group_.find(failed->id, known) && known.pid == 0;
        return not_done(id_of(failed), end == process_group::readiness::late ? "was not ready in time"
                                       : never_ran                           ? known.message
                                                                             : "failed before it was ready");
    }
    // The old ones that they are to replace still run.
    outcome watch_canaries(const members& fresh) {
        ref<member> failed;
        show(replacement_phase::canaries);
        tell(log_level::info, "canaries are watched");
        const process_group::readiness end =
            group_.await_steady(fresh, deadline_after(how_.canary_wait), until_, failed);
        if (end != process_group::readiness::ready)
            return not_done(id_of(failed), "a canary did not stay ready");
        if (!how_.canary_check) return outcome::done;
        const result<void> passed = ask_check(infos_of(fresh));
        return passed ? outcome::done : not_done("", cat({"the canaries' check: ", passed.error().text}));
    }
    // It is the program's, and what it throws must not leave the group in the middle of a replacement.
    result<void> ask_check(const std::vector<process_info>& canaries) const {
        try {
            return how_.canary_check(canaries);
        } catch (...) {
            pass_on_thread_end();
            return error{errc::system, 0, "it threw"};
        }
    }
    outcome retire(const members& old, const group_options& to) {
        const shutdown_order order{how_.reason.empty() ? "rolling replacement" : how_.reason, {}, {}};
        const time_point enough_by = deadline_after(to.health_check_timeout);
        show(replacement_phase::draining);
        if (!group_.retire(old, min_healthy_, enough_by, until_, order))
            return not_done("", "too few are ready to let one go");
        if (!group_.await_gone(old, deadline_after(stop_time(before_.process.shutdown))))
            tell(log_level::warn, "an old process does not end");  // the next step waits for room
        return outcome::done;
    }
    // New ones that are not wanted: what is ready may have work in hand.
    void discard(const members& added) {
        const shutdown_order order{"rolled back", {}, {}};
        const members idle = group_.pick(added, false);
        group_.leave(idle, order);
        group_.force(idle);
        group_.drain(group_.pick(added, true), order);
        if (!group_.await_gone(added, deadline_after(stop_time(wanted_.process.shutdown))))
            tell(log_level::error, "a new process does not end");
    }

    // ---- the end ----

    // What has been replaced before the failure is put back by the same steps: no group is left with two configurations.
    void roll_back(const members& fresh) {
        tell(log_level::error, "rolling replace failed, rolling back");
        report_.rolled_back = true;
        if (fresh.empty() && report_.replaced == 0) return;
        const rolling_report failure = report_;
        int put_back = 0;
        members restored;
        const outcome end = roll(fresh, before_, before_generation_, 0, restored, put_back);
        report_.failed_id = failure.failed_id;
        report_.why = failure.why;
        report_.mixed = end != outcome::done;
        report_.replaced = failure.replaced - put_back > 0 ? failure.replaced - put_back : 0;
        if (report_.mixed)
            tell(log_level::error, "rolling back failed too, processes of both configurations run");
    }
    void finish(bool done) {
        const std::string counts = cat({report_.replaced, " of ", report_.of});
        const std::string message =
            done ? cat({"replaced ", counts})
            : report_.rolled_back
                ? cat({report_.mixed ? "rolled back in part, " : "rolled back, ", report_.failed_id,
                       report_.failed_id.empty() ? "" : ": ", report_.why})
                : cat({"cancelled, replaced ", counts});
        show(done                  ? replacement_phase::done
             : report_.rolled_back ? replacement_phase::rolled_back
                                   : replacement_phase::cancelled);
        group_.end_replacement(done ? &wanted_ : nullptr, generation_, message);
        const replacement_end how = done                  ? replacement_end::done
                                    : report_.rolled_back ? replacement_end::rolled_back
                                                          : replacement_end::cancelled;
        group_.metrics().replaced(how);
        result_ = replacement_end_names[static_cast<std::size_t>(how)];
        tell(done ? log_level::info : log_level::warn, "rolling replace ended");
    }

    // ---- small ones ----

    // What a rollback does is that, whichever step of it. False: it was cancelled.
    bool show(replacement_phase phase) {
        const bool ended = phase >= replacement_phase::done;
        now_.phase = report_.rolled_back && !ended ? replacement_phase::rolling_back : phase;
        now_.replaced = report_.replaced;
        now_.failed_id = report_.failed_id;
        now_.why = report_.why;
        return group_.show_replacement(now_);
    }

    outcome not_done(const std::string& id, std::string why) {
        if (group_.was_interrupted(until_)) return outcome::cancelled;
        report_.failed_id = id;
        report_.why = std::move(why);
        return outcome::failed;
    }
    std::vector<process_info> infos_of(const members& all) const {
        std::vector<process_info> out;
        for (const ref<member>& each : all) {
            out.emplace_back();
            static_cast<void>(group_.find(each->id, out.back()));
        }
        return out;
    }
    static std::string id_of(const ref<member>& of) { return of ? of->id : std::string(); }
    static int least(int one, int other) noexcept {
        const int out = one < other ? one : other;
        return out > 0 ? out : 0;
    }
    void tell(log_level level, const char* message) const {
        group_.log().write(
            level, message,
            {field("group", wanted_.name), field("replaced", report_.replaced), field("of", report_.of),
             field("process_id", report_.failed_id), field("reason", report_.why)});
        group_.events().tell(wanted_.name, message,
                             cat({",\"replaced\":", report_.replaced, ",\"of\":", report_.of,
                                  ",\"failedId\":", json_quote(report_.failed_id), ",\"reason\":",
                                  json_quote(report_.why), ",\"result\":", json_quote(result_)}));
    }

    process_group& group_;
    const group_options wanted_;
    const rolling_options how_;
    const cancel_token until_;
    // Known once it has begun:
    group_options before_;
    int most_ = 0;         // processes at any moment
    int min_healthy_ = 0;  // where the configurations differ, what both can hold
    std::uint64_t generation_ = 0;
    std::uint64_t before_generation_ = 0;
    rolling_report report_;
    replacement_status now_;
    const char* result_ = "";  // once it has ended
};

// Each in a thread of its own.
class replacement_threads {
  public:
    ~replacement_threads() { join(); }

    // Returns when it has begun. Errors: as rolling_replacement::begin().
    result<void> start(const ref<process_group>& group, const group_options& wanted,
                       const rolling_options& how) {
        const lock_guard held(mutex_);
        forget_ended();
        const ref<task> added = make_ref<task>(group, wanted, how);
        const result<void> begun = added->work.begin();
        if (!begun) return begun;
        result<thread> started = thread::start([added] { added->run(); }, {0, 0, false, "ojs-rolling"});
        if (!started) {
            added->work.give_up();
            return started.error();
        }
        added->runner = std::move(*started);
        tasks_.push_back(added);
        return {};
    }
    // They end with their groups' stop_starting().
    void join() {
        const lock_guard held(mutex_);
        for (const ref<task>& each : tasks_) each->runner.join();
        tasks_.clear();
    }

  private:
    struct task : ref_counted {
        task(const ref<process_group>& of, const group_options& wanted, const rolling_options& how)
            : group(of), work(*group, wanted, how, {}) {}
        void run() {
            static_cast<void>(work.go_on());
            ended.store(true, memory_order::release);
        }

        const ref<process_group> group;
        rolling_replacement work;
        atomic<bool> ended{false};
        thread runner;
    };

    void forget_ended() {
        for (std::size_t i = 0; i < tasks_.size();) {
            if (tasks_[i]->ended.load(memory_order::acquire)) {
                tasks_[i]->runner.join();
                tasks_.remove(i);
            } else {
                ++i;
            }
        }
    }

    mutex mutex_;
    array<ref<task>> tasks_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
