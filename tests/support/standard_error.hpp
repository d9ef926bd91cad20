// standard_error: what a call writes to it.
#pragma once
#include <unistd.h>

#include <string>

#include "test.hpp"

namespace test {

// What `call` writes to standard error; at most what a pipe holds, and at least one byte.
template <class Call>
std::string standard_error_of(Call call) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const int saved = ::dup(STDERR_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    call();
    ::dup2(saved, STDERR_FILENO);
    ::close(saved);
    ::close(ends[1]);
    std::string out(16384, '\0');
    const ssize_t got = ::read(ends[0], &out[0], out.size());
    ::close(ends[0]);
    out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    REQUIRE(!out.empty());
    return out;
}

}  // namespace test
