// fetcher: fetches jobs, and reports at once those that cannot run here.
#pragma once

#include "call_threads.ipp"

namespace ojs::detail {

// Holds jobs of types without a handler. All jobs of a type go back together, after a back-off that doubles
// from 100 ms to 5 s, so that many of them do not make FETCHes more frequent. Remembers 64 types; all others
// share the back-off of the last. Thread-safe.
class unknown_types {
  public:
    explicit unknown_types(mutex& guard) : mutex_(guard) {}

    // Returns when a job goes back. `is_first`: the first of its type.
    time_point schedule_hand_back(const std::string& type, time_point now, bool& is_first) {
        const unique_lock held(mutex_);
        std::size_t i = 0;
        while (i < entries_.size() && entries_[i].type != type && i + 1 < max_types) ++i;
        is_first = i == entries_.size();
        if (is_first) entries_.push_back({type, now, {}});
        entry& found = entries_[i];
        if (now >= found.hand_back_at) {
            const bool is_recent = now < found.hand_back_at + max_backoff;
            found.backoff = is_recent ? detail::max(min_backoff, detail::min(found.backoff * 2, max_backoff))
                                      : min_backoff;
            found.hand_back_at = now + found.backoff;
        }
        return found.hand_back_at;
    }

  private:
    struct entry {
        std::string type;
        time_point hand_back_at;
        std::chrono::milliseconds backoff{0};
    };
    static constexpr std::size_t max_types = 64;
    static constexpr std::chrono::milliseconds min_backoff{100};
    static constexpr std::chrono::milliseconds max_backoff{5000};

    mutex& mutex_;
    array<entry> entries_;
};

// Thread-safe: FETCHes may overlap.
class fetcher {
  public:
    fetcher(worker_context& worker, array<ref<registered_handler>> handlers, call_threads& calls)
        : worker_(worker), handlers_(std::move(handlers)), calls_(calls), unknown_(worker.state.guard) {}

    // Sends one FETCH and returns the number of claimed jobs. Those not in `runnable` are being reported. Sets `extent`
    // to that of the least complete job.
    result<std::size_t> fetch(std::size_t count, const cancel_token& until, job_queue& runnable,
                              job_extent& extent) {
        drain_barrier::ticket ticket = worker_.claims.enter();
        if (!ticket) return error{errc::cancelled, 0, "the worker no longer fetches"};
        const time_point sent = steady_clock::now();
        const lease_time leased = lease_time::now();
        worker_.fetches.fetch_add(1);
        result<std::vector<job>> response = error{errc::unavailable, ENOMEM, "out of memory"};
        retry_allocation([&] { response = send_fetch(count, until, sent); });
        const bool was_sent = response || response.error().code != errc::cancelled;
        const std::size_t claimed =
            response ? accept(std::move(*response), {sent, leased}, ticket, runnable, extent) : 0;
        worker_.fetches.fetch_sub(1);
        if (worker_.fetch_pauses.load() > 0) worker_.reports.retry_now();
        const fetch_status status = !response     ? fetch_status::failed
                                    : claimed > 0 ? fetch_status::jobs
                                                  : fetch_status::empty;
        if (was_sent)
            worker_.user.notify_extensions(
                [status](worker_extension& extension) { extension.on_fetch(status); });
        if (response) worker_.backend.note_response();
        worker_.note_response(response, sent);
        worker_.leave(ticket);
        return response ? result<std::size_t>(claimed) : response.error();
    }

    bool is_work_announced() const noexcept { return is_work_announced_; }  // after the latest FETCH
    // The number of held jobs, see hold_or_report().
    std::size_t held_jobs() const noexcept { return held_jobs_; }
    void hand_back(const ref<active_job>& job) {
        job_report report = worker_.stage.has_stop_begun() ? unstarted(worker_) : unstartable(worker_, *job);
        held_jobs_.fetch_sub(1);
        report_unstarted(job, std::move(report));
    }

  private:
    struct claim_time {
        time_point steady;
        lease_time lease;
    };

    result<std::vector<job>> send_fetch(std::size_t count, const cancel_token& until, time_point sent) {
        const std::uint32_t version = worker_.queues.version();
        worker_identity identity;  // with the open queues, if any was ever paused
        fetch_request request;
        request.worker = &worker_.identity;
        if (version != 0) {
            identity = worker_.identity;
            identity.queues = worker_.queues.unpaused();
            request.worker = &identity;
        }
        if (request.worker->queues.empty()) return error{errc::cancelled, 0, "every queue is paused"};
        request.count = count;
        request.until = until;
        request.should_send = [this, version] {
            return worker_.stage.may_fetch() && worker_.queues.version() == version &&
                   worker_.fetch_pauses.load() == 0;
        };
        return worker_.backend.call([&](ojs::transport& transport) {
            result<std::vector<job>> fetched =
                transport.fetch(request, sent + worker_.options.request_timeout);
            is_work_announced_ = transport.announces_work();
            return fetched;
        });
    }

    // Skips duplicates, of which a stop may already report the first. Returns the number of jobs.
    std::size_t accept(std::vector<job> claimed, const claim_time& sent, const drain_barrier::ticket& ticket,
                       job_queue& runnable, job_extent& extent) {
        job_queue added;
        drop_known(claimed, sent.lease);
        for (job& job : claimed) {
            if (job.extent > extent) extent = job.extent;
            if (job.id.empty()) {
                record_unreportable(job);
            } else if (!added.has(job.id)) {
                make_active(job, sent, ticket, added);
            }
        }
        if (!retry_allocation([&] { worker_.jobs.add(added); })) return drop_unreportable(added);
        worker_.tally.count_claimed(added.size());
        const std::size_t count = added.size();
        while (!added.empty()) {
            ref<active_job> job = added.pop();
            worker_.beats.request_renewal(sent.steady, job->lease);
            log_job(worker_, *job, log_level::debug, "job fetched");
            bool runs = false;
            if (retry_allocation([&] { runs = report_unless_runnable(job); }) && runs)
                runnable.push(std::move(job));
        }
        return count;
    }

    void make_active(job& claimed, const claim_time& sent, const drain_barrier::ticket& ticket,
                     job_queue& added) {
        ref<active_job> job;
        const auto make = [&] {
            job = make_ref<active_job>(
                std::move(claimed), sent.steady, sent.lease, worker_.options.visibility_timeout,
                claimed.malformed.empty() ? find_handler(handlers_, claimed.type) : ref<registered_handler>(),
                worker_.group);
        };
        if (!retry_allocation(make)) return record_unreportable(claimed);
        job->ticket = ticket.split();
        added.push(std::move(job));
    }

    // As the next two: false, it is held or being reported.
    bool report_unless_runnable(const ref<active_job>& job) {
        if (worker_.stage.has_stop_begun()) return report_unstarted(job, unstarted(worker_));
        if (job->job.extent == job_extent::too_large)
            return report_unstarted(job, failed({"invalid_payload", job->job.malformed, false, "{}"}));
        if (!job->handler) return hold_or_report(job);
        return true;
    }
    // Held, because the only worker would fetch it again at once. It takes no slot (free_slots()): others need not
    // wait.
    bool hold_or_report(const ref<active_job>& job) {
        const std::string& fault = job->job.malformed;
        if (fault.empty() && worker_.options.on_unknown_type != unknown_type_action::requeue)
            return report_unstarted(job, unstartable(worker_, *job));
        bool is_first = false;
        const time_point hand_back_at =
            unknown_.schedule_hand_back(fault.empty() ? job->job.type : "", steady_clock::now(), is_first);
        if (!fault.empty()) {
            log_job(worker_, *job, log_level::error, "the job cannot be read; it is requeued",
                    unstartable(worker_, *job));
        } else if (is_first) {
            constexpr const char* fix =
                "register a handler, serve the type from a queue of its own, or set OJS_ON_UNKNOWN_TYPE";
            worker_.log.write(log_level::warn, "no handler for this job type; its jobs are requeued",
                              {field("job_type", printable(job->job.type)), field("job_id", job->job.id),
                               field("fix", fix)});
        }
        held_jobs_.fetch_add(1);
        job->set_hand_back_at(hand_back_at);
        worker_.supervisor.notify();  // it hands the job back when due, or at once in a drain
        return false;
    }
    bool report_unstarted(const ref<active_job>& job, job_report report) {
        if (job->take()) calls_.report(job, std::move(report));
        return false;
    }

    std::size_t drop_unreportable(job_queue& jobs) {
        for (; !jobs.empty(); jobs.pop()) record_unreportable(jobs.front().job);
        return 0;
    }
    // A job without an id, or without memory for it, comes back after its visibility timeout.
    void record_unreportable(const job& claimed) {
        if (!claimed.id.empty()) return worker_.tally.add_unreported(claimed.id);
        const std::string reason = claimed.malformed.empty() ? "the job has no id" : claimed.malformed;
        worker_.tally.add_unreported(cat({"(", reason, ")"}));
        worker_.log.write(log_level::error, "claimed job has no usable id; it cannot be reported",
                          {field("job_type", printable(claimed.type)), field("error", reason)});
    }

    // A job whose lease ran out can be claimed again while it runs or is reported here: it is not run twice.
    void drop_known(std::vector<job>& claimed, const lease_time& leased) {
        if (worker_.jobs.size() == 0) return;
        const std::size_t left = worker_.jobs.claim_again(claimed, leased);
        if (left == claimed.size()) return;
        worker_.reports.retry_now();  // an ACK that waits for its next try
        for (; claimed.size() > left; claimed.pop_back()) {
            attempt([&] {
                worker_.log.write(
                    log_level::warn,
                    "the backend handed out a job that is still running here; not started twice",
                    {field("job_id", claimed.back().id), field("attempt", claimed.back().attempt)});
            });
        }
    }

    worker_context& worker_;
    const array<ref<registered_handler>> handlers_;
    call_threads& calls_;
    atomic<std::size_t> held_jobs_{0};
    atomic<bool> is_work_announced_{false};
    unknown_types unknown_;
};

}  // namespace ojs::detail
