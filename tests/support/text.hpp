// text: searches for parts of it.
#pragma once
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace test {
inline bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What stands between blanks and line ends, and `more`, which has some.
inline std::vector<std::string> words(const std::string& text, std::initializer_list<std::string_view> more = {}) {
    std::istringstream in(text);
    std::vector<std::string> out(more.begin(), more.end());
    for (std::string each; in >> each;) out.push_back(each);
    return out;
}
}  // namespace test

using test::holds;
