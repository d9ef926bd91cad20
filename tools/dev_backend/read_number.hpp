// read_number: parses a text that is a number and nothing else.
#pragma once
#include <charconv>
#include <cstdint>
#include <string_view>

namespace dev_backend {

inline bool read_number(std::string_view text, std::uint64_t max, std::uint64_t& out) {
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
    return failed == std::errc() && end == text.data() + text.size() && out <= max;
}

}  // namespace dev_backend
