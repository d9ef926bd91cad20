// Whether a thread sleeps in the kernel.
#pragma once

#include "test.hpp"

#if OJS_SHUTDOWN_USE_PROC
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

namespace test {
inline long thread_id() { return ::syscall(SYS_gettid); }

// False: it did not sleep within hang_guard.
inline bool await_sleep(long thread) {
    const ojs::time_point end = ojs::deadline_after(hang_guard);
    bool sleeps = false;
    for (; !sleeps && ojs::steady_clock::now() < end; std::this_thread::yield()) {
        std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
        std::string line;
        std::getline(file, line);
        sleeps = holds(line, ") S ");
    }
    return sleeps;
}
}  // namespace test
#endif
