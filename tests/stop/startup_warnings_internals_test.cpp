// startup_warnings: each that a worker logs at start, provoked and absent.
#include "findings.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::worker_options;

namespace {
// "ID: PROBLEM" of each.
std::vector<std::string> warnings(const worker_options& options, const ojs::detail::container_probe& where = probe(),
                                  std::chrono::milliseconds steps_timeout = 0ms) {
    std::vector<std::string> out;
    ojs::log_options log;
    log.hook = [&out](const ojs::log_record& record) {
        REQUIRE(record.level == ojs::log_level::warn);
        REQUIRE(record.fields.size() == 2);
        CHECK(!record.fields[1].value.empty());
        out.push_back(record.fields[0].value + ": " + record.message);
    };
    ojs::detail::warn_at_start(ojs::detail::logger(log, "worker"), options, steps_timeout, where);
    return out;
}
}  // namespace

TEST_CASE("start-up: a drain plus reports longer than container_grace_period is a budget finding") {
    worker_options options = quiet_options();
    options.times.shutdown_grace_period = 30s;
    options.container_grace_period = 35s;
    CHECK(warnings(options).empty());
    CHECK(holds(warnings(options, probe(), 1s).at(0), "budget-tight"));
    options.container_grace_period = 30s;
    CHECK(warnings(options).at(0) ==
          "budget-exceeded: the drain (30s) and the reports after it (5s) need more than the 30s that the container "
          "grants");
    options.container_grace_period = 0s;
    CHECK(warnings(options, probe(), ojs::no_limit).empty());
}

// [GS 4.3 (c)]
TEST_CASE("start-up: a shell as PID 1 is named in a warning") {
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    file_tree shell;
    shell.file("/.dockerenv", "").process("1", 1, 0, "sh", "sh|-c|x");
    shell.process("self", 7, 1, "worker", "./worker", "", 1).process("7", 7, 1, "worker", "./worker");
    const std::vector<std::string> found = warnings(quiet_options(), probe(shell.root()));
    REQUIRE(found.size() == 2);
    CHECK(holds(found[0], "pid1-wrapper"));
    CHECK(holds(found[0], "'sh', a shell, which does not pass signals on"));
    CHECK(holds(found[1], "budget-unknown"));
    CHECK(holds(found[1], "10s that Docker"));
}
