// queue_gate: which of its queues a worker fetches from, while it runs.
#pragma once

#include <string>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/lifecycle.hpp"

namespace ojs::detail {

// Quiet and running, for each queue. Any resume of the worker's lifecycle opens those that were quieted before it, so
// that SIGCONT does. Thread-safe.
class queue_gate {
  public:
    // Both must outlive it.
    queue_gate(const std::vector<std::string>& all, const lifecycle& life)
        : all_(all), life_(life), places_(all.size()) {}

    // True if that changed anything: not for a queue that is none of the worker's.
    bool set(const std::string& queue, bool quiet) {
        const lock_guard held(mutex_);
        bool changed = false;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (all_[i] != queue || is_quiet(i) == quiet) continue;
            places_[i] = {quiet, life_.resume_requests()};
            changed = true;
        }
        if (changed) changes_.fetch_add(1);
        return changed;
    }
    bool is_known(const std::string& queue) const noexcept {
        for (const std::string& each : all_) {
            if (each == queue) return true;
        }
        return false;
    }

    // What open() said holds as long as this stays. 0 until a queue is quieted for the first time: before, a resume opens none.
    std::uint32_t version() const noexcept {
        const std::uint32_t changes = changes_.load();
        return changes == 0 ? 0 : changes + life_.resume_requests();
    }
    // Those to fetch from, in their order.
    std::vector<std::string> open() const {
        const lock_guard held(mutex_);
        std::vector<std::string> out;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (!is_quiet(i)) out.push_back(all_[i]);
        }
        return out;
    }

  private:
    struct place {
        bool quiet = false;
        std::uint32_t resumes = 0;  // of the lifecycle, when that was asked for
    };
    bool is_quiet(std::size_t i) const noexcept {
        return places_[i].quiet && places_[i].resumes == life_.resume_requests();
    }

    const std::vector<std::string>& all_;
    const lifecycle& life_;
    mutable mutex mutex_;
    array<place> places_;
    atomic<std::uint32_t> changes_{0};
};

}  // namespace ojs::detail
