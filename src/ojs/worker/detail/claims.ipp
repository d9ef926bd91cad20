// claims: whether a claimed job is still this worker's. After its lease another worker may have it. [WIRE 7]
#pragma once

#include "worker_state.ipp"

namespace ojs::detail {

class claims {
  public:
    explicit claims(worker_state& worker) : worker_(worker) {}

    // transport::confirm_claim() for the latest claim of the job.
    result<bool> query(const active_job& job, time_point deadline) const {
        job_request asked{job.job.id,       [this] { return !worker_.last_has_begun(); }, {}, 0, &job.job,
                          &worker_.identity};
        {
            const unique_lock held(worker_.guard);
            asked.attempt = job.latest_attempt();
            asked.claim = job.claim;
        }
        return worker_.call(
            [&](ojs::transport& transport) { return transport.confirm_claim(asked, deadline); });
    }
    // Whether to start a job. A lost one comes back: a FAIL might end the claim of another worker.
    bool confirm_before_start(active_job& job) const {
        std::uint32_t number = 0;
        while (is_expired(job, number)) {
            const result<bool> ours = query(job, worker_.try_deadline());
            if (!ours) await_beat(worker_.try_deadline());  // it may renew the lease, by name
            if (ours ? *ours : !is_expired(job, number)) break;
            const unique_lock held(worker_.guard);
            if (job.lose(number)) return false;
        }
        return true;
    }
    // Whether to report a job after its lease: as the backend says; yes if it cannot say. False: it is lost.
    result<bool> confirm_before_report(active_job& job, int& stray_responses) const {
        std::uint32_t number = 0;
        while (is_expired(job, number)) {
            {
                const unique_lock held(worker_.guard);
                worker_.request_beat_soon();
            }
            const result<bool> ours = query(job, worker_.try_deadline());
            if (!ours && !is_not_served(ours.error(), stray_responses)) return ours.error();
            if (!ours || *ours) break;
            const unique_lock held(worker_.guard);
            if (job.lose(number)) return false;
        }
        return true;
    }

    // Of these, which the worker has claimed, keeps those that are not in progress here already. The guard is held.
    void take_known(std::vector<ojs::job>& claimed, const lease_time& from,
                    std::vector<ojs::job>& known) const {
        std::size_t others = 0;
        for (ojs::job& candidate : claimed) {
            bool is_known = false;
            for (const ref<work>& each : worker_.in_flight) {
                if (each->job.id == candidate.id)
                    is_known = as_job(each).claim_again(candidate, from) || is_known;
            }
            ojs::job& place = is_known ? known.emplace_back() : claimed[others++];
            if (&place != &candidate) swap(place, candidate);
        }
        claimed.resize(others);
        if (!known.empty()) worker_.retry_reports();  // an ACK that waits for its next try
    }

    // The backend has cancelled these, or given them to others, in whose case nothing is reported.
    void revoke(const ref<active_job>& job) const {
        {
            const unique_lock held(worker_.guard);
            if (job->is_taken || !job->cancel_alone(cancel_reason::revoked)) return;
            worker_.check_soon(job->cancelled_at + worker_.options.stuck_after);
        }
        worker_.deliver_cancellation(ref<work>(job.get()));
        worker_.log.write({log_level::info, "job cancelled by its backend", job_fields(*job), {}});
    }
    void revoke_by_id(const std::string& id) const {
        for (const ref<work>& each : worker_.works()) {
            if (each->job.id == id) revoke(ref<active_job>(&as_job(each)));
        }
    }
    // False: it was claimed again since its claim was `number`.
    bool lose(const ref<active_job>& job, std::uint32_t number) const {
        {
            const unique_lock held(worker_.guard);
            if (!job->lose(number)) return false;
            worker_.retry_reports();
        }
        revoke(job);
        return true;
    }

  private:
    static constexpr int max_strays = 6;  // responses that may be a proxy's

    bool is_expired(const active_job& job, std::uint32_t& number) const noexcept {
        const unique_lock held(worker_.guard);
        number = job.claims;
        return job.lease_expired();
    }
    static bool is_not_served(const error& failure, int& strays) noexcept {
        const bool is_stray = failure.http_status == 404 || failure.http_status == 405;
        return (is_stray && ++strays >= max_strays) || is_inconclusive(failure.code);
    }
    // Waits until a new heartbeat has ended; concurrent callers share one.
    void await_beat(time_point deadline) const {
        unique_lock held(worker_.guard);
        const std::uint64_t number = worker_.beats.begun + 1;
        worker_.request_beat(time_point::min());
        const auto has_ended = [&] { return worker_.beats.begun >= number && !worker_.beats.is_unanswered; };
        while (!has_ended() && worker_.beats.last_due_at == never &&
               worker_.changed.wait_until(held, deadline)) {
        }
    }

    worker_state& worker_;
};

}  // namespace ojs::detail
