// What the files of build/bench share. tests/bench/bench.py starts it as `bench ROLE [ARGUMENT]...`.
#pragma once
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace bench {

using arguments = std::vector<std::string>;

struct role {
    const char* name;
    int (*run)(const arguments&);
};
extern const std::vector<role> in_process_roles, spool_roles, worker_roles, server_roles;

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

// Prints what was measured and its floor, round by round.
template <class Ours, class Floor>
int print_pairs(Ours ours, Floor floor) {
    for (int round = 0; round < 15; ++round) {
        const double measured = ours();
        print(std::to_string(measured) + " " + std::to_string(floor()));
    }
    return 0;
}

// The least a program can do to notice a signal: its handler stores the number and writes an eventfd, which is returned.
int install_bare_handler(const std::vector<int>& signals);
int last_bare_signal();

// To a port of loopback.
int connected_socket(int port);

}  // namespace bench
