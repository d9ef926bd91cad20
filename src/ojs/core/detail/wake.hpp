// wake: a descriptor made readable from any thread or signal handler.
#pragma once

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {

// A pipe, non-blocking and close-on-exec.
class wake {
  public:
    static result<wake> create();

    int fd() const noexcept { return reader_.get(); }         // to poll for reading
    int notify_fd() const noexcept { return writer_.get(); }  // for notify(int)
    void notify() const noexcept { notify(notify_fd()); }     // thread-safe, async-signal-safe
    static void notify(int notify_fd) noexcept;               // keeps errno; async-signal-safe
    void clear() const noexcept;                              // discards every notify() so far
    bool await(time_point deadline) const noexcept;           // true: notified; false: the deadline
    bool wait_until(time_point deadline) const noexcept {     // the same, and clears it
        const bool notified = await(deadline);
        if (notified) clear();
        return notified;
    }

    // A queue of 8-byte words; if full, drops the oldest. Keeps errno; async-signal-safe.
    void put(std::uint64_t word) const noexcept;
    bool take(std::uint64_t& word) const noexcept;  // false: empty

  private:
    unique_fd reader_;
    unique_fd writer_;
};

}  // namespace ojs::detail
