// Text helpers, so that no stream is needed: concatenation, whole-number parsing, errno texts.
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

// append(out, {"job ", 7, " lost"}); cat({"job ", 7, " lost"}) == "job 7 lost". Lists and no parameter packs: each mix
// of types would be a function of its own to compile.
void append(std::string& out, std::initializer_list<text_part> parts);
std::string cat(std::initializer_list<text_part> parts);

// The whole of `text` as a decimal number in [0, max]; false if it is anything else.
bool parse_number(std::string_view text, std::uint64_t max, std::uint64_t& out) noexcept;

// "Connection refused (errno 111)"
std::string errno_text(int sys_errno);

// At most `max` bytes of `text`, control characters and what is not UTF-8 made visible: what a peer sent, fit for a log
// line.
std::string printable(std::string_view text, std::size_t max = 200);

// Without leading and trailing `blanks`.
std::string_view trim_blanks(std::string_view text, const char* blanks = " \t") noexcept;
// What comes before the first of these characters, which is taken off with it.
inline std::string_view next_part(std::string_view& text, std::string_view separators) noexcept {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return out;
}

// Takes one character off the front: itself, or U+FFFD for a byte that belongs to none.
std::string_view take_utf8(std::string_view& text) noexcept;

bool is_utf8(std::string_view text) noexcept;
// The same text with U+FFFD for each byte that belongs to no character.
std::string repair_utf8(std::string text);

// Where the texts are, in ascending order.
array<const std::string*> sorted_pointers(const std::vector<std::string>& texts);
// How many of them come before `text`.
std::size_t index_of(const array<const std::string*>& sorted, const std::string& text) noexcept;

// A string as JSON, with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace ojs::detail
