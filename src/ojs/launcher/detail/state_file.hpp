// state_file: what a launcher runs, on disk, so that one that was killed leaves nothing its successor does not know.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"
#include "../../base/log.hpp"
#include "../../core/lifecycle.hpp"

namespace ojs::detail {

struct state_entry {
    std::string id;
    std::string group;
    std::string address;            // of its coordinator
    pid_t pid = 0;                  // of its process group as well
    pid_t session = 0;              // that of the launcher
    std::uint64_t start_ticks = 0;  // since the boot: tells it from another process that has its number later
};

// For one thread at a time. Nothing is adopted: a process that is not our child cannot be waited for.
class state_file {
  public:
    state_file() noexcept = default;  // no file; only to be assigned to
    // Takes a lock that lasts as long as this does: a second launcher is errc::busy. What is there and cannot be read, or
    // belongs to another user, is errc::invalid_argument: it may name processes, so it is not written over.
    static result<state_file> open(std::string path);

    // Of a predecessor on this boot of the machine, and still the same processes; also where only the rest of a group is left,
    // and its leader is not.
    const std::vector<state_entry>& left_behind() const noexcept { return left_behind_; }
    // Where sockets are, to be removed by a successor: written down with the next write().
    void add_folder(const std::string& path) { folders_.push_back(path); }
    // Those of predecessors, unless somebody left behind may listen there.
    void remove_folders();
    // All of it, and what is left behind, so that a reader finds the old or the new, whenever we or the machine end.
    result<void> write(const std::vector<state_entry>& now);
    // SIGTERM to the groups of those left behind, SIGKILL after `grace`, or when `life` is stopping. How many there were. What
    // even that does not end within `patience`, or before a third stop signal, stays in left_behind().
    std::size_t end_left_behind(std::chrono::milliseconds grace, std::chrono::milliseconds patience,
                                const logger& log, const lifecycle& life);

  private:
    result<void> read();

    std::string path_;
    unique_fd lock_;
    std::vector<state_entry> left_behind_;
    std::vector<std::string> folders_;
};

// Of a process that runs; 0: there is none, or /proc does not tell.
std::uint64_t start_ticks_of(pid_t pid);

}  // namespace ojs::detail
