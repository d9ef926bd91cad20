// runs: the one run() of a process, which has the signal handlers and may end the process.
#pragma once

#include <unistd.h>

#include <csignal>

#include "../../base/detail/sync.hpp"
#include "../../core/signals.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

// The process in which a worker runs, or a loop holds the signals. 0: none. A child of fork() may claim it anew.
__attribute__((visibility("default"))) inline atomic<pid_t> running_process{0};

class run_claim {
  public:
    ~run_claim() { release(); }
    void release() noexcept {
        installed_ = signals();
        if (detail::exchange(owner_, 0) == ::getpid()) running_process = 0;
    }
    // Adds to the program's own signals of `target` if there are any; else installs them. With a termination-mode file
    // SIGUSR1 means reclaim.
    result<void> claim(const loop_options& options, lifecycle& target, const logger& log) {
        const pid_t self = ::getpid();
        pid_t found = running_process;
        if (found == self || !running_process.compare_exchange_strong(found, self))
            return error{errc::busy, 0, "another run() of this process has not ended: use start()"};
        owner_ = self;
        signal_options wanted;
        wanted.reclaim = !options.termination_mode_file.empty();
        wanted.stop_signals = options.stop_signals;
        wanted.third_signal_exits = !options.dialect.first_signal_wins;
        result<std::vector<int>> ignored = std::vector<int>();
        if (drives_signals(target)) {
            ignored = add_signals(wanted);
        } else {
            result<signals> installed = signals::install(target, wanted);
            if (!installed) return installed.error();
            installed_ = std::move(*installed);
            ignored = installed_.ignored();
        }
        if (!ignored) return ignored.error();
        for (const int number : *ignored) {
            log.write(number == SIGINT ? log_level::warn : log_level::info,
                      "signal stays ignored: it was ignored at process start (nohup, trap '' or &)",
                      {field("signal", signal_name(number))});
        }
        return {};
    }

  private:
    signals installed_;
    pid_t owner_ = 0;  // the process that holds it
};

}  // namespace ojs::detail
