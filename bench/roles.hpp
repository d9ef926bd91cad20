// What the files of build/bench share. bench/bench.py starts it as `bench ROLE [ARGUMENT]...`.
#pragma once
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace bench {
using arguments = std::vector<std::string>;

struct role {
    const char* name;
    int (*run)(const arguments&);
};
extern const std::vector<role> spool_roles, worker_roles, server_roles;

inline double monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

inline void must(bool worked, const char* what) {
    if (worked) return;
    std::perror(what);
    ::_exit(1);
}

// One write(2) a line, as several threads print.
inline void print(std::string line) {
    line += '\n';
    must(::write(STDOUT_FILENO, line.data(), line.size()) > 0, "write");
}

// To a port of loopback.
int connected_socket(int port);
}  // namespace bench
