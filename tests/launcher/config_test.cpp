#include "file_tree.hpp"

namespace {
// What is wrong with a file of one group with these keys beside its name and its command.
std::string fault(const std::string& members) {
    const result<launcher_options> read = read_launcher_config(
        R"({"process_groups": [{"name": "kv", "command": ["kv"])" + (members.empty() ? "" : ", " + members) + "}]}");
    if (read) return "";
    CHECK(read.error().code == errc::invalid_argument);
    const std::string way = "process_groups[0].";
    CHECK(read.error().text.compare(0, way.size(), way) == 0);
    return read.error().text.substr(way.size());
}

std::string fault_of_file(const std::string& json) {
    const result<launcher_options> read = read_launcher_config(json);
    return read ? "" : read.error().text;
}
}  // namespace

TEST_CASE("launcher_config: each key of the configuration file sets its option") {
    const result<launcher_options> read = read_launcher_config(R"( {
      "admin": "unix:/run/kv/admin.sock", "socket_folder": "/run/kv", "state_file": "/run/kv.state", "reap_orphans": false, "orphan_grace_period": "2s",
      "process_groups": [{"name": "kv", "command": ["kv"], "environment": {"A": "1", "B": ""},
        "working_directory": "/srv", "id_prefix": "k", "has_coordinator": false, "health_interval": 7,
        "unhealthy_after": 2, "min_ready_time": "1500ms", "restart_policy": "always", "rpc_timeout": "3s", "ready_url": "http://localhost/ready",
        "shutdown": {"report_time": "4s", "poll_interval": "100ms", "kill_delay": "1s", "force_without_request": true},
        "pre_shutdown": {"command": ["gone", "1"], "timeout": "9s"},
        "restart": {"initial_backoff": "2s", "max_backoff": "4s", "stable_after": "1m30s", "max_restarts": 0}},
        {"name": "pubsub-runner", "command": ["pubsub-runner", "-v"], "desired_instances": 3,
         "min_healthy_instances": 2, "max_surge": 1, "health_check_timeout": "45s",
         "shutdown": {"grace_period": "5s", "max_duration": "15s"}}]} )");
    REQUIRE(read);
    CHECK(read->admin_address == "unix:/run/kv/admin.sock");
    CHECK(read->socket_folder == "/run/kv");
    CHECK(read->state_file == "/run/kv.state");
    CHECK_FALSE(read->reap_orphans);
    CHECK(read->orphan_grace_period == 2s);
    REQUIRE(read->groups.size() == 2);
    const group_options& kv = read->groups[0];
    CHECK(kv.process.child.environment == std::vector<std::string>{"A=1", "B="});
    CHECK(kv.process.child.working_directory == "/srv");
    CHECK(kv.id_prefix == "k");
    CHECK_FALSE(kv.process.has_coordinator);
    CHECK(kv.process.health_interval == 7s);
    CHECK(kv.process.unhealthy_after == 2);
    CHECK(kv.min_ready_time == 1500ms);
    CHECK(kv.process.rpc_timeout == 3s);
    CHECK(kv.process.ready_url == "http://localhost/ready");
    CHECK(kv.process.shutdown.report_time == 4s);
    CHECK(kv.process.shutdown.poll_interval == 100ms);
    CHECK(kv.process.shutdown.kill_delay == 1s);
    CHECK(kv.process.shutdown.force_without_request);
    CHECK(kv.process.pre_shutdown == std::vector<std::string>{"gone", "1"});
    CHECK(kv.process.pre_shutdown_timeout == 9s);
    CHECK(kv.restart.policy == restart_policy::always);
    CHECK(kv.restart.initial_backoff == 2s);
    CHECK(kv.restart.max_backoff == 4s);
    CHECK(kv.restart.stable_after == 90s);
    CHECK(kv.restart.max_restarts == 0);
    const group_options& rfc = read->groups[1];  // with the RFC's keys, and a command
    CHECK(rfc.name == "pubsub-runner");
    CHECK(rfc.desired == 3);
    CHECK(rfc.min_healthy == 2);
    CHECK(rfc.max_surge == 1);
    CHECK(rfc.health_check_timeout == 45s);
    CHECK(rfc.process.shutdown.grace_period == 5s);
    CHECK(rfc.process.shutdown.max_duration == 15s);
    CHECK(rfc.process.child.command == std::vector<std::string>{"pubsub-runner", "-v"});
    CHECK(rfc.restart.policy == restart_policy::on_failure);
}

TEST_CASE("launcher_config: retry_policy and retry set the retries and the back-off of a rollout") {
    const struct {
        std::string members;
        int max_retries;
        std::chrono::milliseconds initial_backoff, max_backoff;
    } rows[] = {
        {R"("restart_policy": "never")", 0, 0s, 0s},
        {R"("retry_policy": "manual")", 0, 0s, 0s},
        {R"("retry_policy": "immediate")", 3, 0s, 0s},
        {R"("retry_policy": "immediate", "retry": {"max_retries": 7})", 7, 0s, 0s},
        {R"("retry_policy": "backoff")", 3, 1s, 30s},
        {R"("retry": {"initial_backoff": "2s", "max_backoff": "4s", "max_retries": 1}, "retry_policy": "backoff")", 1,
         2s, 4s}};
    for (const auto& row : rows) {
        CAPTURE(row.members);
        const result<launcher_options> read =
            read_launcher_config(R"({"process_groups": [{"name": "kv", "command": ["kv"], )" + row.members + "}]}");
        REQUIRE(read);
        CHECK(read->groups[0].retry.max_retries == row.max_retries);
        if (row.max_retries == 0) continue;
        CHECK(read->groups[0].retry.initial_backoff == row.initial_backoff);
        CHECK(read->groups[0].retry.max_backoff == row.max_backoff);
    }
}

TEST_CASE("launcher_config: an invalid group is refused with an error that names the key") {
    const std::string number = "must be an integer from 0 to 1000000";
    const std::string retry_policy = "retry_policy: must be manual, immediate or backoff";
    const std::string no_unit =
        "health_check_timeout: '30000' has no unit: 30000s (8h20m) or 30000ms (30s)? write the unit";
    const std::pair<const char*, std::string> rows[] = {
        {R"("retry_policy": "sometimes")", retry_policy},
        {R"("retry_policy": "backoff", "retry": {"pause": "1s"})", "retry.pause: unknown key"},
        {R"("retry_policy": "backoff", "retry": {"initial_backoff": "1m"})",
         "retry.max_backoff (30s): must not be below retry.initial_backoff (1m)"},
        {R"("retry_policy": "backoff", "retry": {"max_backoff": 0})", "retry.max_backoff: 0 is retry_policy immediate"},
        {R"("retry_policy": "backoff", "retry": {"max_retries": 0})", "retry.max_retries: 0 is retry_policy manual"},
        {R"("retry": {"max_retries": 1})", "retry: not allowed with retry_policy manual"},
        {R"("retry_policy": "immediate", "retry": {"max_backoff": "1s"})",
         "retry.max_backoff: retry_policy is immediate, so there is no back-off"},
        {R"("max_surges": 1)", "max_surges: unknown key"},
        {R"("max_surge": 1, "max\u005fsurge": 1)", "max_surge: duplicate key"},
        {R"("shutdown": {"grace": "1s"})", "shutdown.grace: unknown key"},
        {R"("environment": {"A": "1", "A": "1"})", "environment.A: duplicate key"},
        {R"("desired_instances": "2")", "desired_instances: " + number},
        {R"("desired_instances": 1.5)", "desired_instances: " + number},
        {R"("has_coordinator": 1)", "has_coordinator: must be true or false"},
        {R"("id_prefix": 1)", "id_prefix: must be a string"},
        {R"("id_prefix": "../x")", "id_prefix: must be 1 to 48 letters, digits, '.', '_' or '-'"},
        {R"("environment": [])", "environment: must be an object"},
        {R"("environment": {"A=B": "1"})", "environment.A: must be the name of a variable"},
        {R"("environment": {"A": "a\u0000b"})", "environment.A: must not contain a NUL byte"},
        {R"("restart_policy": "sometimes")", "restart_policy: must be never, on-failure or always"},
        {R"("health_check_timeout": 30000)", no_unit},
        {R"("desired_instances": 2, "min_healthy_instances": 3)",
         "min_healthy_instances (3): must not be above desired_instances (2)"},
        {R"("shutdown": {"grace_period": "20s"})",
         "shutdown.max_duration (10s): must not be below shutdown.grace_period (20s)"},
        {R"("pre_shutdown": {"timeout": "1s"})", "pre_shutdown.command: must not be empty"},
        {R"("pre_shutdown": {"command": ["x"], "timeout": 0})", "pre_shutdown.timeout: must be greater than 0"},
        {R"("shutdown": {"grace_period": 0})", "shutdown.grace_period: must be greater than 0"},
        {R"("restart": {"initial_backoff": "1m"})",
         "restart.max_backoff (30s): must not be below restart.initial_backoff (1m)"},
        {R"("restart_policy": "never", "restart": {})", "restart: not allowed with restart_policy never"},
        {R"("ready_url": "http://127.0.0.1:80")", "ready_url: has_coordinator is true, so its coordinator is asked"}};
    for (const auto& row : rows) CHECK_MESSAGE(fault(row.first) == row.second, row.first);
    CHECK(fault("\"" + std::string(5000, 'x') + "\": 1").size() < 200);
    CHECK(fault(R"("a\nb": 1)").find('\n') == std::string::npos);
    for (const char* text : {R"("30 s")", "-1", "true", R"("1\u0000s")"}) {
        CAPTURE(text);
        const std::string error = fault(std::string(R"("health_check_timeout": )") + text);
        CHECK(error.find("health_check_timeout: '") == 0);
        CHECK(error.find("' is not a duration (write 500ms, 30s,") != std::string::npos);
    }
    const auto ready_url = [](const std::string& url) {
        return fault("\"has_coordinator\": false, \"ready_url\": \"" + url + "\"");
    };
    for (const char* url : {"http://127.0.0.1:80", "http://[::1]:8080/ready?all", "unix:/run/{id}.sock:/ready"})
        CHECK(ready_url(url) == "");
    for (const char* url : {"127.0.0.1:80", "http://", "http://a/b c", "unix:", "ftp://a/"})
        CHECK(ready_url(url).compare(0, 11, "ready_url: ") == 0);
}

TEST_CASE("launcher_config: an invalid file is refused with an error that names the key") {
    // Two groups, the second one with these keys.
    const auto second = [](const std::string& members) {
        return R"({"process_groups": [{"name": "a", "command": ["x"]},{"command": ["x"], )" + members + "}]}";
    };
    const std::pair<std::string, const char*> rows[] = {
        {"---\nprocess_groups:\n  - name: kv\n", "invalid JSON in line 1; the launcher reads JSON, not YAML"},
        {R"({"admin": 8080})", "admin: must be a string"},
        {R"({"admin_address": "127.0.0.1:1"})", "admin_address: unknown key"},
        {R"({"process_groups": {}})", "process_groups: must be a list"},
        {R"({"process_groups": []})", "process_groups: must not be empty"},
        {"{}", "process_groups: must not be empty"},
        {R"({"process_groups": [7]})", "process_groups[0]: must be an object"},
        {R"({"process_groups": [{"name": "kv", "command": "kv"}]})",
         "process_groups[0].command: must be a list of strings"},
        {R"({"process_groups": [{"name": "kv"}]})", "process_groups[0].command: must not be empty"},
        {second(R"("name": "a")"), "process_groups[1].name: same as in [0]"},
        {second(R"("name": "b", "id_prefix": "a")"), "process_groups[1].id_prefix: same as in [0]"},
        {second(R"("name": "a-1", "id_prefix": "b")"), "process_groups[1].name: could also be a process of [0]"},
        {second(R"("name": "b-20", "id_prefix": "b")"), "process_groups[1].name: could also be a process of [1]"},
        {second(R"("name": "a-b", "id_prefix": "a-1")"), ""},  // whose first process is a-1-1
        {second(R"("name": "a-", "id_prefix": "b")"), ""}};
    for (const auto& row : rows) CHECK_MESSAGE(fault_of_file(row.first) == row.second, row.first);
    for (const char* none : {"", "[]", "7", "{", "{}x", "\"\xff\"", "{\"a\":\"\xff\"}"}) {
        CAPTURE(none);
        CHECK_FALSE(fault_of_file(none).empty());
    }
    for (const char* address : {"", "nonsense", "http://127.0.0.1:1", "unix:", "example.org:80", "127.0.0.1:70000"}) {
        const std::string error = fault_of_file(R"({"admin": ")" + std::string(address) + R"("})");
        CHECK_MESSAGE(error.rfind("admin: ", 0) == 0, address, error);
    }
}

TEST_CASE("launcher_config: OJS_LOG_LEVEL sets the log level, and an invalid level is refused") {
    const auto from = [](const char* level) {
        return read_launcher_config(R"({"process_groups": [{"name": "kv", "command": ["kv"]}]})",
                                    test::lookup({{"OJS_LOG_LEVEL", level}}));
    };
    CHECK(from("warn").value_or(launcher_options()).log.level == log_level::warn);
    REQUIRE(test::code_of(from("loud")) == errc::invalid_argument);
    CHECK(from("loud").error().text.find("OJS_LOG_LEVEL='loud'") != std::string::npos);
}

TEST_CASE("check_group: an invalid time is refused with an error that names the field") {
    using group = group_options;
    const struct {
        void (*change)(group&);
        const char* fault;
    } rows[] = {
        {[](group&) {}, ""},
        {[](group& of) { of.process.shutdown.poll_interval = 0ms; }, "shutdown.poll_interval: must be greater than 0"},
        {[](group& of) { of.process.shutdown.kill_delay = -1ms; }, "shutdown.kill_delay: must not be negative"},
        {[](group& of) { of.process.unhealthy_after = 0; }, "unhealthy_after: must be greater than 0"},
        {[](group& of) { of.restart.max_backoff = no_limit; }, "restart.max_backoff: must be at most 24 days"},
        {[](group& of) { of.process.shutdown.max_duration = no_limit; }, ""}};
    for (const auto& row : rows) {
        group options;
        options.name = "kv";
        options.process.child.command = {"kv"};
        row.change(options);
        const result<void> checked = check_group(options);
        CHECK((checked ? "" : checked.error().text) ==
              (*row.fault == 0 ? "" : "group \"kv\": " + std::string(row.fault)));
    }
}
