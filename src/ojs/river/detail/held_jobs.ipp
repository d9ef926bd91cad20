// held_jobs: what is claimed and not settled.
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

// A job in hand: claimed, and not settled.
struct held_job {
    long long id = 0;
    long long attempt = 0;
    bool reported = false;     // it was tried: until that is answered, this stays
    bool lost_answer = false;  // of a settlement: it may have been made
    bool settled = false;      // whoever reports it is still to hear of it
    bool came_again = false;   // it was claimed once more before that was clear: that claim is nobody's
    std::string cancelled_at;  // what metadata said at the claim: of an earlier run
    const char* action =
        nullptr;      // what the handler decided with snooze() and the like; none: what the worker says
    std::string why;  // the same: its outcome says so
    std::optional<long long> delay;  // the same; milliseconds
    time_point touched;              // see keep_from_rescuer
};

// Thread-safe.
class held_jobs {
  public:
    std::size_t size() const noexcept { return size_; }

    // False: it is held already; whoever reports it gives this claim back.
    bool add(held_job job) {
        const lock_guard held(mutex_);
        const auto [place, added] = all_.try_emplace(job.id, std::move(job));
        if (!added) place->second.came_again = true;
        size_ = all_.size();
        return added;
    }
    // For claims that nobody received.
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
    // What is not ours any more is not reported either: the worker only names it. Where a report is under way, it will say.
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
    // Those not touched for `age`, which are then.
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

    // There may be jobs that are ours in the database alone.
    std::atomic<bool> any_lost{false};

  private:
    // With the mutex held. What came once more meanwhile is given back.
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
