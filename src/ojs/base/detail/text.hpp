// Text helpers without streams: concatenation, number parsing, errno texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "light.hpp"

namespace ojs::detail {

// One part of a concatenation: text, or a number to be written in decimal.
class text_part {
  public:
    text_part(std::string_view text) noexcept : text_(text), kind_(kind::text) {}
    text_part(const std::string& text) noexcept : text_(text), kind_(kind::text) {}
    text_part(const char* text) noexcept : text_(text), kind_(kind::text) {}
    text_part(long long number) noexcept
        : number_(static_cast<unsigned long long>(number)), kind_(kind::integer) {}
    text_part(unsigned long long number) noexcept : number_(number), kind_(kind::natural) {}
    text_part(int number) noexcept : text_part(static_cast<long long>(number)) {}
    text_part(long number) noexcept : text_part(static_cast<long long>(number)) {}
    text_part(unsigned number) noexcept : text_part(static_cast<unsigned long long>(number)) {}
    text_part(unsigned long number) noexcept : text_part(static_cast<unsigned long long>(number)) {}

    bool is_number() const noexcept { return kind_ != kind::text; }
    void append_to(std::string& out) const;

  private:
    enum class kind : unsigned char { text, integer, natural };
    std::string_view text_;
    unsigned long long number_ = 0;
    kind kind_;
};

// cat({"job ", 7, " lost"}) == "job 7 lost"; append() adds to `out`. Lists, not parameter packs, which would compile
// one function for each mix of types.
void append(std::string& out, std::initializer_list<text_part> parts);
std::string cat(std::initializer_list<text_part> parts);

// Parses all of `text` as a decimal number in [0, max]; false if it is anything else.
bool parse_number(std::string_view text, std::uint64_t max, std::uint64_t& out) noexcept;

// "Connection refused (errno 111)"
std::string errno_text(int sys_errno);

// At most `max` bytes of `text` for a log line: control characters and bytes that are not UTF-8 are escaped.
std::string printable(std::string_view text, std::size_t max = 200);

std::string_view trim_blanks(std::string_view text, const char* blanks = " \t") noexcept;
// Removes and returns the part before the first of `separators`, which is removed as well.
inline std::string_view next_part(std::string_view& text, std::string_view separators) noexcept {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return out;
}

// Removes and returns one character; U+FFFD for a byte that belongs to none.
std::string_view take_utf8(std::string_view& text) noexcept;

bool is_utf8(std::string_view text) noexcept;
// Replaces each byte that belongs to no character by U+FFFD.
std::string repair_utf8(std::string text);

// Quotes `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace ojs::detail
