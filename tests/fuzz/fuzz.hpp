// What the fuzz targets share: a way to fail, and a way to take an input apart.
#pragma once
#include <picojson.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ojs_events.hpp>
#include <ojs_launcher.hpp>
#include <ojs_ops.hpp>
#include <ojs_spool.hpp>
#include <vector>

#include "../support/files.hpp"

namespace fuzz {
// A promise that was broken ends the process: libFuzzer then writes the input down.
inline void expect(bool holds, const char* promise, const std::string& seen = {}) {
    if (holds) return;
    std::fprintf(stderr, "BROKEN: %s\n%s\n", promise, seen.c_str());
    std::abort();
}

class input {
  public:
    input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

    bool empty() const { return rest_.empty(); }
    unsigned byte() {
        if (rest_.empty()) return 0;
        const auto out = static_cast<unsigned char>(rest_.front());
        rest_.remove_prefix(1);
        return out;
    }
    std::string_view line(char last = '\n') {
        const std::size_t end = std::min(rest_.find(last), rest_.size());
        const std::string_view out = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        return out;
    }
    std::string_view rest() const { return rest_; }

  private:
    std::string_view rest_;
};

// What is logged or shown to a person: short, and one line without control characters.
inline void expect_printable(const std::string& text, std::size_t max) {
    expect(text.size() <= max, "a text is short", text);
    for (std::string_view rest = text; !rest.empty();) {
        const ojs::detail::character next = ojs::detail::take_character(rest);
        expect(next.code != ojs::detail::character::none, "a text is UTF-8", text);
        expect(!next.is_control(), "a text holds no control character", text);
    }
}

// A stream is read the same however its bytes come in. read(bytes, step, how) reports all that was read of it in steps of
// `step` bytes; `how` is the first byte, which also says how the stream is split.
template <class Read>
void expect_same_in_pieces(input in, Read read) {
    const unsigned how = in.byte();
    const std::string whole = read(in.rest(), in.rest().size() + 1, how);
    for (const std::size_t step : {std::size_t{1}, std::size_t{2 + how / 2}}) {
        const std::string split = read(in.rest(), step, how);
        expect(split == whole, "split feeds agree", "whole: " + whole + "\nsplit: " + split);
    }
}

using test::read_file;
using test::temporary_folder;
using test::write_file;

// The other reader of JSON: what the library takes for JSON, picojson reads to its end.
inline bool read_json(std::string_view text, picojson::value& out) {
    std::string wrong;
    const std::string copy(text);
    try {
        const auto end = picojson::parse(out, copy.begin(), copy.end(), &wrong);
        const auto rest = static_cast<std::size_t>(end - copy.begin());
        return wrong.empty() && copy.find_first_not_of(" \t\r\n", rest) == std::string::npos;
    } catch (const std::exception&) {  // a number too large for a double
        return false;
    }
}

// Whether picojson can read this JSON.
inline bool fits_picojson(std::string_view json) {
    const bool has_surrogate = json.find("\\ud") != json.npos || json.find("\\uD") != json.npos;
    return !has_surrogate && ojs::detail::check_json(json, true).has_value();
}
}  // namespace fuzz
