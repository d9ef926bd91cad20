#pragma once
#include "processes.hpp"

namespace test {
// What `call` writes to standard error; at most what a pipe holds, and at least one byte.
template <class Call>
std::string standard_error_of(Call call) {
    pipe_ends ends;
    const int saved = ::dup(STDERR_FILENO);
    ::dup2(ends.writer(), STDERR_FILENO);
    call();
    ::dup2(saved, STDERR_FILENO);
    ::close(saved);
    ends.close_writer();
    std::string out(16384, '\0');
    const ssize_t got = ::read(ends.reader(), &out[0], out.size());
    out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    REQUIRE(!out.empty());
    return out;
}
}  // namespace test
