// fetcher: fetches jobs, and reports at once those that cannot run here.
#pragma once

#include "../reports/settlement.ipp"

namespace ojs::detail {

// How long jobs of types without a handler are held. All jobs of a type go back together, after a back-off
// that doubles from 100 ms to 5 s: their number does not make FETCHes more frequent. Remembers 64 types; all
// others share the back-off of the last. Thread-safe.
class unknown_types {
  public:
    // Returns when a job goes back. `is_first`: of its type.
    time_point next(const std::string& type, time_point now, bool& is_first) {
        const unique_lock held(mutex_);
        std::size_t i = 0;
        while (i < entries_.size() && entries_[i].type != type && i + 1 < max_types) ++i;
        is_first = i == entries_.size();
        if (is_first) entries_.push_back({type, now, {}});
        entry& found = entries_[i];
        if (now >= found.hand_back_at) {
            const bool soon = now < found.hand_back_at + max_pause;
            found.pause = soon ? detail::max(min_pause, detail::min(found.pause * 2, max_pause)) : min_pause;
            found.hand_back_at = now + found.pause;
        }
        return found.hand_back_at;
    }

  private:
    struct entry {
        std::string type;
        time_point hand_back_at;
        std::chrono::milliseconds pause{0};
    };
    static constexpr std::size_t max_types = 64;
    static constexpr std::chrono::milliseconds min_pause{100};
    static constexpr std::chrono::milliseconds max_pause{5000};

    mutex mutex_;
    array<entry> entries_;
};

// Thread-safe: FETCHes may overlap.
class fetcher {
  public:
    fetcher(worker_context& worker, array<ref<registered_handler>> handlers, ref<job_group> group,
            report_queue& reports)
        : worker_(worker), handlers_(std::move(handlers)), group_(std::move(group)), reports_(reports) {}

    // One FETCH. Returns how many jobs came, and in `runnable` those to run; the others are being reported.
    result<std::size_t> fetch(std::size_t count, job_queue& runnable) {
        drain_barrier::ticket ticket = worker_.claims.enter();
        if (!ticket) return error{errc::cancelled, 0, "the intake is closed"};
        const time_point sent = steady_clock::now();
        worker_.fetches.fetch_add(1);
        result<std::vector<job>> answer = error{errc::unavailable, ENOMEM, "out of memory"};
        insist([&] { answer = ask(count, sent); });
        const bool sent_at_all = answer || answer.error().code != errc::cancelled;
        const std::size_t came = answer ? accept(std::move(*answer), sent, ticket, runnable) : 0;
        worker_.fetches.fetch_sub(1);
        const fetch_status status = !answer    ? fetch_status::failed
                                    : came > 0 ? fetch_status::jobs
                                               : fetch_status::empty;
        if (sent_at_all) worker_.user.tell_parts([status](worker_part& part) { part.on_fetch(status); });
        if (answer) worker_.backend.note_answer();
        worker_.leave(ticket);
        return answer ? result<std::size_t>(came) : answer.error();
    }

    // Of jobs whose types have no handler: see take_unknown().
    std::size_t held() const noexcept { return held_; }
    void hand_back(const ref<active_job>& job) {
        verdict report = worker_.stage.past_intake() ? handed_back(worker_) : of_unknown_type(worker_, *job);
        held_.fetch_sub(1);
        report_unstarted(job, std::move(report));
    }

  private:
    result<std::vector<job>> ask(std::size_t count, time_point sent) {
        const std::uint32_t version = worker_.queues.version();
        worker_identity asking;  // with the queues that are open, where any was ever paused
        fetch_request request;
        request.worker = &worker_.identity;
        if (version != 0) {
            asking = worker_.identity;
            asking.queues = worker_.queues.open();
            request.worker = &asking;
        }
        if (request.worker->queues.empty()) return error{errc::cancelled, 0, "every queue is quiet"};
        request.count = count;
        request.still_wanted = [this, version] {
            return worker_.stage.may_fetch() && worker_.queues.version() == version;
        };
        return worker_.backend.call([&](ojs::transport& transport) {
            return transport.fetch(request, sent + worker_.options.request_timeout);
        });
    }

    // Claimed jobs become active ones, all of them before the first is reported: so one that an answer holds
    // twice is known the second time. Returns how many there were.
    std::size_t accept(std::vector<job> claimed, time_point sent, const drain_barrier::ticket& ticket,
                       job_queue& runnable) {
        job_queue came;
        for (job& each : claimed) {
            if (each.id.empty()) {
                name_unreportable(each);
            } else if (!renews_open_job(each, sent)) {
                take_in(each, sent, ticket, came);
            }
        }
        const std::size_t count = came.size();
        while (!came.empty()) {
            ref<active_job> job = came.pop();
            bool runs = false;
            if (insist([&] { runs = can_run(job); }) && runs) runnable.push(std::move(job));
        }
        return count;
    }

    void take_in(job& claimed, time_point sent, const drain_barrier::ticket& ticket, job_queue& came) {
        ref<active_job> job;
        const auto make = [&] {
            job = make_ref<active_job>(std::move(claimed), sent, worker_.options.visibility_timeout,
                                       find_handler(handlers_, claimed.type), group_);
        };
        if (!insist(make)) return name_unreportable(claimed);
        job->ticket = ticket.split();
        worker_.jobs.add(*job);
        worker_.beats.cover(sent, job->lease);
        worker_.tally.note_claimed();
        attempt([&] { log_job(worker_, *job, log_level::debug, "job fetched"); });
        came.push(std::move(job));
    }

    // False: it is being reported.
    bool can_run(const ref<active_job>& job) {
        if (worker_.stage.past_intake()) return report_unstarted(job, handed_back(worker_));
        if (!job->job.malformed.empty())
            return report_unstarted(job, failed({"invalid_payload", job->job.malformed, false, "{}"}));
        if (!job->handler) return take_unknown(job);
        warn_if_too_long(*job);
        return true;
    }
    // Held before it goes back: a lone worker would fetch it again at once. A held job takes no slot (see
    // free_slots()), so that no other job waits, as it would during a pause between FETCHes.
    bool take_unknown(const ref<active_job>& job) {
        if (worker_.options.unknown_type != unknown_type_action::requeue)
            return report_unstarted(job, of_unknown_type(worker_, *job));
        bool is_first = false;
        const time_point hand_back_at = unknown_.next(job->job.type, steady_clock::now(), is_first);
        if (is_first) {
            constexpr const char* fix =
                "register a handler, serve the type from a queue of its own, or set OJS_UNKNOWN_TYPE";
            worker_.log.write(log_level::warn, "no handler for this job type; its jobs are handed back",
                              {field("job_type", printable(job->job.type)), field("job_id", job->job.id),
                               field("fix", fix)});
        }
        held_.fetch_add(1);
        job->hold_until(hand_back_at);
        worker_.supervisor.notify();  // which hands it back, in a drain at once
        return false;
    }
    bool report_unstarted(const ref<active_job>& job, verdict report) {
        if (job->take()) reports_.add(job, std::move(report));
        return false;
    }

    // A job that may be interrupted by any stop, as its own time is longer than the grace period; once a
    // type. [GS 6.2, 7.2]
    void warn_if_too_long(const active_job& job) {
        const std::chrono::milliseconds grace = worker_.options.times.shutdown_grace_period;
        if (job.job.timeout <= grace || job.handler->options.long_running) return;
        if (job.handler->warned_too_long.exchange(true)) return;
        constexpr const char* fix =
            "raise the grace period and the container's, or register it as long_running and save checkpoints";
        worker_.log.write(
            log_level::warn, "jobs of this type may take longer than the grace period",
            {field("job_type", printable(job.job.type)), field("timeout_ms", job.job.timeout.count()),
             field("grace_period", format_duration(grace)), field("fix", fix)});
    }

    // Without an id or memory it cannot be reported; it comes back after its visibility timeout.
    void name_unreportable(const job& claimed) {
        worker_.tally.note_claimed();
        if (!claimed.id.empty()) return worker_.tally.name_unreported(claimed.id);
        const std::string why = claimed.malformed.empty() ? "the job has no id" : claimed.malformed;
        worker_.tally.name_unreported(cat({"(", why, ")"}));
        worker_.log.write(log_level::error, "job could not be reported",
                          {field("job_type", printable(claimed.type)), field("error", why)});
    }

    // The claim of a job had run out, and the job came again while it still runs here: it is not run twice.
    bool renews_open_job(const job& claimed, time_point sent) {
        bool known = false;
        worker_.jobs.each_of(claimed.id, [&](active_job& job) {
            if (job.taken()) return;
            job.extend_lease(sent);
            known = true;
        });
        if (known) {
            attempt([&] {
                worker_.log.write(log_level::warn, "a job that runs here was claimed again",
                                  {field("job_id", claimed.id)});
            });
        }
        return known;
    }

    worker_context& worker_;
    const array<ref<registered_handler>> handlers_;
    const ref<job_group> group_;
    report_queue& reports_;
    atomic<std::size_t> held_{0};
    unknown_types unknown_;
};

}  // namespace ojs::detail
