// launcher: keeps groups of processes running, replaces them and stops them. [RFC-041]
#pragma once

#include <string>
#include <vector>

#include "../base/detail/sync.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "detail/instance.hpp"
#include "launcher_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class launcher_body;
struct launcher_access;  // for tests
}  // namespace detail

/// Follows the phases of its lifecycle. Running: it keeps every group at its desired size. Quiet: it starts,
/// replaces and kills nothing. Draining: it shuts down all processes in parallel. Stopping: it forces them. It
/// ends when they have exited.
///
/// Thread-safe, except run(), start() and the destructor. Hooks of the options may only call request_stop().
class launcher {
  public:
    /// run() and start() check the options.
    explicit launcher(launcher_options options);
    /// Follows `shared`, which must outlive the launcher.
    launcher(launcher_options options, lifecycle& shared);
    launcher(const launcher&) = delete;
    launcher& operator=(const launcher&) = delete;
    ~launcher();  ///< stops a running launcher, and blocks until its processes have exited

    /// Runs in the calling thread until stopped. Returns main's exit status: 0, every process has exited; 75, a
    /// process outlived SIGKILL, and the log names it; 64 or 71, nothing was started. Installs signal handlers meanwhile,
    /// unless the shared lifecycle has some. A second stop signal forces the processes, a third one exits with 128+n.
    [[nodiscard]] int run();
    /// Runs in a background thread, installs no signal handlers and never exits this process. errc::invalid_argument,
    /// busy (started before) or system.
    result<void> start();
    /// Blocks until the launcher has ended; returns at once if it was not started. False: the deadline passed first.
    bool wait(time_point deadline = time_point::max());
    int exit_code() const noexcept;  ///< run()'s status, once wait() returned true
    /// Starts the shutdown of all processes, without waiting. False: it had started before.
    bool request_stop();
    /// Starts, replaces and kills no process until resume(). False: no change.
    bool quiet();
    /// Ends quiet(). False: no change.
    bool resume();

    /// The address of the admin server, with the bound port; empty: none. Valid once start() returned.
    std::string admin_address() const;
    /// The names of all groups.
    std::vector<std::string> groups() const;
    /// errc::rejected: no such group.
    result<group_info> group(const std::string& name) const;
    /// One process, also of the last 32 of each group that exited. errc::rejected: no such process.
    result<process_info> process(const std::string& id) const;
    /// Starts the shutdown of a process, which is not restarted; no effect if it has exited. errc::rejected: no such
    /// process.
    result<void> shut_down_process(const std::string& id, const shutdown_options& options);
    /// Starts the shutdown of a group, which stays empty until a rollout. errc::rejected: no such group; busy: a
    /// rollout is in progress.
    result<void> shut_down_group(const std::string& name, const shutdown_options& options);
    /// SIGTERM now, SIGKILL after kill_delay. The restart policy applies, unless its shutdown was requested.
    /// errc::rejected: no such process.
    result<void> force_process(const std::string& id);
    /// Replaces the processes of a group with new ones of `target`, step by step; blocks until done. A rollback or a
    /// cancellation (by `cancel`) is no error: see the report. errc::rejected: no such group. errc::busy: a rollout is
    /// in progress, or the launcher does not run. errc::invalid_argument: as check_group(), another name, or a dry run
    /// whose command cannot be executed.
    result<rollout_report> rollout(const std::string& name, const group_options& target,
                                   const rollout_options& options = {}, const cancel_token& cancel = {});

  private:
    friend struct detail::launcher_access;
    launcher(launcher_options options, lifecycle* shared, detail::instance_starter starter);
    detail::ref<detail::launcher_body> body_;
    detail::thread background_;
    pid_t process_ = ::getpid();
};
}  // namespace v0_1_0
}  // namespace ojs
