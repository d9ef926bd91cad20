// doctor: every finding provoked, and absent.
#include "environment.hpp"
#include "findings.hpp"
#include "processes.hpp"
#include "raw_peer.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::finding;
using ojs::severity;
using ojs::worker_options;

namespace {

std::vector<finding> ask(const worker_options& options, const ojs::detail::container_probe& where = probe(),
                         std::chrono::milliseconds timeout = hang_guard) {
    return doctor(options, timeout, where);
}

ojs::http_server backend(int status, std::string* authorization = nullptr) {
    auto started = ojs::http_server::start("127.0.0.1:0", [=](const ojs::http_request& request) {
        ojs::http_response out;
        out.status = request.target == "/ojs/v1/health" && request.method == "GET" ? status : 404;
        if (authorization != nullptr)
            *authorization = std::string(find_header(request.headers, "Authorization"));
        return out;
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

std::vector<finding> ask_health(const std::string& address, bool control = false,
                                const std::string& token = "") {
    worker_options options = quiet_options();
    options.health_address = address;
    options.health_control = control;
    options.health_token = token;
    options.extensions.add(ojs::ops());
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

// [GS 8.2 (a)]
TEST_CASE("doctor: in a container the runtime, its short stop timeout and a shell as PID 1 are reported") {
    file_tree tree;
    tree.file("/.dockerenv", "").process("self", 7, 1, "worker", "./worker", "worker");
    tree.process("1", 1, 0, "sh", "/bin/sh|-c|./worker");
    const std::vector<finding> found = ask(quiet_options(), probe(tree.root()));
    check_found(found, "container", severity::info, "docker");
    check_found(found, "budget-unknown", severity::warning,
                "10s that Docker grants unless stop_grace_period");
    check_found(found, "pid1-wrapper", severity::warning,
                OJS_SHUTDOWN_USE_PROC == 1 ? "'/bin/sh -c ...'" : "PID 1");
    worker_options options = quiet_options();
    options.container_grace_period = 60s;
    const std::vector<finding> well = ask(options, probe(tree.root(), {}, 1));
    REQUIRE(well.size() == 1);
    CHECK(well[0].id == "container");
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

TEST_CASE(
    "doctor: a termination-mode file that is missing, stale, unreadable or of unknown content is reported") {
    file_tree tree;
    const auto ask_file = [&](const std::string& path) {
        worker_options options = quiet_options();
        options.termination_mode_file = tree.root() + path;
        return ask(options);
    };
    tree.file("/normal", "NORMAL_SHUTDOWN").file("/reclaim", " \nSPOT_RECLAIM\n").file("/other", "normal");
    tree.fifo("/fifo").folder("/folder").link("/loop", tree.root() + "/loop");
    CHECK(ask(quiet_options()).empty());
    CHECK(ask_file("/normal").empty());
    check_found(ask_file("/nothing"), "mode-file-missing", severity::info, "not found");
    check_found(ask_file("/reclaim"), "mode-file-stale", severity::warning, "earlier stop");
    check_found(ask_file("/other"), "mode-file-content", severity::warning,
                "'normal': a stop by signal hands jobs back at once");
    for (const char* path : {"/fifo", "/folder", "/loop"})
        check_found(ask_file(path), "mode-file-unreadable", severity::error, path);
}

TEST_CASE("doctor: NOTIFY_SOCKET without the ops extension gives a warning") {
    worker_options options = quiet_options();
    const auto found = [&] { return ask(options, probe("/nowhere", {{"NOTIFY_SOCKET", "/run/notify"}})); };
    check_found(found(), "service-unnotified", severity::warning, "readiness is not reported");
    options.extensions.add(ojs::ops());
    CHECK(found().empty());
}

TEST_CASE("doctor: a backend that is unreachable, refuses the token or returns an error status is reported") {
    std::string authorization;
    const ojs::http_server well = backend(200, &authorization);
    CHECK(ask_url("http://" + well.address(), "canary").empty());
    CHECK(authorization == "Bearer canary");
    for (const int status : {401, 403}) {
        const ojs::http_server strict = backend(status);
        check_found(ask_url("http://" + strict.address()), "backend-token", severity::error, "none is set");
        const std::vector<finding> refused = ask_url("http://" + strict.address(), "canary");
        check_found(refused, "backend-token", severity::error, "does not accept");
        CHECK(!holds(format_findings(refused), "canary"));
    }
    for (const int status : {404, 500, 503}) {
        const ojs::http_server other = backend(status);
        check_found(
            ask_url("http://" + other.address()), "backend-answer", severity::warning,
            (std::to_string(status) + " to GET http://" + other.address() + "/ojs/v1/health").c_str());
    }
    check_found(ask_url("http://127.0.0.1:1"), "backend-unreachable", severity::error, "127.0.0.1:1");
    check_found(ask_url("unix:/nowhere/socket"), "backend-unreachable", severity::error, "/nowhere/socket");
    check_found(ask_url("https://host"), "options", severity::error, "https");
    const peer::server silent([](int fd, int) { peer::read_to_end(fd); });
    worker_options unanswered;
    unanswered.url = silent.url();
    check_found(ask(unanswered, probe(), 500ms), "backend-unreachable", severity::error,
                "before the deadline");
}

TEST_CASE("doctor: an added URL scheme inspects its own address, and no HTTP backend is queried") {
    worker_options options;
    options.url = "mine:there";
    options.transports.add({"mine", nullptr, nullptr});
    CHECK(ask(options).empty());
    options.transports.add({"mine", nullptr, [](std::string_view address) -> std::vector<finding> {
                                return {{severity::warning, "mine-odd", std::string(address), "fix it"}};
                            }});
    check_found(ask(options), "mine-odd", severity::warning, "there");
    check_found(ask_url("other:there"), "options", severity::error, "unknown scheme");
}

TEST_CASE(
    "doctor: an invalid or unavailable health address, or health control without a token, is reported") {
    const struct {
        const char* address;
        bool control;
        const char* token;
        const char* id = nullptr;  // of the finding
        severity level = severity::info;
        const char* text = "";
    } cases[] = {{"0", false, ""},
                 {"0.0.0.0:0", false, ""},
                 {"0.0.0.0:0", true, "canary"},
                 {"127.0.0.1:0", true, "canary"},
                 {"nonsense:x", false, "", "options", severity::error, "OJS_HEALTH_ADDR"},
                 {"127.0.0.1:99999", false, "", "options", severity::error, "port"},
                 {"unix:/nowhere/at/all", false, "", "health-bind", severity::error, "/nowhere/at/all"},
                 {"", true, "", "options", severity::error, "no health_address"},
                 {"0.0.0.0:0", true, "", "options", severity::error, "without health_token"},
                 {":0", true, "", "health-control-token", severity::info, "no token"}};
    for (const auto& each : cases) {
        CAPTURE(each.address);
        const std::vector<finding> found = ask_health(each.address, each.control, each.token);
        if (each.id == nullptr) CHECK(found.empty());
        if (each.id != nullptr) check_found(found, each.id, each.level, each.text);
    }
    file_tree tree;
    const std::string path = tree.root() + "/health.sock";
    CHECK(ask_health("unix:" + path, true).empty());
    CHECK(::access(path.c_str(), F_OK) != 0);
    tree.file("/health.sock", "somebody's");
    check_found(ask_health("unix:" + path), "health-bind", severity::error, "health.sock");
    CHECK(::access(path.c_str(), F_OK) == 0);
}

// In the container of a running worker that worker holds the address; a process that runs this program need not listen.
TEST_CASE("doctor: a health address in use is an info if a running worker owns it, and else an error") {
    const pid_t second = forked([] { return ::pause(); });  // a process that runs this program
    const ojs::http_server taken = backend(200);
    check_found(ask_health(taken.address()), "health-bind", severity::error, "in use");
    const file_tree tree;
    worker_options options = quiet_options();
    options.log.level = ojs::log_level::off;
    options.health_address = "unix:" + tree.root() + "/health.sock";
    options.extensions.add(ojs::ops());
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    REQUIRE(worker.start());
    check_found(ask_health(options.health_address), "health-bind", severity::info, "in use");
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

// [GS-003]
TEST_CASE(
    "doctor: in a pod, a default grace period and a health address that probes cannot reach are reported") {
    file_tree tree;
    tree.file("/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    tree.process("self", 1, 0, "worker", "./worker", "worker").process("1", 1, 0, "worker", "./worker");
    worker_options options = quiet_options();
    const auto advice = [&] {
        std::vector<finding> out;
        for (const finding& each : ask(options, probe(tree.root(), {}, 1))) {
            if (each.id != "container" && each.id != "health-bind") out.push_back(each);
        }
        return out;
    };
    options.times.shutdown_grace_period = 25s;
    const std::vector<finding> unsaid = advice();
    REQUIRE(unsaid.size() == 2);
    check_found(unsaid, "budget-kubernetes", severity::info,
                "25s fits into the 30s that Kubernetes grants unless terminationGracePeriodSeconds");
    check_found(unsaid, "health-kubernetes", severity::info, "no health address");
    options.prestop_delay = 5s;
    options.times.shutdown_grace_period = 20s;
    check_found(advice(), "budget-kubernetes", severity::info, "preStop delay of 5s fit");
    options.container_grace_period = 60s;
    options.extensions.add(ojs::ops());
    for (const char* near : {"127.0.0.1:8081", ":8081", "localhost:8081", "[::1]:8081"}) {
        CAPTURE(near);
        options.health_address = near;
        const std::vector<finding> found = advice();
        REQUIRE(found.size() == 1);
        CHECK(found[0].id == "health-kubernetes");
        CHECK(found[0].severity == severity::warning);
        CHECK(found[0].fix.find("OJS_HEALTH_ADDR=[::]:8081") != std::string::npos);
        CHECK(found[0].fix.find("/livez") != std::string::npos);
    }
    for (const char* far : {"0.0.0.0:8081", "[::]:8081", "unix:/tmp/h.sock"}) {
        options.health_address = far;
        CHECK(advice().empty());
    }
    const test::environment_variable cluster("KUBERNETES_SERVICE_HOST", "fd00::1");
    for (const char* both : {"[::]:8081", "[fd00::5]:8081"}) {
        options.health_address = both;
        CHECK(advice().empty());
    }
    options.health_address = "0.0.0.0:8081";
    check_found(advice(), "health-kubernetes", severity::warning, "IPv4 in a cluster of IPv6");
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
