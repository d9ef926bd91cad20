// process: this process, its one run(), and calls of what the user has given.
#pragma once

#include <signal.h>
#include <unistd.h>

#include "../../base/detail/sync.ipp"
#include "../../base/detail/text.hpp"
#include "../../core/drain_barrier.hpp"
#include "../../core/signals.hpp"
#include "environment.ipp"

namespace ojs::detail {
// Holds a ticket of `gate` while a thread is in user code.
class user_call {
  public:
    explicit user_call(drain_barrier& gate) noexcept
        : gate_(gate), ticket_(gate.enter()), outer_(exchange(innermost(), this)) {}
    ~user_call() {
        innermost() = outer_;
        if (process_ != this_process()) _exit(70);  // a child of fork(): two must not act for one worker
    }
    explicit operator bool() const noexcept { return bool(ticket_); }

    static bool is_in(const drain_barrier& gate) noexcept {
        const user_call* call = innermost();
        while (call != nullptr && &call->gate_ != &gate) call = call->outer_;
        return call != nullptr;
    }

  private:
    static user_call*& innermost() noexcept {
        thread_local user_call* of_this_thread = nullptr;
        return of_this_thread;
    }

    const drain_barrier& gate_;
    drain_barrier::ticket ticket_;
    user_call* const outer_;
    const pid_t process_ = this_process();
};

// The pid while a worker runs, or a loop holds the signals, else 0. A child of fork() may claim it anew.
__attribute__((visibility("default"))) inline atomic<pid_t> running_process{0};

class run_claim {
  public:
    ~run_claim() { release(); }
    void release() noexcept {
        installed_ = signals();
        if (exchange(owner_, 0) == ::getpid()) running_process = 0;
    }
    // Adds to the program's own signals of `target` if there are any; else installs them.
    result<void> claim(const loop_options& options, lifecycle& target, const logger& log) {
        const pid_t self = ::getpid();
        pid_t found = running_process;
        if (found == self || !running_process.compare_exchange_strong(found, self))
            return error{errc::busy, 0, "another run() of this process has not ended: use start()"};
        owner_ = self;
        const signal_options wanted{!options.termination_mode_file.empty(), options.stop_signals,
                                    !options.profile.stop.first_signal_wins};
        if (!drives_signals(target)) {
            result<signals> installed = signals::install(target, wanted);
            if (!installed) return installed.error();
            installed_ = std::move(*installed);
        }
        const result<std::vector<int>> ignored = add_signals(wanted);
        if (!ignored) return ignored.error();
        for (const int number : *ignored)
            log.write(number == SIGHUP ? log_level::info : log_level::warn,
                      "signal stays ignored: it was ignored at process start (nohup, trap '' or &)",
                      {field("signal", signal_name(number))});
        return {};
    }

  private:
    signals installed_;
    pid_t owner_ = 0;  // the process that holds it
};
}  // namespace ojs::detail
