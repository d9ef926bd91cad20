// loop_options: the settings of a loop; stop_times and profile.
#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../core/lifecycle.hpp"
#include "../core/signals.hpp"
#include "detail/worker_extension.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The times of a stop (docs/options.md draws them). Jobs still in flight `cancel_grace` after the grace period are
/// reported as interrupted; half of what is left, or 3 s, is for that. In a reclaim, stop_timeout begins at the signal,
/// and reclaim_grace replaces cancel_grace.
struct stop_times {
    /// From SIGTERM; ojs::no_limit: only a second signal or stop_and_cancel() interrupts jobs. [GS 6.1, River]
    std::chrono::milliseconds shutdown_grace_period{30000};
    std::chrono::milliseconds cancel_before_deadline{0};  ///< how long before that end jobs are cancelled
    std::chrono::milliseconds cancel_grace{0};     ///< for them to return; 0: 1 s after stop_and_cancel(), else none
    std::chrono::milliseconds reclaim_grace{0};    ///< cancel_grace of a reclaim
    std::chrono::milliseconds stop_timeout{5000};  ///< from the end of the drain to the last heartbeat
};

namespace detail {
struct stop_rules {
    bool first_signal_wins = false;  // signals during a stop change nothing [Spot]
    int stuck_exit_status = 0;       // exit status if a reported job's handler has not returned; 0: none [River]
    stop_times times = {};           // this and the next set the options of that name [GS-003, River, Spot]
    std::string termination_mode_file = {};
};
struct platform_grace {
    const char* platform;
    std::chrono::milliseconds grace;
};
}  // namespace detail

/// A protocol profile: which of the published documents a worker follows where they differ. By default the
/// specification's text. [WIRE 1]
struct profile {
    std::string interrupted_error = "ShutdownError";         ///< type and code of an interrupted job [GS-005]
    std::string shutdown_timeout_error = "ShutdownTimeout";  ///< for reports_shutdown_timeout [GS 7.2]
    bool requeue_interrupted = true;       ///< an interrupted job uses up no attempt, if the backend supports that
    std::string drain_state = "quiet";     ///< `state` while draining and stopping [GS 5.3]
    std::string last_state = "terminate";  ///< `state` of the last heartbeat
    bool active_jobs_as_count = false;     ///< `active_jobs` of heartbeats is the number of ids, not their list
    detail::stop_rules stop = {};          ///< how it stops

    static profile graceful_shutdown();  ///< the specification's text; the default
    static profile website();            ///< the project's web page
    static profile worker_protocol();    ///< the worker protocol's text
    static profile spot_controller();    ///< the spot controller's guide, with its termination-mode file
};

/// The settings of a loop, and of a worker.
struct loop_options {
    std::int64_t concurrency = 10;  ///< jobs at a time, 1 to 1000
    stop_times times;               ///< of a stop
    /// Decides whether SIGTERM or SIGINT is a normal stop or a reclaim, see read_termination_mode(); SIGUSR1 is one.
    /// Empty: no reclaims. [Spot, WIRE 3]
    std::string termination_mode_file;
    /// A job or item that has not returned this long after its cancellation is stuck. A job that its own timeout has
    /// cancelled is then reported. Once all slots are stuck, the worker drains. [WIRE 5]
    std::chrono::milliseconds stuck_after{5000};
    std::chrono::milliseconds signal_debounce{250};  ///< two stop signals closer together count as one
    /// Stop run(), see signal_options::stop_signals. One ignored at process start stays ignored (nohup's SIGHUP).
    std::vector<int> stop_signals{SIGTERM, SIGINT, SIGHUP};
    std::chrono::milliseconds progress_interval{5000};    ///< between progress lines of the drain [GS 5.2]
    std::chrono::milliseconds container_grace_period{0};  ///< SIGTERM to SIGKILL, to warn; 0: unset [GS 6.3]
    std::chrono::milliseconds prestop_delay{0};           ///< the preStop hook's part of it; 0: none
    std::string worker_id;                                ///< empty: "worker_" and a UUIDv7
    ojs::profile profile;                                 ///< set by apply_profile()
    detail::platform_grace platform_grace{"", {}};        ///< chosen by from_environment() for the platform
    detail::extension_list<detail::worker_extension_factory> extensions;  ///< options.extensions.add(ojs::ops())
    log_options log;                                                      ///< level, format and hook
    /// Bytes, of all threads: 256 KiB, if it is less; 0: the platform's default, at least 1 MiB.
    std::size_t thread_stack_size = 0;
    function<void(const lifecycle_state&)> on_transition;  ///< after each change of phase, in order; a stop goes on

    /// Sets the profile, the times and the termination-mode file.
    void apply_profile(ojs::profile preset);

    /// Returns the defaults, overridden by the environment (docs/options.md has the table), or the first error, with
    /// variable and value. If neither grace period is set, it fits that of the platform (docs/deploying.md).
    /// For tests: `lookup` replaces the environment, and `root` is the prefix of paths that identify a container.
    static result<loop_options> from_environment(const environment_lookup& lookup = nullptr,
                                                 const std::string& root = "");
};
}  // namespace v0_1_0
}  // namespace ojs
