#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

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

struct log_line {
    int fd = -1;
    log_format format = log_format::automatic;  // of a record; automatic: the line is none
    std::string text;
    unique_fd owned;  // `fd`, unless it is a standard one: the caller may close its own
};

// The lines of all loggers. One thread writes them, as write(2) may block whatever poll(2) says; the mutex is not held
// meanwhile. The thread starts with a line and ends a second after the last one.
class log_sink {
  public:
    // Waits, within the budget, until the line is written: what the caller prints next comes after it.
    void write(log_line line) {
        unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        if (accepted_ == written_) until_ = now + detail::min(max_budget, (now - budget_from_) / refill);
        while (waiting_bytes_ > max_bytes && changed_.wait_until(held, until_)) {
        }
        if (waiting_bytes_ > max_bytes) return count_lost();
        const std::size_t cost = line.text.size() + (line.owned ? 8192U : 0U);  // few descriptors wait
        lines_.push_back(std::move(line));
        waiting_bytes_ += cost;
        const std::uint64_t number = ++accepted_;
        if (!has_thread_ && !start_thread()) return write_here(held);
        idle_until_ = now + idle_time;
        added_.notify_one();
        while (written_ < number && changed_.wait_until(held, until_)) {
        }
    }
    // Caps what is left of the budget.
    void limit_budget(steady_clock::duration left) noexcept {
        const unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        left = detail::min(left, max_budget);
        budget_from_ = detail::max(budget_from_, now - refill * left);
        until_ = detail::min(until_, now + left);
    }
    // Waits until every line is written and the thread ends.
    void end_by(time_point deadline) noexcept {
        unique_lock held(mutex_);
        idle_until_ = time_point();
        added_.notify_one();
        while (has_thread_ && changed_.wait_until(held, deadline)) {
        }
        write_untaken(held);
    }
    void write_untaken() noexcept {
        unique_lock held(mutex_);
        write_untaken(held);
    }
    void count_lost() noexcept { lost_.fetch_add(1); }

    const std::uint32_t owner = fork_generation();
    atomic<bool> hook_threw{false};

  private:
    static constexpr steady_clock::duration max_budget = std::chrono::seconds(1);
    static constexpr int refill = 10;  // it takes 10 s to regain a second
    static constexpr std::chrono::seconds idle_time{1};
    static constexpr std::size_t max_bytes = 1024 * 1024;

    // With the mutex held.
    bool start_thread() {
        // A program may log after run(), and return from main() before the thread has run.
        static atomic<bool> is_registered{false};
        if (!is_registered.exchange(true)) static_cast<void>(std::atexit(write_last_lines));
        const thread_options options{256 * 1024, 0, false, "ojs-log"};
        result<thread> started =
            unless_out_of_memory([&] { return thread::start([this] { run(); }, options); });
        if (started) started->detach();
        return has_thread_ = bool(started);
    }
    void run() noexcept {
        unique_lock held(mutex_);
        for (;;) {
            while (lines_.empty() && added_.wait_until(held, idle_until_)) {
            }
            if (lines_.empty()) break;
            write_waiting(held, -1);
        }
        has_thread_ = false;
        changed_.notify_all();
    }
    static void write_last_lines();
    // If the thread has not run since they came, as on a busy machine.
    void write_untaken(unique_lock& held) noexcept {
        if (!lines_.empty() && lines_.size() == accepted_ - written_) write_here(held);
    }
    void write_here(unique_lock& held) noexcept {
        const write_signals_blocked blocked;
        write_waiting(held, 0);
    }
    // The mutex is unlocked meanwhile. `timeout_ms`: see write_text().
    void write_waiting(unique_lock& held, int timeout_ms) noexcept {
        array<log_line> lines;
        lines.swap(lines_);
        const std::size_t bytes = waiting_bytes_;
        held.unlock();
        for (const log_line& line : lines) {
            if (!write_text(line.fd, line.text, timeout_ms)) count_lost();
        }
        attempt([&] { report_lost(lines.back(), timeout_ms); });
        const std::size_t count = lines.size();
        lines.clear();
        held.lock();
        written_ += count;
        waiting_bytes_ -= bytes;  // only now: their duplicates count as well
        const time_point now = steady_clock::now();
        if (accepted_ == written_) budget_from_ = now - refill * detail::max(until_ - now, {});
        changed_.notify_all();
    }
    // Once a line is written again.
    void report_lost(const log_line& last, int timeout_ms) {
        const std::uint64_t lost = lost_;
        if (lost == 0 || last.format == log_format::automatic) return;
        const log_record record{
            log_level::warn, "log lines dropped: standard error was blocked", {field("lines", lost)}, {}};
        if (write_text(last.fd, format_log_record(record, last.format) + "\n", timeout_ms))
            lost_.fetch_sub(lost);
    }

    atomic<std::uint64_t> lost_{0};
    mutex mutex_;  // guards the rest
    condition added_;
    condition changed_;  // lines were written
    array<log_line> lines_;
    std::size_t waiting_bytes_ = 0;
    std::uint64_t accepted_ = 0;  // lines
    std::uint64_t written_ = 0;
    bool has_thread_ = false;
    time_point idle_until_;  // when it ends, if no line comes
    // The budget for waits, of all together: a tenth of the time since then, up to max_budget.
    time_point budget_from_ = steady_clock::now() - refill * max_budget;
    time_point until_;  // the end of the budget, while there are lines to write
};

// Never destroyed: threads may log during exit. A fork() child gets a new one, as the old mutex may stay locked.
inline log_sink& sink() {
    alignas(log_sink) static unsigned char storage[sizeof(log_sink)];  // needs no memory, but for a child's
    static atomic<bool> is_storage_taken{false};
    static atomic<log_sink*> shared{nullptr};
    log_sink* found = shared.load();
    if (found != nullptr && found->owner == fork_generation()) return *found;
    log_sink* const added = is_storage_taken.exchange(true) ? new log_sink : ::new (storage) log_sink;
    if (shared.compare_exchange_strong(found, added)) return *added;
    if (static_cast<void*>(added) != storage) delete added;
    return *found;
}

inline void log_sink::write_last_lines() {
    sink().write_untaken();
}

OJS_SHUTDOWN_INLINE void write_line(int fd, std::string line, log_format format) {
    log_line added{fd, format, std::move(line) + "\n", {}};
    if (fd > STDERR_FILENO) {
        added.owned = unique_fd(::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
        if (!added.owned) return sink().count_lost();
        added.fd = added.owned.get();
    }
    sink().write(std::move(added));
}

OJS_SHUTDOWN_INLINE log_field field(std::string_view name, text_part value) {
    return {std::string(name), cat({value}), value.is_number()};
}

OJS_SHUTDOWN_INLINE void limit_log_flush(std::chrono::milliseconds total) noexcept {
    sink().limit_budget(total);
}

OJS_SHUTDOWN_INLINE void flush_log() noexcept {
    sink().end_by(steady_clock::now() + std::chrono::milliseconds(250));
}

OJS_SHUTDOWN_INLINE logger::logger(log_options options, const char* component, std::string worker_id,
                                   std::vector<std::string> secrets)
    : options_(std::move(options)),
      component_(component),
      worker_id_(std::move(worker_id)),
      secrets_(std::move(secrets)) {
    if (options_.format == log_format::automatic)
        options_.format = ::isatty(STDERR_FILENO) == 1 ? log_format::text : log_format::json;
}

OJS_SHUTDOWN_INLINE bool logger::is_on_terminal() const noexcept {
    return !options_.hook && options_.format == log_format::text && ::isatty(STDERR_FILENO) == 1;
}

OJS_SHUTDOWN_INLINE void logger::write(log_level level, std::string_view message,
                                       std::initializer_list<log_field> fields) const {
    if (enabled(level) && !attempt([&] { emit({level, std::string(message), fields, {}}); }))
        sink().count_lost();
}

OJS_SHUTDOWN_INLINE void logger::write(log_record record) const {
    if (enabled(record.level) && !attempt([&] { emit(std::move(record)); })) sink().count_lost();
}

OJS_SHUTDOWN_INLINE void logger::write_requested(std::string_view message,
                                                 std::vector<log_field> fields) const {
    if (options_.level != log_level::off)
        emit({log_level::info, std::string(message), std::move(fields), {}});
}

OJS_SHUTDOWN_INLINE void logger::mask_secrets(std::string& text) const {
    for (const std::string& secret : secrets_) {
        if (secret.size() < 4) continue;  // too short to be a secret: it would mask half the log
        for (std::size_t at = 0; (at = text.find(secret, at)) != std::string::npos; at += 3)
            text.replace(at, secret.size(), "***");
    }
}

OJS_SHUTDOWN_INLINE void logger::emit(log_record record) const {
    record.worker_id = worker_id_;
    if (*record.component == 0) record.component = component_;
    mask_secrets(record.message);
    for (log_field& f : record.fields) mask_secrets(f.value);
    if (!options_.hook)
        return write_line(STDERR_FILENO, format_log_record(record, options_.format), options_.format);
    try {
        options_.hook(record);
    } catch (...) {
        if (!sink().hook_threw.exchange(true))
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
    detail::flush_log();
    return 64;
}

}  // namespace v0_1_0
}  // namespace ojs
