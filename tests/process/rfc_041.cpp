// RFC-041 "Testing Strategy": its tests by their names, with real processes, and a launcher that is killed. Each ends with
// the path of every process, read from the log. Every step of a handshake: tests/launcher/managed_instance_test.cpp.
#include <sstream>

#include "files.hpp"
#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;
using namespace std::chrono_literals;

namespace {

using words = std::vector<std::string>;
using ojs::instance_state;

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
    explicit watched(ojs::group_options group, const std::string& socket_folder = "")
        : watched(options_for(std::move(group), socket_folder)) {}

    bool starts(int ready) { return of.start() && ready_.wait_for(ready); }
    // Stops the launcher; afterwards no process may be left.
    void end() {
        of.request_stop();
        REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
        CHECK(of.exit_code() == 0);
        check_paths();
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
    std::string field(const std::string& text, const std::string& id, const char* name) const {
        const int found = at(text, id);
        return found < 0 ? "" : log()[static_cast<std::size_t>(found)][name];
    }
    // All are there, in this order, whatever else is between them: a child may be asked how far it is before it has begun.
    void check_order(const words& texts, const std::string& id) const {
        std::size_t found = 0;
        for (const line& each : log()) {
            if (each["process_id"] == id && found < texts.size() && each.text == texts[found]) ++found;
        }
        CHECK_MESSAGE(found == texts.size(),
                      id << " does not say: " << texts[std::min(found, texts.size() - 1)]);
    }
    words path(const std::string& id) const {
        words out;
        for (const line& each : log()) {
            if (each["process_id"] == id && !each["state"].empty() && each["state"] != each["from"])
                out.push_back(each["state"]);
        }
        return out;
    }

    // From the log alone: every record names the state its process is in; each process has ended, and is gone.
    void check_paths() const {
        std::map<std::string, std::string> states;
        for (const line& each : log()) {
            if (each["state"].empty()) continue;
            CAPTURE(each.text);
            if (!each["pid"].empty())                           // a start that failed has none
                CHECK(::kill(std::stoi(each["pid"]), 0) != 0);  // nor is it left to be reaped
            std::string& before = states.emplace(each["process_id"], "SPAWNING").first->second;
            CHECK(each["from"] == before);
            before = each["state"];
        }
        CHECK_FALSE(states.empty());
        for (const auto& process : states) {
            const std::string& state = process.second;
            CHECK_MESSAGE((state == "COMPLETE" || state == "FORCED" || state == "CRASHED"), process.first);
        }
    }

  private:
    static ojs::launcher_options options_for(ojs::group_options group, const std::string& socket_folder) {
        ojs::launcher_options out;
        out.groups = {std::move(group)};
        out.socket_folder = socket_folder;
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
        out.on_routable = [this, given = out.on_routable](const ojs::process_info& now) {
            if (given) given(now);
            ready_.add();
        };
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

// What one child does after it was asked to shut down, and what its launcher makes of it.
struct scenario {
    const char* name;
    words flags;
    words log;              // in this order
    milliseconds min_time;  // of the shutdown
    instance_state end = instance_state::complete;
    int signal = 0;  // that ended it; 0: none
    milliseconds grace_period{30000};
    milliseconds max_duration{30000};
};

}  // namespace

// ---- the seven of the RFC ----

TEST_CASE(
    "rfc_041: TestGracefulShutdownClean, -SlowDrain, -Hang, -RequestMore and -Crash end as the RFC "
    "requires") {
    const scenario all[] = {
        {"clean",
         {"--work-duration", "20ms"},
         {"shutdown requested", "process exited after its drain"},
         100ms},
        {"slow-drain",
         {"--behavior", "slow-drain", "--drain-duration", "3500ms"},
         {"shutdown requested", "process draining", "shutdown progress", "process exited after its drain"},
         3500ms},
        {"hang",
         {"--behavior", "hang"},
         {"shutdown requested", "process draining", "process exceeded its grace_period",
          "forcing shutdown with SIGTERM", "still running after SIGTERM; sending SIGKILL",
          "process force-stopped"},
         3200ms,
         instance_state::forced,
         SIGKILL,
         2900ms,
         3s},
        {"request-more",  // it would end but for what it asks
         {"--behavior", "request-more", "--drain-duration", "3500ms"},
         {"more time requested", "process exceeded its grace_period", "process exited after its drain"},
         3500ms,
         instance_state::complete,
         0,
         3s},
        {"crash",
         {"--behavior", "crash"},
         {"shutdown requested", "process crashed"},
         0ms,
         instance_state::crashed,
         0,
         1h,
         1h}};
    // All of them at the same time, each a group of one.
    ojs::launcher_options options;
    for (const scenario& each : all) {
        ojs::group_options group = runners(1, each.flags);
        group.name = each.name;
        ojs::shutdown_timeouts& times = group.process.shutdown;
        times.grace_period = each.grace_period;
        times.max_duration = each.max_duration;
        times.kill_delay = each.signal == SIGKILL ? 200ms : 1h;  // also from COMPLETE to the exit
        times.force_without_request = group.name == "request-more";
        options.groups.push_back(group);
    }
    watched fleet(options);
    REQUIRE(fleet.starts(std::size(all)));
    for (const scenario& each : all)
        REQUIRE(fleet.of.shut_down_process(each.name + std::string("-1"), {"test", {}, {}}));
    for (const scenario& each : all) {
        const std::string id = each.name + std::string("-1");
        CAPTURE(id);
        REQUIRE(fleet.reaches(id, each.end));
        const ojs::process_info ended = fleet.info(id);
        CHECK(ended.exit.signal == each.signal);
        CHECK(ended.exit.code == (each.end == instance_state::crashed ? 2 : 0));
        CHECK(ended.killed == (each.signal == SIGKILL));
        CHECK(ended.shutdown_duration >= each.min_time);
        fleet.check_order(each.log, id);
        CHECK((fleet.at("forcing shutdown with SIGTERM", id) >= 0) == (each.end == instance_state::forced));
    }
    CHECK(fleet.info("clean-1").shutdown_duration < 30s);  // its grace_period
    CHECK(fleet.at("process exceeded its grace_period", "clean-1") < 0);
    CHECK(fleet.field("more time requested", "request-more-1", "additional_seconds") == "5");
    CHECK(fleet.path("hang-1") == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "DRAINING", "FORCED"});
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
    for (int i = 1; i <= 5; ++i)
        CHECK(fleet.path("kv-" + std::to_string(i)) ==
              words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "DRAINING", "CRASHED"});
}

TEST_CASE("rfc_041: TestRollingReplacement stops an old process only after a new one is ready") {
    ojs::group_options group = runners(3, {"--initial-work", "0"});
    group.min_healthy = 3;
    watched fleet(group);
    REQUIRE(fleet.starts(3));
    const ojs::result<ojs::rollout_report> report = fleet.of.rollout("kv", group);
    REQUIRE(report);
    CHECK_MESSAGE(report->replaced == 3, report->error);
    CHECK(fleet.of.group("kv")->ready == 3);
    for (int i = 1; i <= 3; ++i) {
        const std::string old = "kv-" + std::to_string(i);
        CHECK(fleet.info(old).state == instance_state::complete);
        const int ready = fleet.at("process ready", "kv-" + std::to_string(i + 3));
        CHECK(ready >= 0);
        CHECK(ready < fleet.at("shutdown requested", old));
    }
    fleet.end();
}

// ---- acceptance ----

TEST_CASE(
    "rfc_041: TestAdminDelegatedShutdown stops one process by an admin request; the other stays ready") {
    const temporary_folder folder;
    ojs::launcher_options options;
    options.groups = {runners(2, {"--behavior", "slow-drain", "--drain-duration", "500ms"})};
    options.admin_address = "unix:" + folder.file("admin.sock");
    watched fleet(options);
    REQUIRE(fleet.starts(2));
    const auto admin = [&](const std::string& method, const std::string& body) {
        ojs::http_request request = peer::post("/prism.interfaces.ProcessManagerInterface/" + method, body);
        request.headers = {{"Content-Type", "application/json"}};
        const auto got = peer::make_client(fleet.of.admin_address()).send(request, peer::call());
        REQUIRE_MESSAGE(got, got.error().text);
        return json::parse(got->body);
    };
    const auto state = [&] { return admin("GetProcessStatus", R"({"processId":"kv-1"})")["state"].text; };
    CHECK(admin("ShutdownProcess", R"({"processId":"kv-1","reason":"admin request"})")["acknowledged"].flag);
    CHECK(eventually([&] { return state() == "COMPLETE"; }));
    CHECK(fleet.info("kv-1").exit.ok());
    CHECK(fleet.field("shutdown requested", "kv-1", "reason") == "admin request");
    CHECK(fleet.info("kv-2").state == instance_state::ready);
    fleet.end();
}

// ---- the launcher itself is killed ----

#ifdef __linux__  // elsewhere there is no /proc to find anybody by
namespace {

// Configurations of launchers that share a state file, and a mark on all that they start.
struct estate {
    std::string state = scratch_file("launcher.state");
    std::string mark = state;
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
                            << ",\"environment\":{\"OJS_TEST_MARK\":\"" << mark << "\"},\"command\":[\""
                            << program("lifecycle_runner") << "\"" << flags << "]}]}";
        return file;
    }
    process launch(const std::string& file) const {
        return process({program("launcher"), "run", "--config", file, "--admin", admin},
                       {{"OJS_LOG_FORMAT", "json"}});
    }
    // The groups of what this launcher says it has started.
    static std::vector<pid_t> groups_of(process& launcher) {
        std::vector<pid_t> out;
        std::istringstream text(launcher.output());
        for (std::string line; std::getline(text, line);) {
            const json record = json::parse(line);
            if (record["message"].is("process spawned"))
                out.push_back(static_cast<pid_t>(record["attributes"]["pid"].number));
        }
        return out;
    }
    // The next launcher ends what is left before all else, and takes over the sockets and the names.
    void check_nothing_left(process& killed) const {
        killed.signal(SIGKILL);
        const int status = killed.wait();
        const bool may_have_ended = killed.count("sending SIGKILL") > 0;  // before ours came, on a busy host
        REQUIRE((status == -SIGKILL || (may_have_ended && status == 0)));
        process next = launch(config(1, "", R"(,"--initial-work","0")"));
        CHECK(next.prints("process ready"));
        CHECK(next.count("process crashed") == 0);
        CHECK(count_marked(mark) == 1);
        for (const pid_t each : groups_of(killed)) CHECK_FALSE(runs_in_group(each));
        next.signal(SIGTERM);
        CHECK(next.wait() == 0);
        CHECK(count_marked(mark) == 0);
    }
};

}  // namespace

TEST_CASE(
    "rfc_041: a launcher is killed at any point of the handshake -> the next launcher ends its processes") {
    struct point {
        const char* text;  // of the log
        int times;         // that it is there
        bool is_stopped;
        const char* shutdown;
    };
    const char* const no_end = R"(,"shutdown":{"max_duration":"1h","poll_interval":"20ms"})";
    const char* const soon =
        R"(,"shutdown":{"grace_period":"200ms","max_duration":"400ms","kill_delay":"400ms"})";
    const point points[] = {{"process spawned", 0, false, no_end},
                            {"process spawned", 1, false, no_end},
                            {"process ready", 2, false, no_end},
                            {"process draining", 1, true, no_end},
                            {"forcing shutdown with SIGTERM", 1, true, soon},
                            {"still running after SIGTERM; sending SIGKILL", 1, true, soon}};
    for (const point& each : points) {
        CAPTURE(each.text);
        const estate of;
        process launcher = of.launch(of.config(2, each.shutdown));
        if (each.is_stopped) {
            REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
            launcher.signal(SIGTERM);
        }
        REQUIRE(eventually([&] { return launcher.count(each.text) >= each.times; }));
        of.check_nothing_left(launcher);
    }
}

TEST_CASE("rfc_041: a launcher is killed during a rollout -> the next launcher ends its processes") {
    const estate of;
    const std::string config = of.config(2);
    process launcher = of.launch(config);
    REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
    std::ofstream(config) << read_file(of.config(2, "", R"(,"--never-ready","--ignore-sigterm")"));
    process roll({program("launcher"), "roll", "kv", "--admin", of.admin}, {});
    REQUIRE(launcher.prints("process warming"));
    of.check_nothing_left(launcher);
    CHECK(roll.wait() == 69);
}

TEST_CASE("rfc_041: a third stop signal ends a launcher at once, and the next launcher ends its processes") {
    const estate of;
    process launcher =
        of.launch(of.config(2, R"(,"shutdown":{"grace_period":"1h","max_duration":"1h","kill_delay":"1h"})"));
    REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
    constexpr auto gap = 300ms;  // two stop signals closer together are one
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("launcher draining"));
    std::this_thread::sleep_for(gap);
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("second stop signal: force-stopping all processes"));
    std::this_thread::sleep_for(gap);
    CHECK_FALSE(launcher.ended());
    launcher.signal(SIGTERM);
    CHECK(launcher.wait() == 128 + SIGTERM);
    CHECK(launcher.prints("third stop signal: exiting immediately"));
    const std::vector<pid_t> groups = estate::groups_of(launcher);
    REQUIRE(groups.size() == 2);
    for (const pid_t each : groups) CHECK(runs_in_group(each));
    process next = of.launch(of.config(0));
    CHECK(next.prints("launcher started"));
    for (const pid_t each : groups) CHECK_FALSE(runs_in_group(each));
}
#endif
