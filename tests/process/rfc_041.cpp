// RFC-041 "Testing Strategy": its tests by their names, and whatever else may happen in a handshake, with
// real processes. Each ends with the path of every process, put together from the log and held against the state machine.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "events.hpp"
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

// Where a state may lead. [RFC-041 "Process State Machine", and that a process may die at any moment]
bool is_allowed(const std::string& from, const std::string& to) {
    static const std::map<std::string, std::set<std::string>> table = {
        {"SPAWNING", {"STARTING"}},
        {"STARTING", {"WARMING", "READY", "UNHEALTHY"}},
        {"WARMING", {"READY", "UNHEALTHY"}},
        {"READY", {"UNHEALTHY"}},
        {"UNHEALTHY", {"READY"}},
        {"SHUTDOWN_REQUESTED", {"DRAINING", "COMPLETE", "FORCED", "CRASHED"}},
        {"DRAINING", {"COMPLETE", "FORCED", "CRASHED"}}};
    const auto found = table.find(from);
    if (found == table.end()) return false;  // COMPLETE, FORCED and CRASHED are the end
    const bool asked = from == "SHUTDOWN_REQUESTED" || from == "DRAINING";
    return found->second.count(to) == 1 || (!asked && (to == "SHUTDOWN_REQUESTED" || to == "CRASHED"));
}

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
    bool is_over(const std::string& id) const {
        return eventually([&] {
            const ojs::result<ojs::process_info> found = of.process(id);
            return found && ojs::is_final(found->state);
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
    bool says(const std::string& text, const std::string& id) const {
        return eventually([&] { return at(text, id) >= 0; });
    }
    std::string field(const std::string& text, const std::string& id, const char* name) const {
        const int found = at(text, id);
        return found < 0 ? "" : log()[static_cast<std::size_t>(found)][name];
    }
    // All are there, in this order, whatever else is between them: a child may be asked how far it is before it has begun.
    bool in_order(const words& texts, const std::string& id) const {
        std::size_t found = 0;
        std::string all;
        for (const line& each : log()) {
            if (each["process_id"] != id) continue;
            all += each.text + "; ";
            if (found < texts.size() && each.text == texts[found]) ++found;
        }
        if (found < texts.size()) MESSAGE("log of " << id << ": " << all);
        return found == texts.size();
    }
    words path(const std::string& id) const {
        words out;
        for (const line& each : log()) {
            if (each["process_id"] == id && !each["state"].empty() && each["state"] != each["from"])
                out.push_back(each["state"]);
        }
        return out;
    }

    // From the log alone: every step is there, is allowed, and leads from where the last one led; every other record names
    // the state its process is in; each has ended, and is gone. The hook received the same steps.
    void check_paths() const {
        std::map<std::string, std::string> now;
        std::map<std::string, words> paths;
        for (const line& each : log()) {
            const std::string id = each["process_id"];
            if (each["state"].empty()) continue;
            CAPTURE(id);
            CAPTURE(each.text);
            if (!each["pid"].empty())                           // a start that failed has none
                CHECK(::kill(std::stoi(each["pid"]), 0) != 0);  // nor is it left to be reaped
            std::string& before = now.emplace(id, "SPAWNING").first->second;
            CHECK(each["from"] == before);
            if (each["state"] == before) continue;
            CHECK_MESSAGE(is_allowed(before, each["state"]), before, " to ", each["state"]);
            before = each["state"];
            paths[id].push_back(before);
        }
        CHECK_FALSE(now.empty());
        for (const auto& process : now) {
            const std::string& state = process.second;
            CAPTURE(process.first);
            CHECK_MESSAGE((state == "COMPLETE" || state == "FORCED" || state == "CRASHED"), state);
        }
        const std::lock_guard<std::mutex> held(mutex_);
        CHECK(told_ == paths);
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
        out.on_change = [this](const ojs::process_info& now) {
            const std::lock_guard<std::mutex> held(mutex_);
            words& path = told_[now.id];
            const std::string state = ojs::to_string(now.state);
            if (path.empty() || path.back() != state) path.push_back(state);
        };
        out.on_routable = [this, given = out.on_routable](const ojs::process_info& now) {
            if (given) given(now);
            ready_.add();
        };
        return out;
    }

    mutable std::mutex mutex_;
    std::vector<line> log_;
    std::map<std::string, words> told_;
    counter ready_;

  public:
    ojs::launcher of;  // ended before what its hooks use
};

ojs::group_options group_of(int desired, words command) {
    ojs::group_options out;
    out.name = "kv";
    out.desired = desired;
    out.min_ready_time = 50ms;
    out.restart.policy = ojs::restart_policy::never;
    out.process.child.command = std::move(command);
    out.process.child.output = out.process.child.errors = ojs::child_stream::null();
    out.process.readiness_interval = 20ms;
    out.process.shutdown.poll_interval = 20ms;
    return out;
}
ojs::group_options runners(int desired, const words& flags) {
    words command = {program("lifecycle_runner")};
    command.insert(command.end(), flags.begin(), flags.end());
    return group_of(desired, std::move(command));
}
// On the wire a time is whole seconds.
void with_short_times(ojs::group_options& group) {
    group.process.shutdown.grace_period = 200ms;
    group.process.shutdown.max_duration = 400ms;
    group.process.shutdown.kill_delay = 20s;
}

// Where handshake_child waits, until it is opened.
class fifo {
  public:
    fifo() { REQUIRE(::mkfifo(path_.c_str(), 0600) == 0); }
    ~fifo() {
        if (writer_ >= 0) ::close(writer_);
    }
    const std::string& path() const { return path_; }
    // For all that read it: those that wait, and those that will.
    void open() { writer_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC); }

  private:
    const std::string path_ = scratch_file("fifo");
    int writer_ = -1;
};

ojs::group_options children(int desired, const std::string& point, const std::string& action,
                            const std::string& gate = "") {
    return group_of(desired, {program("handshake_child"), point, action, gate});
}

}  // namespace

namespace {

// What one child does, and what its launcher makes of it.
struct scenario {
    ojs::group_options group;
    bool is_asked;  // it becomes ready, and is asked to shut down
    instance_state end;
    int signal;               // that ended it; 0: none
    words log;                // in this order
    milliseconds min_time{};  // of the shutdown
};

scenario one(const char* name, ojs::group_options group, void (*adjust)(ojs::group_options&), bool is_asked,
             instance_state end, int signal, words log, milliseconds min_time = {}) {
    group.name = name;
    if (adjust != nullptr) adjust(group);
    return {std::move(group), is_asked, end, signal, std::move(log), min_time};
}

// All of them at the same time, each a group of one; `also` sees more of how each has ended.
template <class Also>
void play(const std::vector<scenario>& all, Also also) {
    ojs::launcher_options options;
    for (const scenario& each : all) options.groups.push_back(each.group);
    watched fleet(options);
    REQUIRE(fleet.of.start());
    for (const scenario& each : all) {
        if (!each.is_asked) continue;
        const std::string id = each.group.name + "-1";
        REQUIRE_MESSAGE(fleet.says("process ready", id), id);
        REQUIRE(fleet.of.shut_down_process(id, {"test", {}, {}}));
    }
    for (const scenario& each : all) {
        const std::string id = each.group.name + "-1";
        CAPTURE(id);
        REQUIRE(fleet.is_over(id));
        const ojs::process_info ended = fleet.info(id);
        CHECK_MESSAGE(ended.state == each.end, ended.message);
        CHECK(ended.exit.signal == each.signal);
        if (each.end != instance_state::crashed) CHECK(ended.killed == (each.signal == SIGKILL));
        CHECK(ended.shutdown_duration >= each.min_time);
        CHECK(fleet.in_order(each.log, id));
        CHECK((fleet.at("forcing shutdown with SIGTERM", id) >= 0) == (each.end == instance_state::forced));
        also(fleet, ended);
    }
    fleet.end();
}

void without_end(ojs::group_options& group) {
    group.process.shutdown.grace_period = group.process.shutdown.max_duration = 1h;
    group.process.shutdown.poll_interval = 1h;  // an exit is seen by itself
}
void ready_soon(ojs::group_options& group) {
    with_short_times(group);
    group.health_check_timeout = 300ms;
}

}  // namespace

// ---- the seven of the RFC ----

TEST_CASE(
    "rfc_041: TestGracefulShutdownClean, TestGracefulShutdownSlowDrain, TestGracefulShutdownHang, "
    "TestGracefulShutdownRequestMore, TestGracefulShutdownCrash") {
    const auto complete = instance_state::complete;
    const std::vector<scenario> all = {
        one("clean", runners(1, {"--work-duration", "20ms", "--initial-work", "5"}), nullptr, true, complete,
            0, {"shutdown requested", "process complete"}, 100ms),
        one("slow-drain", runners(1, {"--behavior", "slow-drain", "--drain-duration", "500ms"}), nullptr,
            true, complete, 0,
            {"shutdown requested", "process draining", "shutdown progress", "process complete"}, 500ms),
        one(
            "hang", runners(1, {"--behavior", "hang"}),
            [](ojs::group_options& group) {
                group.process.shutdown.grace_period = 900ms;
                group.process.shutdown.max_duration = 1s;
                group.process.shutdown.kill_delay = 200ms;
            },
            true, instance_state::forced, SIGKILL,
            {"shutdown requested", "process draining", "past its grace period",
             "forcing shutdown with SIGTERM", "SIGTERM timeout, sending SIGKILL", "process forced"},
            1200ms),
        one(
            "request-more", runners(1, {"--behavior", "request-more", "--drain-duration", "1500ms"}),
            [](ojs::group_options& group) {
                group.process.shutdown.grace_period = 1s;
                group.process.shutdown.force_without_request = true;  // it would end but for what it asks
            },
            true, complete, 0, {"more time requested", "past its grace period", "process complete"}, 1500ms),
        one("crash", runners(1, {"--behavior", "crash"}), without_end, true, instance_state::crashed, 0,
            {"shutdown requested", "process crashed"}),
    };
    play(all, [](const watched& fleet, const ojs::process_info& ended) {
        CHECK(ended.exit.code == (ended.group == "crash" ? 2 : 0));
        if (ended.group == "clean") {
            CHECK(ended.shutdown_duration < 3s);  // the RFC's threshold, of 100 ms of work
            CHECK(fleet.at("past its grace period", ended.id) < 0);
        }
        if (ended.group == "request-more")
            CHECK(fleet.field("more time requested", ended.id, "additional_seconds") == "5");
        if (ended.group == "hang")
            CHECK(fleet.path(ended.id) ==
                  words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "DRAINING", "FORCED"});
    });
}

TEST_CASE("rfc_041: TestProcessGroupShutdown") {
    fifo gate;
    ojs::group_options group = children(5, "draining", "wait", gate.path());
    group.process.shutdown.grace_period = group.process.shutdown.max_duration = 1h;
    watched fleet(group);
    REQUIRE(fleet.starts(5));
    REQUIRE(fleet.of.shut_down_group("kv", {"test", {}, {}}));
    // All of them drain at the same time, as none of them can end before.
    for (int i = 1; i <= 5; ++i) CHECK(fleet.reaches("kv-" + std::to_string(i), instance_state::draining));
    gate.open();
    for (int i = 1; i <= 5; ++i) {
        const std::string id = "kv-" + std::to_string(i);
        CHECK(fleet.reaches(id, instance_state::complete));
        CHECK(fleet.path(id) == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "DRAINING", "COMPLETE"});
    }
    fleet.end();
}

TEST_CASE("rfc_041: TestRollingReplacement") {
    ojs::group_options group = runners(3, {"--initial-work", "0"});
    group.min_healthy = 3;
    watched fleet(group);
    REQUIRE(fleet.starts(3));
    const ojs::result<ojs::rolling_report> report = fleet.of.rolling_replace("kv", group);
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

TEST_CASE("rfc_041: TestAdminDelegatedShutdown") {
    const temporary_folder folder;
    fifo gate;
    ojs::launcher_options options;
    options.groups = {children(2, "draining", "wait", gate.path())};
    options.groups[0].process.shutdown.grace_period = options.groups[0].process.shutdown.max_duration = 1h;
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
    CHECK(eventually([&] { return state() == "DRAINING"; }));
    gate.open();
    CHECK(eventually([&] { return state() == "COMPLETE"; }));
    CHECK(fleet.info("kv-1").exit.ok());
    CHECK(fleet.field("shutdown requested", "kv-1", "reason") == "admin request");
    CHECK(fleet.info("kv-2").state == instance_state::ready);
    fleet.end();
}

// ---- a child that ends or stands still at a point of the handshake ----

TEST_CASE("rfc_041: a child that is killed at any point is seen and logged") {
    std::vector<scenario> all;
    for (const char* point : {"spawned", "listening", "ready", "requested", "draining", "complete"}) {
        const bool is_asked = std::string("requested draining complete").find(point) != std::string::npos;
        all.push_back(one(point, children(1, point, "kill"), without_end, is_asked, instance_state::crashed,
                          SIGKILL, {"process crashed"}));
    }
    play(all, [](const watched&, const ojs::process_info&) {});
}

TEST_CASE("rfc_041: one that is killed is replaced, and those beside it are not taken for orphans") {
    ojs::launcher_options options;
    options.groups = {runners(3, {"--initial-work", "0"})};
    options.groups[0].restart.policy = ojs::restart_policy::on_failure;
    options.groups[0].restart.initial_backoff = 1ms;
    options.state_file = scratch_file("launcher.state");
    watched fleet(options);
    REQUIRE(fleet.starts(3));
    REQUIRE(::kill(fleet.info("kv-2").pid, SIGKILL) == 0);
    CHECK(fleet.reaches("kv-4", instance_state::ready));
    CHECK(fleet.info("kv-2").state == instance_state::crashed);
    fleet.end();
    for (const char* id : {"kv-1", "kv-3", "kv-4"}) CHECK(fleet.path(id).back() == "COMPLETE");
}

TEST_CASE("rfc_041: a child reports that it is ready, and is not polled for it") {
    ojs::group_options group = runners(1, {"--ready-after", "100ms"});
    group.process.readiness_interval = 1h;  // the first look finds it warming
    watched fleet(group);
    REQUIRE(fleet.starts(1));
    CHECK(fleet.info("kv-1").startup_duration >= 100ms);
    fleet.end();
}

TEST_CASE("rfc_041: a child that stands still is ended in bounded time, and SIGKILL is not needed") {
    std::vector<scenario> all;
    for (const char* point : {"spawned", "listening"})
        all.push_back(one(point, children(1, point, "stop"), ready_soon, false, instance_state::forced,
                          SIGTERM, {"process unhealthy", "forcing shutdown with SIGTERM", "process forced"}));
    for (const char* point : {"requested", "draining", "complete"})
        all.push_back(one(point, children(1, point, "stop"), with_short_times, true, instance_state::forced,
                          SIGTERM,
                          {"shutdown requested", "forcing shutdown with SIGTERM", "process forced"}));
    play(all, [](const watched&, const ojs::process_info&) {});
    {  // and nobody waits until it must have been ready
        watched fleet(children(1, "spawned", "stop"));
        REQUIRE(fleet.of.start());
        REQUIRE(fleet.says("process spawned", "kv-1"));
        fleet.end();
        CHECK(fleet.path("kv-1") == words{"STARTING", "SHUTDOWN_REQUESTED", "FORCED"});
        CHECK(fleet.info("kv-1").exit.signal == SIGTERM);
    }
    ojs::group_options group = children(1, "never", "stop");
    with_short_times(group);
    group.process.rpc_timeout = 100ms;
    group.process.health_interval = 20ms;
    group.process.unhealthy_after = 1;
    watched fleet(group);
    REQUIRE(fleet.starts(1));
    REQUIRE(::kill(fleet.info("kv-1").pid, SIGSTOP) == 0);
    CHECK(fleet.reaches("kv-1", instance_state::forced));
    CHECK_FALSE(fleet.info("kv-1").killed);
    CHECK(fleet.path("kv-1") == words{"STARTING", "READY", "UNHEALTHY", "SHUTDOWN_REQUESTED", "FORCED"});
    fleet.end();
}

// ---- a coordinator that answers badly ----

namespace {

// tests/net knows more ways to answer badly.
const words faults = {"garbage", "never", "odd_state", "error"};

// One child for each fault, so that none of them holds up the others.
std::vector<scenario> all_bad(const std::string& method, const std::string& times, words all,
                              void (*adjust)(ojs::group_options&), instance_state end, words log) {
    std::vector<scenario> out;
    for (const std::string& fault : all) {
        ojs::group_options group = group_of(1, {program("bad_coordinator"), method, fault, times});
        group.process.rpc_timeout = 300ms;
        out.push_back(one(fault.c_str(), std::move(group), adjust, adjust != ready_soon, end,
                          end == instance_state::forced ? SIGTERM : 0, log));
    }
    return out;
}

}  // namespace

TEST_CASE(
    "rfc_041: a coordinator that answers badly is not ready, is ended in bounded time, and may recover") {
    const auto forced = instance_state::forced;
    SUBCASE("whether it is ready") {
        play(
            all_bad("GetReadinessStatus", "-1", faults, ready_soon, forced, {"process unhealthy"}),
            [](const watched& fleet, const ojs::process_info& ended) {
                CHECK(fleet.path(ended.id) == words{"STARTING", "UNHEALTHY", "SHUTDOWN_REQUESTED", "FORCED"});
                CHECK(fleet.at("readiness check failed", ended.id) >= 0);
            });
    }
    SUBCASE("to a Shutdown") {
        play(all_bad("Shutdown", "-1", faults, with_short_times, forced, {"shutdown requested"}),
             [](const watched& fleet, const ojs::process_info& ended) {
                 words path = fleet.path(ended.id);  // a status may say that the request arrived
                 path.erase(std::remove(path.begin(), path.end(), "DRAINING"), path.end());
                 CHECK(path == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "FORCED"});
                 CHECK((fleet.at("shutdown not acknowledged", ended.id) >= 0 ||
                        fleet.at("requesting shutdown with SIGTERM", ended.id) >= 0));
             });
    }
    SUBCASE("about a drain, which is not taken for its end") {
        words lies = faults;
        lies.insert(lies.end(), {"requested", "running"});  // as if it had not begun, and for ever
        play(all_bad("GetShutdownStatus", "-1", lies, with_short_times, forced,
                     {"shutdown requested", "past its grace period", "forcing shutdown with SIGTERM"}),
             [](const watched& fleet, const ojs::process_info& ended) {
                 CHECK(ended.shutdown_duration >= 400ms);
                 CHECK(fleet.path(ended.id) == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "FORCED"});
             });
    }
    SUBCASE("once, about a drain") {
        play(all_bad("GetShutdownStatus", "1", faults, nullptr, instance_state::complete,
                     {"shutdown status request failed", "process complete"}),
             [](const watched&, const ojs::process_info&) {});
    }
    SUBCASE("once, whether it is ready") {
        play(all_bad("GetReadinessStatus", "1", faults, with_short_times, forced, {"process ready"}),
             [](const watched& fleet, const ojs::process_info& ended) {
                 CHECK(fleet.at("process unhealthy", ended.id) < 0);
             });
    }
}

TEST_CASE("rfc_041: a replacement by what never becomes ready leaves the old ones as they were") {
    const words wrong[] = {{program("handshake_child"), "listening", "kill"},
                           {program("handshake_child"), "spawned", "stop"},
                           {program("bad_coordinator"), "GetReadinessStatus", "garbage"},
                           {"/no/such/program"}};
    const ojs::group_options group = runners(2, {"--work-duration", "1ms"});
    watched fleet(group);
    REQUIRE(fleet.starts(2));
    for (const words& each : wrong) {
        CAPTURE(each[0]);
        ojs::group_options target = group;
        ready_soon(target);
        target.process.child.command = each;
        const ojs::result<ojs::rolling_report> report = fleet.of.rolling_replace("kv", target);
        REQUIRE(report);
        CHECK(report->rolled_back);
        CHECK_FALSE(report->mixed);
        CHECK(report->replaced == 0);
        CHECK(fleet.of.group("kv")->ready == 2);
    }
    for (const char* id : {"kv-1", "kv-2"}) CHECK(fleet.path(id) == words{"STARTING", "READY"});
    fleet.end();
}

// ---- the path of a socket ----

TEST_CASE("rfc_041: a child's socket whose path is taken, or stale") {
    const temporary_folder folder;
    write_file(folder.file("kv-1.sock"), "mine");
    auto stranger = ojs::http_server::start("unix:" + folder.file("kv-2.sock"), [](const ojs::http_request&) {
        ojs::http_response out;
        out.status = 404;
        return out;
    });
    REQUIRE(stranger);
    process dead({program("lifecycle_runner"), "--socket", folder.file("kv-3.sock")}, {});
    REQUIRE(dead.prints("listening on"));
    dead.signal(SIGKILL);
    REQUIRE(dead.wait() == -SIGKILL);

    ojs::group_options group = runners(3, {"--work-duration", "1ms"});
    group.restart.policy = ojs::restart_policy::on_failure;
    group.restart.initial_backoff = 10ms;
    watched fleet(group, folder.path());
    REQUIRE(fleet.starts(3));
    CHECK(fleet.info("kv-1").exit.code == 1);
    CHECK(fleet.info("kv-2").exit.code == 1);
    for (const char* id : {"kv-3", "kv-4", "kv-5"}) CHECK(fleet.info(id).state == instance_state::ready);
    fleet.end();
    CHECK(read_file(folder.file("kv-1.sock")) == "mine");
    ojs::http_client client = peer::make_client("unix:" + folder.file("kv-2.sock"));
    const auto still = client.send(peer::post("/", ""), peer::call());
    REQUIRE(still);
    CHECK(still->status == 404);
}

TEST_CASE("rfc_041: a launcher whose own socket's path is taken does not start, and harms nothing") {
    const temporary_folder folder;
    const auto is_refused = [&] {
        watched fleet(runners(1, {}), folder.path());
        const ojs::result<void> started = fleet.of.start();
        REQUIRE_FALSE(started);
        CHECK_MESSAGE(started.error().code == ojs::errc::busy, started.error().text);
        CHECK(fleet.log().empty());
    };
    write_file(folder.file("launcher.sock"), "mine");
    is_refused();
    CHECK(read_file(folder.file("launcher.sock")) == "mine");
    ::unlink(folder.file("launcher.sock").c_str());
    watched first(runners(1, {"--initial-work", "0"}), folder.path());
    REQUIRE(first.starts(1));
    is_refused();  // by the socket of another launcher
    CHECK(first.info("kv-1").state == instance_state::ready);
    first.end();
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
        REQUIRE(killed.wait() == -SIGKILL);
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

TEST_CASE("rfc_041: of a launcher that is killed at any point of the handshake nothing is left") {
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
                            {"process spawned", 2, false, no_end},
                            {"process ready", 3, false, no_end},
                            {"launcher draining", 1, true, no_end},
                            {"shutdown requested", 1, true, no_end},
                            {"process draining", 1, true, no_end},
                            {"past its grace period", 1, true, soon},
                            {"forcing shutdown with SIGTERM", 1, true, soon},
                            {"SIGTERM timeout, sending SIGKILL", 1, true, soon}};
    for (const point& each : points) {
        CAPTURE(each.text);
        const estate of;
        process launcher = of.launch(of.config(3, each.shutdown));
        if (each.is_stopped) {
            REQUIRE(eventually([&] { return launcher.count("process ready") == 3; }));
            launcher.signal(SIGTERM);
        }
        REQUIRE(eventually([&] { return launcher.count(each.text) >= each.times; }));
        of.check_nothing_left(launcher);
    }
}

TEST_CASE("rfc_041: of a launcher that is killed in a rolling replacement nothing is left") {
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

TEST_CASE("rfc_041: a third stop signal ends a launcher at once, and its successor ends what it leaves") {
    const estate of;
    process launcher =
        of.launch(of.config(2, R"(,"shutdown":{"grace_period":"1h","max_duration":"1h","kill_delay":"1h"})"));
    REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
    constexpr auto gap = 300ms;  // two stop signals closer together are one
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("launcher draining"));
    std::this_thread::sleep_for(gap);
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("launcher forces its processes"));
    std::this_thread::sleep_for(gap);
    CHECK_FALSE(launcher.ended());
    launcher.signal(SIGTERM);
    CHECK(launcher.wait() == 128 + SIGTERM);
    CHECK(launcher.prints("launcher exits at once"));
    const std::vector<pid_t> groups = estate::groups_of(launcher);
    REQUIRE(groups.size() == 2);
    for (const pid_t each : groups) CHECK(runs_in_group(each));
    process next = of.launch(of.config(0));
    CHECK(next.prints("launcher started"));
    for (const pid_t each : groups) CHECK_FALSE(runs_in_group(each));
}

TEST_CASE("rfc_041: with a launcher that is killed its children end by themselves, if they obey SIGTERM") {
    const estate of;
    process launcher = of.launch(of.config(2, "", ""));
    REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
    launcher.signal(SIGKILL);
    for (const pid_t each : estate::groups_of(launcher))
        CHECK(eventually([&] { return !runs_in_group(each); }));
}
#endif
