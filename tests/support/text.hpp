// text: searches for parts of it.
#pragma once
#include <string>

namespace test {

inline bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace test
