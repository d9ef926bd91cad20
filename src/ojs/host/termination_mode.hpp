// termination_mode: the file that tells a normal stop from a reclaim. [Spot, WIRE 3]
#pragma once

#include <cstdint>
#include <string>

namespace ojs {
inline namespace v0_1_0 {
/// What the file contains. All but `normal` mean reclaim: it is safer to hand a job back at once.
enum class termination_evidence : std::uint8_t {
    normal,      ///< NORMAL_SHUTDOWN
    reclaim,     ///< SPOT_RECLAIM
    missing,     ///< no file
    unreadable,  ///< no regular file, an error, or neither root's nor the effective user's
    other        ///< any other text
};

/// What the file says.
struct termination_mode {
    termination_evidence evidence = termination_evidence::missing;  ///< what was found
    std::string found;            ///< that for the log: "File /tmp/termination-type not found"
    std::int64_t changed_ms = 0;  ///< when it was last written or put there, ms since 1970; 0: unknown

    bool is_reclaim() const noexcept { return evidence != termination_evidence::normal; }  ///< false: normal
};

/// Reads a regular file of at most 4 KiB; never a FIFO, device or socket. Thread-safe; not async-signal-safe.
termination_mode read_termination_mode(const std::string& path);
}  // namespace v0_1_0
}  // namespace ojs
