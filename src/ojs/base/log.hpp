// Log records, the hook that receives them, and the default sink.
#pragma once

#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "detail/text.hpp"
#include "function.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class log_level { debug, info, warn, error, off };
enum class log_format {
    text,
    logfmt,
    json,      // the fields of the OJS logging specification [LOG 5]
    automatic  // text where standard error is a terminal, else json
};

// "debug", "info", "warn", "error", "off". Never null. Thread-safe.
const char* to_string(log_level level) noexcept;

struct log_field {
    std::string name;
    std::string value;
    bool is_number = false;
};

// What happened, as data. `message` is fixed text to search for; what varies is in the fields. Job arguments
// and tokens are never in a record.
struct log_record {
    log_level level = log_level::info;
    std::string message;
    std::vector<log_field> fields;
    std::string worker_id;  // whose record it is; text leaves it out
    const char* component =
        "";  // the part that logs it, a literal: "worker", "launcher", ...; only JSON has it
};

// Receives every record at or above the level. May be called from several threads at once, never from a
// signal handler; must not call back into the worker. What it throws is dropped, and told on standard error, once.
using log_hook = function<void(const log_record&)>;

struct log_options {
    log_level level = log_level::info;
    log_format format = log_format::automatic;
    log_hook hook;  // empty: standard error, in `format`
};

// The record as one line without its newline, in the given format (automatic: text), with the time in UTC.
// Thread-safe.
std::string format_log_record(const log_record& record, log_format format);

namespace detail {

log_field field(std::string_view name, text_part value);

// Filters by level and passes on: logger.write(log_level::info, "worker started", {field("queues", 2)}).
class logger {
  public:
    logger() = default;
    // `component` is a literal. `secrets` are masked in whatever is written: a backend may echo what it was sent.
    logger(log_options options, const char* component, std::string worker_id = {},
           std::vector<std::string> secrets = {});
    bool enabled(log_level level) const noexcept {
        return level >= options_.level && level != log_level::off;
    }
    void write(log_level level, std::string_view message, std::initializer_list<log_field> fields = {}) const;
    void write(log_record record) const;
    // What an operator asked to see: written at every level but `off`.
    void answer(std::string_view message, std::vector<log_field> fields) const;

  private:
    void pass_on(log_record record) const;
    void call_hook(const log_record& record) const;
    void report_lost() const;
    void mask_secrets(std::string& text) const;

    log_options options_;
    const char* component_ = "";
    std::string worker_id_;
    std::vector<std::string> secrets_;
};

// One write(2) a line, so that lines of several threads and processes do not mix. False: nobody read it in time.
bool write_line(int fd, std::string line);

// All lines together wait so long at most for their reader from now on, and a tenth of the time that passes. A reader
// that is slower costs lines, which are counted, and said when there is room again.
void limit_log_flush(std::chrono::milliseconds total) noexcept;

}  // namespace detail

// For a log_hook of your own: writes a line, with its newline, as the logger writes its own. Lines of several threads
// do not mix; a reader that is gone or does not read costs lines, never a SIGPIPE or a hang. Thread-safe.
inline void write_log_line(int fd, std::string line) {
    static_cast<void>(detail::write_line(fd, std::move(line)));
}

}  // namespace v0_1_0
}  // namespace ojs
