// machine_log: the log records about phases, the stop, and the jobs or items that delay it.
#pragma once

#include "../../core/signals.hpp"
#include "../../host/container.ipp"
#include "../../host/termination_mode.hpp"
#include "../loop_options.ipp"
#include "machine_state.ipp"

namespace ojs::detail {
inline void write_finding(const logger& log, std::string_view id, std::string_view problem, std::string_view fix) {
    log.write(log_level::warn, problem, {field("finding", id), field("fix", fix)});
}

// Drain and reports must fit into the time from SIGTERM to SIGKILL. [GS 6.3]
inline void check_stop_time(const logger& log, const loop_options& options, const stop_platform* platform,
                            milliseconds steps_timeout) {
    const milliseconds set = options.container_grace_period;
    const bool is_set = set.count() > 0;
    if (!is_set && platform == nullptr) return;
    const milliseconds granted = is_set ? set : platform->grant;
    const auto drain = capped_sum(options.times.shutdown_grace_period, options.prestop_delay);
    const auto reports =
        max<milliseconds>(std::chrono::seconds(5), capped_sum(options.times.stop_timeout, steps_timeout));
    if (drain < granted && capped_sum(drain, reports) <= granted) return;
    const char* const id = !is_set ? "budget-unknown" : drain >= granted ? "budget-exceeded" : "budget-tight";
    write_finding(log, id,
                  cat({"the drain (", format_duration(drain), ") and the reports after it (", format_duration(reports),
                       ") need more than the ", format_duration(granted), " that ",
                       is_set ? "the container grants" : cat({platform->name, " grants by default"})}),
                  cat({"grant the container ", format_duration(capped_sum(drain, reports)),
                       ", set OJS_CONTAINER_GRACE_PERIOD to that, or lower OJS_SHUTDOWN_GRACE_PERIOD"}));
}

inline void check_parents(const logger& log, const container_info& info, const container_probe& probe) {
    const process_facts self = read_process(probe.root, "self");
    // The /proc of another PID namespace does not show our ancestors. [GS 4.3]
    const bool is_ours = self.pid == (probe.pid != 0 ? probe.pid : getpid());
    const process_facts found = info.in_container && is_ours ? find_wrapper(probe.root, self) : process_facts();
    const char* const effect = is_named(found, shell_names) ? "a shell, which does not" : "which may not";
    if (found.pid != 0)
        write_finding(log, "pid1-wrapper",
                      cat({"the container starts the worker by '", printable(found.comm, 64), "', ", effect,
                           " pass signals on: SIGTERM may not reach the worker"}),
                      "write the command in exec form, begin it with exec, or run it under an init such as tini");
}

inline void warn_at_start(const logger& log, const loop_options& options, milliseconds steps_timeout,
                          const container_probe& probe = {}) {
    const container_info info = detect_container(probe);
    check_parents(log, info, probe);
    check_stop_time(log, options, info.platform, steps_timeout);
    bool is_well = info.platform == nullptr || info.platform->id != std::string_view("kubernetes");
    for (const worker_extension_factory& each : options.extensions) is_well = is_well || each.name == "ops";
    if (!is_well)
        log.write(log_level::info, "there is no health server: the pod's probes would fail",
                  {field("finding", "health-kubernetes"),
                   field("fix", "for probes, add ojs::ops() of ojs_ops.hpp, and set OJS_HEALTH_ADDR=[::]:8081")});
}

inline void log_step(const logger& log, const step_result& result) {
    log_record record{log_level::debug, "shutdown step started", {field("step", result.name)}, {}, "sequence"};
    if (result.status != step_status::running) {
        const bool done = result.status == step_status::done;
        record.level = done ? log_level::info : log_level::error;
        record.message = done ? "shutdown step finished" : "shutdown step failed";
        record.fields.push_back(field("status", to_string(result.status)));
        record.fields.push_back(field("took_ms", result.took.count()));
    }
    if (!result.error.empty()) record.fields.push_back(field("error", result.error));
    log.write(std::move(record));
}

// In the words of the controller guide.
inline std::string describe_stop(const termination_mode& mode) {
    return cat({mode.found, !mode.is_reclaim() ? ", using graceful shutdown"
                            : mode.evidence == termination_evidence::reclaim
                                ? ", treating as spot instance reclaim"
                                : ", defaulting to spot instance reclaim mode"});
}

// For the turning thread, but for fields_of().
class machine_log : public machine_state {
  public:
    // Why it does not start; returns the exit status.
    int report_start(const error& failure) const {
        const log_options& to = settings.log;
        if (!to.hook && to.format != log_format::json && to.format != log_format::logfmt)
            return report_startup_error(failure);
        log.write(log_level::error, "cannot start", {field("error", failure.text)});
        return start_status(failure);
    }

  protected:
    // `thing` is "job" or "item"; `unreported` says that one is left at the end.
    machine_log(const loop_options& given, const char* name, lifecycle* followed, const char* thing,
                const char* unreported)
        : machine_state(given, name, followed), unreported_(unreported), thing_(thing) {}

    virtual std::vector<log_field> fields_of(const work& one) const = 0;
    virtual std::vector<log_field> in_flight_fields(const work& one) const { return fields_of(one); }

    void log_started() const {
        log.write(log_level::info, cat({component, " started"}),
                  {field("pid", identity.pid), field("url", backend_url), field("queues", join_names(identity.queues)),
                   field("concurrency", identity.concurrency), field("job_types", join_names(job_types)),
                   field("grace_period", format_duration(settings.times.shutdown_grace_period)),
                   field("grace_from", settings.times.shutdown_grace_period == settings.platform_grace.grace
                                           ? settings.platform_grace.platform
                                           : "")});
    }
    // Java, Go or libuv, which a handler may load, install their own.
    void check_signal_handlers() {
        const std::string lost = drives_signals(phases.signalled()) ? replaced_signals() : "";
        if (!lost.empty())
            log.write(log_level::error, "signals no longer reach this worker or loop: their handlers were replaced",
                      {field("signals", lost), field("fix", "keep libraries from handling signals (Java: -Xrs)")});
    }
    void log_change(ojs::phase before) const {
        const bool is_late = seen_.last_event == event::grace_expired;
        std::vector<log_field> fields = {field("phase", to_string(seen_.phase)), field("before", to_string(before)),
                                         field("event", to_string(seen_.last_event)),
                                         field("mode", to_string(seen_.mode)), field("active_jobs", active())};
        const bool is_asked = !is_late && seen_.last_event != event::drained && seen_.last_event != event::finished;
        if (is_asked) fields.push_back(field("cause", to_string(seen_.cause.kind)));
        if (is_asked && seen_.cause.kind == cause_kind::signal) {
            const received_signal last = last_signal(seen_.cause.signal);
            fields.insert(fields.end(),
                          {field("signal", signal_name(seen_.cause.signal)), field("sender_pid", last.sender_pid),
                           field("sender_uid", last.sender_uid), field("sender", last.sender_name)});
        }
        const char* const text = before == seen_.phase ? "stop escalated" : "phase changed";
        log.write({is_late ? log_level::warn : log_level::info, text, std::move(fields), {}});
    }
    // These two in the words of the controller guide. [Spot]
    void log_grace_period(const cause& why) const {
        const milliseconds grace = settings.times.shutdown_grace_period;
        std::string text = cat({"Received ", signal_name(why.signal), ". Grace period: "});
        if (grace == no_limit) return log.write(log_level::info, text + format_duration(grace));
        const std::string until = utc_text(wall_clock_ms() + grace.count());  // 2026-01-02T03:04:05.678Z
        log.write(log_level::info, cat({text, grace.count() / 1000, "s (until ", until.substr(0, 19), "Z)"}));
    }
    void log_reclaim(bool is_named) const {
        const std::string name = cat({" (SIGUSR1 or ", settings.termination_mode_file, "=SPOT_RECLAIM)"});
        log.write(log_level::warn, cat({"Spot instance reclamation detected", is_named ? name : ""}));
        log.write(log_level::warn, "Initiating immediate shutdown to requeue job before VM termination");
    }
    // What delays the drain, and for how long. [GS-R003]
    void log_progress(time_point now) const {
        std::vector<std::string> jobs;
        std::vector<std::string> types;
        for (const ref<work>& each : works()) {
            const std::string& type = each->job.type;
            jobs.push_back(cat({printable(each->job.id, 64), ":", milliseconds_since(each->since) / 1000, "s"}));
            if (!type.empty() && !contains(types, type)) types.push_back(type);
        }
        const time_point ends = phases.drain_deadline();
        const text_part left_ms = ends > now ? -milliseconds_since(ends) : 0;
        log.write(log_level::info, "draining",
                  {field("active_jobs", jobs.size()), field("jobs", join_names(jobs)),
                   field("job_types", join_names(types)), field("grace_left_ms", ends == never ? "" : left_ms)});
    }
    void log_third_signal(const cause& why) const {
        const std::vector<std::string> left = ids_of(works());
        log.write(log_level::error, "third stop signal: exiting immediately",
                  {field("signal", signal_name(why.signal)), field("unreported_jobs", left.size()),
                   field("unanswered_fetches", fetches), field("job_ids", join_names(left, left.size()))});
    }
    void log_in_flight() const {  // SIGTTIN
        const work_list all = works(true);
        log.write_requested(cat({thing_, "s in flight"}), {field("phase", to_string(phases.now())),
                                                           field(cat({"active_", thing_, "s"}), all.size())});
        for (const ref<work>& each : all) log.write_requested(cat({thing_, " in flight"}), in_flight_fields(*each));
    }
    void log_stopped(int status) const {
        const lifecycle_state state = phases.own.state();
        const bool is_signalled = state.cause.kind == cause_kind::signal;
        const worker_report done = report();
        std::string steps_text;  // "flush: done, close: timed out"
        for (const step_result& step : done.steps)
            append(steps_text, {steps_text.empty() ? "" : ", ", step.name, ": ", to_string(step.status)});
        log.write(log_level::info, cat({component, " stopped"}),
                  {field("status", status), field("claimed", done.claimed), field("completed", done.completed),
                   field("failed", done.failed), field("interrupted", done.interrupted),
                   field("requeued", done.requeued), field("gone", done.gone), field("unreported", unreported()),
                   field("uptime_ms", milliseconds_since(started_at_)),
                   field("stop_ms", milliseconds_since(draining_since_)), field("mode", to_string(state.mode)),
                   field("cause", is_signalled ? signal_name(state.cause.signal) : to_string(state.cause.kind)),
                   field("steps", steps_text)});
    }

    const char* const unreported_;
    lifecycle_state seen_;  // the change last acted on; the lifecycle itself may be ahead
    time_point draining_since_ = steady_clock::now();

  private:
    const char* const thing_;
    const time_point started_at_ = steady_clock::now();
};
}  // namespace ojs::detail
