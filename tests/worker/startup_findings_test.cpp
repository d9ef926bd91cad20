// startup_findings: every finding a worker logs at start, provoked and absent.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "file_tree.hpp"
#include "text.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::finding;
using ojs::severity;
using ojs::worker_options;
using ojs::detail::startup_findings;

namespace {

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
