// startup_findings: what ops() warns of at start.
#include "findings.hpp"

using namespace test;
using namespace ojs::detail;

TEST_CASE("startup findings: an unknown OJS_ variable is named in a warning, and doctor() suggests the right name") {
    const std::pair<const char*, const char*> set[] = {
        {"OJS_GRACE_PEROID", "OJS_GRACE_PERIOD"}, {"OJS_LOGLEVEL", "OJS_LOG_LEVEL"}, {"OJS_ABRACADABRA", ""}};
    const char* const fine[] = {"OJS_SERVICE_HOST", "OJS_PORT_80_TCP_ADDR", "OJS_LABELS", "XOJS_URL"};
    for (const auto& each : set) ::setenv(each.first, "1", 1);
    for (const char* each : fine) ::setenv(each, "x", 1);
    const std::vector<finding> found = unknown_variables(known_variables());
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
        for (const finding& each : unknown_variables(known_variables())) {
            CHECK_MESSAGE(each.problem.find(name + " ") != 0, each.problem);
        }
        ::unsetenv(name.c_str());
    }
    CHECK(asked.size() > 30);
}

// [Spot troubleshooting]
TEST_CASE("startup findings: a stale termination-mode file causes a warning, and a missing file does not") {
    file_tree tree;
    worker_options options = quiet_options();
    options.termination_mode_file = tree.root() + "/mode";
    CHECK(find(startup_findings(options), "mode-file") == nullptr);
    tree.file("/mode", "SPOT_RECLAIM");
    check_found(startup_findings(options), "mode-file", severity::warning, "SPOT_RECLAIM");
    tree.file("/mode", "garbage");
    const std::vector<finding> found = startup_findings(options);
    REQUIRE(find(found, "mode-file") != nullptr);
    const std::string problem = find(found, "mode-file")->problem;
    CHECK(problem.find("'garbage': a stop by signal requeues jobs at once") != std::string::npos);
    CHECK(problem.find("defaulting") == std::string::npos);  // operators search for these words of a stop
}
