// json_view: the JSON codec: picojson with its traps closed. json.ipp is the only file that includes picojson.
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

// Whether the whole of `text` is one JSON value [RFC 8259], told by a walk that needs no memory. errc::bad_answer with a
// short text (never an echo of the input) for anything else, and for a surrogate that stands alone, numbers that do not
// fit a double, and nesting deeper than 100. Whether strings are UTF-8 is another question: is_utf8().
result<void> check_json(std::string_view text);
bool is_json(std::string_view text) noexcept;
bool is_json_object(std::string_view text) noexcept;

// Compact JSON; never throws.
std::string to_json(const picojson::value& value);

// The source text of a member of an object, or of the next element of an array: what a number was written as is
// kept, where a double would lose digits. Empty or false when there is none. Iterative, so no nesting overflows the
// stack. Made for JSON that was checked; of anything else they find something or nothing, safely. The next_ forms get
// the whole text first and move `rest` on; `key` comes with its quotes. When they find nothing more, raw_walk_ended()
// tells whether that is so because of the closing bracket at the end of the text, the brackets within matching.
std::string_view raw_member(std::string_view object, std::string_view key);
bool next_raw_member(std::string_view& rest, std::string_view& key, std::string_view& value);
bool next_raw_element(std::string_view& rest, std::string_view& element);
bool raw_walk_ended(std::string_view rest, char open, char close) noexcept;
// `object` with that member in place of any it has of that name; an empty `value` only takes those away.
std::string with_raw_member(std::string_view object, std::string_view key, std::string_view value);

// The string that `source` writes; false if it is none.
bool raw_string(std::string_view source, std::string& out);
// The same for what only resembles one. Odd: a control character, which is kept, or a surrogate that stands alone, which
// becomes the three bytes no UTF-8 has.
enum class json_text { none, odd, proper };
json_text read_json_string(std::string_view source, std::string& out);
// The number that `source` writes; false if it is none, or does not fit a double.
bool json_number(std::string_view source, double& out);
bool is_json_number(std::string_view source) noexcept;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
