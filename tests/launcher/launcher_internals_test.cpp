#include "fake_fleet.hpp"
#include "processes.hpp"
#include "raw_peer.hpp"

using namespace test;

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
}  // namespace

TEST_CASE("launcher: start() starts the processes of all groups, and request_stop() ends them") {
    std::string folder;
    launched of(two_groups());
    of.fleet.decide = [&](const detail::instance_spec& spec) {
        const std::string prefix = "unix:";
        const std::string end = "/" + spec.id + ".sock";
        CHECK(spec.address.compare(0, prefix.size(), prefix) == 0);
        folder = spec.address.substr(prefix.size(), spec.address.size() - prefix.size() - end.size());
        CHECK(std::filesystem::is_directory(folder));
        CHECK(spec.options.readiness_timeout == 30s);
        return fate::ready;
    };
    of.start(3);
    CHECK(of.kept.groups() == texts{"kv", "ps"});
    CHECK(code_of(of.kept.start()) == errc::busy);
    of.fleet.get("kv-1")->answers("reading the index");  // the last response, not the last change
    CHECK(of.kept.process("kv-1")->shutdown.message == "reading the index");
    CHECK(of.kept.group("kv")->processes[0].readiness.message == "reading the index");
    CHECK(of.kept.request_stop());
    of.await_end();
    CHECK(of.kept.exit_code() == exit_status::settled);
    CHECK(of.fleet.running() == texts{});
    CHECK_FALSE(std::filesystem::exists(folder));
    CHECK(of.kept.process("kv-1")->state == instance_state::complete);
    CHECK(code_of(of.kept.rollout("kv", kv_group(2, 1, 1))) == errc::busy);
}

TEST_CASE("launcher: a stop request during a process start is handled before the next start") {
    lifecycle life;
    launched of(two_groups(), &life);
    of.fleet.decide = [&](const detail::instance_spec&) {
        life.apply(ojs::event::stop_request, {});
        return fate::ready;
    };
    REQUIRE(of.kept.start());
    of.await_end();
    CHECK(of.fleet.calls() == texts{"start kv-1", "stop kv-1"});
}

#ifndef __SANITIZE_THREAD__  // which runs no signal handler in a child of a process with threads
TEST_CASE("launcher: SIGHUP stops all processes and ends run() with exit_status::settled") {
    // A process of its own: run() exits if its end takes longer than a second.
    CHECK(status_of(forked([] {
              launcher_options options = two_groups();
              std::string said;
              options.log.level = log_level::info;
              options.log.hook = [&](const log_record& record) {
                  if (record.message == "launcher draining") said = record.fields[0].value + record.fields[2].value;
              };
              launched of(options);
              std::thread sender([&] {
                  if (of.fleet.notes().wait_for(3)) ::kill(::getpid(), SIGHUP);
              });
              const int status = of.kept.run();
              sender.join();
              return of.fleet.running().empty() && said == "stop_signalSIGHUP" ? status : -1;
          })) == exit_status::settled);
}
#endif

// 1,024 descriptors are enough for 179 processes.
TEST_CASE("launcher: groups above a machine limit are refused with need, limit and setting") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.groups[0].desired = 1000000;
    CHECK(fault_of(options, fleet).find("1000003 instances") == 0);
    options.groups[0].desired = 176;
    using detail::machine_limits;
    const struct {
        std::uint64_t machine_limits::*which;
        std::uint64_t enough;
        const char* text;
    } rows[] = {{&machine_limits::descriptors, 1023,
                 "179 instances (desired_instances and max_surge) need 1023 descriptors, but only 1022 are "
                 "available: raise LimitNOFILE= (ulimit -n) or lower desired_instances"},
                {&machine_limits::processes, 374, "raise LimitNPROC= (ulimit -u)"},
                {&machine_limits::address_space, 55 << 20, "raise LimitAS="},
                {&machine_limits::memory, 44 << 20, "use a larger machine"}};
    for (const auto& row : rows) {
        CAPTURE(row.text);
        detail::machine_limits limits;
        limits.*row.which = row.enough;
        CHECK(detail::fault_in_capacity(options.groups, limits).empty());
        limits.*row.which = row.enough - 1;
        CHECK(holds(detail::fault_in_capacity(options.groups, limits), row.text));
    }
}

TEST_CASE("launcher: a second stop signal forces the stop; a process that outlives SIGKILL -> exit status 75") {
    for (const bool forced : {false, true}) {
        CAPTURE(forced);
        launcher_options options = two_groups();
        counter named;
        options.log.level = log_level::error;
        options.log.hook = [&](const log_record& record) {
            if (record.message == "SIGKILL did not end the process; exiting without it") named.add();
        };
        for (group_options& each : options.groups) {
            shutdown_timeouts& times = each.process.shutdown;
            if (!forced) times.grace_period = times.max_duration = times.kill_delay = 1ms;
        }
        lifecycle life(0ms);
        launched of(options, &life);
        of.fleet.drains_at_once = false;
        of.start(3);
        const time_point asked = steady_clock::now();
        life.apply(ojs::event::stop_signal, by_test);
        REQUIRE(of.fleet.notes().wait_for(6));
        if (forced) life.apply(ojs::event::stop_signal, by_test);
        if (!forced) of.fleet.get("kv-2")->becomes(instance_state::complete);
        of.await_end();
        if (!forced) CHECK(steady_clock::now() - asked >= 6s);  // so long SIGKILL may take
        CHECK(of.kept.exit_code() == (forced ? exit_status::settled : exit_status::unreported));
        CHECK(named.count() == (forced ? 0 : 2));
        if (forced) CHECK(of.kept.process("kv-1")->state == instance_state::forced);
        for (const char* id : {"kv-1", "kv-2", "ps-1"}) of.fleet.get(id)->becomes(instance_state::forced);
    }
}

TEST_CASE("launcher: quiet, resume and force act on the processes, and unknown names are rejected") {
    launcher_options options = two_groups();
    counter changes, logged;
    options.on_change = [&](const process_info&) { changes.add(); };
    options.log.level = log_level::info;
    options.log.hook = [&](const log_record& record) {
        if (record.message == "launcher quiet" || record.message == "launcher resumed") logged.add();
    };
    launched of(options);
    REQUIRE(of.kept.start());
    REQUIRE(changes.wait_for(6));  // starting and ready
    for (const bool quiet : {true, false}) {
        CHECK((quiet ? of.kept.quiet() : of.kept.resume()));
        REQUIRE(logged.wait_for(quiet ? 1 : 2));
        CHECK(of.kept.group("ps")->quiet == quiet);
    }
    for (const char* reason : {"operator", "again"}) REQUIRE(of.kept.shut_down_process("kv-1", {reason, {}, {}}));
    REQUIRE(changes.wait_for(6 + 3));  // requested, draining, complete: the supervisor may be who asks
    CHECK(of.kept.process("kv-1")->state == instance_state::complete);
    REQUIRE(of.kept.force_process("ps-1"));
    REQUIRE(changes.wait_for(6 + 3 + 1));
    CHECK(of.kept.process("ps-1")->state == instance_state::forced);
    CHECK(code_of(of.kept.force_process("x")) == errc::rejected);
    CHECK(of.kept.group("x").error().text == "no such group: x");
}

TEST_CASE("launcher: a child's notification is accepted only for its own process and triggers a poll") {
    launched of(two_groups());
    of.start(3);
    const fake_fleet::process child = of.fleet.get("ps-1");
    child->has_pid(::getpid());  // a child of ours for the system
    const auto pushed = [&](const std::string& method, const std::string& body) {
        http_client client = peer::make_client(child->pushes_to());
        http_request request = peer::post("/prism.interfaces.ProcessLifecycleInterface/" + method, body);
        request.headers = {{"Content-Type", "application/json"}};
        const result<http_response> answer = client.send(request, peer::call());
        REQUIRE_MESSAGE(answer, answer.error().text);
        return *answer;
    };
    const texts before = of.fleet.calls();
    const struct {
        const char* method;
        std::string body;
        int status;
    } refused[] = {{"NotifyReady", R"({"processId":"kv-1"})", 404},  // of process 1
                   {"NotifyReady", R"({"processId":"ps-2"})", 404},
                   {"NotifyReady", "[[[", 400},
                   {"NotifyReady", std::string(detail::rpc_body_limit + 1, ' '), 413},
                   {"Shutdown", R"({"processId":"ps-1"})", 404}};
    for (const auto& each : refused) CHECK(pushed(each.method, each.body).status == each.status);
    CHECK(of.fleet.calls() == before);
    CHECK(pushed("NotifyReady", R"({"processId":"ps-1"})").body == "{\"acknowledged\":true}\n");
    REQUIRE(of.fleet.notes().wait_for(4));  // a notification during the start is passed on afterwards
    CHECK(of.fleet.calls().back() == "poll ps-1");
    CHECK(pushed("NotifyShutdownComplete", R"({"processId":"ps-1"})").status == 200);
    CHECK(of.fleet.calls().size() == before.size() + 2);
    CHECK(of.fleet.calls().back() == "poll ps-1");
    of.stop();
}

TEST_CASE("launcher: invalid options -> start() fails, and no process is started") {
    fake_fleet fleet;
    launcher_options options = two_groups();
    options.groups[1].min_healthy = 2;
    CHECK(fault_of(options, fleet) ==
          "group \"ps\": min_healthy_instances (2): must not be above desired_instances (1)");
    options = two_groups();
    options.socket_folder = "/tmp/" + std::string(90, 'x');
    CHECK(fault_of(options, fleet).find("too long") != std::string::npos);
    ::rmdir(options.socket_folder.c_str());
    const temporary_folder sockets;
    options.socket_folder = sockets.path();
    for (const mode_t mode : {0777, 0770, 01777}) {  // a sticky one keeps no stranger's socket out
        REQUIRE(::chmod(sockets.path().c_str(), mode) == 0);
        CHECK(fault_of(options, fleet) ==
              "socket_folder: " + options.socket_folder + " can be written to by other users: run chmod go-w");
    }
    options = two_groups();
    options.state_file = "/nowhere/at/all";
    launcher nowhere = fleet.launch(options);
    CHECK(nowhere.start().error().sys_errno == ENOENT);
    CHECK(fleet.calls() == texts{});
}

#ifndef __SANITIZE_THREAD__  // which runs no signal handler in a child of a process with threads
TEST_CASE("launcher: on_routable never returns -> SIGTERM ends the launcher's process with status 0") {
    CHECK(status_of(forked([] {
              launcher_options options;
              options.groups = {kv_group(1, 0, 1)};
              options.log.level = log_level::off;
              options.on_routable = [](const process_info&) {
                  ::kill(::getpid(), SIGTERM);
                  for (;;) ::pause();
              };
              launched of(options);
              return of.kept.run() == exit_status::settled ? 1 : 2;  // not reached
          })) == 0);
}
#endif
