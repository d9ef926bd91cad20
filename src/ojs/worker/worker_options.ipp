#pragma once

#include <unistd.h>

#include "../base/detail/signal_names.ipp"
#include "../base/detail/text.ipp"
#include "../core/signals.hpp"
#include "../host/container.ipp"
#include "../net/http_message.ipp"
#include "transport_scheme.ipp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline error invalid(std::string text) {
    return {errc::invalid_argument, 0, std::move(text)};
}

inline bool is_visible_ascii(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// A name in a variable is read without the white space around it, which is of the file that set it. A secret is taken as
// it is, or refused.
enum class text_kind { name, secret };

inline constexpr const char* white_space = " \t\n\v\f\r";

// Why a text is neither; null: it is.
inline const char* text_fault(std::string_view text, text_kind kind) noexcept {
    if (kind == text_kind::secret && trim_blanks(text, white_space) != text)
        return "begins or ends in white space (made by echo?)";
    return all_of(text, [](char c) { return !is_ascii_control(c); }) ? nullptr : "holds a control character";
}

inline constexpr const char* grace_variables =
    "OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD OJS_SHUTDOWN_TIMEOUT";

template <class Value>
struct choice {
    const char* name;
    Value value;
};
inline constexpr choice<dialect (*)()> presets[] = {{"graceful_shutdown", dialect::graceful_shutdown},
                                                    {"website", dialect::website},
                                                    {"worker_protocol", dialect::worker_protocol},
                                                    {"river", dialect::river},
                                                    {"spot_controller", dialect::spot_controller}};
inline constexpr choice<unknown_type_action> unknown_type_actions[] = {
    {"requeue", unknown_type_action::requeue},
    {"fail", unknown_type_action::fail},
    {"discard", unknown_type_action::discard}};
inline constexpr choice<log_level> log_levels[] = {{"debug", log_level::debug},
                                                   {"info", log_level::info},
                                                   {"warn", log_level::warn},
                                                   {"error", log_level::error},
                                                   {"off", log_level::off}};
inline constexpr choice<log_format> log_formats[] = {
    {"text", log_format::text}, {"logfmt", log_format::logfmt}, {"json", log_format::json}};
inline constexpr choice<bool> off_on[] = {{"off", false}, {"on", true}};
inline constexpr choice<bool> zero_one[] = {{"0", false}, {"1", true}};

template <class Options, class Visit>
void visit_log_options(Options& log, Visit& visit) {
    visit("log.level", "OJS_LOG_LEVEL", log.level, log_levels);
    visit("log.format", "OJS_LOG_FORMAT", log.format, log_formats);
}

// visit(name, variables, value, constraints) per option; the first set variable counts. A test checks docs/options.md.
template <class Options, class Visit>
void visit_options(Options& o, Visit& visit) {
    using namespace std::chrono_literals;
    visit("dialect", "OJS_DIALECT", o, presets);  // first, as it sets other options
    visit("url", "OJS_URL OJS_BACKEND_URL", o.url);
    visit("queues", "OJS_QUEUES OJS_QUEUE", o.queues);
    visit("concurrency", "OJS_CONCURRENCY", o.concurrency, 1, 1000);
    visit("times.shutdown_grace_period", grace_variables, o.times.shutdown_grace_period, 0ms, no_limit);
    visit("times.cancel_lead", "OJS_CANCEL_LEAD", o.times.cancel_lead, 0ms);
    visit("times.cancel_wait", "OJS_CANCEL_WAIT", o.times.cancel_wait, 0ms);
    visit("times.reclaim_wait", "OJS_RECLAIM_WAIT", o.times.reclaim_wait, 0ms);
    visit("times.stop_timeout", "OJS_STOP_TIMEOUT", o.times.stop_timeout, 100ms);
    visit("heartbeat_interval", "OJS_HEARTBEAT_INTERVAL", o.heartbeat_interval, 10ms);
    visit("poll_interval", "OJS_POLL_INTERVAL", o.poll_interval, 1ms);
    visit("visibility_timeout", "OJS_VISIBILITY_TIMEOUT", o.visibility_timeout, 1000ms);
    visit("request_timeout", "OJS_REQUEST_TIMEOUT", o.request_timeout, 10ms);
    visit("termination_mode_file", "OJS_TERMINATION_MODE_FILE OJS_TERMINATION_TYPE_FILE",
          o.termination_mode_file, text_kind::name);
    visit("stuck_after", "OJS_STUCK_AFTER", o.stuck_after, 10ms);
    visit("unknown_type", "OJS_UNKNOWN_TYPE", o.unknown_type, unknown_type_actions);
    visit("repeat_signal_gap", "OJS_REPEAT_SIGNAL_GAP", o.repeat_signal_gap, 0ms);
    visit("stop_signals", "OJS_STOP_SIGNALS", o.stop_signals);
    visit("progress_interval", "OJS_PROGRESS_INTERVAL", o.progress_interval, 10ms);
    visit("container_grace_period", "OJS_CONTAINER_GRACE_PERIOD", o.container_grace_period, 0ms);
    visit("prestop_delay", "OJS_PRESTOP_DELAY", o.prestop_delay, 0ms);
    visit("health_address", "OJS_HEALTH_ADDR", o.health_address);
    visit("health_control", "OJS_HEALTH_CONTROL", o.health_control, off_on);
    visit("health_token", "OJS_HEALTH_TOKEN", o.health_token, text_kind::secret);
    visit("labels", "OJS_LABELS", o.labels);
    visit("job_types", "OJS_JOB_TYPES", o.job_types, true);  // an operator may set an empty list
    visit("worker_id", "OJS_WORKER_ID", o.worker_id, text_kind::name);
    visit("auth_token", "OJS_AUTH_TOKEN", o.auth_token, text_kind::secret);
    visit_log_options(o.log, visit);
    visit("log.error_messages", "OJS_LOG_ERROR_MESSAGES", o.log.error_messages, zero_one);
    visit("registration_path", "OJS_REGISTRATION_PATH", o.registration_path);
}

inline std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> out;
    const std::string all = cat({text, ","});
    for (std::string_view rest = all; !rest.empty();)
        out.push_back(std::string(trim_blanks(next_part(rest, ","), white_space)));
    return out;
}

class environment_reader {
  public:
    explicit environment_reader(const environment_lookup& lookup) : lookup_(lookup) {}

    template <class Value, class... Constraints>
    void operator()(const char*, const char* variables, Value& out, const Constraints&... constraints) {
        if (is_set(variables)) note(parse(out, constraints...));
    }
    bool is_set(std::string_view variables) {
        is_secret_ = false;
        for (value_ = nullptr; value_ == nullptr && !variables.empty();) {
            name_ = std::string(next_part(variables, " "));
            value_ = find_variable(lookup_, name_.c_str());
        }
        return value_ != nullptr;
    }

    result<void> status;  // the first error

  private:
    using milliseconds = std::chrono::milliseconds;

    void note(const std::string& fault) {
        if (!status || fault.empty()) return;
        const std::string value = is_secret_ ? "" : cat({"='", redacted(value_), "'"});
        status = error{errc::invalid_argument, 0, cat({name_, value, ": ", fault})};
    }
    // Return what is wrong with the value; empty: nothing.
    std::string parse(std::string& out) {
        out = value_;
        return out.empty() ? "must not be empty" : "";
    }
    std::string parse(std::string& out, text_kind kind) {
        is_secret_ = kind == text_kind::secret && *value_ != '\0';
        out = is_secret_ ? value_ : std::string(trim_blanks(value_, white_space));
        const char* const fault = out.empty() ? "must not be empty" : text_fault(out, kind);
        return fault != nullptr ? fault : "";
    }
    std::string parse(std::vector<std::string>& out, bool may_be_empty = false) {
        const std::string_view names = trim_blanks(value_, white_space);
        out = names.empty() && may_be_empty ? std::vector<std::string>() : split_list(names);
        for (const std::string& name : out) {
            if (const char* const fault = text_fault(name, text_kind::name)) return cat({"a name ", fault});
        }
        return contains(out, "") ? "a name is missing" : "";
    }
    std::string parse(std::vector<int>& out) {
        out.clear();
        for (const std::string& name : split_list(value_)) {
            out.push_back(signal_number(name));
            if (out.back() == 0)
                return cat({"'", printable(name, 40),
                            "' is not a signal (write TERM, INT, HUP, QUIT, USR2, RTMIN+3 or a number)"});
        }
        return "";
    }
    std::string parse(milliseconds& out, milliseconds min, milliseconds /*max*/ = {}) {
        const result<milliseconds> parsed = parse_duration(value_);
        out = parsed.value_or(out);
        if (!parsed) return parsed.error().text;
        return out < min ? cat({"must be at least ", format_duration(min)}) : "";
    }
    std::string parse(std::int64_t& out, int min, int max) {
        std::uint64_t parsed = 0;
        const bool fits = parse_number(value_, static_cast<std::uint64_t>(max), parsed);
        out = static_cast<std::int64_t>(parsed);
        return fits && out >= min ? "" : cat({"not a whole number from ", min, " to ", max});
    }
    template <class Option, class Value, std::size_t count>
    std::string parse(Option& out, const choice<Value> (&choices)[count]) {
        std::string names;
        for (const choice<Value>& each : choices) {
            if (value_ == std::string_view(each.name)) return set(out, each.value), "";
            append(names, {" ", each.name});
        }
        return cat({"not one of:", names});
    }
    static void set(worker_options& out, ojs::dialect (*preset)()) { out.use(preset()); }
    template <class Value>
    static void set(Value& out, Value value) {
        out = value;
    }

    const environment_lookup& lookup_;
    std::string name_;  // of the last variable
    const char* value_ = nullptr;
    bool is_secret_ = false;  // the value must not be shown
};

// Collects the variables of the options, and adds those of other programs.
struct known_variables {
    array<std::string> names = {"OJS_LIFECYCLE_ADDR", "OJS_PROCESS_ID", "OJS_LAUNCHER_ADDR",
                                "OJS_SERVER_SHUTDOWN_TIMEOUT", "OJS_SPOOL_GROUP_WRITE"};

    template <class... Row>
    void operator()(const char*, std::string_view variables, Row&&...) {
        while (!variables.empty()) names.push_back(std::string(next_part(variables, " ")));
    }
};

// Counts negative values as 0 and returns the maximum instead of overflowing.
inline std::chrono::milliseconds capped_sum(std::chrono::milliseconds a,
                                            std::chrono::milliseconds b) noexcept {
    constexpr auto none = std::chrono::milliseconds::zero();
    a = detail::max(a, none);
    b = detail::max(b, none);
    return a > no_limit - b ? no_limit : a + b;
}

// The parts of stop_timeout: first for the last heartbeat, then for reporting cancelled handlers.
inline std::chrono::milliseconds last_beat_time(const stop_times& times) noexcept {
    return detail::min(times.stop_timeout / 5, std::chrono::milliseconds(500));
}
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return detail::min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}

inline std::chrono::milliseconds after_drain(const stop_times& times, std::chrono::milliseconds steps_timeout,
                                             std::chrono::milliseconds min) noexcept {
    return detail::max(min, capped_sum(times.stop_timeout, steps_timeout));
}

// A stop's part of the time from SIGTERM to SIGKILL. [GS 6.3]
struct stop_budget {
    std::chrono::milliseconds granted;
    std::chrono::milliseconds drain;
    std::chrono::milliseconds reports;  // and all else that follows the drain

    bool fits() const noexcept { return drain < granted && capped_sum(drain, reports) <= granted; }
};

// `platform` counts unless the options say what is granted.
inline stop_budget budget_of(const worker_options& options, const stop_platform* platform,
                             std::chrono::milliseconds steps_timeout) noexcept {
    const std::chrono::milliseconds set = options.container_grace_period;
    return {set.count() > 0 || platform == nullptr ? set : platform->grant,
            capped_sum(options.times.shutdown_grace_period, options.prestop_delay),
            after_drain(options.times, steps_timeout, std::chrono::seconds(5))};
}

// If neither grace period is set, the worker's nor the container's, then drain, preStop hook and reports must
// fit into the platform's default. A dialect with more than 30 s expects a longer one.
inline void fit_default_grace(worker_options& options, const container_info& info) {
    const stop_platform* const platform = find_platform(info);
    if (platform == nullptr || !platform->adapts_grace_period || options.container_grace_period.count() > 0)
        return;
    const auto reports = after_drain(options.times, {}, std::chrono::seconds(5));
    const auto max_grace = platform->grant - reports - options.prestop_delay;
    auto& grace = options.times.shutdown_grace_period;
    if (max_grace.count() > 0 && grace <= std::chrono::seconds(30)) grace = detail::min(grace, max_grace);
}

struct bounds_check {
    result<void> status;

    void operator()(const char* name, const char* variables, const std::int64_t& value, int min, int max) {
        check(name, variables, value, min, max, "");
    }
    void operator()(const char* name, const char* variables, const std::chrono::milliseconds& value,
                    std::chrono::milliseconds min, std::chrono::milliseconds max = {}) {
        if (value != no_limit || max != no_limit)
            check(name, variables, value.count(), min.count(), max_duration_ms, " ms");
    }
    void operator()(const char* name, const char* variables, const std::string& value, text_kind kind) {
        const char* const fault = text_fault(value, kind);
        if (status && fault != nullptr)
            status = invalid(cat({"options.", name, " (", variables, ") ", fault}));
    }
    void operator()(const char* name, const char* variables, const std::vector<std::string>& values,
                    bool /*may_be_empty*/ = false) {
        for (const std::string& value : values) (*this)(name, variables, value, text_kind::name);
    }
    template <class... Other>
    void operator()(Other&&...) noexcept {}

  private:
    void check(const char* name, const char* variables, std::int64_t value, std::int64_t min,
               std::int64_t max, const char* unit) {
        if (!status || (value >= min && value <= max)) return;
        status =
            invalid(cat({name, " (", variables, ") is ", value, "; it must be ", min, " to ", max, unit}));
    }
};

// It is sent without escaping.
inline bool is_registration_path(std::string_view path) noexcept {
    return is_visible_ascii(path) && path.size() > 1 && path.front() == '/' && path.back() != '/' &&
           path.find_first_of("?#\\") == std::string_view::npos &&
           path.find("//") == std::string_view::npos && path.find("/.") == std::string_view::npos;
}

// Checks everything but the URL and the extensions.
inline result<void> check_options(const worker_options& options) {
    bounds_check bounds;
    visit_options(options, bounds);
    if (!bounds.status) return bounds.status;
    if (options.heartbeat_interval >= options.visibility_timeout)
        return invalid(
            cat({"heartbeat_interval (", format_duration(options.heartbeat_interval),
                 ") must be shorter than visibility_timeout (", format_duration(options.visibility_timeout),
                 "), or claims expire between heartbeats"}));
    // An HTTP call on a job's thread needs 28 to 32 KiB (x86-64, glibc), plus the handler's own.
    constexpr std::size_t min_stack_size = 64 * 1024;
    if (options.thread_stack_size != 0 && options.thread_stack_size < min_stack_size)
        return invalid(
            cat({"thread_stack_size is ", options.thread_stack_size, " bytes; it must be at least ",
                 min_stack_size, ", or 0 for the platform's default"}));
    const std::vector<std::string>& queues = options.queues;
    if (queues.empty() || detail::contains(queues, ""))
        return invalid("queues (OJS_QUEUES) must name at least one queue, and each must have a name");
    const std::string& path = options.registration_path;
    if (!path.empty() && !is_registration_path(path))
        return invalid(cat({"registration_path (OJS_REGISTRATION_PATH) '", printable(path, 100),
                            "' is not a path below /ojs/v1, such as /workers/register"}));
    return check_stop_signals(options.stop_signals, !options.termination_mode_file.empty());
}

inline constexpr const char* operating_fix =
    "include ojs_operating.hpp and write options->parts.add(ojs::operating())";

// Checks that the extensions which the options need are added and accept the options.
inline result<void> check_extensions(const worker_options& options) {
    if ((!options.health_address.empty() || options.health_control) && !options.parts.has("operating"))
        return error{errc::unsupported, 0,
                     cat({"health_address (OJS_HEALTH_ADDR) and health_control (OJS_HEALTH_CONTROL) need an "
                          "extension: ",
                          operating_fix})};
    for (const worker_part_factory& factory : options.parts) {
        const result<void> valid = factory.check ? factory.check(options) : result<void>();
        if (!valid) return valid;
    }
    return {};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE void worker_options::use(ojs::dialect preset) {
    times = preset.times;
    termination_mode_file = preset.termination_mode_file;
    dialect = std::move(preset);
}

OJS_SHUTDOWN_INLINE result<worker_options> worker_options::from_environment(const environment_lookup& lookup,
                                                                            const std::string& root) {
    worker_options out;
    detail::environment_reader read(lookup);
    detail::visit_options(out, read);
    if (!read.status) return read.status.error();
    if (!read.is_set(detail::grace_variables))
        detail::fit_default_grace(out, detect_container({root, lookup, 0}));
    const result<void> valid = detail::check_options(out);
    return valid ? result<worker_options>(std::move(out)) : valid.error();
}

OJS_SHUTDOWN_INLINE result<void> validate(const worker_options& options) {
    const result<detail::backend_url> url = detail::read_url(options);
    if (!url) return url.error();
    const result<void> valid = detail::check_options(options);
    return valid ? detail::check_extensions(options) : valid;
}

// The presets: name, both error codes and requeue_interrupted come first.
OJS_SHUTDOWN_INLINE dialect dialect::graceful_shutdown() {
    return {};
}
OJS_SHUTDOWN_INLINE dialect dialect::website() {
    dialect out = {"website", "shutdown", "shutdown", false};
    out.last_state = "terminated";
    return out;
}
OJS_SHUTDOWN_INLINE dialect dialect::worker_protocol() {
    dialect out = {"worker_protocol", "shutdown", "shutdown"};
    out.drain_state = "terminate";
    out.active_jobs_as_count = true;
    out.times = {std::chrono::seconds(25)};
    return out;
}
OJS_SHUTDOWN_INLINE dialect dialect::river() {
    using std::chrono::seconds;
    dialect out = {"river"};
    out.stuck_exit_status = 70;
    out.times = {seconds(10), seconds(0), seconds(10), seconds(0), seconds(15)};
    return out;
}
OJS_SHUTDOWN_INLINE dialect dialect::spot_controller() {
    dialect out = {"spot_controller"};
    out.first_signal_wins = true;
    out.times = {std::chrono::seconds(3550), std::chrono::seconds(10), {}, std::chrono::milliseconds(500)};
    out.termination_mode_file = "/tmp/termination-type";
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
