// The JSON codec: picojson with its traps closed. json.ipp is the only file that includes picojson.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../base/error.hpp"

namespace picojson {
class value;
}

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Parses the whole of `text`. Never throws; errc::bad_answer with a short text (never an echo of the input) for
// invalid JSON, trailing bytes, numbers that do not fit a double, and nesting deeper than 100.
result<void> parse_json(std::string_view text, picojson::value& out);

// Compact JSON; never throws.
std::string to_json(const picojson::value& value);

// Members of a parsed object; null, false or the fallback when absent or of another type. The value stays owned by
// `object`.
const picojson::value* json_member(const picojson::value& object, const char* key);
bool json_string(const picojson::value& object, const char* key, std::string& out);
// Whole numbers only, within [min, max].
bool json_integer(const picojson::value& object, const char* key, std::int64_t min, std::int64_t max,
                  std::int64_t& out);

// The source text of a member of an object, or of the next element of an array: what a number was written as is
// kept, where a double would lose digits. Empty or false when there is none. Iterative, so no nesting overflows the
// stack. Made for JSON that parsed; of anything else they find something or nothing, safely. The next_ forms get the
// whole text first and move `rest` on; `key` comes with its quotes.
std::string_view raw_member(std::string_view object, std::string_view key);
bool next_raw_member(std::string_view& rest, std::string_view& key, std::string_view& value);
bool next_raw_element(std::string_view& rest, std::string_view& element);
// `object` with that member in place of any it has of that name; an empty `value` only takes those away.
std::string with_raw_member(std::string_view object, std::string_view key, std::string_view value);
// The string that `source` writes; false if it is none.
bool raw_string(std::string_view source, std::string& out);

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
