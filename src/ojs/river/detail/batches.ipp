// batches: one statement serves concurrent FETCHes, another concurrent ACKs and FAILs.
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
// How long a batch waits for more calls. Their shared commit takes longer.
inline constexpr std::chrono::milliseconds batch_delay{1};

// Runs concurrent calls together: the first caller that finds no batch in progress runs all waiting calls.
template <class Call>
class batch {
  public:
    using calls = std::vector<std::shared_ptr<Call>>;

    // True once `own` is finished; false at the deadline, when another thread may still run it. `lead` takes calls from
    // `waiting` and finishes them; it may release the lock meanwhile.
    template <class Lead>
    bool join(unique_lock& held, const std::shared_ptr<Call>& own, time_point deadline, Lead lead) {
        waiting.push_back(own);
        joined.notify_one();
        while (!own->is_finished) {
            if (!std::exchange(in_progress_, true)) {
                lead();
                in_progress_ = false;
                changed_.notify_all();
            } else if (!changed_.wait_until(held, deadline) && !own->is_finished) {
                return false;
            }
        }
        return true;
    }
    mutex guard;  // for the members below and their calls
    calls waiting;
    condition joined;  // a call was added to `waiting`

  private:
    condition changed_;
    bool in_progress_ = false;
};

// A FETCH that waits for its jobs. `count` 0: it is cancelled. `abandoned`: its caller has returned.
struct pending_fetch {
    const fetch_request* request = nullptr;  // valid until its caller returns
    std::size_t count = 0;
    bool abandoned = false;

    bool is_finished = false;
    std::vector<job> jobs;
    std::optional<error> failed;
};

class claims {
  public:
    claims(database& db, held_jobs& jobs, session& owner) : db_(db), jobs_(jobs), session_(owner) {}

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) {
        const auto own = std::make_shared<pending_fetch>();
        own->request = &request;
        own->count = request.count;
        unique_lock lock(batch_.guard);
        const bool done = batch_.join(lock, own, deadline, [&] { claim_for_all(lock, *own, deadline); });
        if (!done) return withdraw(own);
        if (own->failed) return *own->failed;
        return std::move(own->jobs);
    }

    // `count` slots become free together: the next FETCH waits for the FETCHes of all.
    void expect_fetches(std::size_t count) {
        const unique_lock held(batch_.guard);
        free_slots_ = count;
        free_slots_until_ = steady_clock::now() + batch_delay;
    }

    // Called with the turn to claim. A job that is ours but not held was in a lost response.
    result<void> give_back_lost(time_point deadline) {
        if (!jobs_.any_claim_lost.exchange(false)) return {};
        int requeued = 0, locked = 0;
        const values lost = {session_.owner(), jobs_.ids().text(), session_.insert_channel()};
        const auto count = [&](const postgres_rows& rows) {
            for (int row = 0; row < rows.size(); ++row) ++(rows.text(row, 0) == "t" ? requeued : locked);
        };
        const result<void> done = db_.run_by_halves(
            db_.claiming, sql::give_back_lost, [&] { return lost; }, count, deadline);
        if (!done || locked > 0) jobs_.any_claim_lost = true;
        if (requeued > 0) db_.notice("requeued jobs whose claim response was lost", {field("jobs", requeued)});
        return done;
    }

  private:
    using fetches = batch<pending_fetch>::calls;

    // Claims for all pending FETCHes with the same queues. Called with the lock, which it releases meanwhile.
    void claim_for_all(unique_lock& lock, const pending_fetch& own, time_point deadline) {
        fetches& pending = batch_.waiting;
        wait_until(batch_.joined, lock, std::min(deadline, free_slots_until_),
                   [&] { return slot_count(pending) >= free_slots_; });
        const std::vector<std::string> queues = own.request->worker->queues;
        const auto others = std::partition(pending.begin(), pending.end(),
                                           [&](const auto& call) { return call->request->worker->queues == queues; });
        const fetches mine(pending.begin(), others);
        pending.erase(pending.begin(), others);
        lock.unlock();
        std::vector<job> claimed;
        result<void> done;
        try {
            done = claim_jobs(queues, mine, deadline, claimed);
        } catch (...) {
            jobs_.any_claim_lost = true;
            done = failure(errc::unavailable, "no memory to claim jobs");
        }
        lock.lock();
        distribute(mine, done, std::move(claimed));
    }
    static std::size_t slot_count(const fetches& all) {
        std::size_t out = 0;
        for (const auto& call : all) out += call->count;
        return out;
    }

    // The caller returns without jobs. Called with the lock.
    error withdraw(const std::shared_ptr<pending_fetch>& own) {
        own->abandoned = true;
        fetches& pending = batch_.waiting;
        const auto found = std::find(pending.begin(), pending.end(), own);
        if (found == pending.end()) return failure(errc::timed_out, "the database did not respond before the deadline");
        pending.erase(found);
        return failure(errc::unreachable, "another FETCH was in progress until the deadline");
    }

    // Called with the lock. Jobs of an abandoned FETCH are given back later.
    void distribute(const fetches& calls, const result<void>& done, std::vector<job> jobs) {
        std::size_t next = 0;
        for (const auto& call : calls) {
            call->is_finished = true;
            if (!done && jobs.empty()) call->failed = done.error();
            if (call->count == 0) call->failed = failure(errc::cancelled, "cancelled: the worker stopped fetching");
            for (; call->jobs.size() < call->count && next < jobs.size(); ++next)
                call->jobs.push_back(std::move(jobs[next]));
            for (const job& lost : call->jobs) {
                if (call->abandoned) jobs_.drop(std::atoll(lost.id.c_str()));
            }
        }
    }

    // Claims from one queue after the other; each call starts with the next queue.
    result<void> claim_jobs(const std::vector<std::string>& queues, const fetches& calls, time_point deadline,
                            std::vector<job>& out) {
        const turn taken(db_.claiming, deadline);
        if (!taken) return db_.claiming.busy(errc::unreachable);
        result<void> done = connect_others(deadline);
        if (done) done = give_back_lost(deadline);
        const std::size_t first = next_queue_++;
        for (std::size_t i = 0; done && i < queues.size() && out.size() < slot_count(calls); ++i) {
            const std::string& queue = queues[(first + i) % queues.size()];
            do {
                done = claim(queue, calls, deadline, out);
            } while (!done && done.error().code == errc::cancelled && out.empty() && slot_count(calls) > 0);
        }
        return done;
    }
    // Claims need connections for reports and heartbeats. One that is in use is up.
    result<void> connect_others(time_point deadline) {
        const std::pair<postgres_connection*, const postgres_statement*> others[] = {{&db_.settling, &sql::settle},
                                                                                     {&db_.renewing, &sql::confirm}};
        for (const auto& [connection, statement] : others) {
            const bool is_up = connection->backend_pid() != 0;
            const turn taken(*connection, is_up ? steady_clock::now() : deadline);
            if (!taken && !is_up) return connection->busy(errc::unreachable);
            const result<void> ready = taken ? connection->prepare(*statement, deadline) : result<void>();
            if (!ready) return ready;
        }
        return {};
    }
    // False: a FETCH is cancelled. Before the first job the others continue without it.
    bool check_all_wanted(const fetches& all, bool has_jobs) {
        const unique_lock held(batch_.guard);
        bool out = true;
        for (const auto& call : all) {
            if (call->count == 0) continue;
            if (!call->abandoned && (!call->request->should_send || call->request->should_send())) continue;
            if (!has_jobs) call->count = 0;
            out = false;
        }
        return out;
    }

    // Jobs that cannot be claimed are logged, and excluded for a minute to keep claims fast.
    result<void> claim(const std::string& queue, const fetches& calls, time_point deadline, std::vector<job>& out) {
        if (steady_clock::now() >= excluded_until_) {
            excluded_.clear();
            excluded_until_ = deadline_after(std::chrono::minutes(1));
        }
        const auto max_bytes = static_cast<long long>(db_.options.max_bytes);
        const postgres_value kinds =
            db_.options.kinds.empty() ? postgres_value(nullptr) : array_of(db_.options.kinds).text();
        const auto make_values = [&] {
            postgres_array excluded;
            for (const long long id : excluded_) excluded.add(id);
            const auto count = static_cast<long long>(slot_count(calls) - out.size());
            return values{queue, count, session_.owner(), max_bytes, kinds, excluded.text()};
        };
        result<void> done;
        std::size_t known = 0;
        do {
            known = excluded_.size();
            done = db_.run_by_halves(
                db_.claiming, sql::claim, make_values, [&](const postgres_rows& rows) { take_rows(queue, rows, out); },
                deadline, [&] { return check_all_wanted(calls, !out.empty()); }, &excluded_);
        } while (done && excluded_.size() > known && out.size() < slot_count(calls));
        if (!done && is_unresolved(done.error())) jobs_.any_claim_lost = true;
        return done;
    }

    void take_rows(const std::string& queue, const postgres_rows& rows, std::vector<job>& out) {
        out.reserve(out.size() + static_cast<std::size_t>(rows.size()));
        std::map<std::string, std::vector<long long>> unfit;  // by reason
        for (int row = 0; row < rows.size(); ++row) {
            if (!rows.is_null(row, 1)) add_job(rows, row, out);
            if (rows.is_null(row, 1)) unfit[unfit_reason(rows, row)].push_back(rows.number(row, 0));
        }
        for (const auto& [reason, ids] : unfit) {
            excluded_.insert(ids.begin(), ids.end());
            db_.notice("jobs are not claimed", {field("queue", queue), field("jobs", ids.size()),
                                                field("reason", reason), field("first_id", ids.front())});
        }
    }
    std::string unfit_reason(const postgres_rows& rows, int row) const {
        if (rows.number(row, 3) >= 32767) return "attempt 32767, the largest that River's table can hold";
        if (rows.is_null(row, 8)) return "args or metadata are missing";
        return cat({"args or metadata are longer than max_bytes (", db_.options.max_bytes, ")"});
    }

    void add_job(const postgres_rows& rows, int row, std::vector<job>& out) {
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
        next.visibility_timeout = no_limit;  // ours until its row says otherwise
        const std::string args = rows.text(row, 5);
        next.args_json = args.rfind('[', 0) == 0 ? args : "[" + args + "]";
        next.meta_json = rows.text(row, 6);
        if (jobs_.add(std::move(held))) out.push_back(std::move(next));  // last: cannot throw
    }

    database& db_;
    held_jobs& jobs_;
    session& session_;

    // Guarded by the turn to claim.
    std::size_t next_queue_ = 0;
    std::set<long long> excluded_;  // jobs that claims skip
    time_point excluded_until_;

    batch<pending_fetch> batch_;
    std::size_t free_slots_ = 0;  // a FETCH waits for so many others, until the next time
    time_point free_slots_until_;
};

struct settlement {
    long long id = 0;
    long long attempt = 0;
    std::string action;
    std::string error;
    std::optional<long long> delay;
    std::string merged;  // JSON object; empty: none

    bool is_finished = false;
    bool done = false;    // once finished: the database accepted it
    bool locked = false;  // once finished: another transaction has locked the row
    std::optional<ojs::error> failed;
};

class reports {
    using settlements = batch<settlement>::calls;

  public:
    reports(database& db, held_jobs& jobs, session& owner, claims& claims)
        : db_(db), jobs_(jobs), session_(owner), claims_(claims) {}

    result<settle_result> settle(const std::string& job_id, settlement request, time_point deadline) {
        const auto held = jobs_.change(job_id, [](held_job& job) { job.reported = true; });
        if (!held) return settle_result::gone;
        request.id = held->id;
        request.attempt = held->attempt;
        request.error = storable(std::move(request.error), false);
        const auto shared = std::make_shared<settlement>(std::move(request));
        // A locked row delays no other report: it is retried until the deadline.
        for (std::chrono::milliseconds pause(5);; pause = std::min(pause * 2, std::chrono::milliseconds(300))) {
            if (!settle_in_batch(shared, deadline))
                return failure(errc::timed_out, "the database did not respond before the deadline");
            if (!shared->locked || steady_clock::now() + 2 * pause >= deadline) break;
            static_cast<void>(cancel_token().sleep_for(pause));
        }
        if (shared->locked) return failure(errc::unavailable, "another transaction has locked the job's row");
        if (shared->failed && shared->failed->code == errc::rejected)
            jobs_.change(held->id, [](held_job& job) { job.given_up = 1; });
        if (shared->failed) return *shared->failed;
        jobs_.forget(held->id);
        return shared->done ? settle_result::accepted : settle_result::gone;
    }
    // False at the deadline; another thread may still settle it.
    bool settle_in_batch(const std::shared_ptr<settlement>& own, time_point deadline) {
        unique_lock lock(batch_.guard);
        own->is_finished = own->locked = false;
        const bool is_finished = batch_.join(lock, own, deadline, [&] { settle_pending(lock, deadline); });
        settlements& waiting = batch_.waiting;
        if (!is_finished) waiting.erase(std::remove(waiting.begin(), waiting.end(), own), waiting.end());
        return is_finished;
    }

  private:
    // Settles all waiting calls. Called with the lock, which it releases meanwhile.
    void settle_pending(unique_lock& lock, time_point deadline) {
        wait_until(batch_.joined, lock, std::min(deadline, steady_clock::now() + batch_delay),
                   [this] { return batch_.waiting.size() >= jobs_.size(); });
        const settlements all = std::exchange(batch_.waiting, {});
        lock.unlock();
        try {
            settle_all(all, deadline);
        } catch (...) {
            mark_response_lost(all);
            for (const auto& call : all) {
                if (!call->done) call->failed = failure(errc::unavailable, "no memory to report jobs");
            }
        }
        claims_.expect_fetches(all.size());
        lock.lock();
        for (const auto& call : all) call->is_finished = true;
    }

    // After a rejected value each settlement is sent alone, so that the others succeed.
    void settle_all(const settlements& all, time_point deadline) {
        const turn taken(db_.settling, deadline);
        result<void> done = db_.settling.busy(errc::timed_out);
        if (taken) done = try_settle(all, deadline, false);
        const bool one_by_one = !done && done.error().code == errc::rejected;
        for (const auto& call : all) {
            if (one_by_one) done = try_settle({call}, deadline, false);
            if (one_by_one && !done && done.error().code == errc::rejected) done = try_settle({call}, deadline, true);
            if (!done && !call->done) call->failed = done.error();
        }
    }

    result<void> try_settle(const settlements& all, time_point deadline, bool ascii_only) {
        postgres_array ids, attempts, actions, errors, delays, merged;
        for (const auto& call : all) {
            ids.add(call->id);
            attempts.add(call->attempt);
            actions.add(call->action);
            call->action == "complete" ? errors.add_null() : errors.add(storable(call->error, ascii_only));
            call->delay ? delays.add(*call->delay) : delays.add_null();
            call->merged.empty() ? merged.add_null() : merged.add(call->merged);
        }
        const result<postgres_rows> rows =
            db_.settling.run(sql::settle,
                             {ids.text(), attempts.text(), actions.text(), errors.text(), delays.text(), merged.text(),
                              session_.owner(), session_.insert_channel()},
                             deadline);
        if (!rows) {
            if (is_unresolved(rows.error())) mark_response_lost(all);
            return rows.error();
        }
        mark_settled(all, *rows);
        return check_unsettled(all, {ids.text(), attempts.text(), errors.text(), session_.owner()}, deadline);
    }

    void mark_response_lost(const settlements& all) {
        for (const auto& call : all) jobs_.change(call->id, [](held_job& job) { job.response_lost = true; });
    }
    void mark_settled(const settlements& all, const postgres_rows& rows) {
        std::map<long long, std::string> actions;
        for (int row = 0; row < rows.size(); ++row) actions[rows.number(row, 0)] = rows.text(row, 1);
        for (const auto& call : all) {
            const auto action = actions.find(call->id);
            const auto held = jobs_.change(call->id, [&](held_job& job) {
                if (action != actions.end()) job.settled_as = action->second;
            });
            if (held) call->done = held->settled_as == call->action;  // FAIL does not settle an ACK
        }
    }
    // A job that was not found is locked, settled by a statement whose response was lost, or gone.
    result<void> check_unsettled(const settlements& all, const values& requested, time_point deadline) {
        if (std::all_of(all.begin(), all.end(), [](const auto& call) { return call->done; })) return {};
        const result<postgres_rows> rows = db_.settling.run(sql::unsettled, requested, deadline);
        if (!rows) return rows.error();
        for (int row = 0; row < rows->size(); ++row) {
            const long long id = rows->number(row, 0);
            settlement& rest =
                **std::find_if(all.begin(), all.end(), [id](const auto& call) { return call->id == id; });
            const auto held = jobs_.find(id);
            rest.locked = !rest.done && rows->text(row, 1) == "t";
            rest.done |= held && held->response_lost && !rest.locked && rows->text(row, 2) != "t";
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
