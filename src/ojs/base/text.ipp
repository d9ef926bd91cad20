#pragma once

#include "text.hpp"

#include <cstdio>
#include <cstring>

namespace ojs {
inline namespace v1 {
namespace detail {

OJS_SHUTDOWN_INLINE void text_part::append_to(std::string& out) const {
    if (kind_ == kind::text) {
        out.append(text_.data(), text_.size());
        return;
    }
    const bool negative = kind_ == kind::integer && static_cast<long long>(number_) < 0;
    unsigned long long left = negative ? 0ULL - number_ : number_;
    char digits[20];
    char* first = digits + sizeof digits;
    do {
        *--first = static_cast<char>('0' + left % 10);
        left /= 10;
    } while (left != 0);
    if (negative) out += '-';
    out.append(first, static_cast<std::size_t>(digits + sizeof digits - first));
}

OJS_SHUTDOWN_INLINE void append_all(std::string& out, std::initializer_list<text_part> parts) {
    for (const text_part& part : parts) part.append_to(out);
}

OJS_SHUTDOWN_INLINE bool parse_number(std::string_view text, std::uint64_t max, std::uint64_t& out) noexcept {
    if (text.empty()) return false;
    std::uint64_t number = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return false;
        const auto digit = static_cast<std::uint64_t>(c - '0');
        if (number > (max - digit) / 10 || digit > max) return false;
        number = number * 10 + digit;
    }
    out = number;
    return true;
}

// strerror_r comes in two shapes, one per standard; overloading picks the right reading of either.
inline const char* strerror_text(int /*failed*/, const char* buffer) {
    return buffer;
}
inline const char* strerror_text(const char* text, const char* /*buffer*/) {
    return text;
}

OJS_SHUTDOWN_INLINE std::string errno_text(int sys_errno) {
    char buffer[128] = "unknown error";
    return cat(strerror_text(strerror_r(sys_errno, buffer, sizeof buffer), buffer), " (errno ", sys_errno,
               ")");
}

OJS_SHUTDOWN_INLINE std::string printable(std::string_view text, std::size_t max) {
    std::string out;
    for (const char c : text.substr(0, max)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f) {
            out += c;
        } else {
            char escaped[5];
            std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(byte));
            out += escaped;
        }
    }
    if (text.size() > max) out += "...";
    return out;
}

}  // namespace detail
}  // namespace v1
}  // namespace ojs
