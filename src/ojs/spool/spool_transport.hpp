// spool_transport: a directory as the queue; no server is needed. [Spot]
#pragma once

#include "../worker/worker_options.hpp"

#ifndef OJS_SHUTDOWN_USE_INOTIFY
#ifdef __linux__
/// 0: the worker scans a spool directory every poll interval, as on systems other than Linux.
#define OJS_SHUTDOWN_USE_INOTIFY 1
#else
#define OJS_SHUTDOWN_USE_INOTIFY 0
#endif
#endif

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
std::vector<std::chrono::milliseconds> default_retry_delays();  // compiles slowly if inline
}

/// Options of a spool.
struct spool_options {
    /// Holds request/ processing/ done/ failed/, on one mount. Missing ones and the directory itself, not its parents,
    /// are created. All must belong to this user or root, and no other user may write to them.
    std::string directory;
    /// Accepts folders that one of this process's groups may write to, as after Kubernetes' fsGroup. Its members can
    /// exchange and forge jobs. OJS_SPOOL_GROUP_WRITE=on sets it, also for spool_enqueue().
    bool allow_group_writable = false;
    /// Delays before the second, third, ... run; the last one repeats. A job without max_attempts has one run more than
    /// there are delays. [Spot retry_delays]
    std::vector<std::chrono::milliseconds> retry_delays = detail::default_retry_delays();  ///< {0s, 1s}
    /// Every regular file is a job of type "file", whatever it holds; its id is its name, its queue "default".
    /// A job that removes its own file is completed.
    bool accept_any_file = false;
    /// Runs files with the names of backups, temporary and partial files, too: NAME~, NAME.bak, NAME.part, ...
    bool accept_backup_names = false;
    /// An incomplete file is malformed once unchanged for this time; another user's after at least 10 s: the worker cannot
    /// see whether it is open.
    std::chrono::milliseconds incomplete_timeout{2000};
    /// How often a FETCH recovers the jobs of dead workers.
    std::chrono::milliseconds recovery_interval{5000};
    /// What no call returns, as a file that is refused (once); never a job's content. Called from any thread; must be
    /// short and must not call the transport. Empty: the worker's log, with spool().
    log_hook log;
};

/// Opens a directory as a queue. Jobs are files in request/, in the order of their names (as bytes). FETCH claims one
/// by rename(2) into the transport's folder in processing/, which an advisory lock protects while this process lives.
/// Settling moves it to done/, failed/ or back. Any number of transports, threads and processes may share a directory.
/// A job's meta.spool_path is the absolute path of its claimed file.
///
/// The transport's errors are errc::unavailable: nothing is lost, and the call may succeed later. Deadlines do not
/// interrupt the disk. After its destruction other workers recover its unsettled jobs; their run counts.
/// Errors: errc::invalid_argument, unsupported (a file system without locks) or system.
result<transport_ref> open_spool(spool_options options);

/// The scheme spool:DIR for worker_options::transports. A FETCH recovers the jobs of dead workers every
/// heartbeat_interval; events go to the worker's log.
transport_scheme spool();

/// A job for spool_enqueue().
struct spool_job {
    std::string type;               ///< selects the handler
    std::string args_json = "[]";   ///< a JSON array
    std::string queue = "default";  ///< queue of the job
    std::int64_t max_attempts = 0;  ///< 0: the worker's default
    /// The file's name, which gives its place in the order; without ".json" it is the job's id. Empty: "5-", the time
    /// and a random number, so that such jobs run in their order, after names with 0- and before those with 9-.
    std::string name;
};

/// Writes a job to DIRECTORY/request atomically; it is on the disk when this returns. Creates missing directories.
/// Returns the job's id. Errors: errc::invalid_argument (also for a name that is taken) or system. The job is not there
/// then, unless the text says so: the last fsync has failed. Thread-safe.
result<std::string> spool_enqueue(const std::string& directory, const spool_job& job);
}  // namespace v0_1_0
}  // namespace ojs
