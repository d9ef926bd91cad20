#pragma once

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <new>

#include "detail/clock.ipp"
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

// Where the OJS logging specification puts a field; other fields are attributes.
struct json_location {
    const char* field;
    const char* group;
    std::string_view key;
};
inline constexpr json_location json_locations[] = {
    {"job_id", "ojs", "job_id"},   {"job_type", "ojs", "job_type"}, {"queue", "ojs", "queue"},
    {"attempt", "ojs", "attempt"}, {"state", "ojs", "state"},       {"error_type", "error", "type"},
    {"error", "error", "message"},
};

inline json_location location_of(const log_field& f) noexcept {
    for (const json_location& location : json_locations) {
        if (f.name == location.field) return location;
    }
    return {"", "attributes", f.name};
}

// Appends `,"group":{...}` with `members` and the fields of the group; nothing if both are empty.
inline void append_json_group(std::string& out, const log_record& record, std::string_view group,
                              std::string members = {}) {
    for (const log_field& f : record.fields) {
        const json_location location = location_of(f);
        if (group != location.group || f.value.empty()) continue;
        append(members, {members.empty() ? "" : ",", json_quote(location.key), ":",
                         f.is_number ? f.value : json_quote(f.value)});
    }
    if (!members.empty()) append(out, {",\"", group, "\":{", members, "}"});
}

// The category of the OJS logging specification. [LOG 6]
inline const char* category_of(const log_record& record) noexcept {
    if (record.level >= log_level::error) return "error";
    for (const log_field& f : record.fields) {
        if (f.name == "job_id") return "lifecycle";
    }
    return "worker";
}

inline std::string format_json(const log_record& record, const std::string& time) {
    static constexpr const char* severities[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    const auto level =
        static_cast<std::size_t>(record.level < log_level::off ? record.level : log_level::error);
    std::string out =
        cat({"{\"timestamp\":\"", time, "\",\"severity\":\"", severities[level],
             "\",\"severity_number\":", 5 + 4 * level, ",\"message\":", json_quote(record.message),
             ",\"category\":\"", category_of(record), "\",\"component\":\"",
             *record.component != 0 ? record.component : "worker", "\""});
    append_json_group(out, record, "ojs",
                      record.worker_id.empty() ? "" : cat({"\"worker_id\":", json_quote(record.worker_id)}));
    append_json_group(out, record, "error");
    append_json_group(out, record, "attributes");
    return out + "}";
}

// Blocks SIGPIPE in this thread for a scope and consumes one that the scope raised. The disposition is untouched.
class no_sigpipe {
  public:
    no_sigpipe() noexcept {
        sigemptyset(&sigpipe_);
        sigaddset(&sigpipe_, SIGPIPE);
        sigset_t pending;
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        pthread_sigmask(SIG_BLOCK, &sigpipe_, &previous_);
    }
    no_sigpipe(const no_sigpipe&) = delete;
    no_sigpipe& operator=(const no_sigpipe&) = delete;
    ~no_sigpipe() {
        sigset_t pending;
        sigpending(&pending);
        if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1) {
            int ignored = 0;
            sigwait(&sigpipe_, &ignored);
        }
        pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
    }

  private:
    sigset_t sigpipe_;
    sigset_t previous_;
    bool was_pending_;
};

// Shared by all loggers of the process: serialises writes, and budgets the time that lines wait for their reader.
struct log_sink {
    // With the mutex held. False: the budget is used up. A slow reader costs at most 1 s, plus a tenth of the time.
    bool wait_writable(int fd) noexcept {
        pollfd ready{fd, POLLOUT, 0};
        if (::poll(&ready, 1, 0) > 0) return true;
        refill_budget();
        for (;;) {
            const std::int64_t left = budget_ms.load();
            if (left <= 0) return false;
            const auto started_at = steady_clock::now();
            if (::poll(&ready, 1, static_cast<int>(left < slice_ms ? left : slice_ms)) > 0) return true;
            const auto waited = steady_clock::now() - started_at;
            budget_ms.fetch_sub(1 + std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
        }
    }
    void refill_budget() noexcept {
        const time_point now = steady_clock::now();
        const auto earned =
            std::chrono::duration_cast<std::chrono::milliseconds>(now - refilled_at.load()) / 10;
        if (earned.count() == 0) return;
        refilled_at = now;
        const std::int64_t previous = budget_ms.fetch_add(earned.count());
        if (previous + earned.count() > max_budget_ms) cap_budget(max_budget_ms);
    }
    void cap_budget(std::int64_t max_ms) noexcept {
        std::int64_t current = budget_ms.load();
        while (current > max_ms && !budget_ms.compare_exchange_weak(current, max_ms)) {
        }
    }

    static constexpr std::int64_t max_budget_ms = 1000;
    static constexpr std::int64_t slice_ms = 20;  // so that a cap set meanwhile takes effect

    const std::uint32_t owner = fork_generation();
    mutex write_mutex;
    atomic<std::int64_t> budget_ms{max_budget_ms};
    atomic<time_point> refilled_at{steady_clock::now()};
    bool is_torn = false;  // guarded by the mutex: the last line was written in part
    atomic<std::uint64_t> lost{0};
    atomic<bool> hook_threw{false};
};

// Never destroyed: threads may log during exit. A fork() child gets a new one, as the old mutex may stay locked.
inline log_sink& sink() {
    alignas(log_sink) static unsigned char storage[sizeof(log_sink)];
    static atomic<log_sink*> shared{::new (storage) log_sink};
    log_sink* found = shared.load();
    if (found->owner != fork_generation()) {
        auto* added = new log_sink;
        if (shared.compare_exchange_strong(found, added)) return *added;
        delete added;
    }
    return *found;
}

// With the mutex held. False: the rest of the text was not written.
inline bool write_all(log_sink& out, int fd, std::string_view text) {
    while (!text.empty()) {
        if (!out.wait_writable(fd)) return false;
        const ssize_t written = ::write(fd, text.data(), text.size() < PIPE_BUF ? text.size() : PIPE_BUF);
        if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (written <= 0) return false;
        out.is_torn = true;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

OJS_SHUTDOWN_INLINE bool write_line(int fd, std::string line) {
    const no_sigpipe blocked;
    log_sink& out = sink();
    const unique_lock held(out.write_mutex);  // else two writers could both see the last free space of a pipe
    line += '\n';
    if (out.is_torn) line.insert(0, 1, '\n');
    if (!write_all(out, fd, line)) {
        out.lost.fetch_add(1);
        return false;
    }
    out.is_torn = false;
    return true;
}

OJS_SHUTDOWN_INLINE log_field field(std::string_view name, text_part value) {
    return {std::string(name), cat({value}), value.is_number()};
}

OJS_SHUTDOWN_INLINE void limit_log_flush(std::chrono::milliseconds total) noexcept {
    sink().refilled_at = steady_clock::now();  // the time until now adds nothing
    sink().cap_budget(total.count());
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
        sink().lost.fetch_add(1);
}

OJS_SHUTDOWN_INLINE void logger::write(log_record record) const {
    if (enabled(record.level) && !attempt([&] { emit(std::move(record)); })) sink().lost.fetch_add(1);
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
    if (options_.hook) return call_hook(record);
    if (write_line(STDERR_FILENO, format_log_record(record, options_.format))) report_lost();
}

OJS_SHUTDOWN_INLINE void logger::call_hook(const log_record& record) const {
    try {
        options_.hook(record);
    } catch (...) {
        if (!sink().hook_threw.exchange(true))
            static_cast<void>(
                write_line(STDERR_FILENO, "error: the log hook threw an exception; records are lost"));
    }
}

OJS_SHUTDOWN_INLINE void logger::report_lost() const {
    const std::uint64_t lost = sink().lost.exchange(0);
    if (lost == 0) return;
    const log_record record{log_level::warn,
                            "log lines were lost: nobody read them in time",
                            {field("lines", lost)},
                            worker_id_,
                            component_};
    if (!write_line(STDERR_FILENO, format_log_record(record, options_.format)))
        sink().lost.fetch_add(lost - 1);  // the report itself was lost and counted
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::string format_log_record(const log_record& record, log_format format) {
    const std::string time = detail::utc_timestamp();
    if (format == log_format::json) return detail::format_json(record, time);
    return detail::format_text(record, time, format == log_format::logfmt);
}

OJS_SHUTDOWN_INLINE int report_usage(const error& failure) {
    detail::write_line(STDERR_FILENO, detail::cat({"error: ", failure.text}));
    return 64;
}

}  // namespace v0_1_0
}  // namespace ojs
