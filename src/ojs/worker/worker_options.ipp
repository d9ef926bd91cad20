#pragma once

#include <unistd.h>

#include <cstdlib>

#include "../base/detail/signal_names.ipp"
#include "../base/detail/text.hpp"
#include "../core/signals.hpp"
#include "../host/container.hpp"
#include "../net/detail/url.hpp"
#include "transport_scheme.ipp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds least_poll_interval{1};
inline constexpr std::chrono::milliseconds least_interval{10};
inline constexpr std::chrono::milliseconds least_stop_timeout{100};
inline constexpr std::chrono::milliseconds least_visibility_timeout{1000};  // the protocol's own

inline bool is_visible_ascii(std::string_view text) noexcept {
    for (const char c : text) {
        if (c <= ' ' || c > '~') return false;
    }
    return true;
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

inline result<void> check_health(const worker_options& options) {
    if (!is_visible_ascii(options.health_token)) {
        return invalid("health_token (OJS_HEALTH_TOKEN) may hold visible ASCII characters only");
    }
    if (options.health_address.empty()) {
        if (!options.health_control) return {};
        return invalid(
            "health_control (OJS_HEALTH_CONTROL) is on, but there is no health_address (OJS_HEALTH_ADDR)");
    }
    const result<endpoint> where = parse_listen_address(options.health_address);
    if (!where) return invalid(cat({"health_address (OJS_HEALTH_ADDR): ", where.error().text}));
    if (options.health_control && options.health_token.empty() && !is_local(*where)) {
        return invalid(
            cat({"health_control (OJS_HEALTH_CONTROL) without health_token (OJS_HEALTH_TOKEN) needs a "
                 "health_address (OJS_HEALTH_ADDR) on loopback or unix:, not '",
                 where->name, "'"}));
    }
    return {};
}

// If neither the grace period nor the container's is set, drain, preStop hook and reports must fit into the platform's
// default. A dialect with more than the usual 30 s expects a longer one.
inline void fit_default_grace(worker_options& options, const container_info& info) {
    const stop_platform* const platform = find_platform(info);
    if (platform == nullptr || !platform->fits_drain || options.container_grace_period.count() > 0) return;
    constexpr std::chrono::milliseconds min_tail{5000};
    const auto tail = options.stop_timeout < min_tail ? min_tail : options.stop_timeout;
    const auto fits = platform->grant - tail - options.prestop_delay;
    auto& grace = options.shutdown_grace_period;
    if (fits.count() > 0 && fits < grace && grace <= std::chrono::seconds(30)) grace = fits;
}

// ---- the environment ----

// All variables that are read, and some of programs beside the worker.
inline constexpr std::string_view known_variables =
    "OJS_URL OJS_BACKEND_URL OJS_QUEUES OJS_QUEUE OJS_CONCURRENCY OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD "
    "OJS_SHUTDOWN_TIMEOUT OJS_HEARTBEAT_INTERVAL OJS_POLL_INTERVAL OJS_VISIBILITY_TIMEOUT "
    "OJS_REQUEST_TIMEOUT "
    "OJS_STOP_TIMEOUT OJS_CANCEL_WAIT OJS_CANCEL_LEAD OJS_RECLAIM_WAIT OJS_TERMINATION_TYPE_FILE "
    "OJS_STUCK_AFTER OJS_UNKNOWN_TYPE OJS_REPEAT_SIGNAL_GAP OJS_STOP_SIGNALS OJS_PROGRESS_INTERVAL "
    "OJS_CONTAINER_GRACE_PERIOD "
    "OJS_PRESTOP_DELAY OJS_DIALECT OJS_HEALTH_ADDR OJS_HEALTH_CONTROL OJS_HEALTH_TOKEN OJS_LABELS "
    "OJS_JOB_TYPES "
    "OJS_WORKER_ID OJS_AUTH_TOKEN OJS_REGISTRATION_PATH OJS_LOG_LEVEL OJS_LOG_FORMAT OJS_LIFECYCLE_ADDR "
    "OJS_PROCESS_ID OJS_LAUNCHER_ADDR OJS_CONTROLLER_CONFIG OJS_SERVER_SHUTDOWN_TIMEOUT";

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

    // The first of the names that is set, or null. The name found is kept for the error text.
    const char* find(const char* first, const char* second = nullptr, const char* third = nullptr) {
        for (const char* name : {first, second, third}) {
            const char* value = name == nullptr ? nullptr : lookup_ ? lookup_(name) : std::getenv(name);
            name_ = name;
            if (value != nullptr) return value;
        }
        return nullptr;
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

    template <class Choice, std::size_t Count>
    void choice(Choice& out, const char* value, const char* const (&names)[Count]) {
        if (value == nullptr) return;
        std::string known;
        for (std::size_t i = 0; i < Count; ++i) {
            if (std::string_view(value) == names[i]) {
                out = static_cast<Choice>(i);
                return;
            }
            append(known, {cat({i == 0 ? "" : ", ", names[i]})});
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
    const char* name_ = "";
    bool failed_ = false;
    error failure_;
};

inline void read_log_options(environment_reader& read, log_options& out) {
    static constexpr const char* level_names[] = {"debug", "info", "warn", "error", "off"};
    static constexpr const char* format_names[] = {"text", "logfmt", "json"};
    read.choice(out.level, read.find("OJS_LOG_LEVEL"), level_names);
    read.choice(out.format, read.find("OJS_LOG_FORMAT"), format_names);
}

// An HTTP call on a job's thread needs 28 KiB (optimised) to 32 KiB (x86-64, glibc), plus the handler's own.
inline constexpr std::size_t min_stack_size = 64 * 1024;

inline result<void> check_durations(const worker_options& options) {
    struct named_duration {
        const char* name;
        std::chrono::milliseconds value;
        std::chrono::milliseconds least;
    };
    const std::chrono::milliseconds none{0};
    const named_duration durations[] = {
        {"shutdown_grace_period", options.shutdown_grace_period, none},
        {"heartbeat_interval", options.heartbeat_interval, least_interval},
        {"poll_interval", options.poll_interval, least_poll_interval},
        {"visibility_timeout", options.visibility_timeout, least_visibility_timeout},
        {"request_timeout", options.request_timeout, least_interval},
        {"stop_timeout", options.stop_timeout, least_stop_timeout},
        {"cancel_wait", options.cancel_wait, none},
        {"reclaim_wait", options.reclaim_wait, none},
        {"cancel_lead", options.cancel_lead, none},
        {"stuck_after", options.stuck_after, least_interval},
        {"repeat_signal_gap", options.repeat_signal_gap, none},
        {"progress_interval", options.progress_interval, least_interval},
        {"container_grace_period", options.container_grace_period, none},
        {"prestop_delay", options.prestop_delay, none},
    };
    for (const named_duration& each : durations) {
        const bool unlimited =
            each.value == no_limit && std::string_view(each.name) == "shutdown_grace_period";
        if (!unlimited &&
            (each.value < each.least || each.value > std::chrono::milliseconds(longest_duration_ms))) {
            return invalid(cat({each.name, " is ", each.value.count(), " ms; it must be ", each.least.count(),
                                " ms to 24 days"}));
        }
    }
    return {};
}

inline result<void> check_stops(const worker_options& options) {
    return check_stop_signals(options.stop_signals, !options.termination_mode_file.empty());
}

// Whether what the options ask for is there.
inline result<void> check_extensions(const worker_options& options) {
    if (options.health_address.empty() || options.parts.has("operating")) return {};
    return error{errc::unsupported, 0,
                 cat({"health_address (OJS_HEALTH_ADDR) needs an extension: ", add_operating})};
}

// All but the URL, which is checked where it is used.
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
    for (const auto check : {check_durations, check_health, check_stops, check_registration_path}) {
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
    shutdown_grace_period = wanted.grace_period;
    stop_timeout = wanted.stop_timeout;
    cancel_wait = wanted.cancel_wait;
    cancel_lead = wanted.cancel_lead;
    reclaim_wait = wanted.reclaim_wait;
    termination_mode_file = wanted.termination_mode_file;
    dialect = std::move(wanted);
}

OJS_SHUTDOWN_INLINE result<worker_options> worker_options::from_environment(const environment_lookup& lookup,
                                                                            const std::string& root) {
    static constexpr const char* switch_names[] = {"off", "on"};
    static constexpr const char* unknown_type_names[] = {"requeue", "fail", "discard"};
    static constexpr const char* dialect_names[] = {"graceful_shutdown", "website", "worker_protocol",
                                                    "river", "spot_controller"};
    static constexpr ojs::dialect (*dialects[])() = {dialect::graceful_shutdown, dialect::website,
                                                     dialect::worker_protocol, dialect::river,
                                                     dialect::spot_controller};
    worker_options out;
    detail::environment_reader read(lookup);
    std::size_t dialect_index = 0;
    read.choice(dialect_index, read.find("OJS_DIALECT"), dialect_names);
    out.use(dialects[dialect_index]());
    read.url(out.url, read.find("OJS_URL", "OJS_BACKEND_URL"));
    read.list(out.queues, read.find("OJS_QUEUES", "OJS_QUEUE"));
    read.number(out.concurrency, read.find("OJS_CONCURRENCY"), 1, 10000);
    const char* const grace =
        read.find("OJS_SHUTDOWN_GRACE_PERIOD", "OJS_GRACE_PERIOD", "OJS_SHUTDOWN_TIMEOUT");
    read.duration(out.shutdown_grace_period, grace);
    read.duration(out.heartbeat_interval, read.find("OJS_HEARTBEAT_INTERVAL"), detail::least_interval);
    read.duration(out.poll_interval, read.find("OJS_POLL_INTERVAL"), detail::least_poll_interval);
    read.duration(out.visibility_timeout, read.find("OJS_VISIBILITY_TIMEOUT"),
                  detail::least_visibility_timeout);
    read.duration(out.request_timeout, read.find("OJS_REQUEST_TIMEOUT"), detail::least_interval);
    read.duration(out.stop_timeout, read.find("OJS_STOP_TIMEOUT"), detail::least_stop_timeout);
    read.duration(out.cancel_wait, read.find("OJS_CANCEL_WAIT"));
    read.duration(out.reclaim_wait, read.find("OJS_RECLAIM_WAIT"));
    read.duration(out.cancel_lead, read.find("OJS_CANCEL_LEAD"));
    read.duration(out.stuck_after, read.find("OJS_STUCK_AFTER"), detail::least_interval);
    read.choice(out.unknown_type, read.find("OJS_UNKNOWN_TYPE"), unknown_type_names);
    read.text(out.termination_mode_file, read.find("OJS_TERMINATION_TYPE_FILE"));
    read.duration(out.repeat_signal_gap, read.find("OJS_REPEAT_SIGNAL_GAP"));
    read.signals(out.stop_signals, read.find("OJS_STOP_SIGNALS"));
    read.duration(out.progress_interval, read.find("OJS_PROGRESS_INTERVAL"), detail::least_interval);
    read.duration(out.container_grace_period, read.find("OJS_CONTAINER_GRACE_PERIOD"));
    read.duration(out.prestop_delay, read.find("OJS_PRESTOP_DELAY"));
    read.text(out.health_address, read.find("OJS_HEALTH_ADDR"));
    read.choice(out.health_control, read.find("OJS_HEALTH_CONTROL"), switch_names);
    read.text(out.health_token, read.find("OJS_HEALTH_TOKEN"));
    read.list(out.labels, read.find("OJS_LABELS"));
    const char* const types = read.find("OJS_JOB_TYPES");
    if (types != nullptr && *types != '\0')
        read.list(out.job_types, types);  // the operator sets an empty list for none
    read.text(out.worker_id, read.find("OJS_WORKER_ID"));
    read.text(out.auth_token, read.find("OJS_AUTH_TOKEN"));
    read.text(out.registration_path, read.find("OJS_REGISTRATION_PATH"));
    detail::read_log_options(read, out.log);
    const result<void> read_all = read.done();
    if (!read_all) return read_all.error();
    if (grace == nullptr) detail::fit_default_grace(out, detect_container({root, lookup, 0}));
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
