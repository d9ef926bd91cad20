#include "fake_fleet.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {
const std::string service = "/prism.interfaces.ProcessManagerInterface/";

launcher_options served_options() {
    launcher_options out;
    out.log.level = log_level::off;
    out.groups = {kv_group(2, 1, 1)};
    out.admin_address = "127.0.0.1:0";
    return out;
}

// A launcher that listens on loopback.
struct served : launched {
    explicit served(launcher_options options = served_options(), int notes = 2) : launched(std::move(options)) {
        if (notes > 0) start(notes);
    }
    http_response ask(const std::string& method, const std::string& target, const std::string& body = "",
                      const http_headers& more = {}) {
        http_client client = peer::make_client("http://" + kept.admin_address());
        http_request request{method, target, {{"Content-Type", "application/json"}}, body};
        request.headers.insert(request.headers.end(), more.begin(), more.end());
        const result<http_response> answer = client.send(request, peer::call());
        REQUIRE_MESSAGE(answer, answer.error().text);
        return *answer;
    }
    http_response call(const std::string& method, const std::string& body, const http_headers& more = {}) {
        return ask("POST", service + method, body, more);
    }
    // Again while its reload takes longer than the launcher waits.
    http_response roll(const std::string& body) {
        const time_point end = steady_clock::now() + hang_guard;
        http_response out = call("RollingReplace", body);
        while (out.status == 503 && steady_clock::now() < end) out = call("RollingReplace", body);
        return out;
    }
    http_response get(const std::string& target, const http_headers& more = {}) { return ask("GET", target, "", more); }
    // Of /events, asked with these headers.
    int status(const http_headers& more) { return get("/events", more).status; }
    // Asks from `after` on until a line holds `target`; all lines so far.
    std::string events_until(const std::string& target, std::uint64_t after = 0) {
        std::string out;
        const time_point end = steady_clock::now() + hang_guard;
        while (!holds(out, target) && steady_clock::now() < end) {
            const std::string body = get("/events?wait=10s&after=" + std::to_string(after)).body;
            out += body;
            after = std::stoull(body.substr(body.rfind(':') + 1));
        }
        CHECK_MESSAGE(holds(out, target), out);
        return out;
    }
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
std::uint64_t last_number(const std::string& lines) { return std::stoull(lines.substr(lines.rfind(':') + 1)); }

const std::string roll_kv = "{\"group\":\"kv\"}";

// The value of a sample, by its name and labels as the page has them.
std::string sample(const std::string& page, const std::string& name) {
    const std::size_t at = page.find("\n" + name + " ");
    if (at == std::string::npos) return "not there";
    const std::size_t from = at + name.size() + 2;
    return page.substr(from, page.find('\n', from) - from);
}
}  // namespace

TEST_CASE("launcher_admin: unknown names and invalid requests get an error response and change no process") {
    served of;
    struct refusal {
        const char* method;
        std::string body;
        int status;
        const char* code;
        std::string text;
    };
    const char* const invalid = "invalid_argument";
    std::vector<refusal> refusals = {
        {"GetProcessStatus", R"({"processId":"kv-9"})", 404, "not_found", "no such process: kv-9"},
        {"ShutdownProcess", R"({"processId":"../kv\n"})", 404, "not_found", R"(no such process: ../kv\\x0a)"},
        {"RollingReplace", R"({"group":"kv","group":"kv"})", 400, invalid, ".group: duplicate key"},
        {"ShutdownProcess", R"({"processId":"kv-1","force":true,"maxShutdownSeconds":1})", 400, invalid,
         "not allowed with force"},
        {"RollingReplace", R"({"group":"kv","canary":-1})", 400, invalid, "negative"},
        {"RollingReplace", R"({"group":"kv","retry":"MANUAL","retries":1})", 400, invalid,
         "retries: not allowed with retry MANUAL"},
        {"StopEverything", "{}", 404, "unimplemented", "no such method"}};
    for (const char* method : {"GetGroupStatus", "ShutdownGroup", "RollingReplace", "CancelReplace"}) {
        refusals.push_back({method, R"({"group":"x"})", 404, "not_found", "no such group: x"});
        refusals.push_back({method, R"({"group":1})", 400, invalid, ".group"});
    }
    for (const refusal& each : refusals) {
        CAPTURE(each.method);
        check_error(of.call(each.method, each.body), each.status, each.code, each.text);
    }
    CHECK(of.call("ListGroups", std::string(1024 * 1024, ' ')).status == 413);
    CHECK(of.ask("POST", "/metrics", "{}").status == 405);
    CHECK(of.ask("POST", "/events", "{}").status == 405);
    const struct {
        const char* target;
        int status;
        const char* text;
    } events[] = {{"/events?after=x", 400, ""},
                  {"/events?wait=soon", 400, ""},
                  {"/events?after=0&grup=kv", 400, "no such parameter: grup"},
                  {"/events?after=0&after=1", 400, "duplicate parameter after"},
                  {"/events?after=0&process=kv-1&group=kv&wait=0s", 200, ""},
                  {"/events?group=x", 404, ""}};
    for (const auto& each : events) {
        CAPTURE(each.target);
        const http_response answer = of.get(each.target);
        CHECK(answer.status == each.status);
        CHECK(holds(answer.body, each.text));
    }
    CHECK(of.fleet.running().size() == 2);
}

TEST_CASE("launcher_admin: every route but the status page, probes and metrics requires the token") {
    launcher_options options = served_options();
    options.admin_token = "s3cret";
    options.status_page = "<p>";
    served of(options);
    const http_header token = {"Authorization", "Bearer s3cret"};
    check_error(of.call("ListGroups", "{}"), 401, "unauthenticated", "token");
    check_error(of.call("ListGroups", "{}", {{"Authorization", "Bearer s3cre"}}), 401, "unauthenticated", "");
    CHECK(of.call("ListGroups", "{}", {token}).status == 200);
    CHECK(of.status({}) == 401);
    CHECK(of.status({token}) == 200);
    const http_header own = {"Origin", "http://" + of.kept.admin_address()};
    CHECK(of.status({own}) == 401);
    CHECK(of.status({own, token}) == 200);
    for (const char* open : {"/", "/healthz", "/metrics"}) CHECK(of.get(open).status == 200);
}

TEST_CASE("launcher_admin: start() refuses a reachable address without a token") {
    const std::string open = fault_of("0.0.0.0:0");
    CHECK_MESSAGE(holds(open, "admin_address '0.0.0.0:0'"), open);
    CHECK_MESSAGE(holds(open, "set admin_token, or give unix:/PATH or 127.0.0.1:PORT"), open);
    CHECK(fault_of("0.0.0.0:0", "s3cret") == "");
    launcher_options options = served_options();
    CHECK(detail::admin_guard(options)->on_loopback);  // so that the Host is looked at
    options.admin_address = "0.0.0.0:0";
    options.admin_token = "s3cret";
    CHECK_FALSE(detail::admin_guard(options)->on_loopback);
    CHECK(holds(fault_of("127.0.0.1:0", "with blank"), "admin_token: must consist of visible ASCII characters"));
    CHECK(holds(fault_of("nonsense"), "admin_address 'nonsense'"));
}

TEST_CASE("launcher_admin: a rollout uses the reloaded configuration") {
    launcher_options options = served_options();
    result<group_options> given = error{errc::invalid_argument, 0, "no file"};
    options.reload = [&](const std::string& name) {
        CHECK(name == "kv");
        return given;
    };
    served of(options);
    check_error(of.roll(roll_kv), 400, "invalid_argument", "reload: no file");
    group_options target = kv_group(2, 1, 1);
    target.name = "other";
    given = target;
    check_error(of.roll(roll_kv), 400, "invalid_argument", "was renamed to");
    target.name = "kv";
    target.process.child.command = {"true", "--new"};
    given = target;
    const http_response dry = of.roll("{\"group\":\"kv\",\"dryRun\":true}");
    CHECK_MESSAGE(holds(dry.body, "would replace 2 by 2"), dry.body);
    CHECK(of.fleet.generations() == std::vector<std::uint64_t>{1, 1});
    CHECK(holds(of.roll(roll_kv).body, "\"acknowledged\":true"));
    const std::string lines = of.events_until("\"result\":\"done\"");
    CHECK_MESSAGE(holds(lines, "\"event\":\"rollout started\""), lines);
    CHECK_MESSAGE(holds(lines, "\"event\":\"rollout in progress\",\"replaced\":1,\"total\":2"), lines);
    CHECK(of.kept.group("kv")->options.process.child.command.back() == "--new");
    CHECK(of.roll(roll_kv).status == 200);  // the next one may begin after that event
    of.events_until("\"result\":\"done\"", last_number(lines));
    CHECK(holds(of.call("GetGroupStatus", roll_kv).body, "\"message\":\"replaced 2 of 2\""));
}

TEST_CASE("launcher_admin: reload() hangs -> rollout requests fail with 503, and status requests succeed") {
    launcher_options options = served_options();
    const auto release = std::make_shared<test::event>();  // its thread may outlive this test
    options.reload = [release](const std::string&) {
        release->wait();
        return result<group_options>(kv_group(2, 1, 1));
    };
    served of(options);
    for (const char* why : {"no result within 2s", "an earlier call has not returned"})
        check_error(of.call("RollingReplace", roll_kv), 503, "unavailable", why);
    CHECK(of.call("GetGroupStatus", roll_kv).status == 200);
    release->set();
    of.stop();
}

TEST_CASE("launcher_admin: the RFC's AdminService is served, and a shutdown shows the times granted") {
    served of;
    const auto call = [&](const std::string& method, const std::string& body) {
        return of.ask("POST", "/prism.interfaces.AdminService/" + method, body).body;
    };
    CHECK(holds(call("GetProcessStatus", R"({"process_id":"kv-1"})"), "\"state\":\"READY\""));
    CHECK(holds(call("StopProcess", R"({"processId":"kv-1","gracePeriodSeconds":20})"),
                "is shutting down, grace period 10s, at most 10s (the group's max_duration)"));
    CHECK(holds(of.call("ShutdownGroup", R"({"group":"kv","gracePeriodSeconds":5,"maxShutdownSeconds":2})").body,
                "is shutting down, grace period 2s, at most 2s (the requested maximum), and stays empty"));
}

TEST_CASE("launcher_admin: /healthz returns 200 with the phase, and 503 while the launcher drains") {
    served of(served_options(), 0);
    of.fleet.drains_at_once = false;
    of.start(2);
    const http_response well = of.get("/healthz");
    CHECK(well.status == 200);
    CHECK_MESSAGE(holds(well.body, "{\"phase\":\"running\",\"groups\":[{\"group\":\"kv\",\"desired\":2,"), well.body);
    CHECK(of.ask("HEAD", "/healthz").body.empty());
    of.kept.request_stop();
    REQUIRE(of.fleet.notes().wait_for(4));
    CHECK(of.get("/healthz").status == 503);
    check_error(of.call("RollingReplace", "{\"group\":\"kv\"}"), 400, "failed_precondition", "stopping");
    for (const char* id : {"kv-1", "kv-2"}) of.fleet.get(id)->becomes(instance_state::complete);
    of.await_end();
}

TEST_CASE("launcher_admin: /metrics counts starts, stops, crashes and restarts of a group") {
    launcher_options options = served_options();
    options.groups[0].restart.initial_backoff = options.groups[0].restart.max_backoff = 0ms;
    served of(options);
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

TEST_CASE("status page: / serves the page with no-store and a strict Content-Security-Policy") {
    launcher_options options = served_options();
    options.status_page = "<p>hello";
    served of(options);
    const http_response page = of.get("/");
    CHECK(page.status == 200);
    CHECK(page.body == "<p>hello");
    CHECK(find_header(page.headers, "Content-Type") == "text/html; charset=utf-8");
    CHECK(find_header(page.headers, "Cache-Control") == "no-store");
    for (const char* rule : {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
                             "require-trusted-types-for 'script'"})
        CHECK(holds(std::string(find_header(page.headers, "Content-Security-Policy")), rule));
    CHECK(of.get("/", {{"Sec-Fetch-Site", "none"}}).status == 200);  // as typed into a browser
    CHECK(of.ask("POST", "/").status == 405);
    CHECK(of.status({{"Origin", "http://" + of.kept.admin_address()}}) == 200);
    CHECK(of.status({{"Origin", "http://evil.example"}}) == 403);
    CHECK(served().get("/").status == 404);
}

TEST_CASE("status page: requests from other web pages are refused, and a foreign host name needs the token") {
    const auto passes = [](const detail::http_guard& guard, const http_headers& headers) {
        http_response refused;
        return detail::passes_guard(guard, {"GET", "/events", headers, ""}, refused);
    };
    detail::http_guard guard;  // of a Unix socket that somebody forwards to a port: its Host is not looked at
    const std::string own = "http://localhost:80";
    const http_header host = {"Host", "localhost:80"};
    CHECK_FALSE(passes(guard, {host, {"Origin", own}}));
    CHECK_FALSE(passes(guard, {host, {"Sec-Fetch-Site", "same-origin"}}));
    guard.has_web_page = true;
    CHECK(passes(guard, {host}));
    CHECK(passes(guard, {host, {"Origin", own}}));
    CHECK(passes(guard, {host, {"Origin", own}, {"Sec-Fetch-Site", "same-origin"}}));
    CHECK(passes(guard, {host, {"Sec-Fetch-Site", "same-origin"}}));
    CHECK(passes(guard, {{"Host", "localhost"}, {"Origin", "https://localhost"}}));  // behind TLS of another
    for (const std::string& foreign : {std::string("http://evil.example"), std::string("null"), std::string(),
                                       std::string("http://localhost:1"), own + ".evil.example", own + "/"})
        CHECK_MESSAGE(!passes(guard, {host, {"Origin", foreign}}), foreign);
    for (const char* site : {"cross-site", "same-site", "none", ""})
        CHECK_MESSAGE(!passes(guard, {host, {"Origin", own}, {"Sec-Fetch-Site", site}}), site);
    CHECK_FALSE(passes(guard, {{"Origin", "http://"}}));
    const http_headers pointed = {{"Host", "evil.example:80"}, {"Origin", "http://evil.example:80"}};
    CHECK_FALSE(passes(guard, pointed));
    guard.token = "s3cret";
    CHECK_FALSE(passes(guard, pointed));
    http_headers known = pointed;
    known.push_back({"Authorization", "Bearer s3cret"});
    CHECK(passes(guard, known));
    known[1].value = "http://other.example";
    CHECK_FALSE(passes(guard, known));
}

TEST_CASE("launcher_metrics: SIGKILLs, requests for more time and shutdown durations are counted") {
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

TEST_CASE("launcher_events: the last 1,024 events are kept, and a reader of older ones gets `missed`") {
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
