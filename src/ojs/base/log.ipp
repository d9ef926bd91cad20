#pragma once

#include <unistd.h>

#include <cstdlib>

#include "detail/clock.ipp"
#include "detail/files.ipp"
#include "detail/light.hpp"
#include "detail/sync.hpp"
#include "log.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(log_level level) noexcept {
    static const char* const names[] = {"debug", "info", "warn", "error", "off"};
    return names[static_cast<std::size_t>(level)];
}

namespace detail {

inline void append_logfmt(std::string& out, const char* separator, std::string_view name,
                          std::string_view value) {
    const bool bare = value.find_first_of(" =\"\\\n\t\r") == std::string_view::npos;
    append(out, {separator, name, "=", bare ? printable(value, value.size()) : json_quote(value)});
}

inline std::string format_text(const log_record& record, const std::string& time, bool is_logfmt) {
    const char* const level = to_string(record.level);
    std::string out;
    if (is_logfmt) {
        out = cat({"time=", time, " level=", level, " msg=", json_quote(record.message)});
        if (!record.worker_id.empty()) append_logfmt(out, " ", "worker_id", record.worker_id);
    } else {
        out = cat({time, " ", level, "   "});
        out.resize(time.size() + 7, ' ');
        out += printable(record.message, record.message.size());
    }
    for (const log_field& f : record.fields) {
        if (!f.value.empty()) append_logfmt(out, is_logfmt ? " " : "  ", f.name, f.value);
    }
    return out;
}

inline void append_json_member(std::string& group, std::string_view key, std::string_view json) {
    append(group, {group.empty() ? "{" : ",", json_quote(key), ":", json});
}

// With the groups and the category of the OJS logging specification. [LOG 6]
inline std::string format_json(const log_record& record, const std::string& time) {
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
    const auto level = static_cast<std::size_t>(detail::min(record.level, log_level::error));
    if (record.level >= log_level::error) category = "error";
    std::string out =
        cat({"{\"timestamp\":\"", time, "\",\"severity\":\"", severities[level], "\",\"severity_number\":",
             5 + 4 * level, ",\"message\":", json_quote(record.message), ",\"category\":\"", category,
             "\",\"component\":\"", *record.component != 0 ? record.component : "worker", "\""});
    if (!of_job.empty()) append(out, {",\"ojs\":", of_job, "}"});
    if (!of_error.empty()) append(out, {",\"error\":", of_error, "}"});
    if (!attributes.empty()) append(out, {",\"attributes\":", attributes, "}"});
    return out + "}";
}

// The lines of all loggers. Lines are dropped once all together have waited for a second, and a tenth of the time since.
class log_sink {
  public:
    void write(int fd, const std::string& line, log_format format) {
        const unique_lock held(mutex_);
        const write_signals_blocked blocked;
        const time_point now = steady_clock::now();
        budget_ = detail::min(max_budget, budget_ + (now - used_at_) / 10);
        const bool is_written = write_text(fd, line + "\n", now + budget_);
        if (!is_written) ++lost_;
        if (is_written && lost_ > 0 && format != log_format::automatic) report_lost(fd, format);
        used_at_ = steady_clock::now();
        budget_ -= detail::min(budget_, used_at_ - now);
    }
    void limit_budget(steady_clock::duration left) noexcept {
        const unique_lock held(mutex_);
        budget_ = detail::min(budget_, left);
    }

    const pid_t owner = ::getpid();

  private:
    static constexpr steady_clock::duration max_budget = std::chrono::seconds(1);

    void report_lost(int fd, log_format format) {
        const log_record record{
            log_level::warn, "log lines dropped: standard error was blocked", {field("lines", lost_)}, {}};
        if (write_text(fd, format_log_record(record, format) + "\n", {})) lost_ = 0;
    }

    mutex mutex_;  // guards the rest
    std::uint64_t lost_ = 0;
    steady_clock::duration budget_ = max_budget;
    time_point used_at_ = steady_clock::now();
};

// Never destroyed: threads may log during exit. A fork() child gets a new one, as the old mutex may stay locked.
inline log_sink& sink() {
    static atomic<log_sink*> shared{nullptr};
    log_sink* found = shared.load();
    if (found != nullptr && found->owner == ::getpid()) return *found;
    auto* const added = new log_sink;
    if (shared.compare_exchange_strong(found, added)) return *added;
    delete added;
    return *found;
}

OJS_SHUTDOWN_INLINE void write_line(int fd, const std::string& line, log_format format) {
    sink().write(fd, line, format);
}

OJS_SHUTDOWN_INLINE void limit_log_wait(std::chrono::milliseconds total) noexcept {
    sink().limit_budget(total);
}

OJS_SHUTDOWN_INLINE log_field field(std::string_view name, text_part value) {
    return {std::string(name), cat({value}), value.is_number()};
}

OJS_SHUTDOWN_INLINE logger::logger(log_options options, const char* component, std::string worker_id)
    : options_(std::move(options)), component_(component), worker_id_(std::move(worker_id)) {
    if (options_.format == log_format::automatic)
        options_.format = ::isatty(STDERR_FILENO) == 1 ? log_format::text : log_format::json;
}

OJS_SHUTDOWN_INLINE void logger::write(log_level level, std::string_view message,
                                       std::initializer_list<log_field> fields) const {
    if (enabled(level)) emit({level, std::string(message), fields, {}});
}

OJS_SHUTDOWN_INLINE void logger::write(log_record record) const {
    if (enabled(record.level)) emit(std::move(record));
}

OJS_SHUTDOWN_INLINE void logger::write_requested(std::string_view message,
                                                 std::vector<log_field> fields) const {
    if (options_.level != log_level::off)
        emit({log_level::info, std::string(message), std::move(fields), {}});
}

OJS_SHUTDOWN_INLINE void logger::emit(log_record record) const {
    record.worker_id = worker_id_;
    if (*record.component == 0) record.component = component_;
    if (!options_.hook)
        return write_line(STDERR_FILENO, format_log_record(record, options_.format), options_.format);
    try {
        options_.hook(record);
    } catch (...) {
        static atomic<bool> has_thrown{false};
        if (!has_thrown.exchange(true))
            write_line(STDERR_FILENO, "error: the log hook threw an exception; records are lost");
    }
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::string format_log_record(const log_record& record, log_format format) {
    const std::string time = detail::utc_timestamp();
    if (format == log_format::json) return detail::format_json(record, time);
    return detail::format_text(record, time, format == log_format::logfmt);
}

OJS_SHUTDOWN_INLINE int report_usage(const error& failure) {
    const char* const given = std::getenv("OJS_LOG_FORMAT");
    const std::string_view format = given == nullptr ? "" : given;
    const bool is_json = format == "json";
    const log_record record{log_level::error, "cannot start", {detail::field("error", failure.text)}, {}};
    detail::write_line(STDERR_FILENO,
                       is_json || format == "logfmt"
                           ? format_log_record(record, is_json ? log_format::json : log_format::logfmt)
                           : detail::cat({"error: ", failure.text}));
    return 64;
}

}  // namespace v0_1_0
}  // namespace ojs
