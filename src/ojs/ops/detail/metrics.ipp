// metrics: the counters behind /metrics, bounded whatever the backend sends; metrics_text() in health.ipp writes them.
#pragma once

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../base/duration.hpp"
#include "../../core/lifecycle.hpp"
#include "../../server/detail/prometheus.ipp"
#include "../../stop/detail/machine_state.ipp"

namespace ojs::detail {
// Lets threads wait for a change in a worker; without waiters, notify() costs one atomic.
class change_signal {
  public:
    // Both sides read-modify-write one atomic: the waiter sees the change, or notify() sees the waiter.
    void notify() noexcept {
        if (waiting_.fetch_add(0, memory_order::acq_rel) == 0) return;
        const unique_lock held(mutex_);
        changed_.notify_all();
    }

    // Waits until `holds()`, which is called under a lock after every notify(); false at the deadline.
    template <class Condition>
    bool await(time_point deadline, Condition holds) {
        waiting_.fetch_add(1, memory_order::acq_rel);
        bool held_true = false;
        {
            unique_lock held(mutex_);
            bool in_time = true;
            while (!(held_true = holds()) && in_time) in_time = changed_.wait_until(held, deadline);
        }
        waiting_.fetch_sub(1, memory_order::acq_rel);
        return held_true;
    }

  private:
    atomic<unsigned> waiting_{0};
    mutex mutex_;
    condition changed_;
};

// As the OJS observability specification recommends for ojs.job.duration.
inline constexpr histogram_bound job_bound_list[] = {{"0.005", 5},  {"0.01", 10},    {"0.025", 25},  {"0.05", 50},
                                                     {"0.1", 100},  {"0.25", 250},   {"0.5", 500},   {"1", 1000},
                                                     {"2.5", 2500}, {"5", 5000},     {"10", 10000},  {"30", 30000},
                                                     {"60", 60000}, {"120", 120000}, {"300", 300000}};
inline constexpr histogram_bound stop_bound_list[] = {
    {"0.1", 100},  {"0.5", 500},    {"1", 1000},     {"5", 5000},     {"10", 10000},    {"30", 30000},
    {"60", 60000}, {"120", 120000}, {"300", 300000}, {"900", 900000}, {"3600", 3600000}};
inline constexpr histogram_bounds job_bounds{job_bound_list, 15};
inline constexpr histogram_bounds stop_bounds{stop_bound_list, 11};

// By settled_state. Only the backend knows whether a job's attempts are used up.
inline constexpr const char* settled_state_names[] = {"completed", "retryable", "discarded", "available"};
inline constexpr std::size_t settled_state_count = 4;

inline constexpr const char* fetch_status_names[] = {"jobs", "empty", "failed"};

// A bounded set of label values: names from the configuration, and "other" at index 0 for all the rest.
struct label_names {
    label_names(const std::vector<std::string>& known, std::size_t max) {
        for (const std::string& each : known) {
            // Prometheus rejects a page that is not UTF-8.
            const bool known_already = each == all[0] || index_of(each) != 0;
            if (!known_already && all.size() <= max && is_utf8(each)) all.push_back(each);
        }
    }
    std::size_t index_of(std::string_view name) const noexcept {
        const auto found = std::find(all.begin() + 1, all.end(), name);
        return found == all.end() ? 0 : static_cast<std::size_t>(found - all.begin());
    }

    std::vector<std::string> all = {"other"};
};

// Jobs settled, by queue, type and state, without locks. A pair beyond the limit counts as other.
class job_metrics {
  public:
    job_metrics(const std::vector<std::string>& queue_names, const std::vector<std::string>& types)
        : queues(queue_names, max_queues), types_(types, max_types), pairs_(queues.all.size() * types_.all.size()) {
        pairs_[0].store(new pair, memory_order::relaxed);
    }
    job_metrics(const job_metrics&) = delete;
    job_metrics& operator=(const job_metrics&) = delete;
    ~job_metrics() {
        for (atomic<pair*>& each : pairs_) delete each.load(memory_order::relaxed);
    }

    void settled(const job_settlement& job) noexcept {
        pair& counted = find_or_add(queues.index_of(job.queue) * types_.all.size() + types_.index_of(job.type));
        counted.by_state[static_cast<std::size_t>(job.state)].observe(job_bounds, job.duration);
    }

    void show(metrics_page& page) const {
        page.family("ojs_job_completed_total", "counter", "Jobs acknowledged as completed.");
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            const pair* counted = pairs_[i].load(memory_order::acquire);
            const std::uint64_t count = counted == nullptr ? 0 : counted->by_state[0].count();
            if (count > 0) page.sample(count, labels_of(i));
        }
        page.family("ojs_job_duration_seconds", "histogram",
                    "From the claim of a job to its settlement, by the reported state.");
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            const pair* counted = pairs_[i].load(memory_order::acquire);
            for (std::size_t state = 0; counted != nullptr && state < settled_state_count; ++state) {
                if (counted->by_state[state].count() == 0) continue;
                page.samples(counted->by_state[state], job_bounds,
                             cat({labels_of(i), ",", label("state", settled_state_names[state])}));
            }
        }
    }

    const label_names queues;

  private:
    struct pair {
        histogram by_state[settled_state_count];
    };
    // The specification expects fewer than 50 queues and 200 types.
    static constexpr std::size_t max_queues = 50;
    static constexpr std::size_t max_types = 200;
    static constexpr std::size_t max_pairs = 500;

    pair& find_or_add(std::size_t index) noexcept {
        pair* known = pairs_[index].load(memory_order::acquire);
        return known != nullptr ? *known : add(index);
    }
    pair& add(std::size_t index) noexcept {
        pair* other = pairs_[0].load(memory_order::relaxed);
        if (made_.fetch_add(1, memory_order::relaxed) >= max_pairs) {
            made_.fetch_sub(1, memory_order::relaxed);
            return *other;
        }
        pair* made = new (std::nothrow) pair;
        if (made == nullptr) return *other;
        pair* known = nullptr;
        if (pairs_[index].compare_exchange_strong(known, made)) return *made;
        delete made;  // another thread was faster
        made_.fetch_sub(1, memory_order::relaxed);
        return *known;
    }
    std::string labels_of(std::size_t index) const {
        const std::size_t types = types_.all.size();
        return cat({label("queue", queues.all[index / types]), ",", label("type", types_.all[index % types])});
    }

    const label_names types_;
    array<atomic<pair*>> pairs_;  // [queue][type]
    atomic<std::size_t> made_{0};
};

// Counted for /metrics only. Does not exist without a health server.
class worker_metrics : public ref_counted {
  public:
    worker_metrics(const std::vector<std::string>& queues, const std::vector<std::string>& types)
        : jobs(queues, types) {
        on_phase(phase::running);
    }

    void on_supervisor_turn() noexcept {
        count_one(turns);
        changes.notify();
    }

    void on_phase(phase now) noexcept {
        entered_at_[static_cast<std::size_t>(now)].store(steady_clock::now().time_since_epoch().count(),
                                                         memory_order::relaxed);
    }
    // When the worker last entered that phase; time_point(): never.
    time_point entered_at(phase which) const noexcept {
        return time_point(
            steady_clock::duration(entered_at_[static_cast<std::size_t>(which)].load(memory_order::relaxed)));
    }

    // Since when the worker has been in that phase; now, if the supervisor has not noticed it yet.
    time_point since(phase now) const noexcept {
        for (int other = 0; other < phase_count; ++other) {
            if (entered_at(static_cast<phase>(other)) > entered_at(now)) return steady_clock::now();
        }
        return entered_at(now);
    }

    job_metrics jobs;
    atomic<bool> backend_up{false};  // as of the latest heartbeat or FETCH
    counter beats_ok{0};
    counter beats_failed{0};
    counter fetches[3] = {};  // by fetch_status
    counter turns{0};         // iterations of the supervisor's loop
    change_signal changes;    // notified at each iteration

  private:
    atomic<steady_clock::rep> entered_at_[phase_count] = {};
};
}  // namespace ojs::detail
