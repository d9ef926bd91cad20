// startup_findings: every finding a worker logs at start, provoked and absent.
#include "findings.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::finding;
using ojs::severity;
using ojs::worker_options;
using ojs::detail::startup_findings;

TEST_CASE("startup findings: a drain plus reports longer than container_grace_period is a budget finding") {
    worker_options options = quiet_options();
    options.times.shutdown_grace_period = 30s;
    options.container_grace_period = 35s;
    CHECK(startup_findings(options, probe()).empty());
    CHECK(holds(startup_findings(options, probe(), 1s).at(0).id, "budget-tight"));
    options.container_grace_period = 30s;
    check_found(
        startup_findings(options, probe()), "budget-exceeded", severity::warning,
        "the drain (30s) and the reports after it (5s) need more than the 30s that the container grants");
    options.container_grace_period = 0s;
    CHECK(startup_findings(options, probe(), ojs::no_limit).empty());
}

// [GS 4.3 (c)]
TEST_CASE("startup findings: a shell as PID 1 is named in a warning") {
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    file_tree shell;
    shell.file("/.dockerenv", "").process("1", 1, 0, "sh", "sh|-c|x");
    shell.process("self", 7, 1, "worker", "./worker", "", 1).process("7", 7, 1, "worker", "./worker");
    const std::vector<finding> found = startup_findings(quiet_options(), probe(shell.root()));
    CHECK(found.size() == 2);
    check_found(found, "budget-unknown", severity::warning, "10s that Docker");
    check_found(found, "pid1-wrapper", severity::warning, "'sh', a shell, which does not pass signals on");
}

TEST_CASE(
    "startup findings: a worker started from a terminal in a Docker container has no container findings") {
    const auto ids = [](const std::string& marker, int parent, int terminal) {
        file_tree tree;
        tree.file(marker, "").process("1", 1, 0, "sh", "sh|-c|x");
        for (const char* name : {"self", "7"})
            tree.process(name, 7, parent, "worker", "./worker", "", 6, terminal);
        std::string out;
        for (const finding& each : startup_findings(quiet_options(), probe(tree.root())))
            out += each.id + ";";
        return out;
    };
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    CHECK(ids("/.dockerenv", 5, 34816).empty());
    CHECK(ids("/.dockerenv", 5, 0) == "pid1-wrapper;budget-unknown;");
    CHECK(ids("/var/run/secrets/kubernetes.io/serviceaccount/namespace", 5, 34816) ==
          "pid1-wrapper;budget-unknown;");
}

TEST_CASE(
    "startup findings: an unknown OJS_ variable is named in a warning, and doctor() suggests the right "
    "name") {
    const std::pair<const char*, const char*> set[] = {
        {"OJS_GRACE_PEROID", "OJS_GRACE_PERIOD"}, {"OJS_LOGLEVEL", "OJS_LOG_LEVEL"}, {"OJS_ABRACADABRA", ""}};
    const char* const fine[] = {"OJS_SERVICE_HOST", "OJS_PORT_80_TCP_ADDR", "OJS_LABELS", "XOJS_URL"};
    for (const auto& each : set) ::setenv(each.first, "1", 1);
    for (const char* each : fine) ::setenv(each, "x", 1);
    const std::vector<finding> found = ojs::detail::unknown_variables(ojs::detail::worker_variables());
    const std::vector<finding> advised = doctor(quiet_options());
    for (const auto& each : set) ::unsetenv(each.first);
    for (const char* each : fine) ::unsetenv(each);
    std::size_t unknown = 0;
    for (const finding& each : found)
        unknown += each.id == "variable-unknown" && each.problem.find("OJS_TEST_") != 0 ? 1 : 0;
    CHECK(unknown == 3);
    for (const auto& each : set) {
        const auto is_named = [&](const finding& one) { return one.problem.find(each.first) == 0; };
        const auto at_start = std::find_if(found.begin(), found.end(), is_named);
        REQUIRE(at_start != found.end());
        CHECK(at_start->severity == severity::warning);
        CHECK(holds(at_start->fix, "docs/options.md"));
        const auto at = std::find_if(advised.begin(), advised.end(), is_named);
        REQUIRE(at != advised.end());
        if (*each.second != '\0') CHECK(at->fix == "did you mean " + std::string(each.second) + "?");
    }
}

TEST_CASE("startup findings: no variable that from_environment() reads is reported as unknown") {
    std::vector<std::string> asked;
    const auto note = [&asked](const char* name) -> const char* {
        asked.emplace_back(name);
        return nullptr;
    };
    REQUIRE(worker_options::from_environment(note, "/nonexistent"));
    for (const std::string& name : asked) {
        if (name.find("OJS_") != 0) continue;
        ::setenv(name.c_str(), "1", 1);
        for (const finding& each : ojs::detail::unknown_variables(ojs::detail::worker_variables())) {
            CHECK_MESSAGE(each.problem.find(name + " ") != 0, each.problem);
        }
        ::unsetenv(name.c_str());
    }
    CHECK(asked.size() > 30);
}

// [Spot troubleshooting]
TEST_CASE("startup findings: a stale termination-mode file causes a warning, and a missing file does not") {
    file_tree tree;
    const ojs::detail::container_probe nowhere = probe();
    worker_options options = quiet_options();
    options.termination_mode_file = tree.root() + "/mode";
    CHECK(startup_findings(options, nowhere).empty());
    tree.file("/mode", "SPOT_RECLAIM");
    check_found(startup_findings(options, nowhere), "mode-file", severity::warning, "SPOT_RECLAIM");
    tree.file("/mode", "garbage");
    const std::string problem = startup_findings(options, nowhere).at(0).problem;
    CHECK(problem.find("'garbage': a stop by signal hands jobs back at once") != std::string::npos);
    CHECK(problem.find("defaulting") == std::string::npos);  // operators search for these words of a stop
}
