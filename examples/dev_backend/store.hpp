// store: the jobs, their queues, the workers that hold them, and what time brings; all in memory. It knows no HTTP.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ids.hpp"
#include "job.hpp"
#include "ledger.hpp"
#include "timers.hpp"

namespace dev_backend {

struct counts {
    std::array<std::int64_t, state_names.size()> in_state{};
    std::int64_t handed_back = 0;
    std::int64_t expired = 0;
};

// What a worker said of its attempt at a job.
struct failure {
    std::string error;  // JSON
    bool retryable = true;
    bool requeue = false;
};

// What a worker said of itself.
struct beat {
    std::string worker_id;
    std::string state;
    std::string registration;  // the whole of it
    std::vector<std::string> active;
};

class store {
  public:
    using lock = std::unique_lock<std::mutex>;

    store(ledger& events, milliseconds retry_delay) : ledger_(events), retry_delay_(retry_delay) {}
    void start();  // the thread that does what falls due
    void stop();

    // Everything below is done with this locked, the ledger's lines too.
    std::mutex& mutex() { return mutex_; }

    // Jobs change here alone. An unknown id is refused.
    const job& add(const new_job& given);
    const job& find(const std::string& id) const { return own_job(id); }
    std::vector<const job*> claim(const std::string& worker_id, const std::vector<std::string>& queues,
                                  std::size_t count, milliseconds lease);
    void complete(const std::string& id, std::string result);
    job_state fail(const std::string& id, failure what);
    void cancel(const std::string& id);
    void keep_checkpoint(const std::string& id, std::string_view state);
    void forget_checkpoint(const std::string& id);

    // A worker is known from its first request on.
    const worker& find_worker(const std::string& id) { return own_worker(id); }
    const worker& note(beat said);
    // Those of the jobs that are this worker's; a lease of 0 is as long again as the last.
    std::vector<std::string> extend_leases(const std::string& worker_id, const std::vector<std::string>& ids,
                                           milliseconds lease);
    void expect_beat_by(const std::string& worker_id, ojs::time_point when);
    void say_goodbye(const std::string& worker_id);
    // "*" are all, and those to come; `queues` go with "quiet".
    void direct(const std::string& worker_id, const std::string& directive,
                const std::vector<std::string>& queues);

    std::size_t pushed() const { return jobs_.size(); }
    const counts& counted() const { return counts_; }
    const std::map<std::string, std::unique_ptr<worker>>& workers() const { return workers_; }

  private:
    job& own_job(const std::string& id) const;
    worker& own_worker(const std::string& id);
    void move(job& moved, job_state next);
    void take_back_jobs(worker& from, const char* event);
    void do_what_is_due(ojs::time_point now);
    void run_timers();

    ledger& ledger_;
    const milliseconds retry_delay_;
    std::thread timer_thread_;

    std::mutex mutex_;  // guards everything below
    bool stopping_ = false;
    std::unordered_map<std::string, std::unique_ptr<job>> jobs_;
    std::unordered_map<std::string, std::set<job*, by_turn>> available_;  // by queue
    std::map<std::string, std::unique_ptr<worker>> workers_;
    timers timers_;
    counts counts_;
    std::string directive_for_new_ = "running";
    std::uint64_t last_turn_ = 0;
    id_maker ids_;
};

}  // namespace dev_backend
