// termination_mode: the file that says whether a stop is a normal one or a reclaim. [Spot, WIRE 3]
#pragma once

#include <cstdint>
#include <string>

namespace ojs {
inline namespace v0_1_0 {

// What the file holds: NORMAL_SHUTDOWN, SPOT_RECLAIM, or neither. All but the first mean reclaim: it is safer
// to hand a job back at once than to work on it on a machine that may be gone before it ends.
enum class termination_evidence : std::uint8_t { normal, reclaim, missing, unreadable, other };

struct termination_mode {
    termination_evidence evidence = termination_evidence::missing;
    std::string message;  // what was found, as one line for the log, in the words of the controller guide

    bool is_reclaim() const noexcept { return evidence != termination_evidence::normal; }
};

// Reads a regular file of at most 4 KiB, without the blanks around its word. Never blocks on, and never
// reads, a FIFO, a folder, a device or a socket. A file that belongs neither to this process's effective user
// nor to root counts as missing: in /tmp anybody may have put it there. Thread-safe; not async-signal-safe.
termination_mode read_termination_mode(const std::string& path);

}  // namespace v0_1_0
}  // namespace ojs
