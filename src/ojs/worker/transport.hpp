// transport: the operations between a worker and whatever holds its jobs. Derive from it to bring your own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "job.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct worker_identity {
    std::string worker_id;
    std::string hostname;
    std::int64_t pid = 0;
    std::vector<std::string> queues;
    std::int64_t concurrency = 0;
    std::vector<std::string> labels;
    std::string started_at;  // ISO 8601, UTC
    std::chrono::milliseconds visibility_timeout{0};
};

struct fetch_request {
    const worker_identity* worker = nullptr;
    std::size_t count = 1;          // at most so many jobs
    function<bool()> still_wanted;  // ask right before sending; false: return errc::cancelled, send nothing
};

struct ack_request {
    std::string job_id;
    std::string result_json;  // empty: no result
};

struct job_error {
    std::string code;  // also sent as `type`
    std::string message;
    bool retryable = true;
    std::string details_json = "{}";
};

struct fail_request {
    std::string job_id;
    job_error error;
    bool requeue = false;         // hand back: available at once, no attempt used up
    std::string checkpoint_json;  // the last one the handler saved, for the next run; empty: none
};

struct checkpoint_request {
    std::string job_id;
    std::string state_json;
};

struct heartbeat_request {
    const worker_identity* worker = nullptr;
    std::string state;
    std::vector<std::string> active_jobs;
    bool must_arrive =
        false;  // the first to say so, or the last of all: worth another try; harmless to repeat
    function<bool()> still_wanted;  // ask right before sending; false: return errc::cancelled, send nothing
};

struct claim_query {
    const worker_identity* worker = nullptr;
    std::string job_id;
    function<bool()> still_wanted;  // ask right before sending; false: return errc::cancelled, send nothing
};

enum class directive { none, quiet, terminate };

struct heartbeat_response {
    ojs::directive directive = ojs::directive::none;
    std::vector<std::string> queues;         // that `quiet` is for; empty: for all
    std::vector<std::string> jobs_extended;  // leases the backend says it renewed
};

// Answer to ACK and FAIL. `gone`: the reservation is no longer ours (409, 404); nothing more to do about the job.
enum class settled { accepted, gone };

// Every call returns by its deadline. All may be called from several threads at once. errc tells the worker
// what to do: rejected is final; unavailable (with retry_after), unreachable, disconnected, timed_out are tried again.
class transport : public detail::ref_counted {
  public:
    // Claims jobs; an empty vector means there is no work. A request whose answer was lost must not be
    // repeated: it may have claimed jobs.
    virtual result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) = 0;
    // Both may be repeated by the transport: the second time the answer is `gone`.
    virtual result<settled> ack(const ack_request& request, time_point deadline) = 0;
    virtual result<settled> fail(const fail_request& request, time_point deadline) = 0;
    virtual result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) = 0;
    // Whether a claimed job that the answer to a heartbeat omits is still this worker's. False: the backend has
    // cancelled it, or another worker has it; its token is then cancelled (cancel_reason::revoked), and nothing is
    // reported for it. An error changes nothing. Called on one thread, in parallel with heartbeats. Default: true.
    virtual result<bool> confirm_claim(const claim_query& /*query*/, time_point /*deadline*/) { return true; }
    // Before the first heartbeat, and before the last one, which is the last request of all. By default they do
    // nothing: the heartbeats say it all.
    virtual result<void> register_worker(const worker_identity& /*worker*/, time_point /*deadline*/) {
        return {};
    }
    virtual result<void> deregister_worker(const worker_identity& /*worker*/, time_point /*deadline*/) {
        return {};
    }

    // Keeps a checkpoint of a job that runs, so that it outlives this process. By default errc::unsupported: then it
    // travels with the FAIL alone.
    virtual result<settled> save_checkpoint(const checkpoint_request& /*request*/, time_point /*deadline*/) {
        return error{errc::unsupported, 0, "this transport keeps no checkpoints"};
    }
    // The checkpoint kept for a job, as JSON text; empty: none, which is the default.
    virtual result<std::string> load_checkpoint(const std::string& /*job_id*/, time_point /*deadline*/) {
        return std::string();
    }

    // What the transport may call, from any thread, when there may be new work: the worker then asks before its poll
    // interval is over. Given before the first FETCH, and again, empty, at the end: once that has returned, the
    // former one is not called any more. By default nothing: the worker polls.
    virtual void on_work_available(function<void()> /*tell*/) {}
    // The same for a claimed job that the backend has cancelled: its handler's token is cancelled, with
    // cancel_reason::revoked, and what the handler gives up is FAILed as "cancelled", not retryable. By default
    // nothing.
    virtual void on_job_cancelled(function<void(const std::string& job_id)> /*tell*/) {}
};
using transport_ref = detail::ref<transport>;

// A transport of a type of one's own, for transport_scheme::open to return.
template <class Transport, class... Args>
transport_ref make_transport(Args&&... args) {
    return transport_ref(new Transport(std::forward<Args>(args)...));
}

}  // namespace v0_1_0
}  // namespace ojs
