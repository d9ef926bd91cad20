// A transport under test: access to its jobs from outside, and its capabilities.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <ojs_shutdown.hpp>
#include <string>

namespace transport_contract {

// The capabilities of the queue behind the transport. The cases check those that are set and skip the others.
struct traits {
    bool first_in_first_out =
        true;  // jobs of one queue, pushed one after the other, are claimed in that order
    bool keeps_args_text =
        true;  // args arrive byte for byte; false: as the same JSON, numbers with all their digits
    bool holds_nul = true;  // "\u0000" in args
    bool any_type = true;   // a type is any text; false: lower-case words with dots between them
    bool any_id = false;    // push() takes new_job::id, which is any text
    std::size_t largest_args = 200 * 1024;  // bytes; no larger ones are pushed
    bool requeue_spares_attempt = true;     // a requeued job runs with the same attempt again
    bool saves_checkpoints = true;          // false: save_checkpoint() answers errc::unsupported
    bool passes_checkpoints = true;         // that of a FAIL is there in the next run
    bool knows_holder = true;    // a job is settled by the worker that claimed it; for others it is `gone`
    bool tells_of_work = false;  // calls the callback of on_work_available() after a push
    bool jobs_outlive_worker = true;  // the jobs in flight of a dead worker come back
    bool counts_lost_runs = true;     // and that run was one of its attempts
    // The shortest effective worker_identity::visibility_timeout; 0: a claim holds while its worker lives.
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
    absent      // the queue knows no such job
};
inline const char* to_string(job_state state) {
    static const char* const names[] = {"waiting", "running", "completed", "discarded", "absent"};
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
    virtual job_state state_of(const std::string& id) = 0;

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
