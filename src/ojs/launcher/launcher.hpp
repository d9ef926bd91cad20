// launcher: keeps groups of processes running, replaces them and ends them. [RFC-041]
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
struct launcher_access;  // of the tests
}  // namespace detail

// By the phases of its lifecycle: running, it keeps every group at what is desired; quiet, it restarts and
// replaces nothing; draining, all processes are shut down at once, in parallel; stopping, they are forced. It
// ends when they have.
//
// Every member is thread-safe, but for run(), start() and destroying; none may be called from a hook of the
// options, but for request_stop().
class launcher {
  public:
    // A lifecycle given here is followed, and outlives the launcher. What is wrong with the
    // options is said by run() or start().
    explicit launcher(launcher_options options);
    launcher(launcher_options options, lifecycle& shared);
    launcher(const launcher&) = delete;
    launcher& operator=(const launcher&) = delete;
    ~launcher();  // one that runs is stopped, which takes as long as its processes do

    // Runs until stopped, in the calling thread, and returns main's exit status: 0, every process has ended;
    // 75, one could not be ended, and the log names it; 64, nothing was started. Takes the signals for that
    // long unless someone installed them for the shared lifecycle. A second stop signal forces the processes,
    // a third one ends this process with 128+n.
    [[nodiscard]] int run();
    // The same in the background, without signals and without ever ending the process.
    // errc::invalid_argument, busy (started before) or system.
    result<void> start();
    // Until every process has ended after a stop; at once where nothing was started. False: the deadline came first.
    bool wait(time_point deadline = time_point::max());
    int exit_code() const noexcept;  // run()'s status, once wait() returned true
    // Asks for the end of all processes, without waiting. True if that changed anything.
    bool request_stop();
    // No restarts and no replacement goes on, until resume().
    bool quiet();
    bool resume();

    // Where it answers an operator, with the real port; empty where it does not. Once start() returned.
    std::string admin_address() const;
    std::vector<std::string> groups() const;
    // errc::rejected: there is no such group or process, here and below. Of processes that ended, the last 32
    // of each group are known.
    result<group_info> group(const std::string& name) const;
    result<process_info> process(const std::string& id) const;
    // Begins it; it is not restarted. One that has ended already stays as it is.
    result<void> shut_down_process(const std::string& id, const shutdown_options& order);
    // The same for all of a group, which stays empty until it is replaced. errc::busy: a replacement is under way.
    result<void> shut_down_group(const std::string& name, const shutdown_options& order);
    // SIGTERM now, SIGKILL after kill_delay. The group's restart policy applies, unless it was asked to shut down.
    result<void> force_process(const std::string& id);
    // Gives the group a new configuration, one process after the other; blocks meanwhile. A replacement that
    // failed and was rolled back, or was cancelled, is no error: see the report. errc::busy: one is under way
    // in this group, or the launcher does not run. errc::invalid_argument: as check_group(), or another name.
    result<rolling_report> rolling_replace(const std::string& name, const group_options& wanted,
                                           const rolling_options& how = {}, const cancel_token& until = {});

  private:
    friend struct detail::launcher_access;
    // With processes that `starter` makes.
    launcher(launcher_options options, lifecycle* shared, detail::instance_starter starter);
    detail::ref<detail::launcher_body> body_;
    detail::thread background_;
};

}  // namespace v0_1_0
}  // namespace ojs
