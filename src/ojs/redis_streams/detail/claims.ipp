// claims: what a FETCH has claimed, and what this process holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
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

// What the claim script returns, of any shape: each of the calls takes the next text of it.
class claim_reader {
  public:
    explicit claim_reader(words texts) : texts_(std::move(texts)) {}

    bool has_more() const noexcept { return is_valid_ && next_ < texts_.size(); }
    bool is_valid() const noexcept { return is_valid_; }  // so far
    std::string text() {
        is_valid_ = has_more();
        return is_valid_ ? std::move(texts_[next_++]) : std::string();
    }
    std::int64_t number(std::uint64_t max = INT64_MAX) {
        std::uint64_t out = 0;
        is_valid_ = parse_number(text(), max, out);
        return static_cast<std::int64_t>(out);
    }

  private:
    words texts_;
    std::size_t next_ = 0;
    bool is_valid_ = true;
};

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
        const bool is_free = claims_.count(id) + ended_.count(id) + ended_before_.count(id) == 0;
        const std::string name = is_free ? id : added.entry_name();
        claims_[name] = added;
        return name;
    }
    // Settled or lost. A later claim of the job stays.
    void remove(const std::string& id, const claim& ended, bool is_done) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = claims_.find(id);
        if (found == claims_.end() || found->second.text() != ended.text()) return;
        if (steady_clock::now() >= next_swap_) {
            ended_before_ = std::exchange(ended_, {});
            next_swap_ = deadline_after(std::chrono::seconds(5));
        }
        if (is_done) ended_.insert(id);
        claims_.erase(found);
    }
    words entries_of(const std::string& key) {
        const std::lock_guard<std::mutex> held(mutex_);
        words out;
        for (const auto& [id, each] : claims_)
            if (each.key == key) out.push_back(each.entry);
        return out;
    }

  private:
    std::mutex mutex_;
    std::map<std::string, claim> claims_;         // by job::id
    std::set<std::string> ended_, ended_before_;  // ids of the last 5 to 10 s
    time_point next_swap_ = time_point::min();
};
}  // namespace redis
}  // namespace ojs::detail
