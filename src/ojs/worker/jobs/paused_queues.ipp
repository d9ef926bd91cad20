// paused_queues: which of its queues a worker does not fetch from.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/lifecycle.hpp"

namespace ojs::detail {

// Any resume of the worker's lifecycle resumes the queues that were paused before it, so that SIGCONT does. Thread-safe.
class paused_queues {
  public:
    // Both must outlive it.
    paused_queues(const std::vector<std::string>& all, const lifecycle& life)
        : all_(all), life_(life), paused_at_(all.size()) {}

    // False: nothing has changed, as with a queue that is none of the worker's.
    bool set(const std::string& queue, bool paused) {
        const lock_guard held(mutex_);
        bool changed = false;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (all_[i] != queue || is_paused(i) == paused) continue;
            paused_at_[i] = paused ? resumes() : 0;
            changed = true;
        }
        if (changed) changes_.fetch_add(1);
        return changed;
    }
    bool is_known(const std::string& queue) const noexcept {
        return std::find(all_.begin(), all_.end(), queue) != all_.end();
    }

    // As long as it stays, open() does. 0 until the first pause: a resume before it changes nothing.
    std::uint32_t version() const noexcept {
        const std::uint32_t changes = changes_.load();
        return changes == 0 ? 0 : changes + life_.resume_requests();
    }
    // Those to fetch from, in their order.
    std::vector<std::string> open() const {
        const lock_guard held(mutex_);
        std::vector<std::string> out;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (!is_paused(i)) out.push_back(all_[i]);
        }
        return out;
    }

  private:
    std::uint64_t resumes() const noexcept { return life_.resume_requests() + std::uint64_t{1}; }
    bool is_paused(std::size_t i) const noexcept { return paused_at_[i] == resumes(); }

    const std::vector<std::string>& all_;
    const lifecycle& life_;
    mutable mutex mutex_;
    array<std::uint64_t> paused_at_;  // the number of resumes when each was paused, from 1; 0: it was not
    atomic<std::uint32_t> changes_{0};
};

}  // namespace ojs::detail
