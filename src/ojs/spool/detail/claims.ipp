// spool_claims: the claims a worker has in hand.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "intake.ipp"

namespace ojs::detail {

// As many as jobs in hand, few. Thread-safe.
class spool_claims {
  public:
    void add(const ref<spool_claim>& claim) {
        const lock_guard held(mutex_);
        all_.push_back(claim);
    }
    ref<spool_claim> find(const std::string& id) {
        const lock_guard held(mutex_);
        for (const ref<spool_claim>& each : all_) {
            if (each->job_id == id) return each;
        }
        return {};
    }
    // The same name or id must not be in our hands twice: each is how a job is found again.
    bool has(const spool_candidate& found) {
        const lock_guard held(mutex_);
        for (const ref<spool_claim>& each : all_) {
            if (each->job_id == found.job.id || each->name == found.name) return true;
        }
        return false;
    }
    void remove(const spool_claim& claim) {
        const lock_guard held(mutex_);
        for (ref<spool_claim>& each : all_) {
            if (each.get() != &claim) continue;
            detail::swap(each, all_.back());
            return all_.pop_back();
        }
    }
    void clear() {
        const lock_guard held(mutex_);
        all_.clear();
    }

  private:
    mutex mutex_;
    array<ref<spool_claim>> all_;
};

}  // namespace ojs::detail
