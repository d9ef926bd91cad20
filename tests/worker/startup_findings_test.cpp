// startup_findings: every finding a worker logs at start, provoked and absent; budgets first: whether a stop fits into
// the container's grace period, and the recommended fix.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "file_tree.hpp"
#include "text.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::dialect;
using ojs::finding;
using ojs::severity;
using ojs::worker_options;
using ojs::detail::check_budget;
using ojs::detail::startup_findings;
using std::chrono::milliseconds;

namespace {

ojs::worker_options with(milliseconds grace, milliseconds container, milliseconds prestop = 0ms,
                         milliseconds stop = 5s) {
    ojs::worker_options out;
    out.times.shutdown_grace_period = grace;
    out.container_grace_period = container;
    out.prestop_delay = prestop;
    out.times.stop_timeout = stop;
    return out;
}

worker_options quiet_options() {
    worker_options out;
    out.url = "memory:";
    return out;
}

ojs::detail::container_probe probe(const std::string& root, pid_t pid) {
    ojs::detail::container_probe out;
    out.root = root;
    out.environment = lookup({});
    out.pid = pid;
    return out;
}

const finding* find(const std::vector<finding>& all, const std::string& id) {
    for (const finding& each : all) {
        if (each.id == id) return &each;
    }
    return nullptr;
}

void check_found(const std::vector<finding>& all, const char* id, severity level, const char* what) {
    CAPTURE(id);
    CAPTURE(format_findings(all));
    const finding* found = find(all, id);
    REQUIRE(found != nullptr);
    CHECK(found->severity == level);
    CHECK(holds(found->problem, what));
}

}  // namespace

TEST_CASE("budget: no finding if nothing is configured, or if everything fits") {
    CHECK(check_budget(with(30s, 0s)).empty());
    CHECK(check_budget(with(30s, 0s, 5s)).empty());
    CHECK(check_budget(with(30s, 40s)).empty());
    CHECK(check_budget(with(30s, 35s)).empty());
    CHECK(check_budget(with(30s, 40s, 5s)).empty());
    CHECK(check_budget(with(30s, 50s, 0s, 20s)).empty());
}

TEST_CASE("budget: the timeouts of shutdown steps count") {
    CHECK(check_budget(with(30s, 45s), 10s).empty());
    const std::vector<finding> tight = check_budget(with(30s, 45s), 11s);
    REQUIRE(tight.size() == 1);
    CHECK(tight[0].id == "budget-tight");
    CHECK(holds(tight[0].problem, "may take 16s"));
    CHECK(holds(tight[0].fix, "grant 46s"));
    CHECK(check_budget(with(30s, 1h), ojs::no_limit).size() == 1);
    CHECK(check_budget(with(ojs::no_limit, 60s)).size() == 1);
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].problem, "unlimited grace period"));
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].fix, "set OJS_SHUTDOWN_GRACE_PERIOD to 50s"));
}

TEST_CASE("budget: without a configured grant, the platform's default counts and the platform is named") {
    const std::string any = "terminationGracePeriodSeconds, stop_grace_period or docker stop -t";
    const struct {
        const char* runtime;
        milliseconds granted;
        const char* id;
        std::string name;
        std::string setting;
    } cases[] = {
        {"kubernetes", 30s, "budget-kubernetes", "Kubernetes", "terminationGracePeriodSeconds"},
        {"ecs", 30s, "budget-ecs", "Amazon ECS", "stopTimeout"},
        {"cloud-run", 10s, "budget-cloud-run", "Cloud Run", ""},
        {"nomad", 5s, "budget-nomad", "Nomad", "kill_timeout"},
        {"docker", 10s, "budget-docker", "Docker", "stop_grace_period or docker stop -t"},
        {"podman", 10s, "budget-podman", "Podman", "--stop-timeout or podman stop -t"},
        {"lxc", 10s, "budget-container", "the container", any},
    };
    ojs::container_info info;
    info.in_container = true;
    for (const auto& each : cases) {
        CAPTURE(each.runtime);
        info.runtime = each.runtime;
        const milliseconds fitting = each.granted - 5s;  // the longest grace period
        const std::string granted =
            ojs::format_duration(each.granted) + " that " + each.name + " grants" +
            (each.setting.empty() ? "" : " unless " + each.setting + " says otherwise");
        worker_options options = with(fitting, 0s);
        options.heartbeat_interval = fitting - 1ms;
        const std::vector<finding> fits = check_budget(options, 0s, info);
        REQUIRE(fits.size() == 1);
        CHECK(fits[0].id == each.id);
        CHECK(fits[0].severity == severity::info);
        CHECK(fits[0].problem ==
              "the grace period of " + ojs::format_duration(fitting) + " fits into the " + granted);
        options.times.shutdown_grace_period += 1s;
        const std::vector<finding> longer = check_budget(options, 0s, info);
        REQUIRE(longer.size() == 1);
        CHECK(longer[0].id == "budget-unknown");
        CHECK(longer[0].severity == severity::warning);
        CHECK(longer[0].problem == "the grace period of " + ojs::format_duration(fitting + 1s) +
                                       " and the 5s for reporting need more than the " + granted +
                                       "; OJS_CONTAINER_GRACE_PERIOD is unset");
        std::string fix = "Cloud Run grants no more time: let longer jobs save checkpoints";
        if (!each.setting.empty())
            fix = "let " + each.name + " grant " + ojs::format_duration(fitting + 11s) + " (" + each.setting +
                  ") and set OJS_CONTAINER_GRACE_PERIOD to the same";
        if (each.granted == 30s) fix += "; or set OJS_SHUTDOWN_GRACE_PERIOD to 20s or less";
        CHECK(longer[0].fix == fix);
        CHECK(check_budget(with(fitting, 0s, 1s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s), 1s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s, 0s, 6s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s), ojs::no_limit, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(30s, 60s), 0s, info).empty());
        info.in_container = false;  // a task of Nomad's raw_exec is stopped by Nomad all the same
        CHECK(check_budget(with(30s, 0s), 0s, info).empty() == (info.runtime != "nomad"));
        info.in_container = true;
    }
    info.runtime = "ecs";
    CHECK(holds(check_budget(with(30s, 20s), 0s, info)[0].fix, "let Amazon ECS grant 40s (stopTimeout) "));
    info.runtime = "cloud-run";
    CHECK(check_budget(with(30s, 10s), 0s, info)[0].fix ==
          "Cloud Run grants no more time: let longer jobs save checkpoints");
}

TEST_CASE("budget: a cancel_wait that exceeds stop_timeout") {
    worker_options options = with(30s, 0s);
    options.times.cancel_wait = 2250ms;  // half of what the last heartbeat leaves of 5 s
    CHECK(check_budget(options).empty());
    options.times.cancel_wait = 2251ms;
    const std::vector<finding> cut = check_budget(options);
    REQUIRE(cut.size() == 1);
    CHECK(cut[0].id == "cancel-wait-cut");
    CHECK(cut[0].severity == severity::warning);
    CHECK(holds(cut[0].problem, "2s251ms"));
    CHECK(holds(cut[0].problem, "2s250ms"));
    CHECK(holds(cut[0].fix, "5s751ms"));
    options.times.stop_timeout = 5751ms;
    CHECK(check_budget(options).empty());
    options.times.cancel_wait = 0ms;
    options.times.reclaim_wait = 1h;
    CHECK(check_budget(options).size() == 1);
    options.use(dialect::river());
    CHECK(check_budget(options).empty());
}

TEST_CASE("budget: exceeded, tight, and the value that works") {
    const struct {
        milliseconds grace, container, prestop, stop;
        const char* id;
        const char* recommended;
        const char* shorter;  // grace period that fits; null: there is none
    } cases[] = {
        {30s, 30s, 0s, 5s, "budget-exceeded", "40s", "20s"},
        {30s, 10s, 0s, 5s, "budget-exceeded", "40s", nullptr},
        {30s, 30s, 0s, 100ms, "budget-exceeded", "40s", "20s"},
        {30s, 29s, 0s, 5s, "budget-exceeded", "40s", "19s"},
        {30s, 35s, 5s, 5s, "budget-exceeded", "45s", "20s"},
        {25s, 30s, 15s, 5s, "budget-exceeded", "50s", "5s"},
        {30s, 1ms, 0s, 5s, "budget-exceeded", "40s", nullptr},
        {30s, 34999ms, 0s, 5s, "budget-tight", "40s", "24s999ms"},
        {30s, 31s, 0s, 5s, "budget-tight", "40s", "21s"},
        {30s, 39s, 5s, 5s, "budget-tight", "45s", "24s"},
        {30s, 45s, 0s, 20s, "budget-tight", "50s", "25s"},
        {30s, 34s, 0s, 100ms, "budget-tight", "40s", "24s"},
    };
    for (const auto& each : cases) {
        const ojs::worker_options options = with(each.grace, each.container, each.prestop, each.stop);
        const std::vector<finding> found = check_budget(options);
        REQUIRE(found.size() == 1);
        CAPTURE(found[0].problem);
        CAPTURE(found[0].fix);
        CHECK(found[0].id == each.id);
        CHECK((found[0].severity == severity::error) == (found[0].id == "budget-exceeded"));
        CHECK(found[0].severity >= severity::warning);
        CHECK(holds(found[0].problem, "grace period of " + ojs::format_duration(each.grace)));
        CHECK(holds(found[0].problem, "the " + ojs::format_duration(each.container) + " the container"));
        CHECK(holds(found[0].problem, "preStop") == (each.prestop > 0s));
        CHECK(holds(found[0].fix, std::string("grant ") + each.recommended + " "));
        CHECK(holds(found[0].fix, "OJS_SHUTDOWN_GRACE_PERIOD") == (each.shorter != nullptr));
        // Either fix removes the finding.
        ojs::worker_options longer = options;
        longer.container_grace_period = *ojs::parse_duration(each.recommended);
        CHECK(check_budget(longer).empty());
        if (each.shorter == nullptr) continue;
        CHECK(holds(found[0].fix, std::string("to ") + each.shorter + " or less"));
        ojs::worker_options shorter = options;
        shorter.times.shutdown_grace_period = *ojs::parse_duration(each.shorter);
        for (const finding& left : check_budget(shorter)) CHECK(left.id == "grace-below-heartbeat");
    }
}

TEST_CASE("budget: a grace period no longer than a heartbeat") {
    ojs::worker_options options = with(5s, 0s);
    REQUIRE(check_budget(options).size() == 1);
    CHECK(check_budget(options)[0].id == "grace-below-heartbeat");
    CHECK(check_budget(options)[0].severity == severity::warning);
    CHECK(holds(check_budget(options)[0].fix, "15s"));
    options.times.shutdown_grace_period = 5001ms;
    CHECK(check_budget(options).empty());
}

TEST_CASE("budget: the largest values do not overflow") {
    const milliseconds most = milliseconds::max();
    CHECK(check_budget(with(most, most, most))[0].id == "budget-exceeded");
    CHECK(check_budget(with(1s, most, most))[0].id == "budget-exceeded");
    CHECK(check_budget(with(30s, 40s, milliseconds::min())).empty());
    CHECK(check_budget(with(30s, milliseconds::min())).empty());
}

TEST_CASE("startup findings: budgets and PID 1, without infos") {
    file_tree tree;
    tree.file("/.dockerenv", "").process("self", 7, 1, "worker", "./worker", "worker");
    tree.process("7", 7, 1, "worker", "./worker", "worker").process("1", 1, 0, "catatonit", "catatonit");
    const ojs::detail::container_probe where = probe(tree.root(), 7);
    worker_options options = quiet_options();
    options.container_grace_period = 60s;
    if (OJS_SHUTDOWN_USE_PROC == 1) CHECK(startup_findings(options, where).empty());
    options.container_grace_period = 30s;
    tree.process("1", 1, 0, "sh", "sh|-c|./worker");
    const std::vector<finding> found = startup_findings(options, where);
    CHECK(found.size() == 2);
    CHECK(find(found, "budget-exceeded") != nullptr);
    CHECK(find(found, "pid1-wrapper") != nullptr);
}

TEST_CASE("startup findings: started by hand, those of the container's command are one info") {
    const auto ids = [](const std::string& marker, int pid, int parent, int session, int terminal) {
        file_tree tree;
        tree.file(marker, "").process("1", 1, 0, "sh", "sh|-c|x");
        for (const std::string& name : {std::string("self"), std::to_string(pid)})
            tree.process(name, pid, parent, "worker", "./worker", "", session, terminal);
        worker_options options = quiet_options();
        options.times.cancel_wait = 10s;
        std::string out;
        for (const finding& each : startup_findings(options, probe(tree.root(), pid)))
            out += (each.severity == severity::info ? "info " : "") + each.id + ";";
        return out;
    };
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    const char* const docker = "/.dockerenv";
    const std::string by_hand = "cancel-wait-cut;info started-by-hand;";
    CHECK(ids(docker, 7, 5, 6, 0) == by_hand);      // docker exec, a job of CI
    CHECK(ids(docker, 7, 0, 7, 0) == by_hand);      // its first process
    CHECK(ids(docker, 7, 1, 1, 34816) == by_hand);  // the shell of docker run -it
    const std::string as_command = "budget-unknown;cancel-wait-cut;pid1-wrapper;";
    CHECK(ids(docker, 7, 1, 1, 0) == as_command);  // CMD ./worker; true
    CHECK(ids(docker, 7, 5, 1, 0) == as_command);  // by a script
    CHECK(ids(docker, 7, 1, 7, 0) == as_command);  // as dumb-init does
    CHECK(ids("/var/run/secrets/kubernetes.io/serviceaccount/namespace", 7, 5, 6, 34816) ==
          "budget-unknown;cancel-wait-cut;info health-kubernetes;pid1-wrapper;");
}

TEST_CASE("startup findings: what is folded is named, with where its details are") {
    file_tree tree;
    tree.file("/.dockerenv", "").process("1", 1, 0, "x", "x");
    tree.process("self", 7, 5, "worker", "./worker", "", 6).process("7", 7, 5, "worker", "./worker");
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    const std::vector<finding> found = startup_findings(quiet_options(), probe(tree.root(), 7));
    REQUIRE(found.size() == 1);
    CHECK(holds(found[0].problem, "findings budget-unknown, pid1-wrapper"));
    CHECK(holds(found[0].fix, "--doctor"));
    worker_options fits = quiet_options();
    fits.container_grace_period = 60s;
    tree.process("1", 1, 0, "tini", "tini");
    CHECK(startup_findings(fits, probe(tree.root(), 7)).empty());
}

TEST_CASE("startup findings: a stale mode file, but not a missing one") {
    file_tree tree;
    const ojs::detail::container_probe nowhere = probe("/nowhere", 7);
    worker_options options = quiet_options();
    options.termination_mode_file = tree.root() + "/mode";
    CHECK(startup_findings(options, nowhere).empty());
    tree.file("/mode", "SPOT_RECLAIM");
    check_found(startup_findings(options, nowhere), "mode-file-stale", severity::warning, "SPOT_RECLAIM");
}

TEST_CASE("startup findings: a pod's default grace period, and the probes of a pod") {
    file_tree tree;
    tree.file("/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    tree.process("self", 1, 0, "worker", "./worker", "worker").process("1", 1, 0, "worker", "./worker");
    const ojs::detail::container_probe where = probe(tree.root(), 1);
    worker_options options = quiet_options();
    options.times.shutdown_grace_period = 25s;
    const std::vector<finding> unsaid = startup_findings(options, where);
    REQUIRE(unsaid.size() == 2);
    check_found(unsaid, "budget-kubernetes", severity::info,
                "25s fits into the 30s that Kubernetes grants unless terminationGracePeriodSeconds");
    check_found(unsaid, "health-kubernetes", severity::info, "no health address");
    options.times.shutdown_grace_period = 26s;
    check_found(startup_findings(options, where), "budget-unknown", severity::warning, "grace period of 26s");
    options.times.shutdown_grace_period = 25s;
    check_found(startup_findings(options, where, 1s), "budget-unknown", severity::warning, "25s");
    options.prestop_delay = 5s;
    options.times.shutdown_grace_period = 20s;
    check_found(startup_findings(options, where), "budget-kubernetes", severity::info,
                "preStop delay of 5s fit");
    options.container_grace_period = 60s;
    options.parts.add(ojs::operating());
    for (const char* near : {"127.0.0.1:8081", ":8081", "localhost:8081", "[::1]:8081"}) {
        CAPTURE(near);
        options.health_address = near;
        const std::vector<finding> found = startup_findings(options, where);
        REQUIRE(found.size() == 1);
        CHECK(found[0].id == "health-kubernetes");
        CHECK(found[0].severity == severity::warning);
        CHECK(found[0].fix.find("OJS_HEALTH_ADDR=0.0.0.0:8081") != std::string::npos);
        CHECK(found[0].fix.find("/livez") != std::string::npos);
    }
    for (const char* far : {"0.0.0.0:8081", "[::]:8081", "unix:/tmp/h.sock"}) {
        options.health_address = far;
        CHECK(startup_findings(options, where).empty());
    }
}

TEST_CASE("startup findings: an unknown variable is named with the nearest known one") {
    const std::pair<const char*, const char*> set[] = {
        {"OJS_GRACE_PEROID", "OJS_GRACE_PERIOD"}, {"OJS_LOGLEVEL", "OJS_LOG_LEVEL"}, {"OJS_ABRACADABRA", ""}};
    const char* const fine[] = {"OJS_SERVICE_HOST", "OJS_PORT_80_TCP_ADDR", "OJS_LABELS", "XOJS_URL"};
    for (const auto& each : set) ::setenv(each.first, "1", 1);
    for (const char* each : fine) ::setenv(each, "x", 1);
    const std::vector<finding> found = startup_findings(quiet_options());
    for (const auto& each : set) ::unsetenv(each.first);
    for (const char* each : fine) ::unsetenv(each);
    std::vector<finding> unknown;
    for (const finding& each : found) {
        if (each.id == "variable-unknown" && each.problem.find("OJS_TEST_") != 0) unknown.push_back(each);
    }
    REQUIRE(unknown.size() == 3);
    for (const auto& each : set) {
        const auto same = [&](const finding& one) { return one.problem.find(each.first) == 0; };
        const auto at = std::find_if(unknown.begin(), unknown.end(), same);
        REQUIRE(at != unknown.end());
        CHECK(at->severity == severity::warning);
        if (*each.second != '\0') CHECK(at->fix == "did you mean " + std::string(each.second) + "?");
    }
}

TEST_CASE("startup findings: every variable that is read is known") {
    std::vector<std::string> asked;
    const auto note = [&asked](const char* name) -> const char* {
        asked.emplace_back(name);
        return nullptr;
    };
    REQUIRE(worker_options::from_environment(note, "/nonexistent"));
    for (const std::string& name : asked) {
        if (name.find("OJS_") != 0) continue;
        ::setenv(name.c_str(), "1", 1);
        for (const finding& each : startup_findings(quiet_options())) {
            CHECK_MESSAGE(each.problem.find(name + " ") != 0, each.problem);
        }
        ::unsetenv(name.c_str());
    }
    CHECK(asked.size() > 30);
}
