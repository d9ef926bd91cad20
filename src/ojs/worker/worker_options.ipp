#pragma once

#include <unistd.h>

#include <cstdlib>

#include "../base/detail/signal_names.ipp"
#include "../base/detail/text.hpp"
#include "../core/signals.hpp"
#include "../host/container.hpp"
#include "../net/http_message.ipp"
#include "transport_scheme.ipp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline bool is_visible_ascii(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

inline error invalid(std::string text) {
    return {errc::invalid_argument, 0, std::move(text)};
}

// A path of our own requests: it is sent as it stands.
inline result<void> check_registration_path(const worker_options& options) {
    const std::string_view path = options.registration_path;
    if (path.empty()) return {};
    const bool plain = is_visible_ascii(path) && path.find_first_of("?#\\") == std::string_view::npos;
    if (plain && path.size() > 1 && path.front() == '/' && path.back() != '/' &&
        path.find("//") == std::string_view::npos && path.find("/.") == std::string_view::npos) {
        return {};
    }
    return invalid(cat({"registration_path (OJS_REGISTRATION_PATH) '", printable(path, 100),
                        "' is no path below /ojs/v1, such as /workers/register"}));
}

inline constexpr const char* add_operating =
    "include ojs_operating.hpp and write options->parts.add(ojs::operating())";

// If neither the grace period nor the container's is set, drain, preStop hook and reports must fit into the platform's
// default. A dialect with more than the usual 30 s expects a longer one.
inline void fit_default_grace(worker_options& options, const container_info& info) {
    const stop_platform* const platform = find_platform(info);
    if (platform == nullptr || !platform->fits_drain || options.container_grace_period.count() > 0) return;
    constexpr std::chrono::milliseconds min_tail{5000};
    const auto tail = options.times.stop_timeout < min_tail ? min_tail : options.times.stop_timeout;
    const auto fits = platform->grant - tail - options.prestop_delay;
    auto& grace = options.times.shutdown_grace_period;
    if (fits.count() > 0 && fits < grace && grace <= std::chrono::seconds(30)) grace = fits;
}

// ---- the environment ----

inline std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> out;
    for (std::size_t comma = 0; comma != std::string_view::npos;) {
        comma = text.find(',');
        const std::string_view item = text.substr(0, comma);
        out.push_back(std::string(trim_blanks(item, " ")));
        if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
    }
    return out;
}

// Reads variables into options; the first one that cannot be read is kept as the error.
class environment_reader {
  public:
    explicit environment_reader(const environment_lookup& lookup) : lookup_(lookup) {}

    // The value of the first of these variables that is set, or null. Its name is kept for the error text.
    const char* find(std::string_view names) {
        const char* value = nullptr;
        while (value == nullptr && !names.empty()) {
            name_ = std::string(next_part(names, " "));
            value = find_variable(lookup_, name_.c_str());
        }
        return value;
    }

    void text(std::string& out, const char* value) {
        if (value == nullptr) return;
        if (*value == '\0') fail(value, "must not be empty");
        out = value;
    }

    void url(std::string& out, const char* value) {
        text(out, value);
        if (value == nullptr || is_of_extension(value)) return;  // which is still to come
        const result<void> usable = check_url(value, {}, true);  // and so is a stream for https
        if (!usable) fail(shown_url(value), usable.error().text, usable.error().code);
    }

    void list(std::vector<std::string>& out, const char* value) {
        if (value == nullptr) return;
        out = split_list(value);
        for (const std::string& item : out) {
            if (item.empty()) fail(value, out.size() == 1 ? "must name at least one" : "has an empty name");
        }
    }

    void signals(std::vector<int>& out, const char* value) {
        if (value == nullptr) return;
        out.clear();
        for (const std::string& name : split_list(value)) {
            out.push_back(signal_number(name));
            if (out.back() == 0) {
                fail(value,
                     cat({"'", printable(name, 40),
                          "' is not a signal (write TERM, INT, HUP, QUIT, USR2, RTMIN+3 or a number)"}));
            }
        }
    }

    void duration(std::chrono::milliseconds& out, const char* value, std::chrono::milliseconds least = {}) {
        if (value == nullptr) return;
        const result<std::chrono::milliseconds> parsed = parse_duration(value);
        if (!parsed) {
            fail(cat({name_, "=", parsed.error().text}));
        } else if (*parsed < least) {
            fail(value, cat({"too short: at least ", format_duration(least)}));
        } else {
            out = *parsed;
        }
    }

    void number(std::int64_t& out, const char* value, std::uint64_t min, std::uint64_t max) {
        if (value == nullptr) return;
        std::uint64_t parsed = 0;
        if (parse_number(value, max, parsed) && parsed >= min) {
            out = static_cast<std::int64_t>(parsed);
        } else {
            fail(value, cat({"not a whole number from ", min, " to ", max}));
        }
    }

    // `names` by blanks, in the order of the values.
    template <class Choice>
    void choice(Choice& out, const char* value, std::string_view names) {
        if (value == nullptr) return;
        std::string known;
        for (int i = 0; !names.empty(); ++i) {
            const std::string_view name = next_part(names, " ");
            if (value == name) return static_cast<void>(out = static_cast<Choice>(i));
            append(known, {i == 0 ? "" : ", ", name});
        }
        fail(value, cat({"not one of: ", known}));
    }

    result<void> done() const { return failed_ ? result<void>(failure_) : result<void>(); }

  private:
    void fail(std::string text, errc code = errc::invalid_argument) {
        if (!failed_) failure_ = {code, 0, std::move(text)};
        failed_ = true;
    }
    void fail(std::string_view value, std::string_view why, errc code = errc::invalid_argument) {
        fail(cat({name_, "='", printable(value, 120), "': ", why}), code);
    }

    const environment_lookup& lookup_;
    std::string name_;
    bool failed_ = false;
    error failure_;
};

inline void read_log_options(environment_reader& read, log_options& out) {
    read.choice(out.level, read.find("OJS_LOG_LEVEL"), "debug info warn error off");
    read.choice(out.format, read.find("OJS_LOG_FORMAT"), "text logfmt json");
}

// visit(name, value, least milliseconds, variables, of which the first that is set counts) for each duration.
template <class Options, class Visit>
void each_duration(Options& options, Visit visit) {
    visit("shutdown_grace_period", options.times.shutdown_grace_period, 0,
          "OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD OJS_SHUTDOWN_TIMEOUT");
    visit("heartbeat_interval", options.heartbeat_interval, 10, "OJS_HEARTBEAT_INTERVAL");
    visit("poll_interval", options.poll_interval, 1, "OJS_POLL_INTERVAL");
    visit("visibility_timeout", options.visibility_timeout, 1000, "OJS_VISIBILITY_TIMEOUT");
    visit("request_timeout", options.request_timeout, 10, "OJS_REQUEST_TIMEOUT");
    visit("stop_timeout", options.times.stop_timeout, 100, "OJS_STOP_TIMEOUT");
    visit("cancel_wait", options.times.cancel_wait, 0, "OJS_CANCEL_WAIT");
    visit("reclaim_wait", options.times.reclaim_wait, 0, "OJS_RECLAIM_WAIT");
    visit("cancel_lead", options.times.cancel_lead, 0, "OJS_CANCEL_LEAD");
    visit("stuck_after", options.stuck_after, 10, "OJS_STUCK_AFTER");
    visit("repeat_signal_gap", options.repeat_signal_gap, 0, "OJS_REPEAT_SIGNAL_GAP");
    visit("progress_interval", options.progress_interval, 10, "OJS_PROGRESS_INTERVAL");
    visit("container_grace_period", options.container_grace_period, 0, "OJS_CONTAINER_GRACE_PERIOD");
    visit("prestop_delay", options.prestop_delay, 0, "OJS_PRESTOP_DELAY");
}

// All variables of a worker.
inline void read_variables(environment_reader& read, worker_options& out) {
    static constexpr ojs::dialect (*dialects[])() = {dialect::graceful_shutdown, dialect::website,
                                                     dialect::worker_protocol, dialect::river,
                                                     dialect::spot_controller};
    std::size_t dialect_index = 0;
    read.choice(dialect_index, read.find("OJS_DIALECT"),
                "graceful_shutdown website worker_protocol river spot_controller");
    out.use(dialects[dialect_index]());
    read.url(out.url, read.find("OJS_URL OJS_BACKEND_URL"));
    read.list(out.queues, read.find("OJS_QUEUES OJS_QUEUE"));
    read.number(out.concurrency, read.find("OJS_CONCURRENCY"), 1, 10000);
    each_duration(out, [&](const char*, std::chrono::milliseconds& value, int min_ms, const char* variables) {
        read.duration(value, read.find(variables), std::chrono::milliseconds(min_ms));
    });
    read.choice(out.unknown_type, read.find("OJS_UNKNOWN_TYPE"), "requeue fail discard");
    read.text(out.termination_mode_file, read.find("OJS_TERMINATION_TYPE_FILE"));
    read.signals(out.stop_signals, read.find("OJS_STOP_SIGNALS"));
    read.text(out.health_address, read.find("OJS_HEALTH_ADDR"));
    read.choice(out.health_control, read.find("OJS_HEALTH_CONTROL"), "off on");
    read.text(out.health_token, read.find("OJS_HEALTH_TOKEN"));
    read.list(out.labels, read.find("OJS_LABELS"));
    const char* const types = read.find("OJS_JOB_TYPES");
    if (types != nullptr && *types != '\0')
        read.list(out.job_types, types);  // the operator sets an empty list for none
    read.text(out.worker_id, read.find("OJS_WORKER_ID"));
    read.text(out.auth_token, read.find("OJS_AUTH_TOKEN"));
    read.text(out.registration_path, read.find("OJS_REGISTRATION_PATH"));
    read_log_options(read, out.log);
}

// All variables that are read, and some of programs beside the worker.
inline array<std::string> known_variables() {
    array<std::string> out;
    for (const char* const name : {"OJS_LIFECYCLE_ADDR", "OJS_PROCESS_ID", "OJS_LAUNCHER_ADDR",
                                   "OJS_CONTROLLER_CONFIG", "OJS_SERVER_SHUTDOWN_TIMEOUT"})
        out.push_back(name);
    const environment_lookup note = [&out](const char* name) {
        out.push_back(name);
        return static_cast<const char*>(nullptr);
    };
    environment_reader read(note);
    worker_options unused;
    read_variables(read, unused);
    return out;
}

// An HTTP call on a job's thread needs 28 KiB (optimised) to 32 KiB (x86-64, glibc), plus the handler's own.
inline constexpr std::size_t min_stack_size = 64 * 1024;

inline result<void> check_durations(const worker_options& options) {
    result<void> out;
    each_duration(
        options, [&](const char* name, const std::chrono::milliseconds& value, int min_ms, const char*) {
            const bool unlimited = value == no_limit && &value == &options.times.shutdown_grace_period;
            constexpr auto max_ms = static_cast<std::int64_t>(longest_duration_ms);
            if (!out || unlimited || (value.count() >= min_ms && value.count() <= max_ms)) return;
            out = invalid(cat({name, " is ", value.count(), " ms; it must be ", min_ms, " ms to 24 days"}));
        });
    return out;
}

inline result<void> check_stops(const worker_options& options) {
    return check_stop_signals(options.stop_signals, !options.termination_mode_file.empty());
}

// Whether the extensions that the options ask for are there, and can use them.
inline result<void> check_extensions(const worker_options& options) {
    if ((!options.health_address.empty() || options.health_control) && !options.parts.has("operating")) {
        const std::string_view name = options.health_address.empty() ? "health_control (OJS_HEALTH_CONTROL)"
                                                                     : "health_address (OJS_HEALTH_ADDR)";
        return error{errc::unsupported, 0, cat({name, " needs an extension: ", add_operating})};
    }
    for (const worker_part_factory& each : options.parts.factories()) {
        const result<void> valid = each.check ? each.check(options) : result<void>();
        if (!valid) return valid;
    }
    return {};
}

// All but the URL and the extensions, which are checked where they are used.
inline result<void> check_options(const worker_options& options) {
    if (options.concurrency < 1 || options.concurrency > 10000)
        return invalid("concurrency must be 1 to 10000");
    if (options.thread_stack_size != 0 && options.thread_stack_size < min_stack_size) {
        return invalid(
            cat({"thread_stack_size is ", options.thread_stack_size, " bytes; it must be at least ",
                 min_stack_size, ", or 0 for the platform's default"}));
    }
    if (options.queues.empty()) return invalid("queues must name at least one queue");
    for (const std::string& queue : options.queues) {
        if (queue.empty()) return invalid("a queue's name must not be empty");
    }
    for (const auto check : {check_durations, check_stops, check_registration_path}) {
        const result<void> valid = check(options);
        if (!valid) return valid;
    }
    if (options.heartbeat_interval >= options.visibility_timeout) {
        return invalid(
            cat({"heartbeat_interval (", format_duration(options.heartbeat_interval),
                 ") must be shorter than visibility_timeout (", format_duration(options.visibility_timeout),
                 "), or claims expire between beats"}));
    }
    return {};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE void worker_options::use(ojs::dialect wanted) {
    times = wanted.times;
    termination_mode_file = wanted.termination_mode_file;
    dialect = std::move(wanted);
}

OJS_SHUTDOWN_INLINE result<worker_options> worker_options::from_environment(const environment_lookup& lookup,
                                                                            const std::string& root) {
    worker_options out;
    detail::environment_reader read(lookup);
    detail::read_variables(read, out);
    const result<void> read_all = read.done();
    if (!read_all) return read_all.error();
    if (read.find("OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD OJS_SHUTDOWN_TIMEOUT") == nullptr)
        detail::fit_default_grace(out, detect_container({root, lookup, 0}));
    const result<void> valid = detail::check_options(out);
    if (!valid) return valid.error();
    return out;
}

OJS_SHUTDOWN_INLINE result<void> validate(const worker_options& options) {
    const result<void> usable =
        detail::check_url(options.url, options.transports, bool(options.https_stream));
    if (!usable) return detail::bad_url(options.url, usable.error());
    const result<void> valid = detail::check_options(options);
    return valid ? detail::check_extensions(options) : valid;
}

OJS_SHUTDOWN_INLINE int report_usage(const error& failure) {
    detail::write_line(STDERR_FILENO, detail::cat({"error: ", failure.text}));
    return 64;
}

}  // namespace v0_1_0
}  // namespace ojs
