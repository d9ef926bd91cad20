// launcher_config: launcher_options from a file. [RFC-041 "Process Group Configuration"]
#pragma once

#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "group_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The RFC's launcher-config.yaml as JSON (`yq -o json` writes it), with the same keys and some of ours:
//
//     {"admin": "unix:/run/kv/admin.sock", "socket_folder": "/run/kv",
//      "state_file": "/run/kv.state", "end_left_behind": true, "left_behind_grace": "10s",
//      "process_groups": [{
//        "name": "keyvalue-runner", "command": ["kv", "--port", "0"], "environment": {"LEVEL": "2"},
//        "working_directory": "/", "id_prefix": "kv", "participates": true, "rpc_timeout": "1s",
//        "desired_instances": 2, "min_healthy_instances": 1, "max_surge": 1, "health_check_timeout": "30s",
//        "min_ready_time": "5s", "health_interval": "5s", "unhealthy_after": 3,
//        "shutdown": {"grace_period": "3s", "max_duration": "10s", "report_time": "0s", "poll_interval": "500ms",
//                     "kill_delay": "2s", "force_without_request": false},
//        "restart_policy": "on-failure",
//        "restart": {"first_pause": "1s", "last_pause": "30s", "stable": "1m", "limit": 5},
//        "retry_policy": "backoff",
//        "retry": {"first_pause": "1s", "last_pause": "30s", "limit": 3}}]}
//
// retry_policy is of a replacement: manual, immediate or backoff. `admin` is admin_address. With "participates": false there
// may be a ready_url, "http://127.0.0.1:8080/ready".
//
// All but the name and the command of each group may be left out. Durations as parse_duration() reads them, or whole
// numbers of seconds. errc::invalid_argument, with the way to it ("process_groups[0].max_surge"): an unknown key, one that is there
// twice, a value of another type or that cannot be meant, and what contradicts something else. `log` is that of
// OJS_LOG_LEVEL and OJS_LOG_FORMAT, for which the same holds. Thread-safe, as far as `lookup` is.
result<launcher_options> read_launcher_config(std::string_view json,
                                              const environment_lookup& lookup = nullptr);

}  // namespace v0_1_0
}  // namespace ojs
