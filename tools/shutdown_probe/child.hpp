// child: the process of the worker under test; its destructor leaves no orphan.
#pragma once
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "recorder.hpp"

namespace probe {
using environment = std::map<std::string, std::string>;

struct line {
    moment at;
    std::string text;
};

// A program in a process group of its own. The destructor kills the whole group.
class child {
  public:
    child() = default;
    ~child();
    child(const child&) = delete;
    child& operator=(const child&) = delete;

    // Starts it with our environment without OJS_*, plus `extra`. False, and why: it could not be started.
    bool start(const std::vector<std::string>& command, const environment& extra, std::string& why);
    pid_t pid() const { return pid_; }
    void signal(int number) const;  // to the process alone, as an orchestrator does
    bool alive() { return !wait(milliseconds(0)); }
    bool wait(milliseconds limit);          // true once it has ended
    void kill_group();                      // SIGKILL, and waits
    int status() const { return status_; }  // exit status, or minus the signal; valid once ended
    moment ended_at() const { return ended_at_; }
    std::int64_t resident_kb() const;  // 0: not known

    // Its standard output and error, the last lines of them. Thread-safe.
    std::vector<line> output() const;
    bool wait_output(const std::function<bool(const line&)>& matches, milliseconds limit);

    // Kills every group. Async-signal-safe.
    static void kill_all() noexcept;

  private:
    void listen(int fd);
    void watch();

    pid_t pid_ = 0;
    int slot_ = -1;
    int status_ = 0;
    moment ended_at_;
    bool ended_ = false;  // guarded by mutex_, as is what follows
    std::deque<line> lines_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::thread listener_;
    std::thread watcher_;
    int stop_pipe_[2] = {-1, -1};
};
}  // namespace probe
