// log: records, the hook that receives them, and the default sink.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "detail/text.hpp"
#include "error.hpp"
#include "function.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Levels of records, ascending; `off` logs none.
enum class log_level { debug, info, warn, error, off };
/// How a record is written: `logfmt` as name=value throughout, `json` by the OJS logging specification [LOG 5],
/// `automatic` as text on a terminal, else as json.
enum class log_format { text, logfmt, json, automatic };

/// "debug", "info", "warn", "error", "off". Never null. Thread-safe.
inline const char* to_string(log_level level) noexcept {
    return detail::name_of(level, {"debug", "info", "warn", "error", "off"});
}

/// One value of a record.
struct log_field {
    std::string name;        ///< the key
    std::string value;       ///< empty: the field is left out
    bool is_number = false;  ///< JSON writes it without quotes
};

/// What happened, as data. Tokens never appear in a record; job arguments do only if a handler's error quotes them.
struct log_record {
    log_level level = log_level::info;  ///< any but `off`
    std::string message;                ///< constant text to search for; values are in `fields`
    std::vector<log_field> fields;      ///< in the order in which text shows them
    std::string worker_id;              ///< the worker it is about; not in text format
    const char* component = "";         ///< the part that logs, a literal: "worker", "server", "sequence"; JSON only
};

/// Receives every record at or above the level, on the thread that logs, which waits: on several at once, never in a
/// signal handler. It must not block, nor call into the worker. Of exceptions it throws the first is reported.
using log_hook = function<void(const log_record&)>;

/// Where the log goes.
struct log_options {
    log_level level = log_level::info;          ///< the lowest level that is logged
    log_format format = log_format::automatic;  ///< on standard error
    log_hook hook;                              ///< replaces standard error and `format`
    bool error_messages = true;                 ///< with the texts of handlers' errors, cut after 1 KiB
};

/// One line without newline, with the time in UTC; `automatic` means text. Thread-safe.
std::string format_log_record(const log_record& record, log_format format);

namespace detail {
inline log_field field(std::string_view name, text_part value) {
    return {std::string(name), cat({value}), value.is_number()};
}

// Thread-safe.
class logger {
  public:
    logger() = default;
    logger(log_options options, const char* component, std::string worker_id = {});  // `component`: a literal
    bool enabled(log_level level) const noexcept { return level >= options_.level && level != log_level::off; }
    void write(log_level level, std::string_view message, std::initializer_list<log_field> fields = {}) const {
        if (enabled(level)) emit({level, std::string(message), fields, {}});
    }
    void write(log_record record) const {
        if (enabled(record.level)) emit(std::move(record));
    }
    // What an operator requested: at every level but `off`.
    void write_requested(std::string message, std::vector<log_field> fields) const {
        if (enabled(log_level::error)) emit({log_level::info, std::move(message), std::move(fields), {}});
    }

  private:
    void emit(log_record record) const;

    log_options options_;
    const char* component_ = "";
    std::string worker_id_;
};

// Writes `line`. `format`: of the notice of dropped lines; automatic: no notice.
void write_line(int fd, const std::string& line, log_format format = log_format::automatic);

void limit_log_wait(std::chrono::milliseconds total) noexcept;
}  // namespace detail

/// Writes a line and a newline as the logger does, for a log_hook. All lines together wait for up to a second plus a
/// tenth of the elapsed time; then they are dropped. Causes no signal. Thread-safe.
inline void write_log_line(int fd, const std::string& line) { detail::write_line(fd, line); }

/// Prints "error: ..." on standard error and returns exit_status::usage or exit_status::unavailable, for main to return.
int report_startup_error(const error& failure);
}  // namespace v0_1_0
}  // namespace ojs
