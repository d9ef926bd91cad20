// claims: what this process holds, and whose turn it is to look for what it does not.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "../../base/duration.hpp"
#include "connection.ipp"

namespace ojs::detail {
namespace redis {

// One delivery of an entry; as text, job::claim.
struct claim {
    std::string entry;
    std::string count;  // of deliveries: an earlier claim of the same consumer has another one
    std::string consumer;
    std::string key;

    std::string text() const { return cat({entry, " ", count, " ", consumer.size(), " ", consumer, key}); }
};

OJS_SHUTDOWN_INLINE std::optional<claim> parse_claim(std::string_view text) {
    claim out;
    out.entry = std::string(next_part(text, " "));
    out.count = std::string(next_part(text, " "));
    std::uint64_t size = 0;
    if (!parse_number(next_part(text, " "), text.size(), size)) return std::nullopt;
    out.consumer = std::string(text.substr(0, size));
    out.key = std::string(text.substr(size));
    return out;
}

// The claims of the jobs that the worker has not settled. Thread-safe.
class held_claims {
  public:
    // Returns the job's id: another one if that of the entry is in use, as by a second entry with one `id`. The worker would
    // take the two for one job.
    std::string add(const std::string& id, const claim& added) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (auto& [known, other] : claims_) {
            if (other.entry != added.entry || other.key != added.key) continue;
            other = added;
            return known;
        }
        const std::string name = claims_.count(id) == 0 ? id : cat({added.entry, " ", added.key});
        claims_[name] = added;
        return name;
    }
    // Settled or lost. A later claim of the job stays.
    void remove(const std::string& id, const claim& ended) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = claims_.find(id);
        if (found != claims_.end() && found->second.text() == ended.text()) claims_.erase(found);
    }
    words entries_of(const std::string& key) const {
        const std::lock_guard<std::mutex> held(mutex_);
        words out;
        for (const auto& [id, each] : claims_) {
            if (each.key == key) out.push_back(each.entry);
        }
        return out;
    }

    // A FETCH. One that recovers must be alone: what another one has just claimed is not held yet.
    class turn {
      public:
        explicit turn(held_claims& of) : of_(of) {
            const std::lock_guard<std::mutex> held(of.mutex_);
            may_claim_ = !of.is_recovering_;
            recovers_ = may_claim_ && of.fetches_ == 0 && steady_clock::now() >= of.recover_at_;
            if (recovers_) of.recover_at_ = deadline_after(recovery_interval);
            of.is_recovering_ = of.is_recovering_ || recovers_;
            of.fetches_ += may_claim_ ? 1 : 0;
        }
        turn(const turn&) = delete;
        turn& operator=(const turn&) = delete;
        ~turn() {
            const std::lock_guard<std::mutex> held(of_.mutex_);
            of_.fetches_ -= may_claim_ ? 1 : 0;
            if (recovers_) of_.is_recovering_ = false;
            if (failed_) of_.recover_at_ = time_point::min();
        }
        bool may_claim() const noexcept { return may_claim_; }
        bool recovers() const noexcept { return recovers_; }
        void fail() noexcept { failed_ = true; }  // it may have claimed what is not held

      private:
        held_claims& of_;
        bool may_claim_ = false;
        bool recovers_ = false;
        bool failed_ = false;
    };

  private:
    static constexpr std::chrono::milliseconds recovery_interval{1000};
    mutable std::mutex mutex_;
    std::map<std::string, claim> claims_;  // by job::id
    int fetches_ = 0;
    bool is_recovering_ = false;
    time_point recover_at_ = time_point::min();
};

}  // namespace redis
}  // namespace ojs::detail
