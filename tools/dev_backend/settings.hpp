// settings: the command line.
#pragma once
#include <cstdint>
#include <string>

#include "faults.hpp"
#include "ojs_server.hpp"

namespace dev_backend {
struct settings {
    std::string address;
    std::string ledger_path;
    std::string store_path;        // empty: in memory
    milliseconds retry_delay{-1};  // negative: by the jobs' policies
    milliseconds timeout_grace{1000};
    milliseconds dead_after{15000};
    milliseconds stream_heartbeat{15000};
    milliseconds shutdown_timeout{30000};
    fault_rates faults{};
    std::uint64_t seed = 1;
    bool quiet = false;
    bool help = false;
    bool hyphens = false;  // job types may have them
};

extern const char* const usage;
ojs::error wrong_flag(std::string text);
ojs::result<settings> read_flags(int argc, char** argv);
}  // namespace dev_backend
