// spool_transport: a directory as the queue; no server is needed. [Spot]
#pragma once

#include "../worker/worker_part.hpp"

// 0: a spool directory is looked through every poll interval, as everywhere but on Linux.
#ifndef OJS_SHUTDOWN_USE_INOTIFY
#define OJS_SHUTDOWN_USE_INOTIFY OJS_SHUTDOWN_ON_LINUX
#endif

namespace ojs {
inline namespace v0_1_0 {

enum class spool_event_kind {
    refused,    // a file in request/ that is not run and stays there: `text` says why
    recovered,  // a dead worker's job was taken from it
    owner_unknown,  // a worker's folder in processing/ that may be of a dead one, and is left alone: `text` says why
    result_dropped  // a completed job's file is in done/ without its result: no room
};

// What a spool has to tell besides its answers; a job's content is never in it.
struct spool_event {
    spool_event_kind kind = spool_event_kind::refused;
    std::string name;  // of the file, or of the folder
    std::string text;
};

namespace detail {
std::vector<std::chrono::milliseconds> usual_retry_delays();  // a list in the struct takes long to compile
}

struct spool_options {
    // Holds request/ processing/ done/ failed/; they and the directory itself (not its parents) are made where missing.
    // All must belong to this user or root, and nobody else may write to them.
    std::string directory;
    // Before the second, third, ... run; where a job's max_attempts allows more, the last one again. A job without
    // max_attempts has one run more than there are delays. [Spot retry_delays]
    std::vector<std::chrono::milliseconds> retry_delays = detail::usual_retry_delays();  // {0s, 1s}
    // Every regular file is a job of type "file", whatever it holds; its id is its name, its queue "default".
    // Done where it has removed its file.
    bool any_file = false;
    // How long a file that is not (yet) a job must have been left unchanged before it counts as malformed.
    std::chrono::milliseconds settle_time{2000};
    // How often a FETCH looks for the jobs of dead workers.
    std::chrono::milliseconds recovery_interval{5000};
    // Each refused file is told once. Thread-safe, short; must not call the transport.
    function<void(const spool_event&)> on_event;
};

// Opens a directory as a queue. Jobs are files in request/, in the order of their names (as bytes). FETCH
// claims one by rename(2) into the transport's own folder in processing/, which an advisory lock protects
// while this process lives; settling moves it to done/, failed/ or back. Any number of transports, threads
// and processes may share a directory. meta.spool_path of a job is the absolute path of its claimed file.
//
// The transport's errors are errc::unavailable: nothing is lost, and the call may succeed later. Deadlines do
// not interrupt the disk. When it is destroyed, others recover the jobs that are not settled, and their run
// counts. Errors: errc::invalid_argument, unsupported (a file system without locks) or system.
result<transport_ref> open_spool(spool_options options);

// For worker_options::transports: spool:DIR. A FETCH looks for the jobs of dead workers every heartbeat_interval;
// events go to the worker's log.
transport_scheme spool();

// A job to put into a spool directory.
struct spool_job {
    std::string type;
    std::string args_json = "[]";
    std::string queue = "default";
    std::int64_t max_attempts = 0;  // 0: as the worker has it
    // Of the file, and so its place in the order, and with its ".json" taken off the job's id. Empty: "5-", the time
    // and a random number, so that such jobs are run in the order they came, after names with 0- and before those
    // with 9-.
    std::string name;
};

// Writes a job into DIRECTORY/request (both are made where missing), whole or not at all, and on the disk when it
// returns. Returns its id. errc::invalid_argument (also for a name that is taken) or system. Thread-safe.
result<std::string> spool_enqueue(const std::string& directory, const spool_job& job);

}  // namespace v0_1_0
}  // namespace ojs
