// request_parser: takes HTTP/1.1 requests apart as their bytes arrive.
#pragma once

#include "../../net/detail/http_parser.ipp"

namespace ojs::detail {

class request_parser final : public http_parser {
  public:
    using http_parser::http_parser;

    // Nothing of the request is here yet, but perhaps empty lines before it.
    bool untouched() const noexcept { return state_ == state::start_line && !has_surplus(); }
    bool head_complete() const noexcept { return state_ > state::header_line && state_ != state::failed; }
    // Once the head is complete.
    bool expects_continue() const noexcept { return expects_continue_; }

  private:
    void on_start_line(std::string_view line) override {
        if (line.empty()) return;  // left by old clients after a body
        const std::size_t first = line.find(' ');
        const std::size_t last = line.rfind(' ');
        if (first == std::string_view::npos || first == last)
            return fail(400, "the request line is not HTTP");
        const std::string_view method = line.substr(0, first);
        std::string_view target = line.substr(first + 1, last - first - 1);
        if (!is_token(method) || !is_target(target)) return fail(400, "the request line is not HTTP");
        authority_.clear();
        if (same_word(target.substr(0, 7), "http://")) {  // as sent to a proxy
            target.remove_prefix(7);
            const std::size_t path = target.find_first_of("/?");
            authority_ = std::string(target.substr(0, path));
            if (authority_.empty()) return fail(400, "the request line names no host");
            target.remove_prefix(path == std::string_view::npos ? target.size() : path);
        }
        message_.method = std::string(method);
        message_.target = cat({target.empty() || target.front() == '?' ? "/" : "", target});
        on_version(line.substr(last + 1));
    }
    void on_head_end() override {
        int hosts = 0;
        for (http_header& header : message_.headers) {
            if (!same_word(header.name, "Host")) continue;
            ++hosts;
            if (!authority_.empty()) header.value = authority_;  // which goes before Host [RFC 9112 3.2.2]
        }
        if (hosts > 1 || (hosts == 0 && minor_version_ > 0))
            return fail(400, "exactly one Host header is required");
        note_keep_alive();
        expects_continue_ = minor_version_ > 0 && has_list_word(message_.headers, "Expect", "100-continue");
        choose_framing(state::complete);
    }

    std::string authority_;  // of a target that is a whole URL
    bool expects_continue_ = false;
};

}  // namespace ojs::detail
