// batches: concurrent FETCHes are one claim, and concurrent ACKs and FAILs are settled by one statement.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../core/cancel_token.hpp"
#include "../../worker/transport.hpp"
#include "database.ipp"
#include "session.ipp"

namespace ojs::detail {
namespace river {

// How long a batch waits for further calls. A commit, which they share, takes longer.
inline constexpr std::chrono::milliseconds batch_delay{1};

// Concurrent calls that are done together: the first to find none under way does those that wait by then.
template <class Call>
class batch {
  public:
    using calls = std::vector<std::shared_ptr<Call>>;

    // True once `own` is over; false at the deadline, when another thread may still be at it. `lead` takes
    // calls from `waiting` and makes them over; it may release the lock meanwhile.
    template <class Lead>
    bool join(unique_lock& held, const std::shared_ptr<Call>& own, time_point deadline, Lead lead) {
        waiting.push_back(own);
        joined.notify_one();
        while (!own->over) {
            if (!std::exchange(under_way_, true)) {
                lead();
                under_way_ = false;
                changed_.notify_all();
            } else if (!changed_.wait_until(held, deadline) && !own->over) {
                return false;
            }
        }
        return true;
    }
    mutex guard;  // of what follows, and of the calls in it
    calls waiting;
    condition joined;  // one more waits

  private:
    condition changed_;
    bool under_way_ = false;
};

// A FETCH that waits for its jobs. When `count` is 0, it is no longer wanted; when `left`, its caller has returned.
struct pending_fetch {
    const fetch_request* request = nullptr;  // valid until its caller returns
    std::size_t count = 0;
    bool left = false;

    bool over = false;
    std::vector<job> jobs;
    std::optional<error> failed;
};

class claims {
  public:
    claims(database& db, held_jobs& jobs, session& of) : db_(db), jobs_(jobs), session_(of) {}

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) {
        const auto own = std::make_shared<pending_fetch>();
        own->request = &request;
        own->count = request.count;
        unique_lock lock(batch_.guard);
        const bool over = batch_.join(lock, own, deadline, [&] { claim_for_all(lock, *own, deadline); });
        if (!over) return withdraw(own);
        if (own->failed) return *own->failed;
        return std::move(own->jobs);
    }

    // `count` slots become free together: the next FETCH waits for the others.
    void expect_fetches(std::size_t count) {
        const unique_lock held(batch_.guard);
        free_slots_ = count;
        free_slots_until_ = steady_clock::now() + batch_delay;
    }

    // With the turn to claim. No claim is under way then: a job that is ours and not held came with a lost answer.
    result<void> give_back_lost(time_point deadline) {
        if (!jobs_.any_lost.exchange(false)) return {};
        int given = 0, locked = 0;
        const values lost = {session_.owner(), jobs_.ids().text(), session_.insert_channel()};
        const auto count = [&](const postgres_rows& rows) {
            for (int row = 0; row < rows.size(); ++row) ++(rows.text(row, 0) == "t" ? given : locked);
        };
        const result<void> done = db_.run_by_halves(
            db_.claiming, sql::give_back_lost, [&] { return lost; }, count, deadline);
        if (!done || locked > 0) jobs_.any_lost = true;
        if (given > 0)
            db_.notice("gave back " + std::to_string(given) + " jobs whose claim was answered to nobody");
        return done;
    }

  private:
    using fetches = batch<pending_fetch>::calls;

    // Claims for all pending FETCHes of the same queues. Called with the lock, which it releases meanwhile.
    void claim_for_all(unique_lock& lock, const pending_fetch& own, time_point deadline) {
        fetches& pending = batch_.waiting;
        wait_until(batch_.joined, lock, std::min(deadline, free_slots_until_),
                   [&] { return wanted_by(pending) >= free_slots_; });
        const std::vector<std::string> queues = own.request->worker->queues;
        const auto others = std::partition(pending.begin(), pending.end(), [&](const auto& each) {
            return each->request->worker->queues == queues;
        });
        const fetches mine(pending.begin(), others);
        pending.erase(pending.begin(), others);
        lock.unlock();
        std::vector<job> claimed;
        result<void> done;
        try {
            done = claim_jobs(queues, mine, deadline, claimed);
        } catch (...) {
            jobs_.any_lost = true;
            done = failure(errc::unavailable, "no memory");
        }
        lock.lock();
        share_out(mine, done, std::move(claimed));
    }
    static std::size_t wanted_by(const fetches& all) {
        std::size_t out = 0;
        for (const auto& each : all) out += each->count;
        return out;
    }

    // The caller returns without jobs. Called with the lock.
    error withdraw(const std::shared_ptr<pending_fetch>& own) {
        own->left = true;
        fetches& pending = batch_.waiting;
        const auto found = std::find(pending.begin(), pending.end(), own);
        if (found == pending.end()) return failure(errc::timed_out, "the database did not answer in time");
        pending.erase(found);
        return failure(errc::unreachable, "another FETCH is still under way");
    }

    // Called with the lock. Jobs for a caller that has left are given back later.
    void share_out(const fetches& to, const result<void>& done, std::vector<job> jobs) {
        std::size_t next = 0;
        for (const auto& each : to) {
            each->over = true;
            if (!done && jobs.empty()) each->failed = done.error();
            if (each->count == 0) each->failed = failure(errc::cancelled, "not wanted any more");
            for (; each->jobs.size() < each->count && next < jobs.size(); ++next)
                each->jobs.push_back(std::move(jobs[next]));
            for (const job& lost : each->jobs) {
                if (each->left) jobs_.drop(std::atoll(lost.id.c_str()));
            }
        }
    }

    // Claims from one queue after the other, each time starting with the next one.
    result<void> claim_jobs(const std::vector<std::string>& queues, const fetches& for_whom,
                            time_point deadline, std::vector<job>& out) {
        const turn taken(db_.claiming, deadline);
        if (!taken) return failure(errc::unreachable, "the connection is in use");
        result<void> done = connect_others(deadline);
        if (done) done = give_back_lost(deadline);
        const std::size_t first = next_queue_++;
        for (std::size_t i = 0; done && i < queues.size() && out.size() < wanted_by(for_whom); ++i) {
            const std::string& queue = queues[(first + i) % queues.size()];
            do {
                done = claim(queue, for_whom, deadline, out);
            } while (!done && done.error().code == errc::cancelled && out.empty() && wanted_by(for_whom) > 0);
        }
        return done;
    }
    // Claims nothing unless it can be reported and its lease renewed. A connection in use is up.
    result<void> connect_others(time_point deadline) {
        const std::pair<postgres_connection*, const postgres_statement*> others[] = {
            {&db_.settling, &sql::settle}, {&db_.beating, &sql::confirm}};
        for (const auto& [each, what] : others) {
            const bool stands = each->server_process() != 0;
            const turn taken(*each, stands ? steady_clock::now() : deadline);
            if (!taken && !stands) return failure(errc::unreachable, "the connection is in use");
            const result<void> ready = taken ? each->prepare(*what, deadline) : result<void>();
            if (!ready) return ready;
        }
        return {};
    }
    // False: one is no longer wanted. Before the first job, the others continue without it.
    bool all_still_wanted(const fetches& all, bool has_jobs) {
        const unique_lock held(batch_.guard);
        bool out = true;
        for (const auto& each : all) {
            if (each->count == 0) continue;
            if (!each->left && (!each->request->still_wanted || each->request->still_wanted())) continue;
            if (!has_jobs) each->count = 0;
            out = false;
        }
        return out;
    }

    // Jobs that cannot be claimed are logged and left out for a minute, so that claims do not look at them each time.
    result<void> claim(const std::string& queue, const fetches& for_whom, time_point deadline,
                       std::vector<job>& out) {
        if (steady_clock::now() >= left_out_until_) {
            left_out_.clear();
            left_out_until_ = deadline_after(std::chrono::minutes(1));
        }
        const auto max_bytes = static_cast<long long>(db_.options.max_bytes);
        const postgres_value kinds =
            db_.options.kinds.empty() ? postgres_value(nullptr) : array_of(db_.options.kinds).text();
        const auto values_now = [&] {
            postgres_array left_out;
            for (const long long each : left_out_) left_out.add(each);
            const auto count = static_cast<long long>(wanted_by(for_whom) - out.size());
            return values{queue, count, session_.owner(), max_bytes, kinds, left_out.text()};
        };
        result<void> done;
        std::size_t known = 0;
        do {
            known = left_out_.size();
            done = db_.run_by_halves(
                db_.claiming, sql::claim, values_now,
                [&](const postgres_rows& rows) { take_in_all(queue, rows, out); }, deadline,
                [&] { return all_still_wanted(for_whom, !out.empty()); }, &left_out_);
        } while (done && left_out_.size() > known && out.size() < wanted_by(for_whom));
        if (!done && is_lost(done.error())) jobs_.any_lost = true;
        return done;
    }

    void take_in_all(const std::string& queue, const postgres_rows& rows, std::vector<job>& out) {
        out.reserve(out.size() + static_cast<std::size_t>(rows.size()));
        std::vector<long long> unfit;
        for (int row = 0; row < rows.size(); ++row) {
            rows.is_null(row, 1) ? unfit.push_back(rows.number(row, 0)) : take_in(rows, row, out);
        }
        if (unfit.empty()) return;
        left_out_.insert(unfit.begin(), unfit.end());
        db_.notice("left alone in queue " + queue + ": " + std::to_string(unfit.size()) +
                   " jobs that weigh too much or have no args, the first of them " +
                   std::to_string(unfit.front()));
    }

    void take_in(const postgres_rows& rows, int row, std::vector<job>& out) {
        held_job held;
        held.id = rows.number(row, 0);
        held.attempt = rows.number(row, 3);
        held.cancelled_at = rows.text(row, 7);
        held.touched = steady_clock::now();
        job next;
        next.id = rows.text(row, 0);
        next.type = rows.text(row, 1);
        next.queue = rows.text(row, 2);
        next.attempt = held.attempt;
        next.max_attempts = rows.number(row, 4);
        const std::string args = rows.text(row, 5);
        next.args_json = args.rfind('[', 0) == 0 ? args : "[" + args + "]";
        next.meta_json = rows.text(row, 6);
        if (jobs_.add(std::move(held))) out.push_back(std::move(next));  // last: has room
    }

    database& db_;
    held_jobs& jobs_;
    session& session_;

    // With the turn to claim.
    std::size_t next_queue_ = 0;
    std::set<long long> left_out_;  // jobs that claims skip, and until when
    time_point left_out_until_;

    batch<pending_fetch> batch_;
    std::size_t free_slots_ = 0;  // became free together; until when a FETCH waits for the others
    time_point free_slots_until_;
};

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
    using settlements = batch<settlement>::calls;

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
        unique_lock lock(batch_.guard);
        own->over = own->locked = false;
        const bool over = batch_.join(lock, own, deadline, [&] { settle_waiting(lock, deadline); });
        settlements& waiting = batch_.waiting;
        if (!over) waiting.erase(std::remove(waiting.begin(), waiting.end(), own), waiting.end());
        return over;
    }

  private:
    // Settles all that wait by now. Called with the lock, which it releases meanwhile.
    void settle_waiting(unique_lock& lock, time_point deadline) {
        wait_until(batch_.joined, lock, std::min(deadline, steady_clock::now() + batch_delay),
                   [this] { return batch_.waiting.size() >= jobs_.size(); });
        const settlements all = std::exchange(batch_.waiting, {});
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
    }

    // A rejected value must not keep the others from being settled: each is then sent alone.
    void settle_all(const settlements& all, time_point deadline) {
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

    result<void> try_settle(const settlements& all, time_point deadline, bool ascii_only) {
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

    void note_lost(const settlements& all) {
        for (const auto& each : all) jobs_.change(each->id, [](held_job& job) { job.lost_answer = true; });
    }
    void note_settled(const settlements& all, const postgres_rows& rows) {
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
    result<void> look_at_rest(const settlements& all, const postgres_array& errors, time_point deadline) {
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

    batch<settlement> batch_;
};

}  // namespace river
}  // namespace ojs::detail
