// transport: the requests of a worker to its backend. Derive from it to connect another queue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../loop/job.hpp"

namespace ojs {
inline namespace v0_1_0 {

// What a FETCH asks for. Pointers in requests are valid during the call. `should_send` is to be called directly before
// the request is sent; if it returns false, nothing is sent and the call returns errc::cancelled.
struct fetch_request {
    const worker_identity* worker = nullptr;  // its `queues` are those to fetch from now
    std::size_t count = 1;                    // the maximum number of jobs to claim
    function<bool()> should_send;             // false: send nothing
    cancel_token until;                       // cancelled by a quiet or a stop: end a wait for jobs at once
};

// A completed job.
struct ack_request {
    std::string job_id;       // job::id
    std::string result_json;  // empty: no result
    // See fetch_request. False: the last heartbeat begins, and nothing follows it.
    function<bool()> should_send;
    std::string claim;  // job::claim of the latest claim, if this job was claimed again while it ran
    const ojs::job* job = nullptr;  // as first fetched
};

// Why an attempt failed.
struct job_error {
    std::string code;                 // also sent as `type`
    std::string message;              // for people
    bool retryable = true;            // false: the job is discarded
    std::string details_json = "{}";  // a JSON object
};

// A failed, interrupted or returned job.
struct fail_request {
    std::string job_id;           // job::id
    job_error error;              // the reason
    bool requeue = false;         // hand back: available at once, no attempt used up
    std::string checkpoint_json;  // the last one the handler saved, for the next run; empty: none
    // See fetch_request. False: the job is claimed again, and a repetition would end that; or the last heartbeat begins.
    function<bool()> should_send;
    std::string claim;              // see ack_request
    const ojs::job* job = nullptr;  // as first fetched: to publish it again
};

// A checkpoint of a running job.
struct checkpoint_request {
    std::string job_id;      // job::id
    std::string state_json;  // any JSON text
};

// A heartbeat: renews the claims of the active jobs and reports the worker's state.
struct heartbeat_request {
    const worker_identity* worker = nullptr;  // the sender
    std::string state;                        // "running", or as the dialect names it
    std::vector<std::string> active_jobs;     // ids of the claimed jobs
    bool must_arrive = false;         // the first with this state, or the last: retry it, which is harmless
    function<bool()> should_send;     // see fetch_request
    std::vector<std::string> claims;  // job::claim of each of active_jobs; empty: none has one
};

// Asks whether a claim holds.
struct claim_query {
    const worker_identity* worker = nullptr;  // the sender
    std::string job_id;                       // job::id
    function<bool()> should_send;             // see fetch_request
    std::int64_t attempt = 0;                 // job::attempt of the claim; 0: the backend did not say
    std::string claim;                        // see ack_request
};

enum class directive { none, quiet, terminate };  // the backend's command in a heartbeat response

// The response to a heartbeat.
struct heartbeat_response {
    ojs::directive directive = ojs::directive::none;  // the command, if any
    std::vector<std::string> queues;                  // that `quiet` is for; empty: for all
    std::vector<std::string> jobs_extended;           // ids of jobs whose claims were renewed
    // The claims of all other jobs of the request are gone, as with an AMQP connection: the jobs are cancelled
    // (cancel_reason::revoked), and nothing is reported for them.
    bool claims_lost = false;
};

// Response to ACK, FAIL and checkpoints. `gone`: the claim is no longer this worker's (the API's 404, 409 or 410); the
// job needs nothing more. The last two are `accepted` by a backend that says what becomes of a failed job; they are only
// logged.
enum class settled { accepted, gone, will_retry, discarded };

// Every call returns by its deadline. All may be called from several threads at once. The worker gives up
// after errc::rejected, and retries after unavailable (with retry_after), unreachable, disconnected, timed_out.
class transport : public detail::ref_counted {
  public:
    // Claims jobs; an empty vector means there is no work. A request whose response was lost must not be
    // repeated: it may have claimed jobs.
    virtual result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) = 0;
    // Reports a completed job. May be repeated by the transport: the second response is `gone`.
    virtual result<settled> ack(const ack_request& request, time_point deadline) = 0;
    // Reports any other job. May be repeated like ack().
    virtual result<settled> fail(const fail_request& request, time_point deadline) = 0;
    // Renews claims and returns the backend's commands.
    virtual result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) = 0;
    // Checks whether a claimed job is still this worker's: for one that a heartbeat response omits, and before a job is
    // started or reported whose lease has ended. True: the backend says so. False: it is settled, or claimed again; its
    // token is cancelled (cancel_reason::revoked), and nothing is reported for it. errc::unsupported, the default, or
    // rejected: the backend does not say; the job is reported, but not started. Other errors: asked again. [WIRE 7]
    virtual result<bool> confirm_claim(const claim_query& /*query*/, time_point /*deadline*/) {
        return error{errc::unsupported, 0, "this transport cannot query a claim"};
    }
    // Called before the first heartbeat. Default: nothing, because the first heartbeat registers the worker.
    // `should_send`: see fetch_request. False: the last heartbeat begins, and nothing follows it.
    virtual result<void> register_worker(const worker_identity& /*worker*/, time_point /*deadline*/,
                                         const function<bool()>& /*should_send*/ = nullptr) {
        return {};
    }
    // Called before the last heartbeat, which is the last request of all. Default: nothing.
    virtual result<void> deregister_worker(const worker_identity& /*worker*/, time_point /*deadline*/) {
        return {};
    }

    // Stores a checkpoint of a running job outside of this process. Default: errc::unsupported; the checkpoint
    // then travels with the FAIL alone.
    virtual result<settled> save_checkpoint(const checkpoint_request& /*request*/, time_point /*deadline*/) {
        return error{errc::unsupported, 0, "this transport does not store checkpoints"};
    }
    // Returns the stored checkpoint of a job as JSON text; empty: none, which is the default.
    virtual result<std::string> load_checkpoint(const std::string& /*job_id*/, time_point /*deadline*/) {
        return std::string();
    }

    // Sets what the transport may call, from any thread, when there may be new work: the worker then fetches before
    // its poll interval ends. Set before the first FETCH, and to empty at the end: once that call has returned, the
    // previous callback is never called again. Default: ignored; the worker polls.
    virtual void on_work_available(function<void()> /*callback*/) {}
    // Sets, at the same times, what the transport may call when the backend has cancelled a claimed job. Its token is
    // cancelled (cancel_reason::revoked); a job given up is FAILed as "cancelled", not retryable. Default: ignored.
    virtual void on_job_cancelled(function<void(const std::string& job_id)> /*callback*/) {}
    // Called after each change of the worker's phase, before its heartbeat: one that is sent messages stops those with
    // `quiet`, and hands back what it has not given to a FETCH. Must not block. Default: ignored.
    virtual void on_phase(phase /*now*/) {}
};
using transport_ref = detail::ref<transport>;  // shares its transport

// Creates a transport of a user's type, for transport_scheme::open to return.
template <class Transport, class... Args>
transport_ref make_transport(Args&&... args) {
    return transport_ref(new Transport(std::forward<Args>(args)...));
}

}  // namespace v0_1_0
}  // namespace ojs
