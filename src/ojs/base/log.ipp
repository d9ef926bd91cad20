#pragma once

#include <unistd.h>

#include <cstdlib>
#include <new>

#include "detail/clock.ipp"
#include "detail/files.ipp"
#include "detail/light.hpp"
#include "detail/sync.hpp"
#include "log.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline std::string format_text(const log_record& record, bool is_logfmt) {
    const char* const level = to_string(record.level);
    const std::string time = utc_text();
    std::string out;
    const auto add = [&](std::string_view name, std::string_view value) {
        if (value.empty()) return;
        const bool is_bare = value.find_first_of(" =\"\\\n\t\r") == value.npos;
        append(out, {is_logfmt ? " " : "  ", name, "=", is_bare ? printable(value, value.size()) : json_quote(value)});
    };
    if (is_logfmt) {
        out = cat({"time=", time, " level=", level, " msg=", json_quote(record.message)});
        add("worker_id", record.worker_id);
    } else {
        out = cat({time, " ", level, "   "});
        out.resize(time.size() + 7, ' ');
        out += printable(record.message, record.message.size());
    }
    for (const log_field& each : record.fields) add(each.name, each.value);
    return out;
}

inline void append_json_member(std::string& group, std::string_view key, std::string_view json) {
    append(group, {group.empty() ? "{" : ",", json_quote(key), ":", json});
}

// [LOG 6]
inline std::string format_json(const log_record& record) {
    std::string of_job, of_error, attributes;
    if (!record.worker_id.empty()) append_json_member(of_job, "worker_id", json_quote(record.worker_id));
    const char* category = "worker";
    for (const log_field& f : record.fields) {
        if (f.name == "job_id") category = "lifecycle";
        if (f.value.empty()) continue;
        const std::string json = f.is_number ? f.value : json_quote(f.value);
        if (f.name == "error_type" || f.name == "error") {
            append_json_member(of_error, f.name == "error" ? "message" : "type", json);
        } else {
            const bool is_of_job = is_listed(f.name, "job_id job_type queue attempt state");
            append_json_member(is_of_job ? of_job : attributes, f.name, json);
        }
    }
    static constexpr const char* severities[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    const auto level = static_cast<std::size_t>(min(record.level, log_level::error));
    if (record.level >= log_level::error) category = "error";
    std::string out =
        cat({"{\"timestamp\":\"", utc_text(), "\",\"severity\":\"", severities[level],
             "\",\"severity_number\":", 5 + 4 * level, ",\"message\":", json_quote(record.message), ",\"category\":\"",
             category, "\",\"component\":\"", *record.component != 0 ? record.component : "worker", "\""});
    if (!of_job.empty()) append(out, {",\"ojs\":", of_job, "}"});
    if (!of_error.empty()) append(out, {",\"error\":", of_error, "}"});
    if (!attributes.empty()) append(out, {",\"attributes\":", attributes, "}"});
    return out + "}";
}

inline constexpr std::chrono::nanoseconds max_log_wait = std::chrono::seconds(1);

// What all loggers share.
struct log_sink {
    const pid_t owner = ::getpid();
    mutex guard;  // of the rest
    std::uint64_t lost = 0;
    std::chrono::nanoseconds budget = max_log_wait;  // for waits; grows by a tenth of the time
    time_point used_at = steady_clock::now();
};

// Never destroyed: threads may log during exit. A fork() child gets its own, as the mutex may stay locked.
inline log_sink& sink() {
    alignas(log_sink) static unsigned char storage[sizeof(log_sink)];  // so that the first needs no heap
    static atomic<bool> is_storage_taken{false};
    static atomic<log_sink*> shared{nullptr};
    log_sink* found = shared.load();
    if (found != nullptr && found->owner == ::getpid()) return *found;
    log_sink* const added = is_storage_taken.exchange(true) ? new log_sink : ::new (storage) log_sink;
    if (shared.compare_exchange_strong(found, added)) return *added;
    if (static_cast<void*>(added) != storage) delete added;
    return *found;
}

OJS_SHUTDOWN_INLINE void write_line(int fd, const std::string& line, log_format format) {
    log_sink& to = sink();
    const unique_lock held(to.guard);
    const write_signals_blocked blocked;
    const time_point now = steady_clock::now();
    to.budget = min(max_log_wait, to.budget + (now - to.used_at) / 10);
    const time_point deadline = now + to.budget;
    const bool is_written = write_text(fd, line + "\n", deadline);
    if (!is_written) ++to.lost;
    if (is_written && to.lost > 0 && format != log_format::automatic) {
        const log_record record{
            log_level::warn, "log lines dropped: standard error was blocked", {field("lines", to.lost)}, {}};
        if (write_text(fd, format_log_record(record, format) + "\n", deadline)) to.lost = 0;
    }
    to.used_at = steady_clock::now();
    to.budget -= min<std::chrono::nanoseconds>(to.budget, to.used_at - now);
}

OJS_SHUTDOWN_INLINE void limit_log_wait(milliseconds total) noexcept {
    const unique_lock held(sink().guard);
    sink().budget = min<std::chrono::nanoseconds>(sink().budget, total);
}

OJS_SHUTDOWN_INLINE logger::logger(log_options options, const char* component, std::string worker_id)
    : options_(std::move(options)), component_(component), worker_id_(std::move(worker_id)) {
    if (options_.format == log_format::automatic)
        options_.format = ::isatty(STDERR_FILENO) == 1 ? log_format::text : log_format::json;
}

OJS_SHUTDOWN_INLINE void logger::emit(log_record record) const {
    record.worker_id = worker_id_;
    if (*record.component == 0) record.component = component_;
    if (!options_.hook) return write_line(STDERR_FILENO, format_log_record(record, options_.format), options_.format);
    try {
        options_.hook(record);
    } catch (...) {
        static atomic<bool> has_thrown{false};
        if (!has_thrown.exchange(true))
            write_line(STDERR_FILENO,
                       detail::cat({"error: the log hook threw; records are lost: ", detail::thrown_text()}));
    }
}

// 64: only a change mends it; 71: waiting may. Without an errno the fault is in this program.
inline int start_status(const error& failure) noexcept {
    const bool is_remote = failure.code >= errc::timed_out && failure.code != errc::rejected;
    for (const int fault : {0, EACCES, EPERM, EINVAL, EXDEV, ENOTDIR, ELOOP, ENAMETOOLONG, EAFNOSUPPORT})
        if (!is_remote && (failure.code <= errc::unsupported || failure.sys_errno == fault)) return 64;
    return 71;
}
}  // namespace detail

OJS_SHUTDOWN_INLINE std::string format_log_record(const log_record& record, log_format format) {
    return format == log_format::json ? detail::format_json(record)
                                      : detail::format_text(record, format == log_format::logfmt);
}

OJS_SHUTDOWN_INLINE int report_startup_error(const error& failure) {
    const log_record record{log_level::error, "cannot start", {detail::field("error", failure.text)}, {}};
    const char* const given = std::getenv("OJS_LOG_FORMAT");
    const std::string_view format = given != nullptr ? given : "";
    std::string line = detail::cat({"error: ", failure.text});
    if (format == "json") line = format_log_record(record, log_format::json);
    if (format == "logfmt") line = format_log_record(record, log_format::logfmt);
    detail::write_line(STDERR_FILENO, line);
    return detail::start_status(failure);
}
}  // namespace v0_1_0
}  // namespace ojs
