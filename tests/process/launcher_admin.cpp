// tools/launcher as an operator meets it: the daemon with real children, and its tool, as processes.
#include "harness.hpp"

namespace {
// A launcher with a configuration of its own, on a socket of its own.
class daemon_of {
  public:
    explicit daemon_of(const std::string& flags = "", const std::string& whole_config = "") {
        if (whole_config.empty()) write(flags);
        if (!whole_config.empty()) std::ofstream(config_) << whole_config;
        self_ = process({program("launcher"), "run", "--config", config_, "--admin", admin()}, {});
    }
    // Its children ignore what would end them with it.
    ~daemon_of() {
        self_.signal(SIGTERM);
        self_.wait();
    }
    // The configuration of the one group, "kv": two runners with these flags.
    void write(const std::string& flags, const std::string& more = "") const {
        const char* const limit = holds(flags, "hang") ? "1s" : "20s";  // what hangs takes all of it
        std::ofstream(config_) << R"({"admin": "unix:/nowhere.sock", "process_groups": [{"name": "kv", "command": [")"
                               << program("lifecycle_runner") << '"' << flags
                               << R"(], "desired_instances": 2, "min_healthy_instances": 1, "min_ready_time": "50ms", )"
                               << more << R"("shutdown": {"grace_period": ")" << limit << R"(", "max_duration": ")"
                               << limit << R"(", "poll_interval": "20ms", "kill_delay": "200ms"}}]})";
    }
    std::string admin() const { return "unix:" + socket_; }
    process tool(std::vector<std::string> words) const {
        words.insert(words.begin(), program("launcher"));
        words.insert(words.end(), {"--admin", admin()});
        return process(words, {});
    }
    // What it prints when it ends with this status.
    std::string ask(const std::vector<std::string>& words, int status = 0) const {
        process asked = tool(words);
        CHECK_MESSAGE(asked.wait() == status, asked.output());
        return asked.output();
    }
    bool is_ready() const {
        return eventually([&] {
            process asked = tool({"status"});  // which nobody may answer yet
            asked.wait();
            return holds(asked.output(), "ready 2 of 2");
        });
    }
    process& self() { return self_; }
    const std::string& socket() const { return socket_; }
    const std::string& config() const { return config_; }

  private:
    const std::string config_ = scratch_file("launcher.json");
    const std::string socket_ = scratch_file("launcher.sock");
    process self_;
};

// The pid that a line of `status` has for this process.
pid_t pid_in(const std::string& text, const std::string& id) {
    const std::size_t at = text.find("pid ", text.find("  " + id + " "));
    return at == std::string::npos ? 0 : static_cast<pid_t>(std::atoi(text.c_str() + at + 4));
}
}  // namespace

TEST_CASE("launcher_admin: an operator can list, preview, roll, stop and watch the processes of a group") {
    daemon_of of(R"(, "--work-duration", "1ms", "--initial-work", "3")");
    REQUIRE(of.is_ready());
    const std::string before = of.ask({"status"});
    CHECK(holds(before, "kv  ready 2 of 2, min 1"));
    CHECK(holds(of.ask({"status", "kv-1"}), "kv-1           READY"));

    const std::string preview = of.ask({"dry-run", "kv"});
    CHECK_MESSAGE(holds(preview, "kv: would replace 2 by 2"), preview);
    CHECK(holds(of.ask({"dry-run", "kv-2"}), "3 in flight"));
    CHECK(pid_in(of.ask({"status"}), "kv-1") == pid_in(before, "kv-1"));  // nothing was done

    of.write(R"(, "--work-duration", "2ms")");  // the new configuration comes from the file
    const std::string rolled = of.ask({"roll", "kv", "--reason", "a test"});
    CHECK_MESSAGE(holds(rolled, "rollout finished: done"), rolled);
    CHECK(holds(rolled, "(a test)"));
    CHECK(holds(of.ask({"status", "kv-1"}), "COMPLETE"));
    REQUIRE(of.is_ready());

    const std::string stopped = of.ask({"stop", "kv-3"});
    CHECK_MESSAGE(holds(stopped, "READY -> SHUTDOWN_REQUESTED (operator)"), stopped);
    CHECK(holds(stopped, "kv-3           COMPLETE"));
    CHECK(holds(of.ask({"stop", "kv-3"}, 1), "has already exited: COMPLETE"));

    const auto metrics = ask(of.admin(), "GET", "/metrics");
    REQUIRE(metrics);
    CHECK(holds(metrics->body, "ojs_launcher_startup_seconds_count{group=\"kv\"} 4\n"));
    // kv-4 is there; watch ends with the launcher.
    const pid_t last = pid_in(of.ask({"status"}), "kv-4");
    process watching = of.tool({"watch"});
    REQUIRE(watching.prints("ready 1 of 2"));
    CHECK_MESSAGE(of.self().end_by(SIGTERM) == 0, of.self().output());
    CHECK(watching.wait() == 0);
    INFO(watching.output());
    CHECK(watching.prints("kv-4           READY -> SHUTDOWN_REQUESTED (the launcher stops)"));
    CHECK(watching.prints("-> COMPLETE (exit status 0)"));
    CHECK(watching.prints("the launcher has ended"));
    CHECK(::kill(last, 0) != 0);
    CHECK(::access(of.socket().c_str(), F_OK) != 0);
}

TEST_CASE("launcher_admin: a process that hangs is killed at max_duration, or at once with --force") {
    daemon_of of(R"(, "--behavior", "hang", "--ignore-sigterm")");
    REQUIRE(of.is_ready());
    const std::string forced = of.ask({"stop", "kv-1", "--force", "--reason", "no time"});
    CHECK_MESSAGE(holds(forced, "kv-1 is sent SIGTERM, then SIGKILL after kill_delay"), forced);
    CHECK(holds(forced, "kv-1           FORCED"));
    const std::string waited = of.ask({"stop", "kv-2", "--grace", "1500ms", "--max", "1h"}, 1);
    CHECK_MESSAGE(holds(waited, "grace period 1s, at most 1s (the group's max_duration)"), waited);
    CHECK_MESSAGE(holds(waited, "waits: waiting for nothing"), waited);
    CHECK_MESSAGE(holds(waited, "-> FORCED"), waited);
    const std::string group = of.ask({"stop", "kv", "--force", "--no-wait"});
    CHECK_MESSAGE(holds(group, "kv is sent SIGTERM, and stays empty"), group);
    CHECK(holds(of.ask({"stop", "kv"}), "stays empty until a rollout"));
}

TEST_CASE("launcher_admin: a failed rollout is retried by its flags or policy, until it is cancelled") {
    daemon_of of(R"(, "--work-duration", "1ms")");
    REQUIRE(of.is_ready());
    const std::string failing = R"("health_check_timeout": "200ms", "retry_policy": "backoff", )"
                                R"("retry": {"initial_backoff": "1h", "max_backoff": "1h"}, )";
    of.write(R"(, "--never-ready")", failing);
    const std::string twice = of.ask({"roll", "kv", "--retry", "immediate", "--retries", "1"}, 1);
    CHECK_MESSAGE(holds(twice, "new process did not become ready; retrying"), twice);
    CHECK(holds(twice, "rollout finished: rolled_back (kv-4 was not ready within 200ms"));
    CHECK(holds(of.ask({"status"}), "(last rollout: rolled back: kv-4 was not ready within 200ms"));
    CHECK_FALSE(holds(of.ask({"roll", "kv", "--retry", "manual"}, 1), "did not become ready; retrying"));
    process rolling = of.tool({"roll", "kv"});
    REQUIRE(eventually([&] { return holds(of.ask({"status"}), "PAUSING, retries: 1, failed: kv-"); }));
    CHECK(holds(of.ask({"roll", "kv"}, 1), "a rollout is in progress in this group"));
    const std::string cancelled = of.ask({"cancel", "kv", "--reason", "wrong version"});
    CHECK_MESSAGE(holds(cancelled, "rollout cancelled (wrong version)"), cancelled);
    CHECK(rolling.wait() == 1);  // it did not come to what it was to do
    CHECK(holds(rolling.output(), "rollout finished: cancelled"));
    std::ofstream(of.config()) << R"({"process_groups": [{"name": "kv", "command": ["/nowhere/kv"]}]})";
    const std::string missing = of.ask({"dry-run", "kv"}, 1);
    CHECK_MESSAGE(holds(missing, "group kv, command: /nowhere/kv: no such file"), missing);
}

TEST_CASE("launcher_admin: the file's TCP address overrides LAUNCHER_ADMIN, and needs the token") {
    const std::string token = scratch_file("token");
    const std::string config = scratch_file("admin.json");
    write_file(token, "s3cret\n");
    write_file(config, R"({"admin": "127.0.0.1:0", "process_groups": [{"name": "kv", "command": [")" +
                           program("lifecycle_runner") + R"("]}]})");
    process self({program("launcher"), "run", "--config", config, "--token-file", token},
                 {{"LAUNCHER_ADMIN", "unix:/nowhere.sock"}, {"OJS_LOG_FORMAT", "json"}});
    REQUIRE(self.prints("launcher admin listening"));
    const std::string text = self.output();
    const std::size_t at = text.find("127.0.0.1:", text.find("launcher admin listening"));
    const std::string address = text.substr(at, text.find('"', at) - at);
    const auto check_status = [&](const std::string& flags, int status, const char* says) {
        process asked(words(program("launcher") + " status --admin " + address + flags), {});
        CHECK(asked.wait() == status);
        CHECK_MESSAGE(holds(asked.output(), says), asked.output());
    };
    check_status(" --token-file " + token, 0, "kv");
    check_status("", 1, "a bearer token is required: give --token-file");
    CHECK(self.end_by(SIGTERM) == 0);
    CHECK_FALSE(holds(self.output(), "s3cret"));
}

TEST_CASE("launcher_admin: the configuration and the commands in docs/launcher.md work") {
    std::string fleet = block_of("docs/launcher.md", "json");
    std::istringstream lines(block_of("docs/launcher.md", "sh"));
    if (fleet.empty()) {
        MESSAGE("skipped: docs/launcher.md is not there");
        return;
    }
    const std::string from = "build/keyvalue_runner";
    REQUIRE(fleet.find(from) != std::string::npos);
    fleet.replace(fleet.find(from), from.size(), program("keyvalue_runner"));
    const std::string ready_time = R"("min_ready_time": "5s")";
    REQUIRE(fleet.find(ready_time) != std::string::npos);
    fleet.replace(fleet.find(ready_time), ready_time.size(), R"("min_ready_time": "50ms")");
    daemon_of of("", fleet);
    REQUIRE(of.is_ready());
    int run = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string tool = "build/launcher ";
        if (line.find(tool) != 0 || holds(line, "launcher run") || holds(line, "launcher watch")) continue;
        line.replace(0, tool.size(), program("launcher") + " ");
        process asked({"sh", "-c", line}, {{"LAUNCHER_ADMIN", of.admin()}});
        CHECK_MESSAGE(asked.wait() == 0, asked.output());
        ++run;
    }
    CHECK(run == 4);  // status, dry-run, stop, roll
}

TEST_CASE("launcher_admin: a wrong argument, address or name gives an error message and a nonzero status") {
    const std::pair<const char*, const char*> usage[] = {
        {"", "no command"},
        {"fly", "no such command: fly"},
        {"stop", "stop needs an operand: ID or GROUP"},
        {"stop a b", "too many operands: b"},
        {"status --colour x", "unknown flag --colour"},
        {"roll kv --canary 0", "--canary takes a number from 1"},
        {"roll kv --retry x", "--retry takes manual, immediate or backoff"},
        {"roll kv --retry manual --retries 1", "not allowed with --retry manual"},
        {"roll kv --grace 1s", "--grace and --max are for stop"},
        {"stop kv --max 1s --force", "--force does not drain: no --grace and no --max"},
        {"run", "run needs --config FILE"},
        {"status --admin http://x", "write unix:/PATH or HOST:PORT"},
        {"status --token-file /nowhere", "cannot read /nowhere"}};
    for (const auto& row : usage) {
        CAPTURE(row.first);
        process client(words(program("launcher") + " " + row.first), {{"LAUNCHER_ADMIN", "unix:/nowhere.sock"}});
        CHECK(client.wait() == 64);
        CHECK_MESSAGE(holds(client.output(), row.second), client.output());
    }
    process absent({program("launcher"), "watch", "--admin", "unix:/nowhere.sock"}, {});
    CHECK(absent.wait() == 69);
    CHECK_MESSAGE(holds(absent.output(), "no launcher responds at unix:/nowhere.sock"), absent.output());
    daemon_of of;
    process no_page({program("launcher"), "run", "--config", of.config(), "--status-page", "/nowhere"}, {});
    CHECK(no_page.wait() == 64);
    CHECK_MESSAGE(holds(no_page.output(), "/nowhere: it is not there"), no_page.output());
    REQUIRE(of.is_ready());
    CHECK(holds(of.ask({"status", "kv-9"}, 1), "no such process: kv-9"));
    CHECK(holds(of.ask({"roll", "x"}, 1), "no such group: x"));
    process second({program("launcher"), "run", "--config", of.config(), "--admin", of.admin()}, {});
    CHECK(second.wait() == 71);
    CHECK_MESSAGE(holds(second.output(), "Address already in use"), second.output());
}
