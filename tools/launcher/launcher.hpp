// What the parts of the launcher's program share.
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
    std::string admin;  // where the launcher is, or shall be; empty: not said
    std::string token_file;
    std::string status_page;
    std::string reason;
    int canary = 0;
    std::chrono::milliseconds canary_time{0};
    ojs::retry_policy retry = ojs::retry_policy::as_configured;
    int retries = 0;  // 0: as configured
    bool force = false;
    bool wait = true;
};

// Exit statuses, beside those of a launcher that ran: as sysexits(3) has them.
inline constexpr int failed = 1;        // what was asked for was refused, or ended otherwise
inline constexpr int unavailable = 69;  // no launcher answers

// A file's only line; empty where no file is asked for.
ojs::result<std::string> read_token(const std::string& file);

// Where a launcher is that nobody said where it is.
ojs::result<std::string> default_address();

int run_launcher(const settings& how);
int run_client(const settings& how);

}  // namespace launcher_program
