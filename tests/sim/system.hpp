// What lives in a simulated machine for one schedule. All that happens in it is decided by its seed.
#pragma once

#include <memory>
#include <vector>

#include "machine.hpp"

namespace sim {
// At most so many; a failure is shrunk by lowering them.
struct limits {
    std::uint64_t items = UINT64_MAX;  // jobs, processes, steps
    std::uint64_t faults = UINT64_MAX;
    std::uint64_t calls = UINT64_MAX;     // signals, and calls from outside
    std::uint64_t switches = UINT64_MAX;  // of fibers that could go on
};

class system {
  public:
    virtual ~system() = default;
    virtual std::string describe() const = 0;
    // The body of the first fiber.
    virtual void run() = 0;
    // After run(), also where that was given up.
    virtual void check_end(const ending& how) = 0;

    std::vector<std::string> violations;
    std::uint64_t items = 0;  // that were worked on

  protected:
    void violate(const std::string& what) {
        note("VIOLATION %s", what.c_str());
        violations.push_back(what);
    }
    void require(bool holds, const std::string& failure) {
        if (!holds) violate(failure);
    }
};

// What the library keeps for the process is as in a new one; to be called first in each run.
void renew_process();
// As the kernel does, on whichever thread runs.
void send_signal(int number);

std::unique_ptr<system> make_worker(std::uint64_t seed, const limits& most);
std::unique_ptr<system> make_group(std::uint64_t seed, const limits& most);
std::unique_ptr<system> make_sequence(std::uint64_t seed, const limits& most);
std::unique_ptr<system> make_loop(std::uint64_t seed, const limits& most);
}  // namespace sim
