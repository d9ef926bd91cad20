// startup_warnings: each that a worker logs at start, provoked and absent.
#include "findings.hpp"

using namespace test;

namespace {
// "ID: PROBLEM" of each.
std::vector<std::string> warnings(const worker_options& options, const ojs::detail::container_probe& where = probe(),
                                  std::chrono::milliseconds steps_timeout = 0ms) {
    std::vector<std::string> out;
    ojs::log_options log;
    log.hook = [&out](const ojs::log_record& record) {
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
TEST_CASE("start-up: a parent process that may not pass signals on is named in a warning") {
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    const struct {
        std::string pid1;         // comm and command
        std::string between;      // likewise; empty: nothing
        const char* says = "\n";  // no warning
    } rows[] = {{"sh sh|-c|x", "", "'sh', a shell, which does not pass signals on"},
                {"tini tini|--|sh", "sh sh|-c|x", "'sh', a shell, which does not"},
                {"python3 python3|run.py", "", "'python3', which may not pass signals on"},
                {"docker-init /sbin/docker-init", "node npm start", "'node', which may not"},
                {"tini tini|--|./worker", ""},
                {"s6-svscan s6-svscan", "s6-supervise s6-supervise|worker"},
                {"worker ./worker", ""}};
    for (const auto& row : rows) {
        CAPTURE(row.pid1);
        file_tree tree;
        const auto add = [&](const char* pid, int parent, const std::string& one) {
            const std::size_t blank = one.find(' ');
            tree.process(pid, std::stoi(pid), parent, one.substr(0, blank), one.substr(blank + 1));
        };
        add("1", 0, row.pid1);
        if (!row.between.empty()) add("5", 1, row.between);
        with_us(tree, row.between.empty() ? 1 : 5).file("/.dockerenv", "");
        const std::vector<std::string> found = warnings(quiet_options(), probe(tree.root()));
        CHECK(holds(found.back(), "10s that Docker"));
        REQUIRE(found.size() == (*row.says == '\n' ? 1U : 2U));
        if (found.size() == 2)
            CHECK(holds(found[0], std::string("pid1-wrapper: the container starts the worker by ") + row.says));
    }
}

TEST_CASE("start-up: in Kubernetes, a worker without a health server logs a finding") {
    worker_options options = quiet_options();
    options.times.shutdown_grace_period = 20s;
    const auto pod = probe("/nowhere", {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}});
    CHECK(holds(warnings(options, pod).at(0), "health-kubernetes: there is no health server"));
    options.extensions.add(ojs::ops());
    CHECK(warnings(options, pod).empty());
}
