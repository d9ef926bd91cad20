// held_jobs: the jobs that are claimed and not settled.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../base/duration.hpp"
#include "postgres_connection.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace river {

OJS_SHUTDOWN_INLINE std::optional<long long> read_id(const std::string& text) {
    errno = 0;
    char* end = nullptr;
    const long long id = std::strtoll(text.c_str(), &end, 10);
    const bool whole = !text.empty() && end == text.c_str() + text.size() && errno == 0;
    return whole ? std::optional(id) : std::nullopt;
}

// Claimed, and not settled.
struct held_job {
    long long id = 0;
    long long attempt = 0;
    bool reported = false;           // a report is under way; kept until it is answered
    bool lost_answer = false;        // the answer to a report was lost: it may have been settled
    std::string settled_as;          // the action that settled it; the reporting thread may not know yet
    bool came_again = false;         // claimed once more before that was known; that claim is given back
    std::string cancelled_at;        // of the metadata when it was claimed: an earlier run's cancellation
    const char* action = nullptr;    // set by snooze() and the like; null: the worker's outcome decides
    std::string why;                 // its error text, by which fail() recognises it
    std::optional<long long> delay;  // its delay in milliseconds
    time_point touched;              // see keep_from_rescuer
};

// Thread-safe.
class held_jobs {
  public:
    std::size_t size() const noexcept { return size_; }

    // False: it is already held, and this claim is given back once that one is settled.
    bool add(held_job job) {
        const lock_guard held(mutex_);
        const auto [place, added] = all_.try_emplace(job.id, std::move(job));
        if (!added) place->second.came_again = true;
        size_ = all_.size();
        return added;
    }
    // For a claim that no caller received.
    void drop(long long id) {
        const lock_guard held(mutex_);
        all_.erase(id);
        size_ = all_.size();
        any_lost = true;
    }
    void forget(long long id) {
        const lock_guard held(mutex_);
        const auto found = all_.find(id);
        if (found != all_.end()) forget(found);
    }

    // Applies `change` to a job that is held, and returns a copy of it.
    template <class Change>
    std::optional<held_job> change(long long id, Change change) {
        const lock_guard held(mutex_);
        const auto found = all_.find(id);
        if (found == all_.end()) return {};
        change(found->second);
        return found->second;
    }
    template <class Change>
    std::optional<held_job> change(const std::string& id, Change with) {
        const std::optional<long long> number = read_id(id);
        return number ? change(*number, with) : std::nullopt;
    }
    template <class Id>
    std::optional<held_job> find(const Id& id) {
        return change(id, [](const held_job&) {});
    }
    // Jobs that are no longer ours are not reported; the worker only names them. A report under way decides itself.
    void forget_others(const std::vector<std::string>& asked, std::vector<std::string>& ours) {
        const std::set<std::string> still(ours.begin(), ours.end());
        const lock_guard held(mutex_);
        for (const std::string& each : asked) {
            const std::optional<long long> id = read_id(each);
            const auto found = id && still.count(each) == 0 ? all_.find(*id) : all_.end();
            if (found == all_.end()) continue;
            found->second.reported ? ours.push_back(each) : forget(found);
        }
    }
    postgres_array ids() const {
        const lock_guard held(mutex_);
        postgres_array out;
        for (const auto& each : all_) out.add(each.first);
        return out;
    }
    // Returns and touches the jobs not touched for `age`.
    std::vector<long long> touch_older_than(std::chrono::milliseconds age) {
        const time_point now = steady_clock::now();
        std::vector<long long> out;
        const lock_guard held(mutex_);
        for (auto& each : all_) {
            if (now - each.second.touched < age) continue;
            each.second.touched = now;
            out.push_back(each.first);
        }
        return out;
    }

    // Jobs may be ours in the database without being held here.
    std::atomic<bool> any_lost{false};

  private:
    // Called with the mutex. A claim that came again is given back.
    void forget(std::map<long long, held_job>::iterator which) {
        if (which->second.came_again) any_lost = true;
        all_.erase(which);
        size_ = all_.size();
    }

    mutable mutex mutex_;
    std::map<long long, held_job> all_;
    std::atomic<std::size_t> size_{0};
};

}  // namespace river
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
