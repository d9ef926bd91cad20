// reports: concurrent ACKs and FAILs are settled by one statement.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../core/cancel_token.hpp"
#include "../../worker/transport.hpp"
#include "claims.ipp"
#include "database.ipp"
#include "held_jobs.ipp"
#include "session.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace river {

// How a job is to be settled.
struct settlement {
    long long id = 0;
    long long attempt = 0;
    std::string action;
    std::string error;
    std::optional<long long> delay;
    std::string merged;  // JSON object; empty: none

    bool over = false;
    bool done = false;    // once over: the database accepted it
    bool locked = false;  // once over: another transaction has locked the row
    std::optional<ojs::error> failed;
};

class reports {
  public:
    reports(database& db, held_jobs& jobs, session& of, claims& next)
        : db_(db), jobs_(jobs), session_(of), claims_(next) {}

    result<settled> settle(const std::string& job_id, settlement wanted, time_point deadline) {
        const auto held = jobs_.change(job_id, [](held_job& job) { job.reported = true; });
        if (!held) return settled::gone;
        wanted.id = held->id;
        wanted.attempt = held->attempt;
        wanted.error = storable(std::move(wanted.error), false);
        const auto shared = std::make_shared<settlement>(std::move(wanted));
        // A locked row delays no other report: it is retried until the deadline.
        for (std::chrono::milliseconds pause(5);;
             pause = std::min(pause * 2, std::chrono::milliseconds(300))) {
            if (!settle_with_others(shared, deadline))
                return failure(errc::timed_out, "the database did not answer in time");
            if (!shared->locked || steady_clock::now() + 2 * pause >= deadline) break;
            static_cast<void>(cancel_token().sleep_for(pause));
        }
        if (shared->locked) return failure(errc::unavailable, "another transaction has locked the job's row");
        // The worker gives up on a report that is rejected without anything left to omit.
        if (!shared->failed || (shared->failed->code == errc::rejected && shared->merged.empty()))
            jobs_.forget(held->id);
        if (shared->failed) return *shared->failed;
        return shared->done ? settled::accepted : settled::gone;
    }
    // False: the deadline has passed, and another thread may still settle it.
    bool settle_with_others(const std::shared_ptr<settlement>& own, time_point deadline) {
        lock_guard lock(mutex_);
        own->over = own->locked = false;
        waiting_.push_back(own);
        joined_.notify_one();
        while (!own->over) {
            if (!settling_now_) {
                settle_waiting(lock, deadline);
            } else if (!changed_.wait_until(lock, deadline) && !own->over) {
                waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), own), waiting_.end());
                return false;
            }
        }
        return true;
    }

  private:
    using batch = std::vector<std::shared_ptr<settlement>>;

    // Settles all that wait by now. Called with the lock, which it releases meanwhile.
    void settle_waiting(lock_guard& lock, time_point deadline) {
        settling_now_ = true;
        wait_until(joined_, lock, std::min(deadline, steady_clock::now() + batch_delay),
                   [this] { return waiting_.size() >= jobs_.size(); });
        const batch all = std::move(waiting_);
        waiting_.clear();
        lock.unlock();
        try {
            settle_all(all, deadline);
        } catch (...) {
            note_lost(all);
            for (const auto& each : all) {
                if (!each->done) each->failed = failure(errc::unavailable, "no memory");
            }
        }
        claims_.expect_fetches(all.size());
        lock.lock();
        for (const auto& each : all) each->over = true;
        settling_now_ = false;
        changed_.notify_all();
    }

    // A rejected value must not keep the others from being settled: each is then sent alone.
    void settle_all(const batch& all, time_point deadline) {
        const turn taken(db_.settling, deadline);
        result<void> done = failure(errc::timed_out, "the connection is in use");
        if (taken) done = try_settle(all, deadline, false);
        const bool alone = !done && done.error().code == errc::rejected;
        for (const auto& each : all) {
            if (alone) done = try_settle({each}, deadline, false);
            if (alone && !done && done.error().code == errc::rejected)
                done = try_settle({each}, deadline, true);
            if (!done && !each->done) each->failed = done.error();
        }
    }

    result<void> try_settle(const batch& all, time_point deadline, bool ascii_only) {
        postgres_array ids, attempts, actions, errors, delays, merged;
        for (const auto& each : all) {
            ids.add(each->id);
            attempts.add(each->attempt);
            actions.add(each->action);
            each->action == "complete" ? errors.add_null() : errors.add(storable(each->error, ascii_only));
            each->delay ? delays.add(*each->delay) : delays.add_null();
            each->merged.empty() ? merged.add_null() : merged.add(each->merged);
        }
        const result<postgres_rows> rows =
            db_.settling.run(sql::settle,
                             {ids.text(), attempts.text(), actions.text(), errors.text(), delays.text(),
                              merged.text(), session_.owner(), session_.insert_channel()},
                             deadline);
        if (!rows) {
            if (is_lost(rows.error())) note_lost(all);
            return rows.error();
        }
        note_settled(all, *rows);
        return look_at_rest(all, errors, deadline);
    }

    void note_lost(const batch& all) {
        for (const auto& each : all) jobs_.change(each->id, [](held_job& job) { job.lost_answer = true; });
    }
    void note_settled(const batch& all, const postgres_rows& rows) {
        std::map<long long, std::string> actions;
        for (int row = 0; row < rows.size(); ++row) actions[rows.number(row, 0)] = rows.text(row, 1);
        for (const auto& each : all) {
            const auto action = actions.find(each->id);
            const auto held = jobs_.change(each->id, [&](held_job& job) {
                if (action != actions.end()) job.settled_as = action->second;
            });
            if (held) each->done = held->settled_as == each->action;  // not the other of an ACK and a FAIL
        }
    }
    // Jobs that were not found are locked by others, settled by a statement whose answer was lost, or gone.
    result<void> look_at_rest(const batch& all, const postgres_array& errors, time_point deadline) {
        postgres_array ids, attempts;
        bool any = false;
        for (const auto& each : all) {
            ids.add(each->id);
            attempts.add(each->attempt);
            any |= !each->done;
        }
        if (!any) return {};
        const result<postgres_rows> rows = db_.settling.run(
            sql::unsettled, {ids.text(), attempts.text(), errors.text(), session_.owner()}, deadline);
        if (!rows) return rows.error();
        for (int row = 0; row < rows->size(); ++row) {
            const long long id = rows->number(row, 0);
            settlement& rest =
                **std::find_if(all.begin(), all.end(), [id](const auto& each) { return each->id == id; });
            const auto held = jobs_.find(id);
            rest.locked = !rest.done && rows->text(row, 1) == "t";
            rest.done |= held && held->lost_answer && !rest.locked && rows->text(row, 2) != "t";
        }
        return {};
    }

    database& db_;
    held_jobs& jobs_;
    session& session_;
    claims& claims_;

    mutex mutex_;
    condition changed_;
    condition joined_;
    batch waiting_;
    bool settling_now_ = false;
};

}  // namespace river
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
