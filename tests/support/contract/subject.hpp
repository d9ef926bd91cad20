// A transport under test: access to its jobs from outside, and its capabilities.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <ojs_shutdown.hpp>
#include <string>

namespace transport_contract {
// What the queue behind the transport does beyond the minimum. Each trait that is set adds the checks in its comment.
struct traits {
    bool first_in_first_out = false;      // jobs of one queue are claimed in the order of their pushes
    bool keeps_args_text = false;         // args arrive byte for byte, not only as the same JSON
    bool holds_nul = false;               // "\u0000" in args arrives
    bool any_type = false;                // types of any text run, not only lower-case words with dots
    bool any_id = false;                  // push() takes new_job::id, and ids of any text run
    std::size_t largest_args = 0;         // args of that many bytes arrive
    bool requeue_spares_attempt = false;  // a requeued job runs with the same attempt again
    bool passes_checkpoints = false;      // the next run has the checkpoint of a FAIL
    bool knows_holder = false;            // ACK and FAIL of a worker that did not claim the job are `gone`
    bool tells_of_work = false;           // a push calls the callback of on_work_available()
    bool jobs_outlive_worker = false;     // the jobs in flight of a dead worker come back
    bool counts_lost_runs = false;        // and that run was one of their attempts
    // Late reports are `gone`, after this shortest visibility_timeout; 0: a claim holds while its worker lives.
    std::chrono::milliseconds lease{0};
};

struct new_job {
    std::string type = "contract.work";
    std::string args_json = "[]";
    std::string queue;
    std::int64_t max_attempts = 3;
    std::string id;  // empty: the queue chooses. Set only with traits::any_id
};

enum class job_state {
    waiting,    // to be claimed, now or after its retry delay
    running,    // claimed
    completed,  // ACKed
    discarded,  // FAILed for the last time
    absent,     // the queue knows no such job
    unknown     // it cannot be looked into
};
inline const char* to_string(job_state state) {
    static const char* const names[] = {"waiting", "running", "completed", "discarded", "absent", "unknown"};
    return names[static_cast<int>(state)];
}

// Derive from it. One object can serve all cases, because every case uses its own queues. A std::exception thrown by a function
// ends the case. All functions are called from one thread, while others use the transports.
class subject {
  public:
    subject() = default;
    subject(const subject&) = delete;
    subject& operator=(const subject&) = delete;
    virtual ~subject() = default;

    virtual traits can() const = 0;
    // Returns a transport of that worker to the same jobs as all others. May return the same one each time.
    virtual std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) = 0;
    virtual std::string push(const new_job& what) = 0;  // returns the later job::id
    // Default: a broker that cannot be asked for one job. The cases then rest on what can be claimed.
    virtual job_state state_of(const std::string& /*id*/) { return job_state::unknown; }

    // Called while a case waits for a job: makes jobs that wait for a retry due. Default: the case waits for the delay.
    virtual void end_retry_delays() {}
    // The worker of this transport dies without deregistering. Default: drops the last reference.
    virtual void kill(std::shared_ptr<ojs::transport>& transport) { transport.reset(); }
    // Stops the backend until thaw(). False: not possible here.
    virtual bool freeze() { return false; }
    virtual void thaw() {}
    // The next `count` requests are carried out, but their responses and connections are lost. 0: none. False: not possible.
    virtual bool lose_answers(int /*count*/) { return false; }
};
}  // namespace transport_contract
