// wake: a descriptor that becomes readable, written to from anywhere, a signal handler included.
#pragma once

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {

// An eventfd, or a pipe where there is none. Non-blocking and close-on-exec.
class wake {
  public:
    static result<wake> create();
    static result<wake> create_pipe();

    int fd() const noexcept { return reader_.get(); }  // to poll for reading
    // What notify(int) takes.
    int notify_fd() const noexcept { return writer_ ? writer_.get() : reader_.get(); }
    void notify() const noexcept { notify(notify_fd()); }  // thread-safe, async-signal-safe
    static void notify(int notify_fd) noexcept;            // keeps errno; async-signal-safe
    void clear() const noexcept;                           // forget every notify() so far
    bool wait_until(time_point deadline) const noexcept;   // true: notified (and cleared); false: deadline
    bool await(time_point deadline) const noexcept;        // the same, and clears nothing

    // Of a pipe: words of 8 bytes. Where it is full, the oldest ones go. Keeps errno; async-signal-safe.
    void put(std::uint64_t word) const noexcept;
    bool take(std::uint64_t& word) const noexcept;  // false: there is none

  private:
    unique_fd reader_;
    unique_fd writer_;  // only with a pipe
};

// Milliseconds until `deadline` as poll(2) wants them, rounded up; -1 for never.
int poll_timeout(time_point deadline) noexcept;

}  // namespace ojs::detail
