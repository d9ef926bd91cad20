// The settings and entry points of the launcher program.
#pragma once
#include <picojson.h>

#include <string>
#include <vector>

#include "ojs_launcher.hpp"

namespace launcher_program {
struct settings {
    std::string command;                // "run", "status", ...
    std::vector<std::string> operands;  // ids and names
    std::string config;
    std::string admin;  // address of the admin server; empty: default_address()
    std::string token_file;
    std::string status_page;
    std::string reason;
    int canary = 0;
    std::chrono::milliseconds canary_time{0};
    std::chrono::milliseconds grace{0};  // 0: the group's
    std::chrono::milliseconds max{0};    // likewise
    ojs::retry_policy retry = ojs::retry_policy::as_configured;
    int retries = 0;  // 0: as configured
    bool force = false;
    bool wait = true;
};

// Exit statuses of the client, from sysexits(3).
inline constexpr int failed = 1;        // the request was refused, or ended in another way
inline constexpr int unavailable = 69;  // no launcher responds

// Reads the only line of a file; empty if `file` is.
ojs::result<std::string> read_token(const std::string& file);

// The admin address from the environment.
ojs::result<std::string> default_address();

int run_launcher(const settings& given);
int run_client(const settings& given);
}  // namespace launcher_program
