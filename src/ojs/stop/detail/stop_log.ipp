// stop_log: writes the log records about phases, the stop, and the jobs or items that delay it.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../core/signals.hpp"
#include "../loop_options.hpp"
#include "work.ipp"

namespace ojs::detail {

class stop_log {
  public:
    stop_log(const logger& log, const loop_options& options) : log_(log), options_(options) {}

    void write_started(std::string message, const worker_identity& self, const std::string& url,
                       const std::vector<std::string>& job_types) const {
        log_.write(log_level::info, message,
                   {field("pid", self.pid), field("url", url), field("queues", join_names(self.queues)),
                    field("concurrency", self.concurrency), field("job_types", join_names(job_types)),
                    field("grace_period", format_duration(options_.times.shutdown_grace_period))});
    }

    void write_change(ojs::phase before, const lifecycle_state& after, std::size_t active) const {
        const bool grace_expired = after.last_event == event::grace_expired;
        std::vector<log_field> fields = {field("phase", to_string(after.phase)),
                                         field("before", to_string(before)),
                                         field("event", to_string(after.last_event)),
                                         field("mode", to_string(after.mode)), field("active_jobs", active)};
        // Caused by the worker's own jobs, not by a request.
        const bool is_internal =
            grace_expired || after.last_event == event::drained || after.last_event == event::finished;
        if (!is_internal) add_cause(after.cause, fields);
        log_.write({grace_expired ? log_level::warn : log_level::info,
                    before == after.phase ? "stop escalated" : "phase changed",
                    std::move(fields),
                    {}});
    }

    // In the words of the controller guide. [Spot]
    void write_grace_period(const cause& cause) const {
        const std::chrono::milliseconds grace = options_.times.shutdown_grace_period;
        const std::string until =
            grace == no_limit ? "" : cat({" (until ", utc_seconds(wall_clock_ms() + grace.count()), ")"});
        log_.write(log_level::info, cat({"Received ", signal_name(cause.signal),
                                         ". Grace period: ", in_seconds(grace), until}));
    }
    void write_reclaim(bool named) const {
        const std::string& file = options_.termination_mode_file;
        log_.write(log_level::warn, cat({"Spot instance reclamation detected",
                                         named ? cat({" (SIGUSR1 or ", file, "=SPOT_RECLAIM)"}) : ""}));
        log_.write(log_level::warn, "Initiating immediate shutdown to requeue job before VM termination");
    }

    // Names the jobs that delay the drain, and how long they have run. [GS-R003]
    void write_progress(const work_list& active, time_point deadline, time_point now) const {
        std::vector<std::string> jobs;
        std::vector<std::string> types;
        for (const ref<work>& each : active) {
            jobs.push_back(
                cat({printable(each->job.id, 64), ":", milliseconds_since(each->since) / 1000, "s"}));
            const std::string& type = each->job.type;
            if (!type.empty() && !contains(types, type)) types.push_back(type);
        }
        std::vector<log_field> fields = {field("active_jobs", jobs.size()), field("jobs", join_names(jobs)),
                                         field("job_types", join_names(types))};
        if (deadline != never)
            fields.push_back(field("grace_left_ms", deadline > now ? -milliseconds_since(deadline) : 0));
        log_.write({log_level::info, "draining", std::move(fields), {}});
    }

    void write_third_signal(const cause& cause, const work_list& left, std::size_t fetches) const {
        log_.write(
            log_level::error, "third stop signal: exiting immediately",
            {field("signal", signal_name(cause.signal)), field("unreported_jobs", left.size()),
             field("unanswered_fetches", fetches), field("job_ids", join_names(ids_of(left), left.size()))});
    }
    void write_stopped(std::string message, int status, const lifecycle_state& state,
                       const worker_report& report, std::uint64_t unreported,
                       time_point draining_since) const {
        const bool signalled = state.cause.kind == cause_kind::signal;
        std::vector<log_field> fields = {
            field("status", status),
            field("claimed", report.claimed),
            field("completed", report.completed),
            field("failed", report.failed),
            field("interrupted", report.interrupted),
            field("requeued", report.requeued),
            field("gone", report.gone),
            field("unreported", unreported),
            field("uptime_ms", milliseconds_since(started_)),
            field("stop_ms", milliseconds_since(draining_since)),
            field("mode", to_string(state.mode)),
            field("cause", signalled ? signal_name(state.cause.signal) : to_string(state.cause.kind))};
        std::string steps;  // "flush: done, close: timed out"
        for (const step_result& step : report.steps)
            append(steps, {steps.empty() ? "" : ", ", step.name, ": ", to_string(step.status)});
        if (!steps.empty()) fields.push_back(field("steps", steps));
        log_.write({log_level::info, std::move(message), std::move(fields), {}});
    }

  private:
    static void add_cause(const cause& cause, std::vector<log_field>& fields) {
        fields.push_back(field("cause", to_string(cause.kind)));
        if (cause.kind != cause_kind::signal) return;
        const received_signal last = last_signal(cause.signal);
        fields.push_back(field("signal", signal_name(cause.signal)));
        fields.push_back(field("sender_pid", last.sender_pid));
        fields.push_back(field("sender_uid", last.sender_uid));
        if (!last.sender_name.empty()) fields.push_back(field("sender", last.sender_name));
    }

    // "3550s", as the controller guide writes it, or "1500ms".
    static std::string in_seconds(std::chrono::milliseconds duration) {
        const long long ms = duration.count();
        if (duration == no_limit || ms % 1000 != 0) return format_duration(duration);
        return cat({ms / 1000, "s"});
    }
    // "2026-01-02T03:04:05Z"
    static std::string utc_seconds(std::int64_t ms_since_1970) {
        std::string out = utc_text(ms_since_1970);
        return out.replace(out.find('.'), std::string::npos, "Z");
    }

    const logger& log_;
    const loop_options& options_;
    const time_point started_ = steady_clock::now();
};

}  // namespace ojs::detail
