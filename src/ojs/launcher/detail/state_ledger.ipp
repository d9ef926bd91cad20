// state_ledger: the state file of a launcher, and what stands in it.
#pragma once

#include "../../base/detail/ref.hpp"
#include "../../base/detail/sync.hpp"
#include "state_file.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Thread-safe. Processes come and go in many threads, and each change is on disk before it goes on.
class state_ledger : public ref_counted {
  public:
    explicit state_ledger(logger log) : log_(std::move(log)) {}

    // As state_file::open(), and what an earlier launcher left is ended, or only told where `ends` is false.
    result<void> open(const std::string& path, bool ends, std::chrono::milliseconds grace,
                      std::chrono::milliseconds patience) {
        result<state_file> opened = state_file::open(path);
        if (!opened) return opened.error();
        const lock_guard held(mutex_);
        file_ = std::move(*opened);
        if (ends) file_.end_left_behind(grace, patience, log_);
        for (const state_entry& each : file_.left_behind())
            tell_left_behind(log_, log_level::warn, "process left behind by an earlier launcher still runs",
                             each);
        const result<void> written = file_.write(entries_);
        is_open_ = static_cast<bool>(written);
        return written;
    }
    // Before it becomes its program: whenever we are killed, it stands there or ends by itself.
    result<void> add(state_entry of) {
        const lock_guard held(mutex_);
        if (!is_open_) return error{errc::cancelled, 0, "the launcher has ended"};
        of.session = ::getsid(0);
        of.start_ticks = start_ticks_of(of.pid);
        entries_.push_back(std::move(of));
        result<void> written = file_.write(entries_);
        if (!written) entries_.pop_back();
        return written;
    }
    void remove(const std::string& id) {
        const lock_guard held(mutex_);
        for (std::size_t i = entries_.size(); i-- > 0;) {
            if (entries_[i].id == id) entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (!is_open_) return;
        const result<void> written = file_.write(entries_);
        if (!written)
            log_.write(log_level::warn, "state file not written", {field("error", written.error().text)});
    }
    // Lets go of the file, with whoever still runs in it.
    void close() {
        const lock_guard held(mutex_);
        is_open_ = false;
        file_ = state_file();
    }

  private:
    const logger log_;
    mutex mutex_;
    state_file file_;
    std::vector<state_entry> entries_;
    bool is_open_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
