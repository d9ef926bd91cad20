// committer: has what changed in the store on disk before anybody is told of it.
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

// One thread writes; requests that wait at the same time share a commit, and what it costs.
class committer {
  public:
    committer(store& of, storage to) : store_(of), storage_(std::move(to)) {}
    committer(const committer&) = delete;
    committer& operator=(const committer&) = delete;
    ~committer() { stop(); }

    void start();
    // Returns once all changes so far are on disk. Throws a refusal where they cannot be written; they are tried again.
    void wait();
    // Since the last commit failed: nothing should be changed.
    bool is_failing() const { return failing_; }
    std::string fault() const;
    // Commits what is left, and closes the storage. False: it could not be written. Once nothing changes any more.
    bool stop();

  private:
    void run();
    ojs::result<void> commit(std::uint64_t& through);

    store& store_;
    std::optional<storage> storage_;     // of the thread
    std::vector<changed_rows> unsaved_;  // the same: what was taken from the store and is not on disk
    std::thread thread_;
    std::atomic<std::uint64_t> committed_{0};  // store::changes() that are on disk
    std::atomic<bool> failing_{false};

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable wanted_changed_;
    std::condition_variable tried_;
    std::uint64_t wanted_ = 0;
    std::uint64_t failed_ = 0;  // what the last commit that failed held
    std::string fault_;
    bool stopping_ = false;
};

}  // namespace dev_backend
