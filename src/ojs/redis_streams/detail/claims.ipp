// claims: what this process holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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
    std::string entry_name() const { return cat({entry, " ", key}); }
};

OJS_SHUTDOWN_INLINE std::optional<claim> parse_claim(std::string_view text) {
    claim out;
    out.entry = std::string(next_part(text, " "));
    out.count = std::string(next_part(text, " "));
    std::uint64_t size = 0;
    if (!parse_number(next_part(text, " "), 1 << 20, size) || size > text.size()) return std::nullopt;
    out.consumer = std::string(text.substr(0, size));
    out.key = std::string(text.substr(size));
    return out;
}

// The claims of the jobs that the worker has not settled. Thread-safe.
class held_claims {
  public:
    // Returns the job's id: not `id` if another entry has it, or had it just now: the worker would take both for one.
    std::string add(const std::string& id, const claim& added) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (auto& [known, other] : claims_) {
            if (other.entry != added.entry || other.key != added.key) continue;
            other = added;
            return known;
        }
        const auto ended = ended_.find(id);
        const bool is_new = ended == ended_.end() || ended->second.first == added.entry_name();
        const std::string name = is_new && claims_.count(id) == 0 ? id : added.entry_name();
        claims_[name] = added;
        return name;
    }
    // Settled or lost. A later claim of the job stays.
    void remove(const std::string& id, const claim& ended) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = claims_.find(id);
        if (found == claims_.end() || found->second.text() != ended.text()) return;
        ended_[id] = {ended.entry_name(), deadline_after(std::chrono::seconds(10))};
        claims_.erase(found);
    }
    words entries_of(const std::string& key) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (auto each = ended_.begin(); each != ended_.end();)
            each = each->second.second <= steady_clock::now() ? ended_.erase(each) : std::next(each);
        words out;
        for (const auto& [id, each] : claims_)
            if (each.key == key) out.push_back(each.entry);
        return out;
    }

  private:
    std::mutex mutex_;
    std::map<std::string, claim> claims_;  // by job::id
    // By job::id, which entry had it, and until when no other gets it.
    std::map<std::string, std::pair<std::string, time_point>> ended_;
};

}  // namespace redis
}  // namespace ojs::detail
