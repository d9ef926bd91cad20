// spool_transport: a directory as the queue; no server is needed. [Spot]
#pragma once

#include "../worker/transport_scheme.hpp"

// 0: a spool directory is looked through every poll interval, as everywhere but on Linux.
#ifndef OJS_SHUTDOWN_USE_INOTIFY
#define OJS_SHUTDOWN_USE_INOTIFY OJS_SHUTDOWN_ON_LINUX
#endif

namespace ojs {
inline namespace v0_1_0 {

// What a spool has to tell besides its answers; a job's content is never in it.
struct spool_event {
    enum class kind {
        refused,    // a file in request/ that is not run and stays there: `text` says why
        recovered,  // a dead worker's job was taken from it
        unjudged,  // a worker's folder in processing/ that may be of a dead one, and is left alone: `text` says why
        result_dropped  // a completed job's file is in done/ without its result: no room
    };
    kind what = kind::refused;
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

namespace detail {
class spool_body;
}

// Jobs are files in request/, in the order of their names (as bytes). One is claimed by rename(2) into a folder of this
// transport's own in processing/, which an advisory lock says to be ours for as long as this process lives; settling
// moves it to done/, failed/ or back. Any number of transports, threads and processes may share a directory. A claimed
// job has the absolute path of its claimed file in meta.spool_path. All its errors are errc::unavailable: nothing is
// lost, and the same call may succeed later. Deadlines bound how much is begun; what a disk takes nobody can bound.
class spool_transport : public transport {
  public:
    explicit spool_transport(spool_options options);
    // Gives up its folder in processing/. Jobs not settled are recovered by another worker, the run counted.
    OJS_SHUTDOWN_INLINE ~spool_transport() override;

    // Makes and checks the directories; before anything else. errc::invalid_argument, unsupported (a file system
    // without locks) or system.
    result<void> open();

    OJS_SHUTDOWN_INLINE result<std::vector<job>> fetch(const fetch_request& request,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> ack(const ack_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> fail(const fail_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<heartbeat_answer> heartbeat(const heartbeat_request& request,
                                                           time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> save_checkpoint(const checkpoint_request& request,
                                                        time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<std::string> load_checkpoint(const std::string& job_id,
                                                            time_point deadline) override;
    OJS_SHUTDOWN_INLINE void when_work_may_wait(function<void()> tell) override;

  private:
    const detail::ref<detail::spool_body> body_;
};

// For worker_options::transports: spool:DIR. A FETCH looks for the jobs of dead workers every heartbeat_interval; events go to
// the worker's log.
transport_scheme spool();

// A job to put into a spool directory.
struct spool_job {
    std::string type;
    std::string args_json = "[]";
    std::string queue = "default";
    std::int64_t max_attempts = 0;  // 0: as the worker has it
    // Of the file, and so its place in the order, and with its ".json" taken off the job's id. Empty: "5-", the time and
    // a random number, so that such jobs are run in the order they came, after names with 0- and before those with 9-.
    std::string name;
};

// Writes a job into DIRECTORY/request (both are made where missing), whole or not at all, and on the disk when it
// returns. Returns its id. errc::invalid_argument (also for a name that is taken) or system. Thread-safe.
result<std::string> spool_enqueue(const std::string& directory, const spool_job& job);

}  // namespace v0_1_0
}  // namespace ojs
