// store: jobs, queues, workers and timers, all in memory. It knows no HTTP.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "event_feed.hpp"
#include "ids.hpp"
#include "job.hpp"
#include "ledger.hpp"
#include "queue_events.hpp"
#include "row.hpp"
#include "timers.hpp"

namespace dev_backend {

struct counts {
    std::array<std::int64_t, state_names.size()> in_state{};
    std::int64_t requeued = 0;
    std::int64_t expired = 0;
};

// A failed attempt.
struct failure {
    std::string error;  // JSON
    std::string type;   // of the error; the retry policy may name it
    std::string code;
    bool retryable = true;
    bool requeue = false;
    bool lease_ended = false;  // without a report
};

// What a worker reports in a BEAT.
struct beat {
    std::string worker_id;
    std::string state;
    std::string registration;  // complete
    std::vector<std::string> active;
};

struct store_options {
    std::optional<milliseconds> retry_delay;  // overrides each job's policy
    milliseconds timeout_grace{1000};         // time for the worker to report a timeout
    bool is_kept = false;                     // take_changes() is called
};

constexpr std::size_t max_workers = 4096;
constexpr std::size_t max_worker_id = 256;  // bytes

job_state first_state_of(const new_job& given);

class store {
  public:
    using lock = std::unique_lock<std::mutex>;

    store(ledger& events, queue_events& streams, const store_options& options)
        : ledger_(events), streams_(streams), options_(options) {}
    void restore(const row& kept);  // before start()
    void start();                   // starts the timer thread
    void stop();
    void clear();  // forgets everything
    // For this time no lease ends and no worker counts as dead, because none could call.
    void hold_time(milliseconds least);

    // Lock this around every call below, and around lines of the ledger.
    std::mutex& mutex() { return mutex_; }

    // Jobs change here only. An unknown id is refused.
    const job& add(const new_job& given);
    // Refuses a duplicate, by its `unique`, of a job that is here.
    void require_unique(const new_job& given) const;
    const job& find(const std::string& id) const { return own_job(id); }
    bool has(const std::string& id) const { return jobs_.count(id) > 0; }
    // `lease` 0: each job's own.
    std::vector<const job*> claim(const std::string& worker_id, const std::vector<std::string>& queues,
                                  std::size_t count, milliseconds lease);
    void complete(const std::string& id, std::string result);
    job_state fail(const std::string& id, const failure& report);
    void cancel(const std::string& id);
    void activate(const std::string& id);
    void keep_checkpoint(const std::string& id, std::string_view state);
    void forget_checkpoint(const std::string& id);
    // Refused unless it is among the dead letters.
    void retry_dead_letter(const std::string& id);
    void remove_dead_letter(const std::string& id);

    // Adds a worker at its first request. Above max_workers it removes the longest silent one without jobs. Refuses a too
    // long id, and a new worker while all hold jobs.
    const worker& find_worker(const std::string& id) { return own_worker(id); }
    const worker& note(beat report);
    // Renews the jobs that this worker holds; 0: by the length of the last lease.
    std::vector<std::string> extend_leases(const std::string& worker_id, const std::vector<std::string>& ids,
                                           milliseconds lease);
    void expect_beat_by(const std::string& worker_id, ojs::time_point when);
    void say_goodbye(const std::string& worker_id);
    // A queue exists once a job was in it, or a worker has fetched from it; others are refused.
    void require_queue(const std::string& name) const;
    bool is_paused(const std::string& queue) const { return paused_.count(queue) > 0; }
    void pause(const std::string& queue);
    void resume(const std::string& queue);
    // "*": all workers, also new ones; `queues` only with "quiet".
    void direct(const std::string& worker_id, const std::string& directive,
                const std::vector<std::string>& queues);

    std::size_t pushed() const { return jobs_.size(); }
    const counts& counted() const { return counts_; }
    const std::map<std::string, std::unique_ptr<worker>>& workers() const { return workers_; }
    std::vector<const job*> in_order_of_arrival() const;
    const event_feed& feed() const { return feed_; }

    // For the storage. Counts all changes; thread-safe.
    std::uint64_t changes() const { return changes_.load(); }
    changed_rows take_changes();

  private:
    job& own_job(const std::string& id) const;
    job& own_dead_letter(const std::string& id) const;
    worker& own_worker(const std::string& id);
    void forget_a_worker();
    job& insert(std::unique_ptr<job> added);
    void move(job& moved, job_state next);
    void end(job& ended, job_state state);
    void start_attempt(job& next, worker& by, milliseconds lease);
    void renew_lease(job& held);
    job_state state_after(job& failed, const failure& report);
    void wait_for_retry(job& failed);
    void note_error(job& failed, const failure& report);
    void set_directive(worker& holder, const std::string& directive, const std::vector<std::string>& queues);
    void take_back_jobs(worker& from, const char* event);
    void change(job& changed);
    void run_due(ojs::time_point now);
    void run_due(job& due, ojs::time_point now);
    job_state expire(job& held);
    void run_timers();

    ledger& ledger_;
    queue_events& streams_;
    const store_options options_;
    std::thread timer_thread_;
    std::atomic<std::uint64_t> changes_{0};

    std::mutex mutex_;  // guards everything below
    bool stopping_ = false;
    std::unordered_map<std::string, std::unique_ptr<job>> jobs_;
    std::unordered_map<std::string, std::set<job*, by_turn>> available_;  // by queue
    std::set<std::string> paused_;
    std::map<std::string, std::unique_ptr<worker>> workers_;
    timers timers_;
    counts counts_;
    std::string directive_for_new_ = "running";
    std::uint64_t last_turn_ = 0;
    std::uint64_t last_seen_ = 0;
    id_maker ids_;
    event_feed feed_;
    std::mt19937_64 random_{std::random_device{}()};
    std::vector<job*> changed_;
    std::vector<std::string> removed_;
};

}  // namespace dev_backend
