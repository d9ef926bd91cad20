// RFC-041 "Testing Strategy": its tests by their names, and whatever else may happen in a handshake, with
// real processes. Each ends with the path of every process, put together from the log and held against the state machine.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
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
    explicit watched(ojs::group_options group, const std::string& socket_folder = "")
        : of(options_for(std::move(group), socket_folder)) {}
    explicit watched(ojs::launcher_options options) : of(with_hooks(std::move(options))) {}

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
        for (const auto& [id, state] : now) {
            CAPTURE(id);
            CHECK_MESSAGE((state == "COMPLETE" || state == "FORCED" || state == "CRASHED"), state);
        }
        const std::lock_guard<std::mutex> held(mutex_);
        CHECK(told_ == paths);
    }

  private:
    ojs::launcher_options options_for(ojs::group_options group, const std::string& socket_folder) {
        ojs::launcher_options out;
        out.groups = {std::move(group)};
        out.socket_folder = socket_folder;
        return with_hooks(std::move(out));
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

void ask(watched& fleet, const std::string& id) {
    REQUIRE(fleet.of.shut_down_process(id, {"test", {}, {}}));
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

// ---- the seven of the RFC ----

TEST_CASE("rfc_041: TestGracefulShutdownClean") {
    watched fleet(runners(1, {"--behavior", "clean", "--work-duration", "20ms", "--initial-work", "5"}));
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    REQUIRE(fleet.is_over("kv-1"));
    const ojs::process_info ended = fleet.info("kv-1");
    CHECK_MESSAGE(ended.state == instance_state::complete, ended.message);
    CHECK(ended.exit.ok());
    CHECK_FALSE(ended.killed);
    CHECK(ended.shutdown_duration >= 100ms);
    CHECK(ended.shutdown_duration < 3s);  // the RFC's threshold, of 100 ms of work
    CHECK(fleet.at("past its grace period", "kv-1") < 0);
    CHECK(fleet.at("forcing shutdown with SIGTERM", "kv-1") < 0);
    fleet.end();
}

TEST_CASE("rfc_041: TestGracefulShutdownSlowDrain") {
    watched fleet(runners(1, {"--behavior", "slow-drain", "--drain-duration", "2s"}));
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    REQUIRE(fleet.is_over("kv-1"));
    const ojs::process_info ended = fleet.info("kv-1");
    CHECK_MESSAGE(ended.state == instance_state::complete, ended.message);
    CHECK(ended.shutdown_duration >= 2s);
    CHECK(ended.exit.ok());
    CHECK(fleet.in_order({"shutdown requested", "process draining", "shutdown progress", "process complete"},
                         "kv-1"));
    CHECK(fleet.at("forcing shutdown with SIGTERM", "kv-1") < 0);
    fleet.end();
}

TEST_CASE("rfc_041: TestGracefulShutdownHang") {
    ojs::group_options group = runners(1, {"--behavior", "hang"});
    group.process.shutdown.grace_period = 900ms;
    group.process.shutdown.max_duration = 1s;
    group.process.shutdown.kill_delay = 200ms;
    watched fleet(group);
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    REQUIRE(fleet.is_over("kv-1"));
    const ojs::process_info ended = fleet.info("kv-1");
    CHECK(ended.state == instance_state::forced);
    CHECK(ended.killed);
    CHECK(ended.exit.signal == SIGKILL);
    CHECK(ended.shutdown_duration >= 1200ms);
    CHECK(fleet.in_order(
        {"shutdown requested", "process draining", "past its grace period", "forcing shutdown with SIGTERM",
         "SIGTERM timeout, sending SIGKILL", "process forced"},
        "kv-1"));
    CHECK(fleet.path("kv-1") == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "DRAINING", "FORCED"});
    fleet.end();
}

TEST_CASE("rfc_041: TestGracefulShutdownRequestMore") {
    ojs::group_options group = runners(1, {"--behavior", "request-more", "--drain-duration", "3s"});
    group.process.shutdown.grace_period = 1s;
    group.process.shutdown.force_without_request = true;  // so that it would be ended but for what it asks
    watched fleet(group);
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    REQUIRE(fleet.is_over("kv-1"));
    const ojs::process_info ended = fleet.info("kv-1");
    CHECK_MESSAGE(ended.state == instance_state::complete, ended.message);
    CHECK(ended.shutdown_duration >= 3s);
    CHECK(fleet.in_order({"more time requested", "past its grace period", "process complete"}, "kv-1"));
    const std::vector<line> log = fleet.log();
    CHECK(log[static_cast<std::size_t>(fleet.at("more time requested", "kv-1"))]["additional_seconds"] ==
          "5");
    fleet.end();
}

TEST_CASE("rfc_041: TestGracefulShutdownCrash") {
    ojs::group_options group = runners(1, {"--behavior", "crash"});
    group.process.shutdown.max_duration = group.process.shutdown.poll_interval =
        1h;  // its end is seen by itself
    watched fleet(group);
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    REQUIRE(fleet.is_over("kv-1"));
    const ojs::process_info ended = fleet.info("kv-1");
    CHECK(ended.state == instance_state::crashed);
    CHECK(ended.exit.code == 2);
    CHECK(fleet.in_order({"shutdown requested", "process crashed"}, "kv-1"));
    fleet.end();
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

namespace {

// What gives work to those that may have it, and takes it away from no one who has some.
class router {
  public:
    explicit router(int min_ready) : min_ready_(min_ready) {}

    void add(const std::string& id) {
        const std::lock_guard<std::mutex> held(mutex_);
        ids_.push_back(id);
        full_ = full_ || static_cast<int>(ids_.size()) >= min_ready_;
    }
    void remove(const std::string& id) {
        std::unique_lock<std::mutex> held(mutex_);
        ids_.erase(std::remove(ids_.begin(), ids_.end(), id), ids_.end());
        if (full_ && !ending_ && static_cast<int>(ids_.size()) < min_ready_) ++too_few_;
        changed_.wait(held, [&] { return in_hand_[id] == 0; });
    }
    template <class Work>
    void give(Work work) {
        std::string id;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            id = ids_[next_++ % ids_.size()];
            ++in_hand_[id];
        }
        work(id);
        const std::lock_guard<std::mutex> held(mutex_);
        --in_hand_[id];
        changed_.notify_all();
    }
    int ends() {
        const std::lock_guard<std::mutex> held(mutex_);
        ending_ = true;
        return too_few_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    words ids_;
    std::map<std::string, int> in_hand_;
    const int min_ready_;
    std::size_t next_ = 0;
    int too_few_ = 0;
    bool full_ = false;
    bool ending_ = false;
};

// The most processes that there were at a time, by the log.
int max_at_once(const watched& fleet) {
    int now = 0;
    int most = 0;
    for (const line& each : fleet.log()) {
        if (each.text == "process spawned") most = std::max(most, ++now);
        const std::string state = each["state"];
        if (state != each["from"] && (state == "COMPLETE" || state == "FORCED" || state == "CRASHED")) --now;
    }
    return most;
}

}  // namespace

TEST_CASE("rfc_041: TestRollingReplacement") {
    const temporary_folder folder;
    ojs::group_options group = group_of(3, {"sh", "-c", "exec \"$0\" --listen \"unix:$1/$OJS_PROCESS_ID\"",
                                            program("keyvalue_runner"), folder.path()});
    group.min_healthy = 3;
    router routed(3);
    ojs::launcher_options options;
    options.groups = {group};
    options.on_routable = [&](const ojs::process_info& now) { routed.add(now.id); };
    options.on_unroutable = [&](const ojs::process_info& now) { routed.remove(now.id); };
    watched fleet(options);
    REQUIRE(fleet.starts(3));

    std::atomic<bool> enough{false};
    std::atomic<int> done{0};
    std::atomic<int> failed{0};
    std::thread client([&] {
        while (!enough) {
            routed.give([&](const std::string& id) {
                ojs::http_client one = peer::make_client("unix:" + folder.file(id));
                ojs::http_request request = peer::post("/key", "value");
                request.method = "PUT";
                const auto got = one.send(request, peer::call());
                ++(got && got->status == 204 ? done : failed);
            });
        }
    });
    CHECK(eventually([&] { return done > 0; }));
    const ojs::result<ojs::rolling_report> report = fleet.of.rolling_replace("kv", group);
    const int before_end = done;
    CHECK(eventually([&] { return done > before_end; }));
    enough = true;
    client.join();
    CHECK(routed.ends() == 0);  // never fewer than min_healthy
    CHECK(failed == 0);
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
    CHECK(max_at_once(fleet) == 4);  // max_surge is 1
}

// ---- acceptance ----

namespace {

// To the launcher's operator interface.
json admin(const watched& fleet, const std::string& method, const std::string& body) {
    ojs::http_client client = peer::make_client(fleet.of.admin_address());
    ojs::http_request request = peer::post("/prism.interfaces.ProcessManagerInterface/" + method, body);
    request.headers = {{"Content-Type", "application/json"}};
    const auto got = client.send(request, peer::call());
    REQUIRE_MESSAGE(got, got.error().text);
    return json::parse(got->body);
}

}  // namespace

TEST_CASE("rfc_041: TestAdminDelegatedShutdown") {
    const temporary_folder folder;
    fifo gate;
    ojs::launcher_options options;
    options.groups = {children(2, "draining", "wait", gate.path())};
    options.groups[0].process.shutdown.grace_period = options.groups[0].process.shutdown.max_duration = 1h;
    options.admin_address = "unix:" + folder.file("admin.sock");
    watched fleet(options);
    REQUIRE(fleet.starts(2));
    const std::string status_request = R"({"processId":"kv-1"})";
    const auto state = [&] { return admin(fleet, "GetProcessStatus", status_request)["state"].text; };
    CHECK(admin(fleet, "ShutdownProcess", R"({"processId":"kv-1","reason":"admin request"})")["acknowledged"]
              .flag);
    CHECK(eventually([&] { return state() == "DRAINING"; }));
    gate.open();
    CHECK(eventually([&] { return state() == "COMPLETE"; }));
    CHECK(fleet.info("kv-1").exit.ok());
    const std::vector<line> log = fleet.log();
    CHECK(log[static_cast<std::size_t>(fleet.at("shutdown requested", "kv-1"))]["reason"] == "admin request");
    CHECK(fleet.info("kv-2").state == instance_state::ready);
    fleet.end();
}

// ---- a child that ends or stands still at a point of the handshake ----

TEST_CASE("rfc_041: a child that is killed at any point is seen, logged and replaced") {
    for (const std::string point : {"spawned", "listening", "ready", "requested", "draining", "complete"}) {
        CAPTURE(point);
        ojs::group_options group = children(2, point, "kill");
        group.process.shutdown.grace_period = group.process.shutdown.max_duration = 1h;
        watched fleet(group);
        REQUIRE(fleet.of.start());
        if (point == "requested" || point == "draining" || point == "complete") {
            for (const char* id : {"kv-1", "kv-2"}) REQUIRE(fleet.reaches(id, instance_state::ready));
            REQUIRE(fleet.of.shut_down_group("kv", {"test", {}, {}}));
        }
        for (const char* id : {"kv-1", "kv-2"}) {
            CHECK(fleet.is_over(id));
            const ojs::process_info ended = fleet.info(id);
            CHECK_MESSAGE(ended.state == instance_state::crashed, ended.message);
            CHECK(ended.exit.signal == SIGKILL);
            CHECK(fleet.says("process crashed", id));
        }
        fleet.end();
    }
    ojs::group_options group = children(1, "spawned", "kill");
    group.restart.policy = ojs::restart_policy::on_failure;
    group.restart.initial_backoff = 1ms;
    watched fleet(group);
    REQUIRE(fleet.of.start());
    CHECK(fleet.says("process crashed", "kv-3"));
    fleet.end();
}

TEST_CASE("rfc_041: one that says COMPLETE is complete once it has ended, and not before") {
    const temporary_folder folder;
    fifo gate;
    ojs::launcher_options options;
    options.groups = {children(1, "complete", "wait", gate.path())};
    options.groups[0].process.shutdown.kill_delay = 1h;
    options.groups[0].process.shutdown.max_duration = 1h;
    options.groups[0].process.shutdown.poll_interval = 1h;  // only a notification of the child reports it
    options.admin_address = "unix:" + folder.file("admin.sock");
    watched fleet(options);
    REQUIRE(fleet.starts(1));
    ask(fleet, "kv-1");
    const auto status = [&] { return admin(fleet, "GetProcessStatus", R"({"processId":"kv-1"})"); };
    CHECK(eventually([&] { return status()["shutdown"]["state"].is("SHUTDOWN_COMPLETE"); }));
    CHECK_FALSE(status()["state"].is("COMPLETE"));
    CHECK(fleet.at("process complete", "kv-1") < 0);
    gate.open();
    CHECK(fleet.reaches("kv-1", instance_state::complete));
    CHECK(fleet.info("kv-1").exit.ok());
    fleet.end();
}

TEST_CASE("rfc_041: a child that stands still is ended in bounded time, and SIGKILL is not needed") {
    for (const std::string point : {"spawned", "listening"}) {
        CAPTURE(point);
        ojs::group_options group = children(1, point, "stop");
        with_short_times(group);
        group.health_check_timeout = 300ms;
        watched fleet(group);
        REQUIRE(fleet.of.start());
        CHECK(fleet.reaches("kv-1", instance_state::forced));
        CHECK(
            fleet.in_order({"process unhealthy", "forcing shutdown with SIGTERM", "process forced"}, "kv-1"));
        CHECK_FALSE(fleet.info("kv-1").killed);
        fleet.end();
    }
    {  // and nobody waits until it must have been ready
        watched fleet(children(1, "spawned", "stop"));
        REQUIRE(fleet.of.start());
        REQUIRE(fleet.says("process spawned", "kv-1"));
        fleet.end();
        CHECK(fleet.path("kv-1") == words{"STARTING", "SHUTDOWN_REQUESTED", "FORCED"});
        CHECK(fleet.info("kv-1").exit.signal == SIGTERM);
    }
    for (const std::string point : {"requested", "draining", "complete"}) {
        CAPTURE(point);
        ojs::group_options group = children(1, point, "stop");
        with_short_times(group);
        watched fleet(group);
        REQUIRE(fleet.starts(1));
        ask(fleet, "kv-1");
        CHECK(fleet.reaches("kv-1", instance_state::forced));
        CHECK_FALSE(fleet.info("kv-1").killed);
        CHECK(fleet.in_order({"shutdown requested", "forcing shutdown with SIGTERM", "process forced"},
                             "kv-1"));
        fleet.end();
    }
    ojs::group_options group = children(1, "never", "stop");
    with_short_times(group);
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

TEST_CASE("rfc_041: what a child says of its shutdown never goes back, however often it is asked for it") {
    const temporary_folder folder;
    const std::string address = "unix:" + folder.file("child.sock");
    fifo gate;
    process child({program("handshake_child"), "complete", "wait", gate.path()},
                  {{"OJS_LIFECYCLE_ADDR", address}});
    const auto call = [&](const std::string& method) {
        ojs::http_client client = peer::make_client(address);
        ojs::http_request request = peer::post("/prism.interfaces.ProcessLifecycleInterface/" + method, "{}");
        request.headers = {{"Content-Type", "application/json"}};
        const auto got = client.send(request, peer::call());
        return got ? json::parse(got->body) : json();
    };
    REQUIRE(eventually([&] { return call("GetReadinessStatus")["state"].is("READY"); }));
    CHECK_FALSE(call("GetShutdownStatus").has("state"));  // RUNNING, the default
    const words order = {"SHUTDOWN_REQUESTED", "SHUTDOWN_DRAINING", "SHUTDOWN_COMPLETE"};
    auto last = order.begin();
    const auto goes_on = [&] {
        const json status = call("GetShutdownStatus");
        const auto now = std::find(last, order.end(), status["state"].text);
        CHECK_MESSAGE(now != order.end(), status["state"].text);
        last = now;
    };
    for (int i = 0; i < 3; ++i) {  // the third one blocks in the RFC's code
        CHECK(call("Shutdown")["acknowledged"].flag);
        goes_on();
    }
    CHECK(eventually([&] {
        goes_on();
        return last == order.end() - 1;
    }));
    CHECK(call("Shutdown")["acknowledged"].flag);
    child.signal(SIGTERM);
    for (int i = 0; i < 10; ++i) goes_on();
    gate.open();
    CHECK(child.wait() == 0);
}

// ---- a coordinator that answers badly ----

namespace {

const char* const faults[] = {"garbage",   "hangs_up",     "half",     "stalls",    "slow", "never",
                              "oversized", "endless_head", "not_json", "odd_state", "error"};

words bad(const std::string& method, const std::string& fault, const std::string& times = "-1") {
    return {program("bad_coordinator"), method, fault, times};
}

// A group of one for each fault, so that none of them holds up the others.
ojs::launcher_options all_bad(const std::string& method, void (*adjust)(ojs::group_options&),
                              const std::string& times = "-1") {
    ojs::launcher_options out;
    for (const char* fault : faults) {
        ojs::group_options group = group_of(1, bad(method, fault, times));
        group.name = fault;
        adjust(group);
        out.groups.push_back(std::move(group));
    }
    return out;
}
std::string id_of(const char* fault) {
    return std::string(fault) + "-1";
}
const int all_faults = sizeof faults / sizeof *faults;

}  // namespace

TEST_CASE("rfc_041: a coordinator that answers badly whether it is ready is not ready, in bounded time") {
    watched fleet(all_bad("GetReadinessStatus", [](ojs::group_options& group) {
        with_short_times(group);
        group.health_check_timeout = 300ms;
    }));
    REQUIRE(fleet.of.start());
    for (const char* fault : faults) {
        const std::string id = id_of(fault);
        CAPTURE(id);
        CHECK(fleet.reaches(id, instance_state::forced));
        CHECK(fleet.path(id) == words{"STARTING", "UNHEALTHY", "SHUTDOWN_REQUESTED", "FORCED"});
        CHECK(fleet.info(id).exit.signal == SIGTERM);
        CHECK(fleet.at("readiness check failed", id) >= 0);
    }
    fleet.end();
}

TEST_CASE("rfc_041: a coordinator that answers a Shutdown badly is ended in bounded time") {
    watched fleet(all_bad("Shutdown", with_short_times));
    REQUIRE(fleet.starts(all_faults));
    for (const char* fault : faults) ask(fleet, id_of(fault));
    for (const char* fault : faults) {
        const std::string id = id_of(fault);
        CAPTURE(id);
        CHECK(fleet.reaches(id, instance_state::forced));
        words path = fleet.path(id);
        path.erase(std::remove(path.begin(), path.end(), "DRAINING"),
                   path.end());  // a status may say that it arrived
        CHECK(path == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "FORCED"});
        CHECK(fleet.info(id).exit.signal == SIGTERM);
        CHECK((fleet.at("shutdown not acknowledged", id) >= 0 ||
               fleet.at("requesting shutdown with SIGTERM", id) >= 0));
    }
    fleet.end();
}

TEST_CASE("rfc_041: no bad answer about a drain holds up the deadline") {
    ojs::launcher_options options = all_bad("GetShutdownStatus", with_short_times);
    for (const char* lie : {"requested", "running"}) {  // as if it had not begun, and for ever
        options.groups.push_back(options.groups[0]);
        options.groups.back().name = lie;
        options.groups.back().process.child.command = bad("GetShutdownStatus", lie);
    }
    watched fleet(options);
    REQUIRE(fleet.starts(all_faults + 2));
    for (const ojs::group_options& group : options.groups) ask(fleet, group.name + "-1");
    for (const ojs::group_options& group : options.groups) {
        const std::string id = group.name + "-1";
        CAPTURE(id);
        CHECK(fleet.reaches(id, instance_state::forced));
        CHECK(fleet.info(id).shutdown_duration >= 400ms);
        CHECK(fleet.info(id).exit.signal == SIGTERM);
        CHECK(fleet.path(id) == words{"STARTING", "READY", "SHUTDOWN_REQUESTED", "FORCED"});
        CHECK(fleet.in_order({"shutdown requested", "past its grace period", "forcing shutdown with SIGTERM",
                              "process forced"},
                             id));
    }
    fleet.end();
}

TEST_CASE("rfc_041: no bad answer about a drain is taken for its end") {
    watched fleet(all_bad("GetShutdownStatus", [](ojs::group_options& group) {
        group.process.shutdown.grace_period = group.process.shutdown.max_duration = 1h;
    }));
    REQUIRE(fleet.starts(all_faults));
    for (const char* fault : faults) ask(fleet, id_of(fault));
    for (const char* fault : faults) {
        const std::string id = id_of(fault);
        CAPTURE(id);
        CHECK(fleet.says("shutdown status request failed", id));
        CHECK(fleet.info(id).state == instance_state::shutdown_requested);
        REQUIRE(fleet.of.force_process(id));
        CHECK(fleet.reaches(id, instance_state::forced));
    }
    fleet.end();
}

TEST_CASE("rfc_041: one bad answer is got over") {
    watched late(all_bad(
        "GetReadinessStatus", [](ojs::group_options&) {}, "1"));
    CHECK(late.starts(all_faults));
    for (const char* fault : faults) REQUIRE(late.of.force_process(id_of(fault)));
    late.end();

    watched fleet(all_bad(
        "GetShutdownStatus", [](ojs::group_options&) {}, "1"));
    REQUIRE(fleet.starts(all_faults));
    for (const char* fault : faults) ask(fleet, id_of(fault));
    for (const char* fault : faults) {
        const std::string id = id_of(fault);
        CAPTURE(id);
        CHECK(fleet.is_over(id));
        CHECK_MESSAGE(fleet.info(id).state == instance_state::complete, fleet.info(id).message);
        CHECK(fleet.at("shutdown status request failed", id) >= 0);
    }
    fleet.end();
}

TEST_CASE("rfc_041: a replacement by what never becomes ready leaves the old ones as they were") {
    const words wrong[] = {{program("handshake_child"), "spawned", "kill"},
                           {program("handshake_child"), "listening", "kill"},
                           {program("handshake_child"), "spawned", "stop"},
                           {program("handshake_child"), "listening", "stop"},
                           bad("GetReadinessStatus", "garbage"),
                           bad("GetReadinessStatus", "never"),
                           {"/no/such/program"}};
    const ojs::group_options group = runners(2, {"--work-duration", "1ms"});
    watched fleet(group);
    REQUIRE(fleet.starts(2));
    for (const words& each : wrong) {
        CAPTURE(each[0]);
        ojs::group_options target = group;
        target.process.child.command = each;
        target.health_check_timeout = 300ms;
        with_short_times(target);
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

TEST_CASE("rfc_041: the launcher's own socket whose path is taken ends the start, and nothing else") {
    const temporary_folder folder;
    write_file(folder.file("launcher.sock"), "mine");
    watched fleet(runners(1, {}), folder.path());
    const ojs::result<void> started = fleet.of.start();
    REQUIRE_FALSE(started);
    CHECK_MESSAGE(started.error().code == ojs::errc::busy, started.error().text);
    CHECK(fleet.log().empty());
    CHECK(read_file(folder.file("launcher.sock")) == "mine");
}

// ---- the launcher itself is killed ----

#ifdef __linux__  // elsewhere there is no /proc to find anybody by
namespace {

// Configurations of launchers that share a state file, and a mark on all that they start.
struct estate {
    std::string state = scratch_file("launcher.state");
    std::string mark = state;
    std::string sockets = scratch_file("sockets");
    estate() { REQUIRE(::mkdir(sockets.c_str(), 0700) == 0); }

    // Of `count` runners that ignore everything but SIGKILL, as do those that they start.
    std::string config(int count, const std::string& more = "", const std::string& flags = "") const {
        const std::string file = scratch_file("launcher.json");
        std::ofstream(file) << "{\"state_file\":\"" << state << "\",\"orphan_grace_period\":\"200ms\","
                            << "\"socket_folder\":\"" << sockets << "\","
                            << "\"process_groups\":[{\"name\":\"kv\",\"desired_instances\":" << count << more
                            << ",\"environment\":{\"OJS_TEST_MARK\":\"" << mark << "\"},\"command\":[\""
                            << program("lifecycle_runner") << "\"" << flags << "]}]}";
        return file;
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
    // After what the next launcher does before all else.
    void check_nothing_left(process& killed) const {
        const std::vector<pid_t> groups = groups_of(killed);
        CHECK_FALSE(groups.empty());
        process successor({program("config_launcher"), config(0)}, {});
        CHECK(successor.prints("launcher started"));
        CHECK(count_marked(mark) == 0);
        for (const pid_t each : groups) CHECK_FALSE(runs_in_group(each));
        successor.signal(SIGTERM);
        CHECK(successor.wait() == 0);
    }
};

const environment json_log = {{"OJS_LOG_FORMAT", "json"}};
const char* const deaf = R"(,"--behavior","hang","--ignore-sigterm","--spawn-grandchild")";

}  // namespace

TEST_CASE("rfc_041: of a launcher that is killed at any point of the handshake nothing is left") {
    const char* const no_end = R"(,"shutdown":{"max_duration":"1h","poll_interval":"20ms"})";
    const char* const soon =
        R"(,"shutdown":{"grace_period":"200ms","max_duration":"400ms","kill_delay":"400ms"})";
    const std::pair<std::string, const char*> points[] = {{"process ready", no_end},
                                                          {"launcher draining", no_end},
                                                          {"shutdown requested", no_end},
                                                          {"process draining", no_end},
                                                          {"past its grace period", soon},
                                                          {"forcing shutdown with SIGTERM", soon},
                                                          {"SIGTERM timeout, sending SIGKILL", soon}};
    for (const auto& [point, times] : points) {
        CAPTURE(point);
        const estate of;
        process launcher({program("config_launcher"), of.config(3, times, deaf)}, json_log);
        REQUIRE(eventually([&] { return launcher.count("process ready") == 3; }));
        if (point != "process ready") launcher.signal(SIGTERM);
        REQUIRE(launcher.prints(point));
        launcher.signal(SIGKILL);
        REQUIRE(launcher.wait() == -SIGKILL);
        of.check_nothing_left(launcher);
    }
}

TEST_CASE("rfc_041: of a launcher that is killed in a rolling replacement nothing is left") {
    const estate of;
    const std::string admin = "unix:" + scratch_file("admin.sock");
    const std::string config = of.config(2, "", deaf);
    process launcher({program("launcher"), "run", "--config", config, "--admin", admin}, json_log);
    REQUIRE(eventually([&] { return launcher.count("process ready") == 2; }));
    std::ofstream(config) << read_file(of.config(2, "", R"(,"--never-ready","--ignore-sigterm")"));
    process roll({program("launcher"), "roll", "kv", "--admin", admin}, {});
    REQUIRE(launcher.prints("process warming"));
    launcher.signal(SIGKILL);
    REQUIRE(launcher.wait() == -SIGKILL);
    CHECK(roll.wait() == 69);
    of.check_nothing_left(launcher);
}

TEST_CASE("rfc_041: a second launcher of the same state file harms nothing that the first one keeps") {
    const estate of;
    process first({program("config_launcher"), of.config(2)}, {});
    REQUIRE(eventually([&] { return first.count("process ready") == 2; }));
    process second({program("config_launcher"), of.config(2)}, {});
    CHECK(second.wait() == 64);
    CHECK(count_marked(of.mark) == 2);
    CHECK(first.count("process crashed") == 0);
    first.signal(SIGTERM);
    CHECK(first.wait() == 0);
    CHECK(first.count("process complete") == 2);
    CHECK(count_marked(of.mark) == 0);
}

TEST_CASE(
    "rfc_041: a launcher takes over from one that was killed, with its sockets and the names of its "
    "processes") {
    const estate of;
    const std::string config = of.config(
        3, R"(,"shutdown":{"grace_period":"500ms","max_duration":"1s","kill_delay":"200ms"})", deaf);
    process killed({program("config_launcher"), config}, {});
    REQUIRE(eventually([&] { return killed.count("process ready") == 3; }));
    killed.signal(SIGKILL);
    REQUIRE(killed.wait() == -SIGKILL);
    process next({program("config_launcher"), config}, {});
    CHECK(eventually([&] { return next.count("process ready") == 3; }));
    CHECK(next.count("process crashed") == 0);
    for (const pid_t each : estate::groups_of(killed)) CHECK_FALSE(runs_in_group(each));
    for (const pid_t each : estate::groups_of(next)) CHECK(runs_in_group(each));
    next.signal(SIGTERM);
    CHECK(next.wait() == 0);
    for (const pid_t each : estate::groups_of(next)) CHECK_FALSE(runs_in_group(each));
    CHECK(count_marked(of.mark) == 0);
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
    for (const char* id : {"kv-1", "kv-3"}) {
        CHECK(fleet.info(id).state == instance_state::ready);
        CHECK(runs_in_group(fleet.info(id).pid));
    }
    fleet.end();
    for (const char* id : {"kv-1", "kv-3", "kv-4"}) CHECK(fleet.path(id).back() == "COMPLETE");
}

TEST_CASE("rfc_041: a second launcher with the same socket folder is rejected") {
    const temporary_folder folder;
    watched first(runners(1, {"--initial-work", "0"}), folder.path());
    REQUIRE(first.starts(1));
    watched second(runners(1, {}), folder.path());
    const ojs::result<void> started = second.of.start();
    REQUIRE_FALSE(started);
    CHECK_MESSAGE(started.error().code == ojs::errc::busy, started.error().text);
    CHECK(first.info("kv-1").state == instance_state::ready);
    first.end();
}
#endif
