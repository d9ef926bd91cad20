// runs: the calls to run() in flight, of workers and loops, which share signal handlers and decide together how the process ends.
#pragma once

#include <unistd.h>

#include "../../base/detail/sync.hpp"
#include "../../core/signals.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

struct run_state {
    pid_t owner = 0;  // the process that they are in
    int count = 0;
    bool exits = false;  // one must end by _exit()
    int highest_status = 0;
    signals* installer = nullptr;  // of those with one lifecycle
    int shares = 0;                // in the installer
};
__attribute__((visibility("default"))) inline run_state all_runs;
__attribute__((visibility("default"))) inline atomic<pid_t> all_runs_holder{0};

// Holds `all_runs`. No mutex: it is constant-initialised, and a child of fork() takes it from a thread of its parent.
struct runs_lock {
    runs_lock() noexcept {
        const pid_t self = ::getpid();
        pid_t found = 0;
        while ((found = all_runs_holder) == self || !all_runs_holder.compare_exchange_strong(found, self))
            pause_for(std::chrono::milliseconds(1));
        if (all_runs.owner != self) all_runs = run_state{self};
    }
    ~runs_lock() { all_runs_holder = 0; }
};

inline void begin_run() noexcept {
    const runs_lock held;
    ++all_runs.count;
}

// Called as each run() ends. If one of them abandoned a thread, the last calls _exit() with the highest status, so
// that the others can settle their jobs. True: the caller must not return.
inline bool end_run(int status, bool leaves_threads) noexcept {
    const runs_lock held;
    all_runs.highest_status = detail::max(all_runs.highest_status, status);
    all_runs.exits = all_runs.exits || leaves_threads;
    if (--all_runs.count == 0) {
        if (all_runs.exits) _exit(all_runs.highest_status);
        all_runs.highest_status = 0;  // for later runs
    }
    return leaves_threads;
}

// A share in the signal installer of the run() calls with one lifecycle: it lasts until the last of them ends.
class run_signals {
  public:
    run_signals() = default;
    run_signals(const run_signals&) = delete;
    run_signals& operator=(const run_signals&) = delete;
    ~run_signals() { release(); }
    void release() noexcept {
        const runs_lock held;
        if (detail::exchange(shares_, false) && --all_runs.shares == 0)
            delete detail::exchange(all_runs.installer, nullptr);
    }

    // Or uses the program's own. Returns the signals that stay ignored.
    result<std::vector<int>> install(lifecycle& target, const signal_options& options) {
        const runs_lock held;
        result<std::vector<int>> ignored = std::vector<int>();
        if (signals::installed_for(target)) {
            ignored = signals::add(target, options);
        } else {
            result<signals> installed = signals::install(target, options);
            if (!installed) return installed.error();
            ignored = installed->ignored();
            all_runs.installer = new signals(std::move(*installed));
        }
        shares_ = ignored && all_runs.installer != nullptr;
        if (shares_) ++all_runs.shares;
        return ignored;
    }

  private:
    bool shares_ = false;
};

// With a termination-mode file SIGUSR1 means reclaim.
inline result<void> install_signals(const loop_options& options, lifecycle& target, const logger& log,
                                    run_signals& own) {
    signal_options wanted;
    wanted.reclaim = !options.termination_mode_file.empty();
    wanted.stop_signals = options.stop_signals;
    wanted.third_signal_exits = !options.dialect.first_signal_wins;
    const result<std::vector<int>> ignored = own.install(target, wanted);
    if (!ignored) return ignored.error();
    for (const int number : *ignored) {
        log.write(number == SIGINT ? log_level::warn : log_level::info,
                  "signal stays ignored: it was ignored at process start (nohup, trap '' or &)",
                  {field("signal", signal_name(number))});
    }
    return {};
}

}  // namespace ojs::detail
