#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fake_fleet.hpp"
#include "test.hpp"
#include "text.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // the processes are fakes of an internal class

using namespace ojs;
using namespace std::chrono_literals;
using test::fake_fleet;
using test::fate;
using test::holds;
using test::kv_group;

namespace {

const std::string service = "/prism.interfaces.ProcessManagerInterface/";

launcher_options served_options() {
    launcher_options out;
    out.log.level = log_level::off;
    out.groups = {kv_group(2, 1, 1)};
    out.admin_address = "127.0.0.1:0";
    return out;
}

// A launcher of fake processes that listens on loopback.
struct served {
    explicit served(launcher_options options = served_options()) : kept(fleet.launch(std::move(options))) {}
    void start(int notes = 2) {
        REQUIRE(kept.start());
        REQUIRE(fleet.notes().wait_for(notes));
    }
    http_response ask(const std::string& method, const std::string& target, const std::string& body = "",
                      const http_headers& more = {}) {
        result<http_client> client = http_client::create("http://" + kept.admin_address());
        REQUIRE(client);
        http_request request{method, target, {{"Content-Type", "application/json"}}, body};
        for (const http_header& each : more) request.headers.push_back(each);
        http_call call;
        call.deadline = steady_clock::now() + test::hang_guard;
        result<http_response> answer = client->send(request, call);
        REQUIRE_MESSAGE(answer, answer.error().text);
        return *answer;
    }
    http_response call(const std::string& method, const std::string& body, const http_headers& more = {}) {
        return ask("POST", service + method, body, more);
    }
    http_response get(const std::string& target) { return ask("GET", target); }
    // Asks from `after` on until a line holds `target`; all lines so far.
    std::string events_until(const std::string& target, std::uint64_t after = 0) {
        std::string out;
        const time_point end = steady_clock::now() + test::hang_guard;
        while (!holds(out, target) && steady_clock::now() < end) {
            const std::string body = get("/events?wait=10s&after=" + std::to_string(after)).body;
            out += body;
            after = std::stoull(body.substr(body.rfind(':') + 1));
        }
        CHECK_MESSAGE(holds(out, target), out);
        return out;
    }

    fake_fleet fleet;
    launcher kept;
};

void check_error(const http_response& answer, int status, const std::string& code, const std::string& text) {
    CHECK(answer.status == status);
    CHECK_MESSAGE(holds(answer.body, "\"code\":\"" + code + "\""), answer.body);
    CHECK_MESSAGE(holds(answer.body, text), answer.body);
}

std::string fault_of(const std::string& address, const std::string& token = "") {
    fake_fleet fleet;
    launcher_options options = served_options();
    options.admin_address = address;
    options.admin_token = token;
    launcher made = fleet.launch(options);
    const result<void> started = made.start();
    if (started) return "";
    CHECK(fleet.calls().empty());
    return started.error().text;
}

// The next number of /events.
std::uint64_t last_number(const std::string& lines) {
    return std::stoull(lines.substr(lines.rfind(':') + 1));
}

// The value of a sample, by its name and labels as the page has them.
std::string sample(const std::string& page, const std::string& name) {
    const std::size_t at = page.find("\n" + name + " ");
    if (at == std::string::npos) return "not there";
    const std::size_t from = at + name.size() + 2;
    return page.substr(from, page.find('\n', from) - from);
}

}  // namespace

TEST_CASE("launcher_admin: the status of groups and processes") {
    served of;
    of.start();
    CHECK(of.call("ListGroups", "{}").body == "{\"groups\":[\"kv\"]}\n");
    const http_response group = of.call("GetGroupStatus", "{\"group\":\"kv\"}");
    CHECK(group.status == 200);
    const result<group_status> read = read_message<group_status>(group.body);
    REQUIRE(read);
    CHECK(read->desired == 2);
    CHECK(read->min_healthy == 1);
    CHECK(read->ready == 2);
    REQUIRE(read->processes.size() == 2);
    CHECK(read->processes[0].process_id == "kv-1");
    CHECK(read->processes[1].state == instance_state::ready);
    const result<process_status> one =
        read_message<process_status>(of.call("GetProcessStatus", "{\"processId\":\"kv-2\"}").body);
    REQUIRE(one);
    CHECK(one->group == "kv");
    CHECK(one->state == instance_state::ready);
    CHECK(one->pid == 1);
}

TEST_CASE("launcher_admin: unknown names and invalid requests are errors") {
    served of;
    of.start();
    const std::string no_process = "no such process: kv-9";
    check_error(of.call("GetProcessStatus", "{\"processId\":\"kv-9\"}"), 404, "not_found", no_process);
    check_error(of.call("ShutdownProcess", "{\"processId\":\"kv-9\"}"), 404, "not_found", no_process);
    for (const char* method : {"GetGroupStatus", "ShutdownGroup", "RollingReplace"}) {
        INFO(method);
        check_error(of.call(method, "{\"group\":\"x\"}"), 404, "not_found", "no such group: x");
        check_error(of.call(method, "{}"), 404, "not_found", "no such group: ");
        check_error(of.call(method, "{\"group\":1}"), 400, "invalid_argument", ".group");
        check_error(of.call(method, "{"), 400, "invalid_argument", "");
        check_error(of.call(method, ""), 400, "invalid_argument", "");
    }
    check_error(of.call("GetProcessStatus", "{\"processId\":\"../kv\\n\\u001b[31m\"}"), 404, "not_found",
                "no such process: ../kv\\\\x0a\\\\x1b[31m");
    check_error(of.call("GetProcessStatus", "{\"processId\":\"" + std::string(5000, 'x') + "\"}"), 404,
                "not_found", "xxx...\"");
    check_error(of.call("RollingReplace", "{\"group\":\"kv\",\"group\":\"kv\"}"), 400, "invalid_argument",
                ".group: duplicate key");
    check_error(of.call("ListGroups", std::string(64 * 1024 + 1, ' ')), 413, "resource_exhausted",
                "too large");
    CHECK(of.call("ListGroups", std::string(1024 * 1024, ' ')).status == 413);
    check_error(of.call("ShutdownProcess", "{\"processId\":\"kv-1\",\"gracePeriodSeconds\":-1}"), 400,
                "invalid_argument", "negative");
    check_error(of.call("RollingReplace", "{\"group\":\"kv\",\"canary\":-1}"), 400, "invalid_argument",
                "negative");
    check_error(of.call("StopEverything", "{}"), 404, "unimplemented", "no such method");
    check_error(of.ask("GET", service + "ListGroups"), 405, "unimplemented", "POST");
    const http_response odd = of.ask("POST", service + "ListGroups", "{}", {{"Content-Encoding", "gzip"}});
    check_error(odd, 404, "unimplemented", "compressed");
    CHECK(of.get("/").status == 404);
    CHECK(of.ask("POST", "/metrics", "{}").status == 405);
    CHECK(of.ask("POST", "/events", "{}").status == 405);
    CHECK(of.get("/events?after=x").status == 400);
    CHECK(of.get("/events?wait=soon").status == 400);
    CHECK(holds(of.get("/events?after=0&grup=kv").body, "no such parameter: grup"));
    CHECK(holds(of.get("/events?after=0&after=1").body, "duplicate parameter after"));
    CHECK(of.get("/events?after=0&process=kv-1&group=kv&wait=0s").status == 200);
    CHECK(of.get("/events?group=x").status == 404);
    CHECK(of.fleet.running().size() == 2);
}

TEST_CASE("launcher_admin: web pages and foreign host names are rejected") {
    served of;
    of.start();
    for (const char* header : {"Origin", "Sec-Fetch-Site"}) {
        INFO(header);
        check_error(of.call("ShutdownProcess", "{\"processId\":\"kv-1\"}", {{header, "http://evil"}}), 403,
                    "permission_denied", "web pages");
        CHECK(of.ask("GET", "/events", "", {{header, "http://evil"}}).status == 403);
    }
    launcher_options options = served_options();
    CHECK(detail::admin_guard(options)->on_loopback);  // so that the Host is looked at
    options.admin_address = "0.0.0.0:0";
    options.admin_token = "s3cret";
    CHECK_FALSE(detail::admin_guard(options)->on_loopback);
    CHECK(of.fleet.running().size() == 2);
}

TEST_CASE("launcher_admin: a token is required for all but probes and metrics") {
    launcher_options options = served_options();
    options.admin_token = "s3cret";
    served of(options);
    of.start();
    check_error(of.call("ListGroups", "{}"), 401, "unauthenticated", "token");
    check_error(of.call("ListGroups", "{}", {{"Authorization", "Bearer s3cre"}}), 401, "unauthenticated", "");
    CHECK(of.call("ListGroups", "{}", {{"Authorization", "Bearer s3cret"}}).status == 200);
    CHECK(of.get("/events").status == 401);
    CHECK(of.ask("GET", "/events", "", {{"Authorization", "Bearer s3cret"}}).status == 200);
    CHECK(of.get("/healthz").status == 200);
    CHECK(of.get("/metrics").status == 200);
}

TEST_CASE("launcher_admin: a reachable address needs a token, and the error names the option") {
    const std::string open = fault_of("0.0.0.0:0");
    CHECK_MESSAGE(holds(open, "admin_address '0.0.0.0:0'"), open);
    CHECK_MESSAGE(holds(open, "set admin_token, or give unix:/PATH or 127.0.0.1:PORT"), open);
    CHECK(fault_of("0.0.0.0:0", "s3cret") == "");
    CHECK(holds(fault_of("127.0.0.1:0", "with blank"), "admin_token may hold visible ASCII characters only"));
    CHECK(holds(fault_of("nonsense"), "admin_address 'nonsense'"));
    CHECK(holds(fault_of("unix:/nowhere/at/all.sock"), "/nowhere/at"));
}

TEST_CASE("launcher_admin: a Unix socket is private, and one in use is not replaced") {
    char folder[] = "/tmp/ojs-admin-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::string address = std::string("unix:") + folder + "/admin.sock";
    {
        launcher_options options = served_options();
        options.admin_address = address;
        fake_fleet fleet;
        launcher kept = fleet.launch(options);
        REQUIRE(kept.start());
        CHECK(kept.admin_address() == address);
        struct stat found {};
        REQUIRE(::stat(address.c_str() + 5, &found) == 0);
        CHECK((found.st_mode & 0777) == 0600);
        CHECK(holds(fault_of(address), "admin_address '" + address + "'"));
    }
    CHECK(::rmdir(folder) == 0);  // the socket went with the launcher
    REQUIRE(::mkdir(folder, 0777) == 0);
    REQUIRE(::chmod(folder, 0777) == 0);
    CHECK(holds(fault_of(address), "can be changed by, other users"));
    CHECK(::rmdir(folder) == 0);
}

TEST_CASE("launcher_admin: events report the shutdown of one process") {
    served of;
    of.start();
    const std::string begin = of.get("/events").body;
    REQUIRE(begin.compare(0, 8, "{\"next\":") == 0);
    const http_response dry = of.call("ShutdownProcess", "{\"processId\":\"kv-1\",\"dryRun\":true}");
    CHECK_MESSAGE(holds(dry.body, "\"inFlightRequests\":7"), dry.body);
    CHECK_FALSE(holds(dry.body, "acknowledged"));
    CHECK(of.fleet.running().size() == 2);

    const http_response asked = of.call("ShutdownProcess", "{\"processId\":\"kv-1\",\"reason\":\"test\"}");
    CHECK_MESSAGE(holds(asked.body, "\"acknowledged\":true"), asked.body);
    const std::string lines = of.events_until("COMPLETE", std::stoull(begin.substr(8)));
    const std::size_t requested = lines.find("\"processId\":\"kv-1\",\"state\":\"SHUTDOWN_REQUESTED\"");
    CHECK_MESSAGE(requested != std::string::npos, lines);
    CHECK(lines.find("\"state\":\"DRAINING\",\"before\":\"SHUTDOWN_REQUESTED\"") > requested);
    const http_response again = of.call("ShutdownProcess", "{\"processId\":\"kv-1\"}");
    CHECK(again.status == 200);
    CHECK(holds(again.body, "has already exited: COMPLETE"));
    CHECK(holds(of.call("GetProcessStatus", "{\"processId\":\"kv-1\"}").body, "\"state\":\"COMPLETE\""));
}

TEST_CASE("launcher_admin: a group is shut down and stays empty") {
    served of;
    of.start();
    const http_response dry = of.call("ShutdownGroup", "{\"group\":\"kv\",\"dryRun\":true}");
    const result<shutdown_group_response> seen = read_message<shutdown_group_response>(dry.body);
    REQUIRE(seen);
    CHECK_FALSE(seen->acknowledged);
    REQUIRE(seen->processes.size() == 2);
    CHECK(seen->processes[0].shutdown.metrics.in_flight_requests == 7);
    CHECK(of.fleet.running().size() == 2);
    CHECK(holds(of.call("ShutdownGroup", "{\"group\":\"kv\"}").body, "\"acknowledged\":true"));
    of.events_until("\"processId\":\"kv-2\",\"state\":\"COMPLETE\"");
    CHECK(of.fleet.running().empty());
}

TEST_CASE("launcher_admin: a rollout uses the reloaded configuration") {
    launcher_options options = served_options();
    result<group_options> given = error{errc::invalid_argument, 0, "no file"};
    options.reload = [&](const std::string& name) {
        CHECK(name == "kv");
        return given;
    };
    served of(options);
    of.start();
    const std::string roll = "{\"group\":\"kv\"}";
    check_error(of.call("RollingReplace", roll), 400, "invalid_argument", "reload: no file");
    group_options target = kv_group(2, 1, 1);
    target.max_surge = -1;
    given = target;
    check_error(of.call("RollingReplace", roll), 400, "invalid_argument", "max_surge: is negative");
    target.max_surge = 1;
    target.name = "other";
    given = target;
    check_error(of.call("RollingReplace", roll), 400, "invalid_argument", "keeps its name");
    target.name = "kv";
    target.process.child.command = {"kv", "--new"};
    given = target;

    const http_response dry = of.call("RollingReplace", "{\"group\":\"kv\",\"dryRun\":true}");
    CHECK_MESSAGE(holds(dry.body, "would replace 2 by 2"), dry.body);
    CHECK(of.fleet.generations() == std::vector<std::uint64_t>{1, 1});
    CHECK(holds(of.call("RollingReplace", roll).body, "\"acknowledged\":true"));
    const std::string lines = of.events_until("\"result\":\"done\"");
    CHECK_MESSAGE(holds(lines, "\"event\":\"rolling replace begins\""), lines);
    CHECK(of.kept.group("kv")->options.process.child.command.back() == "--new");
    CHECK(of.call("RollingReplace", roll).status == 200);  // the next one may begin after that event
    of.events_until("\"result\":\"done\"", last_number(lines));
    CHECK(holds(of.call("GetGroupStatus", roll).body, "\"message\":\"replaced 2 of 2\""));
    CHECK(sample(of.get("/metrics").body,
                 "ojs_launcher_rolling_replaces_total{group=\"kv\",result=\"done\"}") == "2");
}

TEST_CASE("launcher_admin: one replacement of a group at a time, and it ends with the launcher") {
    served of;
    of.fleet.decide = [](const detail::instance_spec& spec) {
        return spec.generation == 1 ? fate::ready : fate::late;
    };
    of.start();
    CHECK(of.call("RollingReplace", "{\"group\":\"kv\"}").status == 200);
    check_error(of.call("RollingReplace", "{\"group\":\"kv\"}"), 400, "failed_precondition", "in progress");
    REQUIRE(of.fleet.notes().wait_for(3));
    check_error(of.call("ShutdownGroup", "{\"group\":\"kv\"}"), 400, "failed_precondition", "in progress");
    CHECK(holds(of.get("/healthz").body, "\"replacing\":true"));
    of.kept.request_stop();
    REQUIRE(of.kept.wait(steady_clock::now() + test::hang_guard));
    CHECK(of.kept.exit_code() == 0);
    CHECK(of.fleet.running().empty());
}

TEST_CASE("launcher_admin: a failed new process is counted and reported, and the old ones stay") {
    served of;
    of.fleet.decide = [](const detail::instance_spec& spec) {
        return spec.generation == 1 ? fate::ready : fate::unhealthy;
    };
    of.start();
    CHECK(of.call("RollingReplace", "{\"group\":\"kv\"}").status == 200);
    const std::string lines = of.events_until("\"result\":\"rolled_back\"");
    CHECK_MESSAGE(holds(lines, "\"failedId\":\"kv-3\""), lines);
    const std::string page = of.get("/metrics").body;
    CHECK(sample(page, "ojs_launcher_readiness_failures_total{group=\"kv\"}") == "1");
    CHECK(sample(page, "ojs_launcher_rolling_replaces_total{group=\"kv\",result=\"rolled_back\"}") == "1");
    CHECK(sample(page, "ojs_launcher_kills_total{group=\"kv\",signal=\"SIGTERM\"}") == "1");
    CHECK(sample(page, "ojs_launcher_ready{group=\"kv\"}") == "2");
}

TEST_CASE("launcher_admin: health reports the phase, and 503 while draining") {
    served of;
    of.fleet.drains_at_once = false;
    of.start();
    const http_response well = of.get("/healthz");
    CHECK(well.status == 200);
    CHECK_MESSAGE(holds(well.body, "{\"phase\":\"running\",\"groups\":[{\"group\":\"kv\",\"desired\":2,"),
                  well.body);
    CHECK(of.ask("HEAD", "/healthz").body.empty());
    of.kept.request_stop();
    REQUIRE(of.fleet.notes().wait_for(4));
    CHECK(of.get("/healthz").status == 503);
    check_error(of.call("RollingReplace", "{\"group\":\"kv\"}"), 400, "failed_precondition", "stopping");
    for (const char* id : {"kv-1", "kv-2"}) of.fleet.get(id)->becomes(instance_state::complete);
    REQUIRE(of.kept.wait(steady_clock::now() + test::hang_guard));
}

TEST_CASE("launcher_admin: metrics of starts, stops, crashes and restarts") {
    launcher_options options = served_options();
    options.groups[0].restart.initial_backoff = options.groups[0].restart.max_backoff = 0ms;
    served of(options);
    of.start();
    std::string page = of.get("/metrics").body;
    CHECK(sample(page, "ojs_launcher_startup_seconds_count{group=\"kv\"}") == "2");
    CHECK(sample(page, "ojs_launcher_restarts_total{group=\"kv\"}") == "0");
    CHECK(sample(page, "ojs_launcher_desired{group=\"kv\"}") == "2");
    CHECK(sample(page, "ojs_launcher_processes{group=\"kv\",state=\"READY\"}") == "2");
    of.fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    REQUIRE(of.fleet.notes().wait_for(3));
    of.events_until("\"processId\":\"kv-3\",\"state\":\"READY\"");
    CHECK(of.call("ShutdownProcess", "{\"processId\":\"kv-2\"}").status == 200);
    of.events_until("\"processId\":\"kv-2\",\"state\":\"COMPLETE\"");
    page = of.get("/metrics").body;
    CHECK(sample(page, "ojs_launcher_crashes_total{group=\"kv\"}") == "1");
    CHECK(sample(page, "ojs_launcher_restarts_total{group=\"kv\"}") == "1");
    CHECK(sample(page, "ojs_launcher_startup_seconds_count{group=\"kv\"}") == "3");
    CHECK(sample(page, "ojs_launcher_shutdown_seconds_count{group=\"kv\",outcome=\"complete\"}") == "1");
    CHECK(sample(page, "ojs_launcher_shutdown_seconds_count{group=\"kv\",outcome=\"crashed\"}") == "0");
    CHECK(sample(page, "ojs_launcher_readiness_failures_total{group=\"kv\"}") == "0");
    CHECK(sample(page, "ojs_launcher_ready{group=\"kv\"}") == "1");
}

// ---- cancelling, forcing, trying again ----

namespace {

const std::string roll_kv = "{\"group\":\"kv\"}";

replacement_status replacement_of(served& of) {
    const result<group_status> read = read_message<group_status>(of.call("GetGroupStatus", roll_kv).body);
    REQUIRE(read);
    return read->replacement;
}

// The second generation's processes, counted from 1, have this fate; the others are ready.
void decide_new(fake_fleet& fleet, std::function<fate(int)> fate_of) {
    fleet.decide = [fate_of, made = 0](const detail::instance_spec& spec) mutable {
        return spec.generation == 1 ? fate::ready : fate_of(++made);
    };
}

}  // namespace

TEST_CASE(
    "launcher_admin: a replacement that is cancelled in the middle goes no further, and the next one may "
    "begin") {
    served of;
    decide_new(of.fleet, [](int made) { return made == 2 ? fate::late : fate::ready; });
    of.start();
    check_error(of.call("CancelReplace", roll_kv), 400, "failed_precondition",
                "no replacement is in progress");
    check_error(of.call("CancelReplace", "{\"group\":\"x\"}"), 404, "not_found", "no such group: x");
    CHECK(replacement_of(of).phase == replacement_phase::none);
    CHECK(of.call("RollingReplace", roll_kv).status == 200);
    REQUIRE(of.fleet.notes().wait_for(5));  // kv-1 has given way to kv-3, kv-4 is not ready yet
    const replacement_status now = replacement_of(of);
    CHECK(now.phase == replacement_phase::starting);
    CHECK(now.replaced == 1);
    CHECK(now.total == 2);
    const http_response asked = of.call("CancelReplace", "{\"group\":\"kv\",\"reason\":\"too slow\"}");
    CHECK_MESSAGE(holds(asked.body, "\"acknowledged\":true"), asked.body);
    const std::string lines = of.events_until("\"result\":\"cancelled\"");
    CHECK_MESSAGE(holds(lines, "\"event\":\"rolling replace progress\",\"replaced\":1,\"total\":2"), lines);
    CHECK(holds(lines, "\"event\":\"rolling replace cancelled\",\"reason\":\"too slow\""));
    CHECK(of.fleet.running() == std::vector<std::string>{"kv-2", "kv-3"});  // kv-4 had nothing in hand
    const replacement_status after = replacement_of(of);
    CHECK(after.phase == replacement_phase::cancelled);
    CHECK(after.replaced == 1);
    CHECK_FALSE(after.cancelling);
    check_error(of.call("CancelReplace", roll_kv), 400, "failed_precondition",
                "no replacement is in progress");
    CHECK(of.call("RollingReplace", roll_kv).status == 200);
    of.events_until("\"result\":\"done\"", last_number(lines));
    CHECK(replacement_of(of).phase == replacement_phase::done);
    CHECK(of.fleet.generations() == std::vector<std::uint64_t>{3, 3});
}

TEST_CASE("launcher_admin: a rollout cancelled during a drain ends after the drain") {
    served of;
    of.fleet.drains_at_once = false;
    of.start();
    CHECK(of.call("RollingReplace", roll_kv).status == 200);
    REQUIRE(of.fleet.notes().wait_for(4));  // "stop kv-1"
    CHECK(replacement_of(of).phase == replacement_phase::draining);
    const result<cancel_replace_response> asked =
        read_message<cancel_replace_response>(of.call("CancelReplace", roll_kv).body);
    REQUIRE(asked);
    CHECK(asked->replacement.cancelling);
    CHECK(of.call("CancelReplace", roll_kv).status == 200);  // asking again changes nothing
    of.fleet.get("kv-1")->becomes(instance_state::complete);
    of.events_until("\"result\":\"cancelled\"");
    CHECK(of.fleet.running() == std::vector<std::string>{"kv-2", "kv-3"});
    of.fleet.drains_at_once = true;
}

TEST_CASE("launcher_admin: a rollback cannot be cancelled") {
    served of;
    of.fleet.drains_at_once = false;
    decide_new(of.fleet, [](int made) { return made == 2 ? fate::unhealthy : fate::ready; });
    of.start();
    CHECK(of.call("RollingReplace", roll_kv).status == 200);
    REQUIRE(of.fleet.notes().wait_for(4));
    of.fleet.get("kv-1")->becomes(instance_state::complete);
    // kv-4 is unhealthy, and forced; kv-5 is of the old configuration again, and kv-3 is shut down.
    REQUIRE(of.fleet.notes().wait_for(8));
    const replacement_status now = replacement_of(of);
    CHECK(now.phase == replacement_phase::rolling_back);
    CHECK(now.failed_id == "kv-4");
    check_error(of.call("CancelReplace", roll_kv), 400, "failed_precondition", "already being rolled back");
    of.fleet.get("kv-3")->becomes(instance_state::complete);
    of.events_until("\"result\":\"rolled_back\"");
    CHECK(replacement_of(of).phase == replacement_phase::rolled_back);
    CHECK(of.fleet.generations() == std::vector<std::uint64_t>{1, 1});
    of.fleet.drains_at_once = true;
}

TEST_CASE(
    "launcher_admin: what does not become ready is tried again as the request says, or the configuration") {
    launcher_options options = served_options();
    options.groups[0].desired = options.groups[0].min_healthy = 1;
    int failures = 2;
    std::string request = "{\"group\":\"kv\"";
    SUBCASE("the request: at once") {
        request += ",\"retry\":\"IMMEDIATE\",\"retries\":2";
    }
    SUBCASE("the request: at once, as often as is usual") {
        request += ",\"retry\":\"IMMEDIATE\"";
        failures = 3;
    }
    SUBCASE("the configuration: at once") {
        options.groups[0].retry = {2, 0ms, 0ms};
    }
    SUBCASE("the configuration's pause, the request's number") {
        options.groups[0].retry = {1, 1ms, 1ms};
        request += ",\"retries\":2";
    }
    served of(options);
    decide_new(of.fleet, [&](int made) { return made <= failures ? fate::crashes : fate::ready; });
    of.start(1);
    CHECK(of.call("RollingReplace", request + "}").status == 200);
    const std::string lines = of.events_until("rolling replace ended");
    CHECK_MESSAGE(holds(lines, "\"result\":\"done\""), lines);
    CHECK(replacement_of(of).retries == failures);
}

TEST_CASE("launcher_admin: MANUAL overrides the configured retries") {
    launcher_options options = served_options();
    options.groups[0].retry = {2, 0ms, 0ms};
    served of(options);
    decide_new(of.fleet, [](int) { return fate::crashes; });
    of.start();
    const std::string manual = "{\"group\":\"kv\",\"retry\":\"MANUAL\"";
    check_error(of.call("RollingReplace", manual + ",\"retries\":1}"), 400, "invalid_argument",
                "retries: not allowed with retry MANUAL");
    check_error(of.call("RollingReplace", manual + ",\"retries\":-1}"), 400, "invalid_argument", "negative");
    CHECK(of.call("RollingReplace", manual + "}").status == 200);
    of.events_until("\"result\":\"rolled_back\"");
    CHECK(replacement_of(of).retries == 0);
    CHECK(of.fleet.running() == std::vector<std::string>{"kv-1", "kv-2"});
}

TEST_CASE("launcher_admin: a cancellation ends a retry's back-off") {
    launcher_options options = served_options();
    options.groups[0].retry = {2, 1h, 1h};
    served of(options);
    decide_new(of.fleet, [](int) { return fate::crashes; });
    of.start();
    CHECK(of.call("RollingReplace", roll_kv).status == 200);
    of.events_until("did not become ready, retrying");
    const replacement_status now = replacement_of(of);
    CHECK(now.phase == replacement_phase::pausing);
    CHECK(now.retries == 1);
    CHECK(now.failed_id == "kv-3");
    CHECK(of.call("CancelReplace", roll_kv).status == 200);
    of.events_until("\"result\":\"cancelled\"");
    CHECK(of.fleet.running() == std::vector<std::string>{"kv-1", "kv-2"});
}

TEST_CASE("launcher_admin: a cancellation rolls back watched canaries") {
    served of;
    of.start();
    CHECK(of.call("RollingReplace", "{\"group\":\"kv\",\"canary\":1,\"canarySeconds\":3600}").status == 200);
    of.events_until("watching canaries");
    CHECK(replacement_of(of).phase == replacement_phase::canaries);
    CHECK(of.call("CancelReplace", roll_kv).status == 200);
    of.events_until("\"result\":\"cancelled\"");
    of.events_until("\"processId\":\"kv-3\",\"state\":\"COMPLETE\"");  // it is more than desired
    CHECK(of.fleet.running() == std::vector<std::string>{"kv-1", "kv-2"});
}

TEST_CASE("launcher_admin: force skips the drain, and forced processes are not restarted") {
    launcher_options options = served_options();
    options.groups[0].restart = {restart_policy::always, 0ms, 0ms, 0ms, 0};
    served of(options);
    of.fleet.drains_at_once = false;
    of.start();
    const std::string force = "{\"processId\":\"kv-1\",\"force\":true";
    check_error(of.call("ShutdownProcess", force + ",\"maxShutdownSeconds\":1}"), 400, "invalid_argument",
                "force does not drain");
    const http_response dry = of.call("ShutdownProcess", force + ",\"dryRun\":true}");
    CHECK_MESSAGE(holds(dry.body, "would be sent SIGTERM"), dry.body);
    CHECK(holds(dry.body, "\"inFlightRequests\":7"));
    CHECK(of.fleet.running().size() == 2);

    const http_response asked = of.call("ShutdownProcess", force + "}");
    CHECK_MESSAGE(holds(asked.body, "\"acknowledged\":true"), asked.body);
    CHECK(of.fleet.calls() == std::vector<std::string>{"start kv-1", "start kv-2", "force kv-1"});
    CHECK(holds(of.call("ShutdownProcess", force + "}").body, "has already exited: FORCED"));

    CHECK(of.call("ShutdownProcess", "{\"processId\":\"kv-2\"}").status ==
          200);  // it drains, and is too slow
    CHECK(of.fleet.get("kv-2")->info().state == instance_state::shutdown_requested);
    CHECK(of.call("ShutdownProcess", "{\"processId\":\"kv-2\",\"force\":true}").status == 200);
    CHECK(of.fleet.running().empty());
    CHECK(of.fleet.calls().back() == "force kv-2");
    CHECK(of.kept.group("kv")->ready == 0);
    of.fleet.drains_at_once = true;
}

TEST_CASE("launcher_admin: a whole group is forced, and stays empty") {
    served of;
    of.fleet.drains_at_once = false;
    of.start();
    const http_response asked = of.call("ShutdownGroup", "{\"group\":\"kv\",\"force\":true}");
    CHECK_MESSAGE(holds(asked.body, "is sent SIGTERM, and stays empty"), asked.body);
    of.events_until("\"processId\":\"kv-2\",\"state\":\"FORCED\"");
    CHECK(of.fleet.running().empty());
    CHECK(holds(of.call("GetProcessStatus", "{\"processId\":\"kv-1\"}").body, "\"state\":\"FORCED\""));
    of.fleet.drains_at_once = true;
}

TEST_CASE("launcher_metrics: SIGKILL, more time and what a shutdown took") {
    detail::group_metrics counted;
    process_info before;
    process_info now;
    before.state = instance_state::draining;
    before.pid = 1;
    now = before;
    now.shutdown.need_more_time = true;
    counted.on_process_changed(before, now, true);
    counted.on_process_changed(now, now, true);
    CHECK(counted.extensions == 1);
    before = now;
    now.state = instance_state::forced;
    now.killed = true;
    now.shutdown_duration = 2500ms;
    counted.on_process_changed(before, now, true);
    CHECK(counted.killed == 1);
    CHECK(counted.terminated == 0);
    std::string text;
    counted.shutdown[1].show(text, detail::shutdown_bounds, "x", "");
    CHECK(holds(text, "x_bucket{le=\"2\"} 0\nx_bucket{le=\"3\"} 1\n"));
    CHECK(holds(text, "x_sum 2.500000\n"));
    now.state = before.state = instance_state::draining;
    now.state = instance_state::crashed;
    now.killed = false;
    counted.on_process_changed(before, now, true);
    CHECK(counted.crashes == 0);  // it had been asked to end
    CHECK(counted.shutdown[2].count() == 1);
}

TEST_CASE("launcher_events: keeps the last thousand, and reports lost ones to late followers") {
    detail::launcher_events kept;
    for (int i = 0; i < 1030; ++i) kept.record_event("kv", i % 2 == 0 ? "even" : "odd", "");
    std::string out;
    CHECK(kept.collect(1028, {}, out));
    CHECK(out.rfind("{\"seq\":1029,\"time\":\"", 0) == 0);
    CHECK(holds(out, "\n{\"seq\":1030,"));
    CHECK(holds(out, "\n{\"next\":1030}\n"));
    out.clear();
    CHECK_FALSE(kept.collect(1030, {}, out));
    CHECK(out == "{\"next\":1030}\n");
    out.clear();
    CHECK(kept.collect(5, {}, out));
    CHECK(out.rfind("{\"missed\":true}\n{\"seq\":7,\"time\"", 0) == 0);
    out.clear();
    CHECK_FALSE(kept.collect(6, {"other", {}}, out));
    CHECK(out == "{\"next\":1030}\n");
    CHECK(kept.collect(4000, {}, out));  // of a launcher that was there before
    CHECK_FALSE(kept.await_more(1030, steady_clock::now()));
    CHECK(kept.await_more(1029, steady_clock::now()));
    kept.end(time_point::max());  // everything was heard
    CHECK_FALSE(kept.await_more(1030, time_point::max()));
}

TEST_CASE("launcher_events: the end waits for active followers only") {
    detail::launcher_events kept;
    kept.record_event("kv", "first", "");
    kept.end(time_point::max());  // nobody follows
    std::string out;
    CHECK(kept.collect(0, {}, out));
    kept.record_event("kv", "last", "");
    kept.end(steady_clock::now());
    std::thread ending([&] { kept.end(time_point::max()); });
    CHECK(kept.collect(1, {}, out));
    ending.join();
    CHECK(holds(out, "\"event\":\"last\""));
}

#endif
