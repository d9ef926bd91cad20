// worker_part and transport_scheme: what an extension adds to a worker.
#pragma once

#include <pthread.h>

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
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct container_info;
struct finding;
struct worker_options;
struct worker_report;

namespace detail {

// What extensions add to worker_options, by their names. Copyable; not thread-safe.
template <class Extension>
class extension_list : public array<Extension> {
  public:
    // Replaces one of the same name.
    void add(Extension extension) {
        for (Extension& each : *this) {
            if (each.name == extension.name) return static_cast<void>(each = std::move(extension));
        }
        this->push_back(std::move(extension));
    }
    bool has(std::string_view name) const noexcept {
        for (const Extension& each : *this) {
            if (each.name == name) return true;
        }
        return false;
    }
};

}  // namespace detail

// A worker as its parts see it. Every function is thread-safe, never waits for the backend, and may be called
// until the last reference is gone, also after the end of the worker. None is async-signal-safe.
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

    // When the current drain ends; time_point::max(): there is none, or it has no limit.
    virtual time_point drain_deadline() const noexcept = 0;
    // When the whole stop ends: the drain, stop_timeout, steps of worker::on_shutdown(). max() likewise.
    virtual time_point stop_deadline() const noexcept = 0;

    // Applies an event to the worker's lifecycle, see lifecycle::apply().
    virtual bool apply(event request, cause why) = 0;
    virtual void wake() = 0;                        // makes the worker call worker_part::on_tick() soon
    virtual void log(log_record record) const = 0;  // adds the worker's id, and masks its tokens
};
using running_worker_ref = detail::ref<running_worker>;

enum class fetch_status : std::uint8_t { jobs, empty, failed };

// The state that a settlement asked the backend for.
enum class settled_state : std::uint8_t { completed, retryable, discarded, available };

// A settlement that the backend accepted; none of a job handed back before it began. The texts are valid
// during the call.
struct job_settlement {
    std::string_view queue;
    std::string_view type;  // empty: it has no handler
    settled_state state = settled_state::completed;
    steady_clock::duration duration{0};  // since it was claimed
};

// Derive from it, override what you need, and add a factory to worker_options::parts. Exceptions are logged.
// No function may destroy the worker or wait for its end.
class worker_part {
  public:
    worker_part() = default;
    worker_part(const worker_part&) = delete;
    worker_part& operator=(const worker_part&) = delete;
    virtual ~worker_part() = default;

    // Called before the first thread and the first request. An error or an exception ends the start: run()
    // returns 64. The part may keep references to `worker` until stop().
    virtual result<void> start(const running_worker_ref& worker) = 0;

    // Called on the supervising thread, so it must not block: once the worker runs, and after each new phase.
    virtual void on_phase(const lifecycle_state& /*state*/) {}
    // Called on the same thread whenever it has woken up. Returns the latest time of the next call.
    virtual time_point on_tick(time_point /*now*/) { return time_point::max(); }
    // The stack of `thread`, which runs a stuck job; empty: unknown. Same thread; has a deadline.
    virtual std::string stack_of(pthread_t /*thread*/, time_point /*deadline*/) { return {}; }

    // Called on the threads that send requests, several at once. Abandoned threads may call them after
    // stop(), but not after the worker's destruction.
    virtual void on_heartbeat(bool /*answered*/) {}
    virtual void on_fetch(fetch_status /*status*/) {}
    virtual void on_job_settled(const job_settlement& /*job*/) {}

    // Called once: on the supervising thread as the worker ends, or after a start that failed, this part's
    // included. Must return by the deadline and drop every reference to the worker, which deletes the part
    // when no thread uses it.
    virtual void stop(time_point deadline) = 0;
};

struct worker_part_factory {
    std::string name;               // of the extension: "operating"
    function<worker_part*()> make;  // a new part for each start; the worker deletes it
    // Both are optional and must not throw. check: whether the part can use the options, for validate(),
    // run() and start(). inspect: adds to startup_findings().
    function<result<void>(const worker_options& options)> check = nullptr;
    function<void(const worker_options& options, const container_info& where, std::vector<finding>& out)>
        inspect = nullptr;
};

struct transport_setup {
    const worker_options& options;
    std::string_view address;  // options.url after the colon
    const worker_identity& worker;
    log_hook log;  // writes to the worker's log; valid as long as the transport, from any thread
};

struct transport_scheme {
    // Before the colon of a URL, in any case: "spool". Takes precedence over a built-in scheme of that name.
    std::string name;
    // Called by run() and start(), once, before any thread of the worker starts. An error ends the start,
    // with exit status 64 from run(); its text must not repeat a password. The worker owns the transport.
    function<result<transport_ref>(const transport_setup& setup)> open;
    // Optional: findings about the address, for doctor(). Must change nothing.
    function<std::vector<finding>(std::string_view address)> inspect;
};

}  // namespace v0_1_0
}  // namespace ojs
