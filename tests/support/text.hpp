// text: searches for parts of it.
#pragma once
#include <sstream>
#include <string>
#include <vector>

namespace test {

inline bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// What stands between blanks and line ends: a table of texts that have none.
inline std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> out;
    for (std::string each; in >> each;) out.push_back(each);
    return out;
}

}  // namespace test
