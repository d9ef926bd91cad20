// Who owns a job. attempted_by ends with the name of the process that runs it, "ojs:LEASE:WORKER:NONCE". As long as that
// process works, it holds the advisory lock hashtextextended(NAME, 0). Every worker looks for running jobs whose owner's
// lock is free. Once it has been free for LEASE milliseconds, the owner is gone, or can no longer report: its jobs are given
// back by a transaction that holds that lock itself. Names without "ojs:" are left to River.
//
// All times are the database's.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "detail/claims.ipp"
#include "detail/database.ipp"
#include "detail/held_jobs.ipp"
#include "detail/reports.ipp"
#include "detail/session.ipp"
#include "river_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace river {

class transport_body : public ref_counted {
  public:
    transport_body(std::string url, river_options options)
        : url_(std::move(url)), db_(url_, std::move(options)) {}

    result<void> open(time_point deadline) {
        if (!is_conninfo(url_))
            return failure(errc::invalid_argument, "the database's URL is not one that libpq can read");
        const result<void> seen = session_.look_at_schema(deadline);
        return !seen && seen.error().code == errc::unsupported ? seen : result<void>();
    }

    // How the FAIL of this job is to be settled. The worker makes it from the outcome returned here.
    outcome decide(const job_context& job, const char* action, std::optional<std::chrono::milliseconds> delay,
                   std::string reason) {
        jobs_.change(job.id(), [&](held_job& held) {
            held.action = action;
            if (delay)
                held.delay = std::clamp<long long>(delay->count(), 0, 1'000'000'000'000);  // thirty years
            held.why = reason;
        });
        return outcome::retry(std::move(reason));
    }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) {
        const result<void> known = session_.begin(*request.worker, deadline);
        if (!known) return known.error();
        return claims_.fetch(request, deadline);
    }

    result<settled> ack(const ack_request& request, time_point deadline) {
        settlement wanted;
        wanted.action = "complete";
        if (!request.result_json.empty()) wanted.merged = "{\"output\":" + request.result_json + "}";
        return reports_.settle(request.job_id, std::move(wanted), deadline);
    }

    result<settled> fail(const fail_request& request, time_point deadline) {
        const job_error& error = request.error;
        settlement wanted;
        wanted.action = request.requeue             ? "requeue"
                        : error.code == "cancelled" ? "cancel"
                        : error.retryable           ? "fail"
                                                    : "discard";
        const bool named = error.code == "handler_error" || error.message.rfind(error.code, 0) == 0;
        wanted.error = named ? error.message : error.code + ": " + error.message;
        if (!request.checkpoint_json.empty())
            wanted.merged = "{\"checkpoint\":" + request.checkpoint_json + "}";
        if (!request.requeue && error.retryable && error.code == "handler_error")
            apply_decision(request.job_id, wanted);
        return reports_.settle(request.job_id, std::move(wanted), deadline);
    }

    result<heartbeat_answer> heartbeat(const heartbeat_request& request, time_point deadline) {
        if (left_) return heartbeat_answer();
        const result<void> known = session_.begin(*request.worker, deadline);
        if (!known) return known.error();
        const turn taken(db_.beating, deadline);
        if (!taken) return failure(errc::timed_out, "another heartbeat is still under way");
        return confirm(request, deadline);
    }

    result<void> deregister_worker(time_point deadline) {
        result<void> found;
        {
            const turn taken(db_.claiming, deadline);
            if (taken) found = claims_.give_back_lost(deadline);
        }
        left_ = true;
        session_.end();
        return found;
    }

    result<settled> save_checkpoint(const checkpoint_request& request, time_point deadline) {
        const std::optional<held_job> held = jobs_.find(request.job_id);
        if (!held) return settled::gone;
        const turn taken(db_.saving, deadline);
        if (!taken) return failure(errc::timed_out, "another checkpoint is still under way");
        const result<postgres_rows> saved = db_.saving.run(
            sql::save, {held->id, held->attempt, session_.owner(), request.state_json}, deadline);
        if (!saved) return saved.error();
        return saved->size() > 0 ? settled::accepted : settled::gone;
    }
    result<std::string> load_checkpoint(const std::string& job_id, time_point deadline) {
        const std::optional<long long> id = read_id(job_id);
        if (!id) return std::string();
        const turn taken(db_.saving, deadline);
        if (!taken) return failure(errc::timed_out, "another checkpoint is still under way");
        const result<postgres_rows> found = db_.saving.run(sql::load, {*id}, deadline);
        if (!found) return found.error();
        return found->size() > 0 && !found->is_null(0, 0) ? found->text(0, 0) : std::string();
    }

    river::session& session() { return session_; }

  private:
    static bool is_conninfo(const std::string& url) {
        if (url.find('\0') != std::string::npos) return false;
        PQconninfoOption* const read =
            PQconninfoParse(url.c_str(), nullptr);  // its error text may quote a password
        PQconninfoFree(read);
        return read != nullptr;
    }

    void apply_decision(const std::string& job_id, settlement& wanted) {
        const std::optional<held_job> held = jobs_.find(job_id);
        if (!held || held->action == nullptr || held->why != wanted.error) return;
        wanted.action = held->action;
        wanted.delay = held->delay;
    }

    result<heartbeat_answer> confirm(const heartbeat_request& request, time_point deadline) {
        const result<postgres_rows> locked = db_.beating.run(
            sql::lock_is_held, {session_.owner(), session_.server_process()}, deadline, request.still_wanted);
        if (!locked) return locked.error();
        if (locked->size() == 0)
            return failure(errc::unavailable, "the session that holds this worker's lock has ended");
        heartbeat_answer out;
        if (request.active_jobs.empty()) return out;
        postgres_array ids;
        for (const std::string& each : request.active_jobs) {
            if (const std::optional<long long> id = read_id(each)) ids.add(*id);
        }
        const result<postgres_rows> ours =
            db_.beating.run(sql::confirm, {ids.text(), session_.owner()}, deadline);
        if (!ours) return ours.error();
        for (int row = 0; row < ours->size(); ++row) {
            out.jobs_extended.push_back(ours->text(row, 0));
            const std::optional<held_job> held = jobs_.find(ours->number(row, 0));
            if (held && held->cancelled_at != ours->text(row, 1)) session_.tell_revoked(ours->text(row, 0));
        }
        jobs_.forget_others(request.active_jobs, out.jobs_extended);
        return out;
    }

    const std::string url_;
    database db_;
    held_jobs jobs_;
    river::session session_{db_, jobs_};
    claims claims_{db_, jobs_, session_};
    reports reports_{db_, jobs_, session_, claims_};
    std::atomic<bool> left_{false};
};

}  // namespace river
}  // namespace detail

OJS_SHUTDOWN_INLINE river_transport::river_transport(std::string url, river_options options)
    : body_(new detail::river::transport_body(std::move(url), std::move(options))) {}
OJS_SHUTDOWN_INLINE river_transport::~river_transport() {
    body_->session().end();
}

OJS_SHUTDOWN_INLINE result<void> river_transport::open(std::chrono::milliseconds timeout) {
    return body_->open(deadline_after(timeout));
}
OJS_SHUTDOWN_INLINE outcome river_transport::snooze(const job_context& job, std::chrono::milliseconds delay) {
    return body_->decide(job, "snooze", delay, "snoozed");
}
OJS_SHUTDOWN_INLINE outcome river_transport::retry_after(const job_context& job,
                                                         std::chrono::milliseconds delay,
                                                         std::string reason) {
    return body_->decide(job, "fail", delay, std::move(reason));
}
OJS_SHUTDOWN_INLINE outcome river_transport::cancel(const job_context& job, std::string reason) {
    return body_->decide(job, "cancel", {}, std::move(reason));
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> river_transport::fetch(const fetch_request& request,
                                                                    time_point deadline) {
    return body_->fetch(request, deadline);
}
OJS_SHUTDOWN_INLINE result<settled> river_transport::ack(const ack_request& request, time_point deadline) {
    return body_->ack(request, deadline);
}
OJS_SHUTDOWN_INLINE result<settled> river_transport::fail(const fail_request& request, time_point deadline) {
    return body_->fail(request, deadline);
}
OJS_SHUTDOWN_INLINE result<heartbeat_answer> river_transport::heartbeat(const heartbeat_request& request,
                                                                        time_point deadline) {
    return body_->heartbeat(request, deadline);
}
OJS_SHUTDOWN_INLINE result<void> river_transport::register_worker(const worker_identity& worker,
                                                                  time_point deadline) {
    return body_->session().begin(worker, deadline);
}
OJS_SHUTDOWN_INLINE result<void> river_transport::deregister_worker(const worker_identity&,
                                                                    time_point deadline) {
    return body_->deregister_worker(deadline);
}
OJS_SHUTDOWN_INLINE result<settled> river_transport::save_checkpoint(const checkpoint_request& request,
                                                                     time_point deadline) {
    return body_->save_checkpoint(request, deadline);
}
OJS_SHUTDOWN_INLINE result<std::string> river_transport::load_checkpoint(const std::string& job_id,
                                                                         time_point deadline) {
    return body_->load_checkpoint(job_id, deadline);
}
OJS_SHUTDOWN_INLINE void river_transport::when_work_may_wait(function<void()> tell) {
    body_->session().on_work(std::move(tell));
}
OJS_SHUTDOWN_INLINE void river_transport::when_jobs_are_revoked(function<void(const std::string&)> tell) {
    body_->session().on_revoked(std::move(tell));
}

}  // namespace v0_1_0
}  // namespace ojs
