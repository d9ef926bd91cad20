// store: jobs, queues, workers and timers, all in memory. It knows no HTTP.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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
#include "timers.hpp"

namespace dev_backend {
// A failed attempt.
struct failure {
    std::string error;  // JSON
    std::string type;   // of the error; the retry policy may name it
    bool retryable = true;
    bool requeue = false;
    bool lease_ended = false;  // without a report
};

struct store_options {
    milliseconds retry_delay;    // negative: by each job's policy
    milliseconds timeout_grace;  // time for the worker to report a timeout
    bool is_kept;                // take_changes() is called
};

class store {
  public:
    using lock = std::unique_lock<std::mutex>;

    store(ledger& events, queue_events& streams, const store_options& options)
        : ledger_(events), streams_(streams), options_(options) {}
    void start();  // starts the timer thread
    void stop();
    void clear();  // forgets everything

    // Lock this around every call below, and around lines of the ledger.
    std::mutex& mutex() { return mutex_; }

    // Refuses a job whose id is taken, or whose unique key is that of an unfinished job.
    void require_new(const new_job& given) const;
    const job& add(const new_job& given);
    job& find(const std::string& id) const;              // an unknown id is refused
    job& find_dead_letter(const std::string& id) const;  // likewise
    std::vector<const job*> dead_letters() const;        // in the order of arrival
    // `lease` 0: each job's own.
    std::vector<const job*> claim(worker& by, const std::vector<std::string>& queues, std::size_t count,
                                  milliseconds lease);
    void complete(job& done, std::string result);
    void fail(job& failed, const failure& report);
    void cancel(job& of);
    void set_checkpoint(job& of, std::string_view state);
    void retry(job& dead_letter);
    void remove(job& dead_letter);

    worker& find_worker(const std::string& id);  // adds it at its first request
    // Renews the jobs that this worker holds; 0: by the length of the last lease.
    std::vector<std::string> extend_leases(const worker& of, const std::vector<std::string>& ids, milliseconds lease);
    void expect_heartbeat_by(worker& from, ojs::time_point when);
    void say_goodbye(worker& from);
    void direct(const std::string& worker_id,
                const std::string& directive);  // "*": all workers, also new ones

    std::size_t pushed() const { return jobs_.size(); }
    std::int64_t requeued() const { return requeued_; }
    using state_counts = std::array<std::int64_t, state_names.size()>;
    std::map<std::string, state_counts> count_by_queue() const;
    std::int64_t count_in(job_state state) const { return in_state_[static_cast<std::size_t>(state)]; }
    const std::map<std::string, worker>& workers() const { return workers_; }
    const event_feed& feed() const { return feed_; }

    // For the journal. Counts all changes; thread-safe.
    std::uint64_t changes() const { return changes_.load(); }
    // Since the last call, as one line: a JSON array of records. Empty: none.
    std::string take_changes();
    void restore(std::string_view fixed, json_view record);  // before start(), in the order of turns

  private:
    job& insert(std::unique_ptr<job> added);
    void move(job& moved, job_state next);
    void end(job& ended, job_state state);
    void start_attempt(job& next, worker& by, milliseconds lease);
    void renew_lease(job& held);
    void note_error(job& failed, const failure& report);
    void take_back_jobs(worker& from, const char* event);
    void change(job& changed);
    template <class Timed>
    void set_timer(timers<Timed>& in, Timed& timed, ojs::time_point when);
    void run_timers();
    void run_due(job& due, ojs::time_point now);

    ledger& ledger_;
    queue_events& streams_;
    const store_options options_;
    std::thread timer_thread_;
    std::atomic<std::uint64_t> changes_{0};

    std::mutex mutex_;  // guards everything below
    bool stopping_ = false;
    std::unordered_map<std::string, std::unique_ptr<job>> jobs_;
    std::unordered_map<std::string, std::set<job*, by_turn>> available_;  // by queue
    std::map<std::string, worker> workers_;
    timers<job> job_timers_;
    timers<worker> worker_timers_;
    std::condition_variable timers_changed_;
    ojs::time_point wakes_at_ = never;
    state_counts in_state_{};
    std::int64_t requeued_ = 0;
    std::string directive_for_new_ = "running";
    std::int64_t last_turn_ = 0;
    id_maker ids_;
    event_feed feed_;
    std::mt19937_64 random_{std::random_device{}()};
    std::vector<job*> changed_;
    std::vector<std::string> removed_;
};
}  // namespace dev_backend
