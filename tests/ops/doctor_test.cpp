// doctor: every finding provoked, and absent.
#include "environment.hpp"
#include "findings.hpp"
#include "processes.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {
std::vector<finding> ask(const worker_options& options, const ojs::detail::container_probe& where = probe(),
                         std::chrono::milliseconds timeout = hang_guard,
                         const ojs::result<ojs::ops_options>& ops = ojs::ops_options()) {
    return doctor(options, ops, timeout, where);
}

std::string inspect_mine(std::string_view address) { return "cannot use " + std::string(address); }

// What doctor() finds for a worker with this environment: variables, and of "docker", "shell" (above it in a container),
// "pod" and "no-ops" (the extension is not added) what holds. ROOT is that of the file system.
std::vector<finding> ask_for(const std::string& environment) {
    file_tree tree;
    tree.file("/normal", "NORMAL_SHUTDOWN").file("/reclaim", " \nSPOT_RECLAIM\n").file("/other", "normal");
    tree.fifo("/fifo").file("/taken", "somebody's");
    variables set = {{"OJS_URL", "memory:"}};
    bool has_ops = true;
    pid_t pid = 1;
    for (std::string word : words(environment)) {
        for (std::size_t at = 0; (at = word.find("ROOT")) != std::string::npos;) word.replace(at, 4, tree.root());
        const std::size_t end = word.find('=');
        if (end != std::string::npos) set[word.substr(0, end)] = word.substr(end + 1);
        if (word == "no-ops") has_ops = false;
        if (word == "shell") pid = 7;
        if (word == "docker" || word == "shell") tree.file("/.dockerenv", "");
        if (word == "pod") tree.file("/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    }
    with_us(tree).process("1", 1, 0, pid == 7 ? "sh" : "worker", pid == 7 ? "/bin/sh|-c|./worker" : "./worker");
    ojs::result<worker_options> options = worker_options::from_environment(lookup(set), tree.root());
    REQUIRE(options);
    if (has_ops) options->extensions.add(ojs::ops());
    options->transports.add(ojs::memory());
    options->transports.add({"mine", nullptr, inspect_mine});
    const environment_variable cluster("KUBERNETES_SERVICE_HOST", set["KUBERNETES_SERVICE_HOST"]);
    return ask(*options, probe(tree.root(), set, pid), hang_guard, ojs::ops_options::from_environment(lookup(set)));
}

// Its response to the health check, and the statistics of its queues.
ojs::http_server backend(int status, const std::string& body = "", const std::string& stats = "",
                         std::string* authorization = nullptr) {
    auto started = ojs::http_server::start("127.0.0.1:0", [=](const ojs::http_request& request) {
        if (authorization != nullptr) *authorization = std::string(find_header(request.headers, "Authorization"));
        const bool is_health = request.target == "/ojs/v1/health" && request.method == "GET";
        if (!is_health && request.target != "/ojs/v1/queues/default/stats") return ojs::http_response{404, {}, ""};
        return ojs::http_response{
            is_health ? status : 200, {{"Location", "https://new/jobs?login=canary"}}, is_health ? body : stats};
    });
    REQUIRE(started);
    return std::move(*started);
}

std::vector<finding> ask_url(const std::string& url, const std::string& token = "") {
    worker_options options;
    options.url = url;
    options.auth_token = token;
    return ask(options);
}
}  // namespace

TEST_CASE("doctor: findings are printed with their fix and counted") {
    const std::vector<finding> all = {{severity::info, "a", "one", ""},
                                      {severity::error, "b-c", "two", "fix it"},
                                      {severity::warning, "d", "three", "look"}};
    CHECK(format_findings(all) ==
          "info     a: one\n"
          "error    b-c: two\n"
          "         fix: fix it\n"
          "warning  d: three\n"
          "         fix: look\n"
          "1 error, 1 warning\n");
    CHECK(max_severity(all) == severity::error);
    CHECK(ojs::max_severity({all[0], all[2]}) == severity::warning);
    const std::vector<finding> none = ask(quiet_options());
    CHECK(max_severity(none) == severity::info);
    CHECK(format_findings(none) == "0 errors, 0 warnings\n");
}

// [GS 8.2 (a)] [GS-003]
TEST_CASE("doctor: each fault of options or environment gives its own finding, and a correct worker gives none") {
    const severity info = severity::info;
    const severity warning = severity::warning;
    const severity error = severity::error;
    const char* const shell = OJS_SHUTDOWN_USE_PROC == 1 ? "'/bin/sh -c ...'" : "PID 1";
    const struct {
        std::string environment;
        std::string id = "";  // empty: no finding
        severity level = severity::info;
        const char* text = "";  // in its problem or its fix
        std::string others = "";
    } rows[] = {
        {""},
        {"docker", "budget-unknown", warning, "10s that Docker grants unless stop_grace_period", "container"},
        {"docker OJS_CONTAINER_GRACE_PERIOD=60s", "container", info, "docker"},
        {"shell OJS_CONTAINER_GRACE_PERIOD=60s", "pid1-wrapper", warning, shell, "container"},
        {"OJS_TERMINATION_MODE_FILE=ROOT/normal"},
        {"OJS_TERMINATION_MODE_FILE=ROOT/none", "mode-file-missing", info, "not found"},
        {"OJS_TERMINATION_MODE_FILE=ROOT/reclaim", "mode-file-stale", warning, "earlier stop"},
        {"OJS_TERMINATION_MODE_FILE=ROOT/other", "mode-file-content", warning,
         "'normal': a stop by signal requeues jobs at once"},
        {"OJS_TERMINATION_MODE_FILE=ROOT/fifo", "mode-file-unreadable", error, "/fifo"},
        {"NOTIFY_SOCKET=/run/notify"},
        {"NOTIFY_SOCKET=/run/notify no-ops", "service-unnotified", warning, "readiness is not reported"},
        {"OJS_URL=http://127.0.0.1:1", "backend-unreachable", error, "127.0.0.1:1"},
        {"OJS_URL=https://host", "options", error, "https", "backend-unreachable"},
        {"OJS_URL=other:there", "options", error, "no valid scheme"},
        {"OJS_URL=mine:there", "backend-unusable", error, "cannot use there"},
        {"OJS_HEALTH_ADDR=0.0.0.0:0 OJS_HEALTH_CONTROL=on OJS_HEALTH_TOKEN=canary"},
        {"OJS_HEALTH_ADDR=unix:ROOT/sock OJS_HEALTH_CONTROL=on"},
        {"OJS_HEALTH_ADDR=:0 OJS_HEALTH_CONTROL=on", "health-control-token", info, "no token"},
        {"OJS_HEALTH_ADDR=0.0.0.0:0 OJS_HEALTH_CONTROL=on", "options", error, "without a token"},
        {"OJS_HEALTH_CONTROL=on", "options", error, "no address"},
        {"OJS_HEALTH_ADDR=127.0.0.1:99999", "options", error, "port"},
        {"OJS_HEALTH_ADDR=unix:/nowhere/at/all", "health-bind", error, "/nowhere/at/all"},
        {"OJS_HEALTH_ADDR=unix:ROOT/taken", "health-bind", error, "/taken"},
        {"pod OJS_SHUTDOWN_GRACE_PERIOD=25s", "budget-kubernetes", info,
         "25s fits into the 30s that Kubernetes grants unless terminationGracePeriodSeconds",
         "container health-kubernetes"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s", "health-kubernetes", info, "no health address", "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=127.0.0.1:0", "health-kubernetes", warning,
         "OJS_HEALTH_ADDR=[::]:8081, and use /livez", "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=:0", "health-kubernetes", warning, "loopback",
         "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=0.0.0.0:0", "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=unix:ROOT/sock", "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=[::]:0 KUBERNETES_SERVICE_HOST=fd00::1", "container"},
        {"pod OJS_CONTAINER_GRACE_PERIOD=60s OJS_HEALTH_ADDR=0.0.0.0:0 KUBERNETES_SERVICE_HOST=fd00::1",
         "health-kubernetes", warning, "IPv4 in a cluster of IPv6", "container"},
    };
    for (const auto& each : rows) {
        CAPTURE(each.environment);
        const std::vector<finding> all = ask_for(each.environment);
        CAPTURE(format_findings(all));
        CHECK(!holds(format_findings(all), "canary"));
        std::string others;
        for (const finding& one : all) {
            // Not every machine has an address of the pod's kind.
            if (one.id != each.id && one.id != "health-bind") others += (others.empty() ? "" : " ") + one.id;
        }
        CHECK(others == each.others);
        if (each.id.empty()) continue;
        const finding* const found = find(all, each.id);
        REQUIRE(found != nullptr);
        CHECK(found->severity == each.level);
        CHECK(holds(found->problem + "\n" + found->fix, each.text));
        CHECK((found->severity == severity::info || !found->fix.empty()));
    }
}

TEST_CASE("doctor: a signal that is ignored or blocked is reported by name") {
    const struct {
        int number;
        severity level;
        const char* name;
    } cases[] = {{SIGTERM, severity::error, "SIGTERM"},   {SIGINT, severity::warning, "SIGINT"},
                 {SIGHUP, severity::info, "SIGHUP"},      {SIGRTMIN + 1, severity::warning, "SIGRTMIN+1"},
                 {SIGTTIN, severity::warning, "SIGTTIN"}, {SIGTSTP, severity::warning, "SIGTSTP"},
                 {SIGCONT, severity::warning, "SIGCONT"}};
    worker_options options = quiet_options();
    options.stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGRTMIN + 1};
    for (const auto& each : cases) {
        auto* const previous = ::signal(each.number, SIG_IGN);
        const std::vector<finding> ignored = ask(options);
        ::signal(each.number, previous);
        CHECK(ignored.size() == 1);
        check_found(ignored, "signal-ignored", each.level, each.name);
        ::signal(each.number, [](int) {});
        const std::vector<finding> handled = ask(options);
        ::signal(each.number, previous);
        CHECK(handled.size() == (each.number == SIGHUP ? 0U : 1U));  // a reload
        if (each.number != SIGHUP) check_found(handled, "signal-handled", severity::error, each.name);

        sigset_t one;
        sigset_t mask;
        sigemptyset(&one);
        sigaddset(&one, each.number);
        ::pthread_sigmask(SIG_BLOCK, &one, &mask);
        const std::vector<finding> blocked = ask(options);
        ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
        CHECK(blocked.size() == 1);
        check_found(blocked, "signal-blocked", severity::warning, each.name);
    }
}

TEST_CASE("doctor: a backend that is silent, refuses the token or returns no success with JSON is an error") {
    std::string authorization;
    const ojs::http_server well = backend(200, "{}", "", &authorization);
    CHECK(ask_url("http://" + well.address(), "canary").empty());
    const ojs::http_server redis = backend(200, R"({"status":"ok","backend":{"type":"redis"}})");
    check_found(ask_url("http://" + redis.address()), "backend-checkpoints", severity::info, "on redis drops");
    worker_options by_file;
    by_file.auth_token_file = "/no/token";
    check_found(ask(by_file), "backend-token", severity::error, "(OJS_AUTH_TOKEN_FILE) '/no/token' cannot be read");
    CHECK(authorization == "Bearer canary");
    for (const int status : {401, 403}) {
        const ojs::http_server strict = backend(status);
        check_found(ask_url("http://" + strict.address()), "backend-token", severity::error, "none is set");
        const std::vector<finding> refused = ask_url("http://" + strict.address(), "canary");
        check_found(refused, "backend-token", severity::error, "refuses");
        CHECK(!holds(format_findings(refused), "canary"));
    }
    const struct {
        int status;
        const char* body;
        const char* text;
    } rows[] = {{200, "<html>", " with a body that is not JSON"},
                {302, "", " with a redirect to https://new/jobs"},
                {400, "", ""},
                {404, "<html>", ""},
                {500, "token canary", ""},
                {502, "<html>", ""},
                {503, "{\"status\":\"degraded\"}", ": {\"status\":\"degraded\"}"}};
    for (const auto& row : rows) {
        const ojs::http_server other = backend(row.status, row.body);
        const std::vector<finding> found = ask_url("http://" + other.address(), "canary");
        check_found(found, "backend-answer", severity::error, "");
        CHECK(found.front().problem == "the backend answers " + std::to_string(row.status) + " to GET http://" +
                                           other.address() + "/ojs/v1/health" + row.text);
    }
    const peer::server silent([](int fd, int) { peer::read_to_end(fd); });
    worker_options unanswered;
    unanswered.url = silent.url();
    check_found(ask(unanswered, probe(), 500ms), "backend-unreachable", severity::error, "before the deadline");
}

TEST_CASE("doctor: a paused queue, or a queue whose jobs no worker takes, gives a warning") {
    const auto found = [](const std::string& status, const std::string& stats) {
        const ojs::http_server server = backend(200, "", R"({"status":")" + status + R"(","stats":{)" + stats + "}}");
        const std::vector<finding> all = ask_url("http://" + server.address());
        return all.empty() ? "" : all[0].id + ": " + all[0].problem;
    };
    CHECK(found("paused", R"("available":0)") == "queue-paused: queue 'default' is paused: no worker gets its jobs");
    CHECK(found("active", R"("available":7,"active":0,"throughput_per_second":0.0)") ==
          "queue-idle: queue 'default' has 7 jobs, and none has run for a minute");
    CHECK(found("active", R"("available":7,"active":1,"throughput_per_second":0)").empty());
    CHECK(found("active", R"("available":7,"active":0,"throughput_per_second":0.1)").empty());
    CHECK(found("active", R"("available":0,"active":0,"throughput_per_second":0)").empty());
    CHECK(found("active", R"("available":7,"active":0)").empty());  // it does not say so
}

// In the container of a running worker that worker holds the address; a process that runs this program need not listen.
TEST_CASE("doctor: a health address in use is an info if a running worker uses it, and an error otherwise") {
    const pid_t second = forked([] { return ::pause(); });  // a process that runs this program
    const ojs::http_server taken = backend(200);
    check_found(ask_for("OJS_HEALTH_ADDR=" + taken.address()), "health-bind", severity::error, "in use");
    const file_tree tree;
    worker_options options = quiet_options();
    options.log.level = ojs::log_level::off;
    const ojs::ops_options server{"unix:" + tree.root() + "/sock"};
    options.extensions.add(ojs::ops(server));
    CHECK(ask(options, probe(), hang_guard, server).empty());
    CHECK(::access((tree.root() + "/sock").c_str(), F_OK) != 0);  // it listened there, and left nothing
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    REQUIRE(worker.start());
    check_found(ask(options, probe(), hang_guard, server), "health-bind", severity::info, "in use");
    CHECK(worker.stop(30s));
    ::kill(second, SIGKILL);
    CHECK(status_of(second) == -SIGKILL);
}

TEST_CASE("doctor: limits for files or threads that are too low for the concurrency give a warning") {
    const auto found = [](decltype(RLIMIT_NOFILE) resource, rlim_t limit, int concurrency) {
        rlimit before{};
        REQUIRE(::getrlimit(resource, &before) == 0);
        rlimit low = before;
        low.rlim_cur = std::min(limit, before.rlim_max);
        REQUIRE(::setrlimit(resource, &low) == 0);
        worker_options options = quiet_options();
        options.concurrency = concurrency;
        const std::vector<finding> out = ask(options);
        ::setrlimit(resource, &before);
        return out;
    };
    CHECK(find(found(RLIMIT_NOFILE, 200, 168), "limit-files") == nullptr);
    check_found(found(RLIMIT_NOFILE, 200, 169), "limit-files", severity::warning, "169");
#ifdef RLIMIT_NPROC
    CHECK(find(found(RLIMIT_NPROC, 9000, 10), "limit-threads") == nullptr);
    check_found(found(RLIMIT_NPROC, 9000, 10000), "limit-threads", severity::warning, "10000");
#endif
}

TEST_CASE("doctor: for a loop the options and the budget are checked, and no backend is queried") {
    ojs::loop_options options;
    options.concurrency = 0;
    options.container_grace_period = std::chrono::seconds(10);
    const std::vector<finding> found = ojs::doctor(options);
    const auto has = [&](const char* id) {
        return std::any_of(found.begin(), found.end(), [&](const finding& each) { return each.id == id; });
    };
    CHECK(has("options"));
    CHECK(has("budget-exceeded"));
    CHECK_FALSE(has("backend-unreachable"));
}
