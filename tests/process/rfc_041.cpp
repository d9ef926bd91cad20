// RFC-041 "Testing Strategy": its tests by their names, with real processes, and a launcher that is killed. Every step of a handshake: tests/launcher/managed_instance_test.cpp.

#include "harness.hpp"

namespace {
using words = std::vector<std::string>;

struct line {
    std::string text;
    std::map<std::string, std::string> fields;

    std::string operator[](const char* name) const {
        const auto found = fields.find(name);
        return found == fields.end() ? "" : found->second;
    }
};

// A launcher in this process, and its log.
class watched {
  public:
    explicit watched(ojs::launcher_options options) : of(with_hooks(std::move(options))) {}
    explicit watched(ojs::group_options group) : watched(options_for(std::move(group))) {}

    bool starts(int ready) { return of.start() && ready_.wait_for(ready); }
    // Stops the launcher; afterwards no process may be left, nor is one left to be reaped.
    void end() {
        of.request_stop();
        REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
        CHECK(of.exit_code() == 0);
        for (const line& each : log()) {
            if (!each["pid"].empty()) CHECK(::kill(std::stoi(each["pid"]), 0) != 0);
        }
    }
    ojs::process_info info(const std::string& id) const {
        const ojs::result<ojs::process_info> found = of.process(id);
        REQUIRE_MESSAGE(found, id);
        return *found;
    }
    bool reaches(const std::string& id, instance_state state) const {
        return eventually([&] {
            const ojs::result<ojs::process_info> found = of.process(id);
            return found && found->state == state;
        });
    }

    std::vector<line> log() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return log_;
    }
    // The place in the log of the first record with this text of this process; -1: there is none.
    int at(const std::string& text, const std::string& id) const {
        const std::vector<line> all = log();
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].text == text && all[i]["process_id"] == id) return static_cast<int>(i);
        }
        return -1;
    }

  private:
    static ojs::launcher_options options_for(ojs::group_options group) {
        ojs::launcher_options out;
        out.groups = {std::move(group)};
        return out;
    }
    ojs::launcher_options with_hooks(ojs::launcher_options out) {
        out.log.level = ojs::log_level::debug;
        out.log.hook = [this](const ojs::log_record& record) {
            line made{record.message, {}};
            for (const ojs::log_field& each : record.fields) made.fields[each.name] = each.value;
            const std::lock_guard<std::mutex> held(mutex_);
            log_.push_back(std::move(made));
        };
        out.on_routable = [this](const ojs::process_info&) { ready_.add(); };
        return out;
    }

    mutable std::mutex mutex_;
    std::vector<line> log_;
    counter ready_;

  public:
    ojs::launcher of;  // ended before what its hooks use
};

ojs::group_options runners(int desired, const words& flags) {
    ojs::group_options out;
    out.name = "kv";
    out.desired = desired;
    out.min_ready_time = 50ms;
    out.restart.policy = ojs::restart_policy::never;
    out.process.child.command = {program("lifecycle_runner")};
    out.process.child.command.insert(out.process.child.command.end(), flags.begin(), flags.end());
    out.process.child.output = out.process.child.errors = ojs::child_stream::null();
    out.process.readiness_interval = 20ms;
    out.process.shutdown.poll_interval = 20ms;
    return out;
}
}  // namespace

// ---- six of the RFC's seven; TestRollingReplacement: tests/launcher/rolling_internals_test.cpp ----

TEST_CASE("rfc_041: TestGracefulShutdownClean, -SlowDrain, -Hang, -RequestMore and -Crash end as required") {
    // What one child does after it was asked to shut down, and what its launcher makes of it.
    using state = instance_state;
    const struct {
        std::string name;
        const char* flags;
        const char* says;       // in its log
        milliseconds min_time;  // of the shutdown
        state end;
        milliseconds grace_period, max_duration;
    } all[] = {{"clean", "--work-duration 20ms", "process exited after its drain", 100ms, state::complete, 30s, 30s},
               {"slow-drain", "--drain-duration 3500ms", "shutdown progress", 3500ms, state::complete, 30s, 30s},
               {"hang", "", "still running after SIGTERM; sending SIGKILL", 3200ms, state::forced, 2900ms, 3s},
               // It would end but for what it asks.
               {"request-more", "--drain-duration 3500ms", "process exceeded its grace_period", 3500ms, state::complete,
                3s, 30s},
               {"crash", "", "process crashed", 0ms, state::crashed, 1h, 1h}};
    // All of them at the same time, each a group of one.
    ojs::launcher_options options;
    for (const auto& each : all) {
        words flags = test::words(each.flags);
        if (each.name != "clean") flags.insert(flags.begin(), {"--behavior", each.name});
        ojs::group_options group = runners(1, flags);
        group.name = each.name;
        ojs::shutdown_timeouts& times = group.process.shutdown;
        times.grace_period = each.grace_period;
        times.max_duration = each.max_duration;
        times.kill_delay = each.end == instance_state::forced ? 200ms : 1h;  // also from COMPLETE to the exit
        times.force_without_request = each.name == "request-more";
        options.groups.push_back(group);
    }
    watched fleet(options);
    REQUIRE(fleet.starts(std::size(all)));
    for (const auto& each : all) REQUIRE(fleet.of.shut_down_process(each.name + "-1", {"test", {}, {}}));
    for (const auto& each : all) {
        const std::string id = each.name + "-1";
        CAPTURE(id);
        REQUIRE(fleet.reaches(id, each.end));
        const ojs::process_info ended = fleet.info(id);
        const bool forced = each.end == instance_state::forced;
        CHECK(ended.exit.signal == (forced ? SIGKILL : 0));
        CHECK(ended.exit.code == (each.end == instance_state::crashed ? 2 : 0));
        CHECK(ended.killed == forced);
        CHECK(ended.shutdown_duration >= each.min_time);
        CHECK(fleet.at(each.says, id) >= 0);
        CHECK((fleet.at("forcing shutdown with SIGTERM", id) >= 0) == forced);
    }
    CHECK(fleet.info("clean-1").shutdown_duration < 30s);  // its grace_period
    CHECK(fleet.at("process exceeded its grace_period", "clean-1") < 0);
    const int asked = fleet.at("more time requested", "request-more-1");
    REQUIRE(asked >= 0);
    CHECK(fleet.log()[static_cast<std::size_t>(asked)]["additional_seconds"] == "5");
    fleet.end();
}

TEST_CASE("rfc_041: TestProcessGroupShutdown drains all five processes of a group at the same time") {
    ojs::group_options group = runners(5, {"--behavior", "hang"});
    group.process.shutdown.grace_period = group.process.shutdown.max_duration = 1h;
    watched fleet(group);
    REQUIRE(fleet.starts(5));
    REQUIRE(fleet.of.shut_down_group("kv", {"test", {}, {}}));
    // All of them drain at the same time, as none of them ends by itself.
    for (int i = 1; i <= 5; ++i) CHECK(fleet.reaches("kv-" + std::to_string(i), instance_state::draining));
    for (int i = 1; i <= 5; ++i) REQUIRE(::kill(fleet.info("kv-" + std::to_string(i)).pid, SIGKILL) == 0);
    fleet.end();
}

// ---- the launcher itself is killed ----

#ifdef __linux__  // elsewhere there is no /proc to find anybody by
namespace {
// Configurations of launchers that share a state file, and a mark on all that they start.
struct estate {
    std::string state = scratch_file("launcher.state");
    std::string sockets = scratch_file("sockets");
    std::string admin = "unix:" + scratch_file("admin.sock");
    estate() { REQUIRE(::mkdir(sockets.c_str(), 0700) == 0); }

    // Of `count` runners that ignore everything but SIGKILL, as do those that they start.
    std::string config(
        int count, const std::string& more = "",
        const std::string& flags = R"(,"--behavior","hang","--ignore-sigterm","--spawn-grandchild")") const {
        const std::string file = scratch_file("launcher.json");
        std::ofstream(file) << "{\"state_file\":\"" << state << "\",\"orphan_grace_period\":\"200ms\","
                            << "\"socket_folder\":\"" << sockets << "\","
                            << "\"process_groups\":[{\"name\":\"kv\",\"desired_instances\":" << count << more
                            << ",\"environment\":{\"OJS_TEST_MARK\":\"" << state << "\"},\"command\":[\""
                            << program("lifecycle_runner") << "\"" << flags << "]}]}";
        return file;
    }
    process launch(const std::string& file) const {
        return process({program("launcher"), "run", "--config", file, "--admin", admin}, {{"OJS_LOG_FORMAT", "json"}});
    }
    // The next launcher ends what is left before all else, and takes over the sockets and the names.
    void check_nothing_left(process& killed) const {
        REQUIRE(killed.end_by(SIGKILL) == -SIGKILL);
        process next = launch(config(1, "", R"(,"--initial-work","0")"));
        CHECK(next.prints("process ready"));
        CHECK(next.count("process crashed") == 0);
        CHECK(count_marked(state) == 1);  // its own
        CHECK(next.end_by(SIGTERM) == 0);
        CHECK(count_marked(state) == 0);
    }
};
}  // namespace

TEST_CASE("rfc_041: a launcher is killed in a drain or a rollout -> the next launcher ends its processes") {
    for (const bool drains : {true, false}) {
        CAPTURE(drains);
        const estate of;
        const char* const shutdown = R"(,"shutdown":{"max_duration":"1h","poll_interval":"20ms"})";
        const std::string config = of.config(2, shutdown);
        process launcher = of.launch(config);
        REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
        write_file(config, read_file(of.config(2, shutdown, R"(,"--never-ready","--ignore-sigterm")")));
        process roll;
        if (drains) launcher.signal(SIGTERM);
        if (!drains) roll = process({program("launcher"), "roll", "kv", "--admin", of.admin}, {});
        REQUIRE(launcher.prints(drains ? "process draining" : "process warming"));
        of.check_nothing_left(launcher);
        CHECK((drains || roll.wait() == 69));
    }
}
#endif
