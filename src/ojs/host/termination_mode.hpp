// termination_mode: the file that tells a normal stop from a reclaim. [Spot, WIRE 3]
#pragma once

#include <cstdint>
#include <string>

namespace ojs {
inline namespace v0_1_0 {

// What the file contains. All but `normal` mean reclaim: it is safer to hand a job back at once than to run it on a
// machine that may be gone before it ends.
enum class termination_evidence : std::uint8_t {
    normal,      // NORMAL_SHUTDOWN
    reclaim,     // SPOT_RECLAIM
    missing,     // no file, or the file of another user
    unreadable,  // not a regular file, or an error
    other        // any other text
};

// What the file says.
struct termination_mode {
    termination_evidence evidence = termination_evidence::missing;  // what was found
    std::string message;  // what was found, as one line for the log, in the words of the controller guide

    bool is_reclaim() const noexcept { return evidence != termination_evidence::normal; }  // all but normal
};

// Reads a regular file of at most 4 KiB and trims it. Never blocks on or reads a FIFO, folder, device or socket. A file
// of another user than this process's effective one or root counts as missing: anyone can create files in /tmp.
// Thread-safe; not async-signal-safe.
termination_mode read_termination_mode(const std::string& path);

}  // namespace v0_1_0
}  // namespace ojs
