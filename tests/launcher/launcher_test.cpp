#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <thread>

#include "environment.hpp"
#include "fake_fleet.hpp"
#include "files.hpp"
#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // the processes are fakes of an internal class

using namespace ojs;
using namespace std::chrono_literals;
using test::fake_fleet;
using test::fate;
using test::kv_group;
using texts = std::vector<std::string>;

namespace {

launcher_options two_groups() {
    launcher_options out;
    out.log.level = log_level::off;
    out.groups = {kv_group(2, 1, 1), kv_group(1, 0, 1)};
    out.groups[1].name = "ps";
    return out;
}

const cause by_test{cause_kind::signal, SIGTERM};

std::string fault_of(const launcher_options& options, fake_fleet& fleet) {
    launcher made = fleet.launch(options);
    const result<void> started = made.start();
    if (started) return "";
    CHECK(started.error().code == errc::invalid_argument);
    return started.error().text;
}

bool is_folder(const std::string& path) {
    struct stat found {};
    return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

TEST_CASE("launcher: keeps all groups running, and ends them all") {
    fake_fleet fleet;
    std::string folder;
    fleet.decide = [&](const detail::instance_spec& spec) {
        const std::string prefix = "unix:";
        const std::string end = "/" + spec.id + ".sock";
        CHECK(spec.address.compare(0, prefix.size(), prefix) == 0);
        folder = spec.address.substr(prefix.size(), spec.address.size() - prefix.size() - end.size());
        CHECK(is_folder(folder));
        CHECK(spec.options.readiness_timeout == 30s);
        return fate::ready;
    };
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    CHECK(kept.groups() == texts{"kv", "ps"});
    CHECK(kept.start().error().code == errc::busy);
    CHECK(kept.request_stop());
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(kept.exit_code() == exit_status::settled);
    CHECK(fleet.running() == texts{});
    CHECK_FALSE(is_folder(folder));
    CHECK(kept.process("kv-1")->state == instance_state::complete);
    CHECK(kept.rolling_replace("kv", kv_group(2, 1, 1)).error().code == errc::busy);
}

TEST_CASE("launcher: what a process said last is told, though nothing came of it") {
    fake_fleet fleet;
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    fleet.get("kv-2")->answers("reading the index");
    CHECK(kept.process("kv-2")->readiness.message == "reading the index");
    CHECK(kept.process("kv-2")->shutdown.message == "reading the index");
    const result<ojs::group_info> group = kept.group("kv");
    REQUIRE(group);
    REQUIRE(group->processes.size() == 2);
    CHECK(group->processes[0].readiness.message.empty());
    CHECK(group->processes[1].readiness.message == "reading the index");
}

TEST_CASE("launcher: a stop asks all processes before the first of them has ended") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    kept.request_stop();
    REQUIRE(fleet.notes().wait_for(6));
    CHECK(fleet.running().size() == 3);
    CHECK_FALSE(kept.wait(steady_clock::now()));
    for (const char* id : {"kv-1", "kv-2", "ps-1"}) fleet.get(id)->becomes(instance_state::complete);
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(kept.exit_code() == 0);
}

#if defined(__linux__)  // what a pipe takes no more of is known
TEST_CASE("launcher: a log that nobody reads holds up no stop") {
    fake_fleet fleet;
    int pipe[2];
    REQUIRE(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) == 0);
    const detail::unique_fd ends[] = {detail::unique_fd(pipe[0]), detail::unique_fd(pipe[1])};
    while (::write(pipe[1], "x", 1) == 1) {
    }
    launcher_options options = two_groups();
    options.log.level = log_level::info;
    launcher kept = fleet.launch(options);
    const detail::unique_fd before(::dup(STDERR_FILENO));
    ::dup2(pipe[1], STDERR_FILENO);
    detail::limit_log_flush(0ms);
    const bool started = static_cast<bool>(kept.start()) && fleet.notes().wait_for(3);
    detail::sink().refilled_at = steady_clock::now() - 20s;  // all was well so long, which grants a second
    const time_point asked = steady_clock::now();
    kept.request_stop();
    const bool stopped = fleet.notes().wait_for(6);
    const auto took = steady_clock::now() - asked;
    const bool ended = kept.wait(steady_clock::now() + test::hang_guard);
    ::dup2(before.get(), STDERR_FILENO);
    CHECK(started);
    CHECK(stopped);
    CHECK(ended);
    CHECK(took < 500ms);  // not the second
}
#endif

TEST_CASE("launcher: a stop does not wait for the starts that hang, nor for those that are still due") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        return spec.group == "kv" ? fate::hangs : fate::ready;
    };
    launcher_options options = two_groups();
    options.groups[0].desired = 1000;
    launcher kept = fleet.launch(options);
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    kept.request_stop();
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(kept.exit_code() == exit_status::settled);
    CHECK(fleet.said().size() < 50);
}

TEST_CASE("launcher: a stop that comes while a process is started precedes the next start") {
    lifecycle life;
    fake_fleet fleet;
    fleet.decide = [&](const detail::instance_spec&) {
        life.apply(event::stop_request, {});
        return fate::ready;
    };
    launcher kept = fleet.launch(two_groups(), &life);
    REQUIRE(kept.start());
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(fleet.said() == texts{"start kv-1", "stop kv-1"});
}

TEST_CASE("launcher: it outlives what finds no memory") {
    fake_fleet fleet;
    std::atomic<int> starts{0};
    fleet.decide = [&](const detail::instance_spec&) {
        if (++starts % 2 == 1) throw std::bad_alloc();
        return fate::ready;
    };
    launcher_options options = two_groups();
    for (group_options& each : options.groups) each.restart.initial_backoff = each.restart.max_backoff = 0ms;
    launcher kept = fleet.launch(options);
    REQUIRE(kept.start());
    CHECK(fleet.notes().wait_for(3));
    CHECK(fleet.ready() == 3);
}

TEST_CASE("launcher: SIGHUP shuts it down as SIGTERM does") {
    fake_fleet fleet;
    launcher kept = fleet.launch(two_groups());
    std::thread sender([&] {
        CHECK(fleet.notes().wait_for(3));
        ::kill(::getpid(), SIGHUP);
    });
    CHECK(kept.run() == exit_status::settled);
    sender.join();
    CHECK(fleet.running() == texts{});
}

TEST_CASE("launcher: more than the machine can hold is refused, with what it needs and what to do") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.groups[0].desired = 1000000;
    options.groups[0].max_surge = 0;
    const std::string fault = fault_of(options, fleet);
    CHECK(fault.find("1000002 instances") == 0);
    const auto of = [&](std::uint64_t detail::machine_limits::*which, std::uint64_t limit) {
        options.groups[0].desired = 997;
        detail::machine_limits limits;
        limits.*which = limit;
        return detail::fault_in_capacity(options.groups, limits);
    };
    using detail::machine_limits;
    CHECK(of(&machine_limits::descriptors, 5123).empty());
    CHECK(of(&machine_limits::descriptors, 1024) ==
          "999 instances (desired_instances and max_surge) need 5123 descriptors, and there are 1024: raise "
          "LimitNOFILE= (ulimit -n) or lower desired_instances");
    CHECK(of(&machine_limits::processes, 2014).empty());
    CHECK(of(&machine_limits::processes, 2013).find("raise LimitNPROC= (ulimit -u)") != std::string::npos);
    CHECK(of(&machine_limits::address_space, 313 << 20).empty());
    CHECK(of(&machine_limits::address_space, 311 << 20).find("raise LimitAS=") != std::string::npos);
    CHECK(of(&machine_limits::memory, 249 << 20).empty());
    CHECK(of(&machine_limits::memory, 248 << 20).find("use a larger machine") != std::string::npos);
}

TEST_CASE("launcher: a second stop signal forces, a third one gives up what does not end") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    lifecycle life(0ms);
    launcher kept = fleet.launch(two_groups(), &life);
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    life.apply(event::stop_signal, by_test);
    REQUIRE(fleet.notes().wait_for(6));
    SUBCASE("they end by force") {
        life.apply(event::stop_signal, by_test);
        REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
        CHECK(kept.exit_code() == exit_status::settled);
        CHECK(kept.process("kv-1")->state == instance_state::forced);
    }
    SUBCASE("they do not") {
        fleet.dies = false;
        life.apply(event::stop_signal, by_test);
        REQUIRE(fleet.notes().wait_for(9));
        life.apply(event::stop_signal, by_test);
        REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
        CHECK(kept.exit_code() == exit_status::unreported);
        CHECK(fleet.running().size() == 3);
        for (const char* id : {"kv-1", "kv-2", "ps-1"}) fleet.get(id)->becomes(instance_state::forced);
    }
}

TEST_CASE("launcher: what does not end in its time is given up, and named") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    launcher_options options = two_groups();
    for (group_options& each : options.groups) {
        each.process.shutdown.grace_period = each.process.shutdown.max_duration = 1ms;
        each.process.shutdown.kill_delay = 1ms;
    }
    std::mutex mutex;
    texts named;
    options.log.level = log_level::error;
    options.log.hook = [&](const log_record& record) {
        const std::lock_guard<std::mutex> held(mutex);
        if (record.message == "process could not be ended") named.push_back(record.message);
    };
    launcher kept = fleet.launch(options);
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    fleet.get("kv-2")->becomes(instance_state::complete);
    const time_point before = steady_clock::now();
    kept.request_stop();
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(steady_clock::now() - before >= 6s);  // so long SIGKILL may take
    CHECK(kept.exit_code() == exit_status::unreported);
    CHECK(named.size() == 2);
    for (const char* id : {"kv-1", "ps-1"}) fleet.get(id)->becomes(instance_state::forced);
}

TEST_CASE("launcher: what crashes is restarted, but not while it is quiet") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.groups[0].restart.initial_backoff = options.groups[0].restart.max_backoff = 0ms;
    test::counter changes;
    options.on_change = [&](const process_info&) { changes.add(); };
    launcher kept = fleet.launch(options);
    REQUIRE(kept.start());
    REQUIRE(changes.wait_for(6));  // starting and ready
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    REQUIRE(changes.wait_for(9));
    CHECK(fleet.running() == texts{"kv-2", "kv-3", "ps-1"});
    CHECK(kept.quiet());
    fleet.get("kv-2")->becomes(instance_state::crashed, 3);
    REQUIRE(changes.wait_for(10));
    CHECK(kept.resume());
    REQUIRE(changes.wait_for(12));
    CHECK(fleet.running() == texts{"kv-3", "kv-4", "ps-1"});
}

TEST_CASE("launcher: one process, one group, and what is not there") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    test::counter changes;
    options.on_change = [&](const process_info&) { changes.add(); };
    launcher kept = fleet.launch(options);
    REQUIRE(kept.start());
    REQUIRE(changes.wait_for(6));  // starting and ready
    REQUIRE(kept.shut_down_process("kv-1", {"operator", {}, {}}));
    REQUIRE(kept.shut_down_process("kv-1", {"again", {}, {}}));
    REQUIRE(changes.wait_for(6 + 3));  // requested, draining, complete: the supervisor may be who asks
    CHECK(kept.process("kv-1")->state == instance_state::complete);
    CHECK(kept.group("kv")->ready == 1);
    REQUIRE(kept.shut_down_group("kv", {"operator", {}, {}}));
    REQUIRE(changes.wait_for(6 + 3 + 3));
    CHECK(fleet.running() == texts{"ps-1"});
    REQUIRE(kept.force_process("ps-1"));
    REQUIRE(changes.wait_for(6 + 3 + 3 + 1));
    CHECK(kept.process("ps-1")->state == instance_state::forced);
    CHECK(kept.shut_down_process("kv-9", {}).error().code == errc::rejected);
    CHECK(kept.shut_down_group("x", {}).error().code == errc::rejected);
    CHECK(kept.force_process("x").error().code == errc::rejected);
    CHECK(kept.process("x").error().code == errc::rejected);
    CHECK(kept.group("x").error().text == "no such group: x");
    CHECK(kept.rolling_replace("x", kv_group(1, 0, 1)).error().code == errc::rejected);
}

TEST_CASE("launcher: a replacement ends with the launcher's stop") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        return spec.generation == 1 ? fate::ready : fate::late;
    };
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    result<rolling_report> done = error{};
    std::thread roller([&] { done = kept.rolling_replace("kv", kv_group(2, 1, 1)); });
    REQUIRE(fleet.notes().wait_for(4));
    CHECK(kept.group("kv")->replacing);
    kept.request_stop();
    roller.join();
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
    REQUIRE(done);
    CHECK(done->cancelled);
    CHECK(kept.exit_code() == 0);
    CHECK(fleet.running() == texts{});
}

TEST_CASE("launcher: replaces a group, and keeps its new configuration") {
    fake_fleet fleet;
    fleet.min_ready = 2;
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    group_options wanted = kv_group(2, 1, 1);
    wanted.process.child.command = {"kv", "--new"};
    const result<rolling_report> done = kept.rolling_replace("kv", wanted);
    REQUIRE(done);
    CHECK(done->replaced == 2);
    const result<group_info> info = kept.group("kv");
    REQUIRE(info);
    CHECK(info->options.process.child.command.back() == "--new");
    CHECK(info->generation == 2);
    CHECK(info->message == "replaced 2 of 2");
    CHECK(fleet.broken() == texts{});
}

TEST_CASE("launcher: one at a time has a state file, and lets go of it at its end") {
    const test::temporary_folder folder;
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.state_file = folder.file("state");
    launcher first = fleet.launch(options);
    REQUIRE(first.start());
    launcher second = fleet.launch(options);
    CHECK(second.start().error().code == errc::busy);
    first.request_stop();
    REQUIRE(first.wait(steady_clock::now() + test::hang_guard));
    REQUIRE(second.start());
}

namespace {

// What a child of a launcher hears that sends this to it.
http_response pushed(const std::string& address, const std::string& method, std::string body) {
    const result<http_client> client = http_client::create(address);
    REQUIRE(client);
    http_request request;
    request.method = "POST";
    request.target = "/prism.interfaces.ProcessLifecycleInterface/" + method;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = std::move(body);
    http_call call;
    call.deadline = steady_clock::now() + test::hang_guard;
    const result<http_response> answer = const_cast<http_client&>(*client).send(request, call);
    REQUIRE_MESSAGE(answer, answer.error().text);
    return *answer;
}

// What it sends no more of than this, and waits.
detail::unique_fd slow_sender(const std::string& address) {
    detail::unique_fd out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::strncpy(where.sun_path, address.c_str() + std::strlen("unix:"), sizeof where.sun_path - 1);
    REQUIRE(::connect(out.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
    REQUIRE(::send(out.get(), "POST /pri", 9, MSG_NOSIGNAL) == 9);
    return out;
}

}  // namespace

TEST_CASE("launcher: what a child says is passed on to its own process, and to no other's") {
    fake_fleet fleet;
    launcher kept = fleet.launch(two_groups());
    REQUIRE(kept.start());
    REQUIRE(fleet.notes().wait_for(3));
    const fake_fleet::process child = fleet.get("ps-1");
    const std::string address = child->pushes_to();
    child->has_pid(::getpid());  // a child of ours, as far as the system tells
    const texts before = fleet.said();
    CHECK(pushed(address, "NotifyReady", R"({"processId":"kv-1"})").status == 404);  // of process 1
    CHECK(pushed(address, "NotifyReady", R"({"processId":"ps-2"})").status == 404);
    CHECK(pushed(address, "NotifyReady", "[[[").status == 400);
    CHECK(pushed(address, "NotifyReady", std::string(detail::rpc_body_limit + 1, ' ')).status == 413);
    CHECK(pushed(address, "Shutdown", R"({"processId":"ps-1"})").status == 404);
    CHECK(fleet.said() == before);
    std::vector<detail::unique_fd> slow;
    for (int i = 0; i < 8; ++i) slow.push_back(slow_sender(address));
    CHECK(pushed(address, "NotifyReady", R"({"processId":"ps-1"})").body == "{\"acknowledged\":true}\n");
    REQUIRE(
        fleet.notes().wait_for(4));  // what is said of one that is just being started is passed on once it is
    CHECK(fleet.said().back() == "poll ps-1");
    const std::size_t notes = fleet.said().size();
    CHECK(pushed(address, "NotifyShutdownComplete", R"({"processId":"ps-1"})").status == 200);
    CHECK(fleet.said().size() == notes + 1);
    CHECK(fleet.said().back() == "poll ps-1");
    kept.request_stop();
    REQUIRE(kept.wait(steady_clock::now() + test::hang_guard));
}

TEST_CASE("launcher: what could not be started leaves nothing behind, and can be started again") {
    fake_fleet fleet;
    test::temporary_folder folder;
    launcher_options options = two_groups();
    options.admin_address = "unix:" + folder.file("admin.sock");
    options.state_file = folder.file("state");
    const test::environment_variable runtime("XDG_RUNTIME_DIR", folder.path());
    test::counter told;
    options.on_routable = [&](const process_info&) { told.add(); };
    launcher first = fleet.launch(options);
    launcher second = fleet.launch(options);
    options.state_file.clear();
    options.on_routable = nullptr;
    launcher other = fleet.launch(options);
    REQUIRE(other.start());
    CHECK(first.start().error().code == errc::busy);  // the address is taken
    std::size_t folders = 0;
    for (const auto& each : std::filesystem::directory_iterator(folder.path()))
        folders += each.is_directory();
    CHECK(folders == 1);  // of the one that runs
    other.request_stop();
    REQUIRE(other.wait(steady_clock::now() + test::hang_guard));
    SUBCASE("by itself") {
        REQUIRE(first.start());
        CHECK(told.wait_for(3));
        first.request_stop();
        REQUIRE(first.wait(steady_clock::now() + test::hang_guard));
    }
    SUBCASE("by another, to whom it left the state file") {
        REQUIRE(second.start());
        CHECK(told.wait_for(3));
        second.request_stop();
        REQUIRE(second.wait(steady_clock::now() + test::hang_guard));
    }
}

TEST_CASE("launcher: times that cannot be meant are said by the name of the field") {
    const auto fault = [](void (*change)(group_options&)) {
        group_options group = kv_group(1, 0, 1);
        change(group);
        const result<void> checked = check_group(group);
        return checked ? std::string() : checked.error().text.substr(std::strlen("group \"kv\": "));
    };
    using group = group_options;
    CHECK(fault([](group&) {}) == "");
    CHECK(fault([](group& of) { of.process.shutdown.poll_interval = 0ms; }) ==
          "shutdown.poll_interval: is not above 0");
    CHECK(fault([](group& of) { of.process.shutdown.kill_delay = -1ms; }) ==
          "shutdown.kill_delay: is negative");
    CHECK(fault([](group& of) { of.process.readiness_interval = 0ms; }) ==
          "readiness_interval: is not above 0");
    CHECK(fault([](group& of) { of.process.health_interval = -1ms; }) == "health_interval: is negative");
    CHECK(fault([](group& of) { of.process.health_interval = 0ms; }) == "");  // not looked at
    CHECK(fault([](group& of) { of.process.unhealthy_after = 0; }) == "unhealthy_after: is not above 0");
    CHECK(fault([](group& of) { of.min_ready_time = -2ms; }) == "min_ready_time: is negative");
    CHECK(fault([](group& of) { of.restart.stable_after = -1ms; }) == "restart.stable_after: is negative");
    CHECK(fault([](group& of) { of.restart.max_backoff = no_limit; }) ==
          "restart: a pause longer than 24 days");
    CHECK(fault([](group& of) { of.process.shutdown.max_duration = no_limit; }) == "");
}

TEST_CASE("launcher: options that cannot be meant are said, and nothing is started") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.groups[1].min_healthy = 2;
    CHECK(fault_of(options, fleet) == "group \"ps\": min_healthy_instances (2) > desired_instances (1)");
    options = two_groups();
    options.groups[1].name = "kv";
    CHECK(fault_of(options, fleet) == "groups[1].name: as that of [0]");
    options = two_groups();
    options.socket_folder = "/tmp/" + std::string(90, 'x');
    CHECK(fault_of(options, fleet).find("too long") != std::string::npos);
    ::rmdir(options.socket_folder.c_str());
    const test::temporary_folder sockets;
    options.socket_folder = sockets.path();
    for (const mode_t mode : {0777, 0770, 01777}) {  // a sticky one keeps no stranger's socket out
        REQUIRE(::chmod(sockets.path().c_str(), mode) == 0);
        CHECK(fault_of(options, fleet) ==
              "socket_folder: " + options.socket_folder + " belongs to, or can be changed by, other users");
    }
    options = two_groups();
    options.state_file = "/nowhere/at/all";
    launcher nowhere = fleet.launch(options);
    CHECK(nowhere.start().error().sys_errno == ENOENT);
    CHECK(fleet.said() == texts{});
    launcher never = fleet.launch(two_groups());
    CHECK(never.wait(steady_clock::now()));
    CHECK(never.groups() == texts{});
    launcher nothing = detail::launcher_access::make(two_groups(), nullptr, nullptr);
    CHECK(nothing.run() == exit_status::usage);
}

#endif
