// journal: keeps the jobs in a file, and writes changes before any response reports them.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "ojs_server.hpp"
#include "store.hpp"

namespace dev_backend {
// A line for each commit: a JSON array of the records of all jobs that changed. Concurrent requests share a commit. The
// file only grows.
class journal {
  public:
    explicit journal(store& of) : store_(of) {}

    // Creates the file if it is missing, and restores the jobs. No other process can open it then. A file that is refused
    // stays unchanged.
    ojs::result<void> open(const std::string& path);
    // Returns when all changes so far are on disk. After an error the next call tries again.
    ojs::result<void> save();
    // The last commit failed: nothing should be changed.
    bool is_failing() const { return is_failing_; }
    bool is_open() const { return static_cast<bool>(file_); }

  private:
    ojs::result<void> load(const std::string& text);
    ojs::error fault_of(const std::string& why) const;
    ojs::result<void> append(const std::string& text);

    store& store_;
    std::string path_;
    ojs::detail::unique_fd file_;
    std::atomic<bool> is_failing_{false};

    std::mutex mutex_;         // guards what follows
    std::size_t size_ = 0;     // of what is complete
    std::string unsaved_;      // taken from the store, not on disk
    std::uint64_t saved_ = 0;  // store::changes() that are on disk
};
}  // namespace dev_backend
