// What a transport under test gives to the cases: how to reach its jobs from outside, and what it can do.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <ojs_shutdown.hpp>
#include <string>

namespace transport_contract {

// What is true of the queue behind the transport. The cases hold it to what it claims, and leave out what it does not.
struct traits {
    bool first_in_first_out =
        true;  // jobs of one queue, pushed one after the other, are claimed in that order
    bool keeps_args_text =
        true;  // args arrive byte for byte; false: as the same JSON, numbers with all their digits
    bool holds_nul = true;  // "\u0000" in args
    bool any_type = true;   // a type is any text; false: lower-case words with dots between them
    bool any_id = false;    // push() takes new_job::id, which is any text
    std::size_t largest_args = 200 * 1024;  // bytes; no larger ones are pushed
    bool requeue_spares_attempt = true;     // a job that was handed back runs with the same attempt again
    bool saves_checkpoints = true;          // false: save_checkpoint() answers errc::unsupported
    bool passes_checkpoints = true;         // that of a FAIL is there in the next run
    bool knows_holder = true;     // a job is settled by the worker that claimed it; for others it is `gone`
    bool announces_work = false;  // calls what on_work_available() was given, after a push
    bool jobs_outlive_worker = true;  // what a dead worker had in hand comes back
    bool counts_lost_runs = true;     // and that run was one of its attempts
    // The shortest worker_identity::visibility_timeout that is kept to, of those that a test can wait for; 0: a claim holds
    // for as long as its worker lives.
    std::chrono::milliseconds lease{0};
};

struct new_job {
    std::string type = "contract.work";
    std::string args_json = "[]";
    std::string queue;
    std::int64_t max_attempts = 3;
    std::string id;  // empty: whatever the queue calls it. Given only where traits::any_id
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

// Derive from it. One object may serve all cases, or each has its own: every case uses queues of its own name. What goes
// wrong in a function here is thrown as a std::exception, which ends the case. All are called from one thread, while others
// use the transports.
class subject {
  public:
    subject() = default;
    subject(const subject&) = delete;
    subject& operator=(const subject&) = delete;
    virtual ~subject() = default;

    virtual traits can() const = 0;
    // A transport for that worker, to the same jobs as all others. Where there can be only one, the same one each time.
    virtual std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) = 0;
    virtual std::string push(const new_job& what) = 0;  // returns what will be job::id
    virtual job_state state_of(const std::string& id) = 0;

    // Called while a case waits for a job: those that wait for their next attempt are due now. By default the case waits as
    // long as they do.
    virtual void end_retry_delays() {}
    // The worker of this transport dies, without a word to the queue. By default the last reference is given up.
    virtual void kill(std::shared_ptr<ojs::transport>& transport) { transport.reset(); }
    // What is behind the transport stands still, and goes on. False: cannot be done here.
    virtual bool freeze() { return false; }
    virtual void thaw() {}
    // Of the next so many requests each is carried out, but its answer is lost and the connection with it. 0: no more of
    // that. False: nothing goes over a wire, or cannot be done here.
    virtual bool lose_answers(int /*count*/) { return false; }
};

}  // namespace transport_contract
