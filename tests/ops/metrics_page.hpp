// A page of /metrics, read.
#pragma once
#include <sstream>
#include <string>

#include "test.hpp"

namespace test {
// Samples by name and labels, comments left out; each must appear once.
inline std::map<std::string, std::string> samples(const std::string& page) {
    std::map<std::string, std::string> out;
    CHECK(page.back() == '\n');
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        if (line[0] == '#') continue;
        const std::size_t blank = line.rfind(' ');
        CHECK_MESSAGE(out.emplace(line.substr(0, blank), line.substr(blank + 1)).second, line);
    }
    return out;
}
}  // namespace test
