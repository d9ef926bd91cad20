// A job's owner is the last name in attempted_by, "ojs:LEASE:WORKER:NONCE". Its process holds the advisory lock
// hashtextextended(NAME, 0) while it works. Every worker searches for running jobs whose owner's lock is free. After
// LEASE milliseconds that owner is gone or can no longer report: a transaction that holds its lock requeues the jobs.
// Names without "ojs:" are left to River. All times are the database's.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "detail/batches.ipp"
#include "detail/database.ipp"
#include "detail/session.ipp"
#include "river_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace river {
class river_worker : public river_transport {
  public:
    river_worker(const std::string& url, river_options options) : db_(url, std::move(options)) {}
    ~river_worker() override { session_.end(); }

    result<void> open(time_point deadline) { return session_.check_schema(deadline); }

    outcome snooze(const job_context& job, any_ms delay) override { return decide(job, "snooze", delay, "snoozed"); }
    outcome retry_after(const job_context& job, any_ms delay, std::string reason) override {
        return decide(job, "fail", delay, std::move(reason));
    }
    outcome cancel(const job_context& job, std::string reason) override {
        return decide(job, "cancel", {}, std::move(reason));
    }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        const result<void> known = session_.begin(*request.worker, deadline);
        if (!known) return known.error();
        return claims_.fetch(request, deadline);
    }

    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        settlement out;
        out.action = "complete";
        if (!request.result_json.empty()) out.merged = "{\"output\":" + request.result_json + "}";
        return reports_.settle(request.job_id, std::move(out), deadline);
    }

    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        const job_error& error = request.error;
        settlement out;
        out.action = request.requeue             ? "requeue"
                     : error.code == "cancelled" ? "cancel"
                     : error.retryable           ? "fail"
                                                 : "discard";
        const bool named = error.code == "handler_error" || error.message.rfind(error.code, 0) == 0;
        out.error = named ? error.message : error.code + ": " + error.message;
        if (!request.checkpoint_json.empty()) out.merged = "{\"checkpoint\":" + request.checkpoint_json + "}";
        if (!request.requeue && error.retryable && error.code == "handler_error") apply_decision(request.job_id, out);
        return reports_.settle(request.job_id, std::move(out), deadline);
    }

    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        if (is_ended_) return heartbeat_response();
        result<heartbeat_response> out = renew(request, deadline);
        if (request.is_last) leave(deadline);
        return out;
    }

    void on_work_available(function<void()> callback) override { session_.on_work(std::move(callback)); }
    void on_job_cancelled(function<void(const std::string&)> callback) override {
        session_.on_cancelled(std::move(callback));
    }

  private:
    // The worker turns the returned outcome into a FAIL, which apply_decision() changes.
    outcome decide(const job_context& job, const char* action, std::optional<std::chrono::milliseconds> delay,
                   std::string reason) {
        jobs_.change(job.id(), [&](held_job& held) {
            held.action = action;
            if (delay) held.delay = std::clamp<long long>(delay->count(), 0, 1'000'000'000'000);  // 30 years
            held.reason = reason;
        });
        return outcome::retry(std::move(reason));
    }

    void apply_decision(const std::string& job_id, settlement& out) {
        const std::optional<held_job> held = jobs_.find(job_id);
        if (!held || held->action == nullptr || held->reason != out.error) return;
        out.action = held->action;
        out.delay = held->delay;
    }

    result<heartbeat_response> renew(const heartbeat_request& request, time_point deadline) {
        const result<void> known = session_.begin(*request.worker, deadline);
        if (!known) return known.error();
        const turn taken(db_.renewing, deadline);
        if (!taken) return db_.renewing.busy(errc::timed_out);
        const result<postgres_rows> locked = db_.renewing.run(
            sql::lock_is_held, {session_.owner(), session_.backend_pid()}, deadline, request.should_send);
        if (!locked) return locked.error();
        if (locked->size() == 0)
            return failure(errc::unavailable, "the session that held this worker's lock has ended");
        jobs_.forget_given_up(request.active_jobs);
        heartbeat_response out;
        if (request.active_jobs.empty()) return out;
        postgres_array ids;
        for (const std::string& job : request.active_jobs) {
            if (const std::optional<long long> id = read_id(job)) ids.add(*id);
        }
        const result<postgres_rows> ours = db_.renewing.run(sql::confirm, {ids.text(), session_.owner()}, deadline);
        if (!ours) return ours.error();
        for (int row = 0; row < ours->size(); ++row) {
            out.jobs_extended.push_back(ours->text(row, 0));
            const std::optional<held_job> job = jobs_.find(ours->number(row, 0));
            if (job && job->cancelled_at != ours->text(row, 1)) session_.notify_cancelled(ours->text(row, 0));
        }
        jobs_.forget_unconfirmed(request.active_jobs, out.jobs_extended);
        return out;
    }

    // Releases the lock: other workers rescue the jobs that could not be reported.
    void leave(time_point deadline) {
        {
            const turn taken(db_.claiming, deadline);
            if (taken) db_.ok_or_notice(claims_.give_back_lost(deadline), "cannot requeue lost claims");
        }
        is_ended_ = true;
        session_.end();
    }

    database db_;
    held_jobs jobs_;
    river::session session_{db_, jobs_};
    claims claims_{db_, jobs_, session_};
    reports reports_{db_, jobs_, session_, claims_};
    std::atomic<bool> is_ended_{false};
};

OJS_SHUTDOWN_INLINE bool is_connection_string(const std::string& url) {
    if (url.find('\0') != std::string::npos) return false;
    // Without the error text, which may quote a password.
    PQconninfoOption* const parsed = PQconninfoParse(url.c_str(), nullptr);
    PQconninfoFree(parsed);
    return parsed != nullptr;
}
}  // namespace river
}  // namespace detail

OJS_SHUTDOWN_INLINE result<river_ref> river_transport::create(std::string url, river_options options,
                                                              detail::any_ms timeout) {
    if (!detail::river::is_connection_string(url))
        return error{errc::invalid_argument, 0, "libpq cannot read the database URL"};
    const result<void> fits = detail::river::check_channel(options.schema);
    if (!fits) return fits.error();
    auto* const created = new detail::river::river_worker(url, std::move(options));
    river_ref out(created);
    const result<void> opened = created->open(deadline_after(timeout));
    if (!opened && opened.error().code == errc::unsupported) return opened.error();
    return out;
}
}  // namespace v0_1_0
}  // namespace ojs
