// committer: writes the store's changes to disk before any response reports them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage.hpp"
#include "store.hpp"

namespace dev_backend {

// One thread writes; concurrent requests share a commit.
class committer {
  public:
    committer(store& of, storage to) : store_(of), storage_(std::move(to)) {}
    committer(const committer&) = delete;
    committer& operator=(const committer&) = delete;
    ~committer() { stop(); }

    void start();
    // Returns when all changes so far are on disk. Throws a refusal if they cannot be written; they are retried.
    void wait();
    // The last commit failed: nothing should be changed.
    bool is_failing() const { return failing_; }
    std::string fault() const;
    // Commits the rest, and closes the storage. False: the write failed. Call it when nothing changes.
    bool stop();

  private:
    void run();
    ojs::result<void> commit(std::uint64_t& through);

    store& store_;
    std::optional<storage> storage_;     // used by the thread only
    std::vector<changed_rows> unsaved_;  // likewise: taken from the store, not on disk
    std::thread thread_;
    std::atomic<std::uint64_t> committed_{0};  // store::changes() that are on disk
    std::atomic<bool> failing_{false};

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable wanted_changed_;
    std::condition_variable tried_;
    std::uint64_t wanted_ = 0;
    std::uint64_t failed_ = 0;  // changes in the last failed commit
    std::string fault_;
    bool stopping_ = false;
};

}  // namespace dev_backend
