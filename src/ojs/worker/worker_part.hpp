// worker_part: the seam between a worker and its extensions.
#pragma once

#include <pthread.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../core/lifecycle.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct container_info;
struct finding;
struct worker_options;
struct worker_report;

// A worker as its parts see it. Every function is thread-safe, never waits for the backend, and may be called until the
// last reference is gone, also after the end of the worker. None is async-signal-safe.
class running_worker : public detail::ref_counted {
  public:
    virtual const worker_options& options() const noexcept = 0;
    virtual const worker_identity& identity() const noexcept = 0;
    virtual const std::vector<std::string>& job_types() const noexcept = 0;  // that have a handler
    virtual bool owns_process() const noexcept = 0;  // it was started by run(), not by start()

    virtual ojs::phase phase() const noexcept = 0;
    virtual bool connected() const noexcept = 0;  // the backend has answered
    virtual bool drained() const noexcept = 0;    // no job is in flight, and no FETCH will be sent
    virtual std::size_t active_jobs() const = 0;  // claimed and not settled
    // Calls `visit` with each of them, outside of locks.
    virtual void visit_active_jobs(const function<void(const job&)>& visit) const = 0;
    virtual worker_report report() const = 0;                    // so far
    virtual std::uint64_t unreported_jobs() const noexcept = 0;  // report() names the first 10,000

    // When the drain under way ends; time_point::max(): there is none, or it has no limit.
    virtual time_point drain_deadline() const noexcept = 0;
    // The same of everything: the drain, stop_timeout, and the steps of worker::on_shutdown().
    virtual time_point stop_deadline() const noexcept = 0;

    // To the worker's own lifecycle, see lifecycle::apply().
    virtual bool apply(event request, cause why) = 0;
    virtual void wake() = 0;                        // worker_part::on_turn() is called soon
    virtual void log(log_record record) const = 0;  // adds the worker's id, and masks its tokens
};
using running_worker_ref = detail::ref<running_worker>;

enum class fetch_status : std::uint8_t { jobs, empty, failed };

// Where a settlement asked the backend to put its job.
enum class settled_state : std::uint8_t { completed, retryable, discarded, available };

// Of a job that was started, and that the backend has accepted. The texts are valid during the call.
struct job_settlement {
    std::string_view queue;
    std::string_view type;  // empty: it has no handler
    settled_state state = settled_state::completed;
    steady_clock::duration duration{0};  // since it was claimed
};

// Derive from it, override what you need, and give worker_options::parts a factory. An exception is logged. No function may
// destroy the worker or wait for its end.
class worker_part {
  public:
    worker_part() = default;
    worker_part(const worker_part&) = delete;
    worker_part& operator=(const worker_part&) = delete;
    virtual ~worker_part() = default;

    // Before the first thread and the first request. An error or an exception ends the start: run() returns 64. The part may
    // keep references to `worker` until stop().
    virtual result<void> start(const running_worker_ref& worker) = 0;

    // From the supervising thread, which must not block: once the worker runs, then after every change of phase.
    virtual void on_phase(const lifecycle_state& /*state*/) {}
    // From the same thread, whenever it has woken up. Returns the time of the next call, at the latest.
    virtual time_point on_turn(time_point /*now*/) { return time_point::max(); }
    // A stuck job runs on `thread`: where it is, for the log. Empty: unknown. Returns by the deadline. From the same thread.
    virtual std::string stack_of(pthread_t /*thread*/, time_point /*deadline*/) { return {}; }

    // From the threads that send requests, several at once. Abandoned threads may call them after stop(), but not after the
    // worker's destruction.
    virtual void on_heartbeat(bool /*answered*/) {}
    virtual void on_fetch(fetch_status /*status*/) {}
    virtual void on_job_settled(const job_settlement& /*job*/) {}

    // Once: the worker ends, from the supervising thread, or it could not start. Returns by the deadline, and lets go of every
    // reference to the worker. The worker deletes the part later, when no thread uses it.
    virtual void stop(time_point deadline) = 0;
};

struct worker_part_factory {
    std::string name;               // of the extension: "operating"
    function<worker_part*()> make;  // a new part for each start; the worker deletes it
    // Optional; neither throws. Whether the part can use the options, for validate(), run() and start(), and what it adds to
    // startup_findings().
    function<result<void>(const worker_options& options)> check = nullptr;
    function<void(const worker_options& options, const container_info& where, std::vector<finding>& out)>
        inspect = nullptr;
};

// The parts of every worker that is made with these options. Of one thread at a time.
class worker_parts {
  public:
    // Replaces one of the same name.
    void add(worker_part_factory factory) {
        for (worker_part_factory& each : factories_) {
            if (each.name == factory.name) return static_cast<void>(each = std::move(factory));
        }
        factories_.push_back(std::move(factory));
    }
    bool has(std::string_view name) const noexcept {
        for (const worker_part_factory& each : factories_) {
            if (each.name == name) return true;
        }
        return false;
    }
    const std::vector<worker_part_factory>& factories() const noexcept { return factories_; }

  private:
    std::vector<worker_part_factory> factories_;
};

}  // namespace v0_1_0
}  // namespace ojs
