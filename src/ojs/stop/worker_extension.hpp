// worker_extension: what an extension adds to a worker or a loop. worker_report, exit_status.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../core/lifecycle.hpp"
#include "../core/shutdown_sequence.hpp"
#include "job.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct loop_options;

// Exit statuses of run(), and so of a program that returns them from main.
namespace exit_status {
inline constexpr int settled = 0;  ///< every claimed job was acked, failed or requeued
inline constexpr int usage = 64;   ///< not started: invalid options, no handler, or signals not available
inline constexpr int stuck = 70;   ///< a handler did not return, and dialect::stuck_exit_status is 70 [River]
inline constexpr int unreported = 75;    ///< a job was not reported, or stuck handlers stopped the worker
inline constexpr int signal_base = 128;  ///< plus the number of the third stop signal
}  // namespace exit_status

/// How the claimed jobs of a worker ended. At the end of a stop, claimed = completed + failed + requeued + gone +
/// unreported; `interrupted` counts runs, whose jobs are among these.
struct worker_report {
    std::uint64_t claimed = 0;            ///< all of them
    std::uint64_t completed = 0;          ///< ACK
    std::uint64_t failed = 0;             ///< FAIL that uses up an attempt
    std::uint64_t interrupted = 0;        ///< runs cut short, by the stop or outcome::interrupted()
    std::uint64_t requeued = 0;           ///< FAIL with `requeue`: interrupted, never started, or no handler
    std::uint64_t gone = 0;               ///< the backend had already reassigned it, or its lease ran out
    std::vector<std::string> unreported;  ///< ids of jobs that were not reported, the first 10,000
    std::vector<std::string> stuck;       ///< ids of reported jobs whose handler has not returned
    std::vector<step_result> steps;       ///< steps of on_shutdown() that have run
};

namespace detail {

// The extensions in loop_options, by name. Copyable; not thread-safe.
template <class Extension>
class extension_list : public array<Extension> {
  public:
    // Replaces one of the same name.
    void add(Extension extension) {
        for (Extension& present : *this) {
            if (present.name == extension.name) return static_cast<void>(present = std::move(extension));
        }
        this->push_back(std::move(extension));
    }
    bool has(std::string_view name) const noexcept {
        for (const Extension& present : *this) {
            if (present.name == name) return true;
        }
        return false;
    }
};

}  // namespace detail

/// A worker as its extensions see it. Every function is thread-safe, never waits for the backend, and may be called
/// while a reference is held, also after the end of the worker. None is async-signal-safe.
class running_worker : public detail::ref_counted {
  public:
    virtual const loop_options& options() const noexcept = 0;      ///< as given to the worker
    virtual const worker_identity& identity() const noexcept = 0;  ///< as reported to the backend
    virtual const std::vector<std::string>& job_types()
        const noexcept = 0;                          ///< that have a handler; a loop's: none
    virtual bool owns_process() const noexcept = 0;  ///< started by run(), not by start()

    virtual ojs::phase phase() const noexcept = 0;  ///< as worker::phase()
    virtual bool connected() const noexcept = 0;    ///< the backend has responded
    virtual bool drained() const noexcept = 0;      ///< no job is in flight, and no FETCH will be sent
    virtual std::size_t active_jobs() const = 0;    ///< claimed and not settled
    /// Calls `visit` with each active job, outside of locks.
    virtual void visit_active_jobs(const function<void(const job&)>& visit) const = 0;
    virtual worker_report report() const = 0;                    ///< so far
    virtual std::uint64_t unreported_jobs() const noexcept = 0;  ///< report() names the first 10,000

    /// When the current drain ends; time_point::max(): no drain is in progress, or it has no limit.
    virtual time_point drain_deadline() const noexcept = 0;
    /// When the complete stop ends: drain, stop_timeout and steps of worker::on_shutdown(). max() likewise.
    virtual time_point stop_deadline() const noexcept = 0;

    /// Applies an event to the worker's lifecycle, see lifecycle::apply().
    virtual bool apply(event event, cause cause) = 0;
    virtual void wake() = 0;  ///< makes the worker call worker_extension::on_tick() soon
    virtual void log(log_record record) const = 0;  ///< adds the worker's id
};
using running_worker_ref = detail::ref<running_worker>;  ///< shares its worker

/// The result of a FETCH.
enum class fetch_status : std::uint8_t { jobs, empty, failed };

/// The job state that a settlement requested.
enum class settled_state : std::uint8_t { completed, retryable, discarded, available };

/// A settlement that the backend accepted. Jobs requeued before they began have none. The texts are valid
/// during the call.
struct job_settlement {
    std::string_view queue;                          ///< job::queue
    std::string_view type;                           ///< empty: it has no handler
    settled_state state = settled_state::completed;  ///< what was requested
    steady_clock::duration duration{0};              ///< since it was claimed
};

/// An extension of a worker: derive from it, override functions, and add a factory to worker_options::extensions.
/// Exceptions are logged. No function may destroy the worker or wait for its end.
class worker_extension {
  public:
    worker_extension() = default;
    worker_extension(const worker_extension&) = delete;
    worker_extension& operator=(const worker_extension&) = delete;
    virtual ~worker_extension() = default;

    /// Called before the first thread and the first request. An error or an exception ends the start: run()
    /// returns 64. The extension may keep references to `worker` until stop().
    virtual result<void> start(const running_worker_ref& worker) = 0;

    /// Called on the supervising thread when the worker runs, and after each change of phase. Must not block.
    virtual void on_phase(const lifecycle_state& /*state*/) {}
    /// Called on the same thread whenever it has woken up. Returns the latest time of the next call.
    virtual time_point on_tick(time_point /*now*/) { return time_point::max(); }

    /// Called after each heartbeat. This and the next two are called on the threads that send requests, several at
    /// once. Abandoned threads may call them after stop(), but not after the worker's destruction.
    virtual void on_heartbeat(bool /*has_response*/) {}
    virtual void on_fetch(fetch_status /*status*/) {}              ///< after each FETCH
    virtual void on_job_settled(const job_settlement& /*job*/) {}  ///< after each accepted settlement

    /// Called once: on the supervising thread as the worker ends, or after a failed start, this extension's
    /// included. Must return by the deadline and drop every reference to the worker. The worker deletes the
    /// extension when no thread uses it.
    virtual void stop(time_point deadline) = 0;
};

/// Creates a worker_extension.
struct worker_extension_factory {
    std::string name;                    ///< of the extension, such as "ops"
    function<worker_extension*()> make;  ///< a new extension for each start; the worker deletes it
    /// Optional, must not throw: checks the options for the extension, in validate(), run() and start().
    function<result<void>(const loop_options& options)> check = nullptr;
};

}  // namespace v0_1_0
}  // namespace ojs
