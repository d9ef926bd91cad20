// settings: the command line.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "faults.hpp"
#include "library.hpp"

namespace dev_backend {

struct settings {
    std::string address = "127.0.0.1:8080";
    std::string ledger_path;
    std::string store_path;                   // empty: in memory
    bool full_sync = true;                    // of the store
    std::optional<milliseconds> retry_delay;  // overrides the jobs' policies
    milliseconds timeout_grace{1000};
    milliseconds shutdown_timeout{30000};
    milliseconds lame_duck{0};
    milliseconds dead_after{15000};
    milliseconds stream_heartbeat{15000};
    milliseconds delay{0};
    fault_rates faults{};
    std::uint64_t seed = 1;
    std::size_t max_connections = 1200;
    std::uint64_t max_checkpoint = 1024 * 1024;  // bytes
    bool no_checkpoints = false;                 // leave that route out
    bool quiet = false;
    bool help = false;
    bool strict = false;            // worker requests must keep to the published schemas
    bool hyphens = false;           // job types may have them
    bool count_heartbeats = false;  // `active_jobs` of a heartbeat must be a number
};

constexpr milliseconds max_delay{60000};

extern const char* const usage;
ojs::error wrong_flag(std::string text);
// Flags are written --flag VALUE or --flag=VALUE.
ojs::result<settings> read_flags(int argc, char** argv);

}  // namespace dev_backend
