// event_parser: server-sent events, and which of them announce work. [HTML 9.2.6, OJS realtime 4]
#pragma once

#include <string>
#include <string_view>

#include "../../base/detail/text.hpp"
#include "../../base/duration.hpp"
#include "../../net/json_view.hpp"

namespace ojs::detail {
struct server_event {
    std::string type;
    std::string data;
    bool is_cut = false;  // it had more than max_event_size bytes in a line, or of data
};

inline constexpr std::size_t max_event_size = 16 * 1024;

// Lines end in LF, CR or CR LF, and may be split anywhere.
class event_parser {
  public:
    explicit event_parser(std::chrono::milliseconds retry = {}) noexcept : retry_(retry) {}

    template <class Callback>
    void feed(std::string_view bytes, const Callback& on_event) {
        for (const char c : bytes) {
            const bool is_second_half = exchange(after_cr_, c == '\r') && c == '\n';
            if (is_second_half) continue;
            if (c == '\r' || c == '\n') {
                if (take_line()) on_event(exchange(event_, {}));
            } else if (line_.size() < max_event_size) {
                line_ += c;
            } else {
                event_.is_cut = true;
            }
        }
    }
    std::chrono::milliseconds retry() const noexcept { return retry_; }  // 0: not named

  private:
    // True: the event is complete.
    bool take_line() {
        std::string_view line = line_;
        if (exchange(at_start_, false) && line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
        const bool ends_event = line.empty();
        if (!ends_event) take_field(line.substr(0, line.find(':')), line);
        line_.clear();
        const bool is_event = ends_event && (!event_.data.empty() || event_.is_cut);
        if (ends_event && !is_event) event_ = {};
        return is_event;
    }
    void take_field(std::string_view name, std::string_view line) {
        std::string_view value = line.substr(min(name.size() + 1, line.size()));
        if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
        std::uint64_t number = 0;
        if (name == "event") event_.type = value;
        if (name == "data") add_data(value);
        if (name == "retry" && parse_number(value, max_retry_ms, number)) retry_ = std::chrono::milliseconds(number);
    }
    void add_data(std::string_view value) {
        event_.is_cut = event_.is_cut || event_.data.size() + value.size() > max_event_size;
        if (!event_.is_cut) append(event_.data, {value, "\n"});
    }

    static constexpr std::uint64_t max_retry_ms = 3600 * 1000;
    std::string line_;
    server_event event_;
    bool at_start_ = true;
    bool after_cr_ = false;
    std::chrono::milliseconds retry_;
};

// An event that is not understood does: a FETCH too many does no harm.
inline bool announces_work(const server_event& event) {
    for (const char* const other : {"job.progress", "queue.paused", "server.shutdown"}) {
        if (event.type == other) return false;
    }
    std::string state;
    return event.is_cut || !read_json_string(raw_member(event.data, "to"), state) || state == "available";
}
}  // namespace ojs::detail
