#include <future>

#include "busy_worker.hpp"
#include "metrics_page.hpp"
#include "raw_peer.hpp"

using recorder::make_event;
using recorder::make_job;
using recorder::parse;
using recorder::shared_event;
using test::samples;

namespace {
// Again if the server has closed the connection as idle, for which it waits a second.
http_response send(const std::string& address, const std::string& method, const std::string& target) {
    http_client client = peer::make_client("http://" + address);
    for (;;) {
        const time_point begun = steady_clock::now();
        const result<http_response> answer = client.send({method, target, {}, ""}, peer::call());
        if (answer) return *answer;
        REQUIRE(steady_clock::now() - begun >= 1s);
    }
}

// Of /livez, which a loop that gets no processor for a second is right to fail: asked until that is over.
bool is_alive_at(const std::string& address) {
    return test::eventually([&] { return send(address, "GET", "/livez").status == 200; });
}

// The answer, and the end of the connection. Again as send().
std::string answer_to(const std::string& request, std::uint16_t port) {
    for (;;) {
        const time_point begun = steady_clock::now();
        peer::client client(port);
        peer::send_text(client.fd, request);
        std::string out = client.rest();
        if (!out.empty() || steady_clock::now() - begun < 1s) return out;
    }
}

// A worker with a health server, over a transport that records. A job of type "work" returns when `let_go` is set.
struct served {
    explicit served(ops_options server, worker_options given = recorder::options(), lifecycle* shared = nullptr) {
        if (server.address.empty()) server.address = "127.0.0.1:0";
        given.extensions.add(ops(std::move(server)));
        given.log.level = log_level::info;
        given.log.hook = [this, keep = given.log.hook](const log_record& record) {
            keep(record);
            if (record.message != "health server listening") return;
            CHECK(std::string(record.component) == "server");
            address = record.fields.at(0).value;
        };
        body =
            shared != nullptr ? std::make_unique<worker>(given, wire, *shared) : std::make_unique<worker>(given, wire);
        body->register_handler("work", [began = began, let_go = let_go](job_context&) {
            began->set();
            let_go->wait();  // no CHECK: this thread may outlive the worker
        });
        wire.give(make_job("a"));
    }
    ~served() { let_go->set(); }

    // Starts the worker and waits until it is ready: the backend's first answer was a job.
    void start_busy() {
        REQUIRE(body->start());
        REQUIRE(began->wait());
        REQUIRE(wire.wait_for("beat", 1));
        REQUIRE(!address.empty());
    }
    void start() {
        let_go->set();
        start_busy();
    }
    void end() {
        let_go->set();
        REQUIRE(body->wait(deadline_after(recorder::guard)));
    }

    http_response get(const std::string& target) const {  // quiet by GET needs a token
        return send(address, target.compare(0, 6, "/quiet") == 0 ? "POST" : "GET", target);
    }
    http_response post(const std::string& target) const { return send(address, "POST", target); }
    int status(const std::string& target) const { return get(target).status; }
    std::future<http_response> quiet_and_wait() const {
        return std::async(std::launch::async, [this] { return get("/quiet?wait=1m"); });
    }
    bool is_alive() const { return is_alive_at(address); }
    std::uint16_t port() const { return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))); }
    std::string shown(const std::string& target = "/readyz") const { return shown(get(target)); }
    // "503 quiet, 1 active": status, phase and jobs in flight, of an answer that says the same as its status.
    static std::string shown(const http_response& answer) {
        const picojson::value body = parse(answer.body);
        if (body.contains("ready")) CHECK(body.get("ready").get<bool>() == (answer.status == 200));
        return std::to_string(answer.status) + " " + body.get("phase").to_str() + ", " +
               body.get("active_jobs").to_str() + " active";
    }

    const shared_event began = make_event();
    const shared_event let_go = make_event();
    std::string address;
    recorder::transport wire;
    std::unique_ptr<worker> body;
};

ops_options controlled() {
    ops_options out;
    out.control = true;
    return out;
}

struct busy : served {
    busy() : served(controlled()) { start_busy(); }
};

result<void> check(const ops_options& server) {
    worker_options options = recorder::options();
    options.extensions.add(ops(server));
    return validate(options);
}
std::string refusal(const ops_options& server) {
    const result<void> valid = check(server);
    REQUIRE(!valid);
    return valid.error().text;
}

// [WP 4.6 (b)] [WP 4.6 (c)]
TEST_CASE("health: /readyz is 503 until the backend's first successful response, and /livez is 200 at once") {
    served tested{ops_options()};
    for (const char* call : {"beat", "fetch"}) tested.wire.refuse(call, 1, {errc::unavailable, 503, "no"});
    const shared_event again = make_event();
    const shared_event proceed = make_event();
    tested.wire.on.fetch = [=](std::size_t) {  // the second one: the first was refused before
        again->set();
        CHECK(proceed->wait());
    };
    REQUIRE(tested.body->start());
    REQUIRE(again->wait());
    REQUIRE(tested.wire.wait_for("beat", 1));
    for (const char* path : {"/healthz", "/readyz"}) CHECK(tested.shown(path) == "503 running, 0 active");
    CHECK(tested.is_alive());
    const auto page = samples(tested.get("/metrics").body);
    CHECK(page.at("ojs_worker_fetches_total{result=\"failed\"}") == "1");
    for (const char* name : {"ojs_worker_ready", "ojs_worker_backend_up"}) CHECK(page.at(name) == "0");
    proceed->set();
    REQUIRE(tested.began->wait());  // the answer to the FETCH has come before its job
    CHECK(tested.status("/healthz") == 200);
    const http_response ready = tested.get("/readyz?verbose");
    CHECK(holds(served::shown(ready), "200 running"));
    CHECK(parse(ready.body).contains("ready"));
    CHECK(find_header(ready.headers, "Content-Type") == "application/json");
}

// [GS-R004] [GS 8.1 (c)] [GS 8.1 (d)]
TEST_CASE("health: /readyz and /healthz are 503 in every phase but running, and /livez is 200 in each phase") {
    std::vector<int> late;  // both written in the last heartbeat, read after the end
    std::string last_page;
    served tested(controlled());
    tested.wire.on.beat = [&](const heartbeat_request& request) -> result<heartbeat_response> {
        if (request.state != "terminate") return heartbeat_response();
        late = {tested.is_alive() ? 200 : 503, tested.status("/readyz"), tested.status("/healthz")};
        last_page = tested.get("/metrics").body;
        return heartbeat_response();
    };
    tested.start_busy();
    // Of these samples; what is left of the grace period.
    const auto check = [](const std::string& page, const std::map<std::string, std::string>& expected) {
        const auto all = samples(page);
        CHECK(all.at("ojs_worker_ready") == all.at("ojs_worker_phase{phase=\"running\"}"));
        CHECK(all.at("ojs_worker_backend_up") == "1");
        for (const auto& sample : expected) CHECK_MESSAGE(all.at(sample.first) == sample.second, sample.first);
        return std::stod(all.at("ojs_worker_grace_left_seconds"));
    };
    CHECK(tested.shown() == "200 running, 1 active");
    check(tested.get("/metrics").body, {{"ojs_workers_busy{queue=\"default\"}", "1"}});
    const std::string since = parse(tested.get("/readyz").body).get("since").to_str();
    CHECK(since.size() == std::string("2026-01-02T03:04:05.678Z").size());
    CHECK(since == parse(tested.get("/livez").body).get("since").to_str());
    REQUIRE(tested.body->quiet());
    for (const char* path : {"/readyz", "/healthz"}) CHECK(tested.shown(path) == "503 quiet, 1 active");
    check(tested.get("/metrics").body, {{"ojs_worker_phase{phase=\"quiet\"}", "1"}});
    CHECK(tested.is_alive());
    CHECK(parse(tested.get("/readyz").body).get("since").to_str() >= since);
    REQUIRE(tested.body->resume());
    CHECK(tested.shown() == "200 running, 1 active");
    CHECK(tested.body->request_stop());
    CHECK(tested.shown("/healthz") == "503 draining, 1 active");
    CHECK(tested.is_alive());
    const double left = check(tested.get("/metrics").body, {{"ojs_worker_phase{phase=\"draining\"}", "1"},
                                                            {"ojs_workers_active", "0"},
                                                            {"ojs_worker_drain_duration_seconds_count", "0"}});
    CHECK(left <= 3600);
    CHECK(left > 3000);
    tested.end();
    CHECK(late == std::vector<int>{200, 503, 503});
    CHECK(check(last_page, {{"ojs_worker_phase{phase=\"stopping\"}", "1"},
                            {"ojs_worker_drain_duration_seconds_count", "1"},
                            {"ojs_worker_drain_duration_seconds_bucket{le=\"+Inf\"}", "1"},
                            {"ojs_worker_shutdown_duration_seconds_count", "0"},
                            {"ojs_workers_busy{queue=\"default\"}", "0"}}) == 0);
    recorder::check_last_word(tested.wire);
    CHECK(tested.body->exit_code() == 0);
}

// "METHOD /target|Header: value|..." and the answer's status and one of its headers. A Host that is not given is loopback.
struct exchange {
    std::string request;
    int status;
    const char* header = "";
};

void check_exchanges(const served& tested, const std::vector<exchange>& all) {
    for (const exchange& each : all) {
        CAPTURE(each.request);
        std::string text = each.request + "|Connection: close||";
        text.insert(text.find('|'), " HTTP/1.1" + std::string(holds(text, "|Host:") ? "" : "|Host: localhost"));
        for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos;) text.replace(at, 1, "\r\n");
        const std::string answer = answer_to(text, tested.port());
        CHECK(answer.substr(9, 3) == std::to_string(each.status));
        CHECK(holds(answer, each.header));
        CHECK(!holds(answer, "s3cret"));
        if (each.request.compare(0, 4, "HEAD") == 0) CHECK(answer.find("\r\n\r\n") == answer.size() - 4);
    }
    CHECK(tested.body->phase() == phase::running);
}

TEST_CASE("health: probe paths accept only GET and HEAD, and control paths are absent unless enabled") {
    served tested{ops_options()};
    tested.start();
    std::vector<exchange> all = {{"GET /", 404}, {"GET /healthz/", 404}};
    for (const std::string path : {"/healthz", "/readyz", "/livez", "/metrics"}) {
        all.push_back({"POST " + path, 405, "Allow: GET, HEAD"});
        if (path != "/livez") all.push_back({"HEAD " + path, 200});
    }
    for (const std::string path : {"/quiet", "/resume", "/stop"})  // not asked for: not there
        for (const std::string method : {"GET ", "POST "}) all.push_back({method + path, 404});
    check_exchanges(tested, all);
}

TEST_CASE("health: if the loop of a worker is stuck, /livez is 503, and /readyz and /resume show the current phase") {
    lifecycle shared{0ms};
    const shared_event stuck = make_event();
    const shared_event proceed = make_event();
    worker_options options = recorder::options();
    options.log.hook = [=](const log_record& record) {
        if (record.message != "phase changed") return;
        stuck->set();
        CHECK(proceed->wait());
    };
    served tested(controlled(), options, &shared);
    tested.start_busy();
    CHECK(tested.status("/readyz") == 200);
    CHECK(tested.is_alive());
    REQUIRE(shared.apply(event::quiet_request, {cause_kind::api, 0}));
    CHECK(tested.shown() == "503 quiet, 1 active");
    REQUIRE(stuck->wait());  // from here on the worker itself follows no further
    CHECK(tested.status("/livez") == 503);
    const http_response resumed = tested.post("/resume");  // which only the shared lifecycle can be
    CHECK(served::shown(resumed) == "200 quiet, 1 active");
    CHECK(!parse(resumed.body).get("changed").get<bool>());
    CHECK(!tested.body->resume());
    REQUIRE(shared.apply(event::stop_signal, {cause_kind::signal, 15}));
    CHECK(tested.shown() == "503 draining, 1 active");  // and does not wait for anything
    CHECK(tested.body->phase() == phase::draining);
    proceed->set();
    CHECK(tested.is_alive());
    CHECK(tested.shown() == "503 draining, 1 active");
    tested.end();
}

TEST_CASE("health: an address in use -> the worker does not start; the server ends when the worker ends") {
    const test::temporary_folder folder;  // a port could be taken by others in between
    auto taken =
        http_server::start("unix:" + folder.file("health.sock"), [](const http_request&) { return http_response(); });
    REQUIRE(taken);
    ops_options options;
    options.address = taken->address();
    served tested(options);
    const result<void> started = tested.body->start();
    REQUIRE(test::code_of(started) == errc::busy);
    for (const std::string& part : {taken->address(), std::string("OJS_HEALTH_ADDR")})
        CHECK(holds(started.error().text, part));
    CHECK(tested.body->run() == exit_status::unavailable);
    CHECK(tested.wire.calls().empty());
    taken->stop(steady_clock::now());
    tested.start();  // the very same worker, now that there is room
    REQUIRE(tested.body->stop(recorder::guard));
    CHECK(::access(folder.file("health.sock").c_str(), F_OK) != 0);
}

// [WP 9.6]
TEST_CASE("health control: quiet, resume and stop act on the worker and show whether anything changed") {
    busy tested;
    const auto post = [&](const char* path) {
        const http_response answer = tested.post(path);
        return served::shown(answer) + (parse(answer.body).get("changed").get<bool>() ? ", changed" : "");
    };
    CHECK(post("/resume") == "200 running, 1 active");
    CHECK(post("/quiet") == "200 quiet, 1 active, changed");
    REQUIRE(tested.wire.wait_for("beat", 1, "quiet"));
    CHECK(post("/quiet") == "200 quiet, 1 active");
    CHECK(post("/resume") == "200 running, 1 active, changed");
    check_exchanges(tested, {{"GET /resume", 405, "Allow: POST"},
                             {"GET /stop", 405, "Allow: POST"},
                             {"HEAD /quiet", 405, "Allow: GET, POST"}});  // it would quiet the worker
    CHECK(post("/stop") == "202 draining, 1 active, changed");
    CHECK(post("/stop") == "202 draining, 1 active");
    CHECK(post("/resume") == "200 draining, 1 active");
    tested.end();
    CHECK(tested.body->exit_code() == 0);
}

const std::string controls[] = {"POST /quiet", "POST /resume", "POST /stop", "GET /quiet?wait=0"};

TEST_CASE("health control: on loopback, control by web pages and any request with a foreign Host are refused") {
    served tested(controlled());
    tested.start();
    std::vector<exchange> all;
    for (const std::string sign :
         {"Origin: http://evil.example", "Origin: null", "Origin: ", "sec-fetch-site: cross-site"}) {
        for (const std::string& control : controls) all.push_back({control + "|" + sign, 403});
        all.push_back({"GET /readyz|" + sign, 200});
    }
    const std::string port = tested.address.substr(tested.address.rfind(':'));
    for (const std::string& host : {"127.0.0.1" + port, std::string("LOCALHOST")})
        all.push_back({"GET /readyz|Host: " + host, 200});
    for (const std::string& host : {"evil.example" + port, std::string(), "0.0.0.0" + port}) {
        for (const std::string target : {"/readyz", "/livez", "/metrics", "/quiet?wait=0", "/nothing"})
            all.push_back({"GET " + target + "|Host: " + host, 403});
    }
    all.push_back({"GET /quiet?wait=0", 403});  // an old browser's <img> has no mark
    all.push_back({"GET http://evil.example/readyz|Host: 127.0.0.1" + port, 403});
    all.push_back({"GET http://127.0.0.1" + port + "/readyz|Host: evil.example", 200});
    check_exchanges(tested, all);
    // HTTP/1.0 needs no Host.
    CHECK(answer_to("GET /readyz HTTP/1.0\r\n\r\n", tested.port()).substr(9, 3) == "200");
}

TEST_CASE("health control: with a token set, control requests need the exact token, and probes need no token") {
    ops_options options = controlled();
    options.token = "s3cret-Token~+/=";
    const std::string right = "|Authorization: Bearer " + options.token;
    for (const std::string address : {"127.0.0.1:0", "0.0.0.0:0"}) {
        options.address = address;
        served tested(options);
        tested.start();
        std::vector<exchange> all = {{"GET /readyz", 200}, {"GET /metrics", 200}};  // probes need none
        for (const std::string wrong :
             {"Bearer ", "Bearer s3cret-Token~+/", "Bearer s3cret-Token~+/==", "Bearer s3cret-Token~+/x",
              "Basic s3cret-Token~+/=", "s3cret-Token~+/=", "Bearer S3CRET-TOKEN~+/="})
            all.push_back({"POST /stop|Authorization: " + wrong, 401, "WWW-Authenticate: Bearer"});
        for (const std::string& control : controls) {
            all.push_back({control, 401});
            // What browsers send, and an <img> only the second.
            for (const char* name : {"|Origin", "|Sec-Fetch-Site"})
                all.push_back({control + right + name + ": cross-site", 403});
        }
        if (address[0] == '0') {
            for (const std::string name : {"worker.example:9000", "10.1.2.3:9000", ""}) {
                all.push_back({"GET /readyz|Host: " + name, 200});
                all.push_back({"GET /quiet?wait=0|Host: " + name, 401});
            }
        }
        all.push_back({"POST /resume|Authorization: bearer   " + options.token, 200});
        check_exchanges(tested, all);
        check_exchanges(tested, {{"GET /quiet?wait=1m" + right, 200}, {"POST /resume" + right, 200}});
    }
}

TEST_CASE("health control: control without a token is valid only on loopback and unix sockets") {
    ops_options options = controlled();
    for (const std::string& address :
         test::words("0.0.0.0:0 [::]:0 10.1.2.3:80 [fe80::1]:80 [::ffff:10.1.2.3]:80 128.0.0.1:1")) {
        CAPTURE(address);
        options.address = address;
        for (const char* part : {"OJS_HEALTH_CONTROL", "OJS_HEALTH_TOKEN", "OJS_HEALTH_ADDR"})
            CHECK(holds(refusal(options), part));
    }
    for (const std::string& address : test::words("0 :0 127.0.0.1:0 127.9.9.9:0 localhost:1 [::1]:0 "
                                                  "[0:0:0:0:0:0:0:1]:0 [::ffff:127.0.0.1]:0 unix:/run/x")) {
        CAPTURE(address);
        options.address = address;
        CHECK(check(options));
    }
    for (const char* token : {"two words", "line\nfeed", " x", "caf\xc3\xa9"}) {
        options.token = token;
        const std::string text = refusal(options);
        CHECK(holds(text, "OJS_HEALTH_TOKEN"));
        CHECK(!holds(text, token));
    }
}

// [GS 5.1 (c)]
TEST_CASE("health: /quiet?wait= responds when the last job is settled, the worker resumes, or the wait is over") {
    busy tested;
    std::vector<exchange> all;
    for (const char* wait : {"", "=", "=soon", "=-1", "=1e9", "=%31", "=30000", "=99999999999999999999"})
        all.push_back({std::string("POST /quiet?wait") + wait, 400});
    check_exchanges(tested, all);  // which change nothing
    for (const bool resumed : {true, false}) {
        std::future<http_response> waiting = tested.quiet_and_wait();
        REQUIRE(tested.wire.wait_for("beat", resumed ? 1 : 2, "quiet"));
        for (const char* path : {"/quiet?wait=0", "/quiet?x=1&wait=20ms"})
            CHECK(tested.shown(path) == "503 quiet, 1 active");
        if (resumed) REQUIRE(tested.body->resume());
        if (!resumed) tested.let_go->set();
        CHECK(served::shown(waiting.get()) == (resumed ? "503 running, 1 active" : "200 quiet, 0 active"));
    }
    CHECK(tested.wire.settlements("a").size() == 1);
    CHECK(!tested.body->stopped());
    CHECK(tested.status("/quiet?wait=1m") == 200);  // nothing to wait for
}

TEST_CASE("health: a fifth concurrent /quiet?wait= does not wait, and probes stay available") {
    busy tested;
    std::vector<std::future<http_response>> waits;
    for (int i = 0; i < 5; ++i) waits.push_back(tested.quiet_and_wait());
    const auto count_answered = [&] {
        return std::count_if(waits.begin(), waits.end(), [](const std::future<http_response>& each) {
            return each.wait_for(0s) == std::future_status::ready;
        });
    };
    REQUIRE(test::eventually([&] { return count_answered() > 0; }));
    CHECK(tested.is_alive());
    CHECK(count_answered() == 1);
    tested.let_go->set();
    int refused = 0;
    for (std::future<http_response>& each : waits) refused += each.get().status == 503 ? 1 : 0;
    CHECK(refused == 1);
}

TEST_CASE("health: a stuck job is counted and named in the readiness response until its handler returns") {
    worker_options options = recorder::options();
    options.concurrency = 2;
    options.stuck_after = 10ms;
    served tested(controlled(), options);
    const auto counts = [&](const char* number) {
        return test::eventually(
            [&] { return samples(tested.get("/metrics").body).at("ojs_worker_stuck_jobs") == number; });
    };
    job deaf = make_job("deaf \"one\"");
    deaf.timeout = 1ms;
    tested.wire.give(deaf);
    tested.start_busy();
    REQUIRE(counts("1"));
    const picojson::value shown = parse(tested.get("/readyz").body);
    CHECK(shown.get("stuck_jobs").get(0).to_str() == "deaf \"one\"");
    CHECK(tested.status("/readyz") == 200);
    tested.let_go->set();
    CHECK(counts("0"));
    CHECK(!parse(tested.get("/readyz").body).contains("stuck_jobs"));
}

TEST_CASE("metrics: job outcomes appear under the names and labels of the observability specification") {
    worker_options options = recorder::options();
    options.queues = {"default", "we\"ird\\queue"};
    options.on_unknown_type = unknown_type_action::discard;
    served tested(controlled(), options);
    const std::string odd_type = "odd \"type\" \\ \n";
    for (const std::string& type : {odd_type, std::string("gone"), std::string("\xff not utf-8")})
        tested.body->register_handler(type, [](job_context&) {});
    tested.body->register_handler("retry", [](job_context&) { throw 1; });
    tested.body->register_handler("discard", [](job_context&) { return outcome::discard("no"); });
    const shared_event done = make_event();
    tested.body->register_handler("last", [done](job_context&) { done->set(); });
    tested.wire.on.ack = [](const ack_request& request, time_point) -> recorder::transport::settling {
        return request.job_id == "gone" ? settle_result::gone : settle_result::accepted;
    };
    for (const char* id : {"b", "c"}) tested.wire.give(make_job(id));
    job odd = make_job("odd", odd_type);
    odd.queue = options.queues[1];
    tested.wire.give(odd);
    for (const char* type : {"retry", "discard", "gone", "unknown-type", "\xff not utf-8", "last"})
        tested.wire.give(make_job(type, type));
    tested.start();
    REQUIRE(done->wait());
    REQUIRE(tested.wire.wait_for("fetch", 11));  // one consumer: the last job is settled by now
    const http_response answer = tested.get("/metrics");
    CHECK(answer.status == 200);
    CHECK(find_header(answer.headers, "Content-Type") == "text/plain; version=0.0.4; charset=utf-8");
    const auto page = samples(answer.body);
    const std::string work = "{queue=\"default\",type=\"work\"";
    const std::pair<std::string, const char*> expected[] = {
        {"ojs_job_completed_total" + work + "}", "3"},
        {"ojs_job_duration_seconds_count" + work + ",state=\"completed\"}", "3"},
        {"ojs_job_completed_total{queue=\"we\\\"ird\\\\queue\",type=\"odd \\\"type\\\" \\\\ \\n\"}", "1"},
        {"ojs_job_duration_seconds_count{queue=\"default\",type=\"retry\",state=\"retryable\"}", "1"},
        {"ojs_job_duration_seconds_count{queue=\"default\",type=\"discard\",state=\"discarded\"}", "1"},
        // One without a handler, and one whose type no label can hold.
        {"ojs_job_duration_seconds_count{queue=\"default\",type=\"other\",state=\"discarded\"}", "1"},
        {"ojs_job_duration_seconds_count{queue=\"default\",type=\"other\",state=\"completed\"}", "1"},
        {"ojs_worker_jobs_total{outcome=\"completed\"}", "6"},
        {"ojs_worker_jobs_total{outcome=\"failed\"}", "3"},
        {"ojs_worker_jobs_total{outcome=\"gone\"}", "1"},
        {"ojs_worker_jobs_interrupted_total", "0"},
        {"ojs_worker_jobs_total{outcome=\"unreported\"}", "0"},
        {"ojs_worker_jobs_claimed_total", "10"},
        {"ojs_worker_fetches_total{result=\"jobs\"}", "10"},
        {"ojs_worker_phase{phase=\"quiet\"}", "0"},
        {"ojs_worker_build_info{version=\"" OJS_SHUTDOWN_VERSION "\"}", "1"},
        {"ojs_worker_grace_left_seconds", "3600.000000"}};
    for (const auto& sample : expected) CHECK_MESSAGE(page.at(sample.first) == sample.second, sample.first);
    CHECK(page.count("ojs_job_completed_total{queue=\"default\",type=\"gone\"}") == 0);
    const double age = static_cast<double>(::time(nullptr)) - std::stod(page.at("process_start_time_seconds"));
    CHECK(std::abs(age) < 86400);
}
}  // namespace

TEST_CASE("health: a loop has the probes, metrics and control of a worker") {
    loop_options options;
    std::string address;
    options.extensions.add(ops({"127.0.0.1:0", true}));
    options.log.hook = [&](const log_record& record) {
        if (record.message == "health server listening") address = record.fields.at(0).value;
    };
    lifecycle shared;
    loop served(options, shared);
    test::counter begun;
    test::counter released;
    served.add_consumers(1, [&](consumer& consumer) {
        if (!consumer.next()) return;
        const item taken = consumer.begin("an item");
        begun.add();
        released.wait_for(1);
    });
    std::thread running([&] { CHECK(served.run() == 0); });
    REQUIRE(begun.wait_for(1));
    CHECK(send(address, "GET", "/readyz").status == 200);
    CHECK(is_alive_at(address));
    CHECK(holds(send(address, "GET", "/metrics").body, "ojs_workers_busy{queue=\"default\"} 1"));
    CHECK(holds(send(address, "GET", "/metrics").body, "ojs_worker_jobs_claimed_total 1"));
    CHECK(send(address, "POST", "/quiet?wait=1ms").status == 503);
    CHECK(send(address, "GET", "/readyz").status == 503);
    released.add();
    running.join();
}
