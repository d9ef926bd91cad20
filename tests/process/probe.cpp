// shutdown-probe judges: a worker that keeps everything passes every check, each breakage fails its check and no other,
// and what was not observed does not pass.
#include "harness.hpp"

namespace {
constexpr milliseconds probe_limit{180000};
using words = std::vector<std::string>;

// One run of the probe: its flags, the worker, what must come out.
struct probe_run {
    words flags;
    words worker;
    int status = 0;
    std::set<std::string> failing;
    words says;  // texts that it prints
    std::string report = scratch_file("probe" + std::to_string(++number) + ".json");
    process probe;

    void start() {
        words command = {program("shutdown-probe"), "--json", report};
        command.insert(command.end(), flags.begin(), flags.end());
        command.emplace_back("--");
        command.insert(command.end(), worker.begin(), worker.end());
        probe = process(command, {});
    }

    void check() {
        INFO("worker: " << worker.back());
        const int ended = probe.wait(probe_limit);
        INFO(probe.output());
        CHECK(ended == status);
        CHECK(checks("FAIL") == failing);
        for (const std::string& text : says) CHECK(probe.count(text) > 0);
    }

    // The checks with that result.
    std::set<std::string> checks(const char* result) const {
        std::set<std::string> out;
        const json parsed = json::parse(read_file(report));
        for (const json& each : parsed["checks"].items) {
            if (each["result"].is(result)) out.insert(each["id"].text);
        }
        return out;
    }

    static inline int number = 0;
};

// Lines of what `program --list` prints, in words, to the first empty one.
std::vector<words> list_of(const char* name) {
    process lists({program(name), "--list"}, {});
    REQUIRE(lists.wait() == 0);
    std::vector<words> out;
    std::istringstream lines(lists.output());
    for (std::string line; std::getline(lines, line) && !line.empty();) out.push_back(test::words(line));
    return out;
}

// They mostly sleep: a few at a time.
void run_all(std::vector<probe_run>& runs) {
    constexpr std::size_t at_a_time = 16;
    for (std::size_t i = 0; i < runs.size() + at_a_time; ++i) {
        if (i < runs.size()) runs[i].start();
        if (i >= at_a_time) runs[i - at_a_time].check();
    }
}

probe_run run_of_serial_worker() {
    probe_run out;
    out.flags = {"--scenario", "drain", "--scenario", "many-fails", "--scenario", "concurrency"};
    out.worker = {program("broken_worker"), "--serial"};
    out.says = {"note: the worker runs one job at a time", "8 pass, 0 fail, 2 skipped", "FAIL-FAST  skipped",
                "SLOTS      skipped", "one job at a time; it cannot reach the limit"};
    return out;
}

std::vector<probe_run> runs_of_python() {
    const std::string example = "examples/python_worker.py";
    const bool starts = process({"python3", "-c", ""}, {}).wait(milliseconds(3000)) == 0;
    if (!starts || access(example.c_str(), R_OK) != 0) {
        MESSAGE("skipped: workers in Python; no python3 that starts in 3 s, or no ", example);
        return {};
    }
    std::vector<probe_run> out;
    for (const auto& [flags, says] :
         {std::pair("--scenario drain --scenario grace --scenario tstp", "13 pass, 0 fail, 0 skipped"),
          std::pair("--scenario second-term --scenario fetch-in-flight --scenario lost-answer",
                    "3 pass, 0 fail, 1 skipped"),
          std::pair("--scenario away-for-good --scenario terminate --scenario frozen", "4 pass, 0 fail, 0 skipped")}) {
        out.emplace_back();
        out.back().flags = test::words(flags);
        out.back().worker = {"python3", example};
        out.back().says = {says};
    }
    return out;
}

// By the breakage that keeps the worker from a state which another check of the same scenario needs: that one is skipped.
const std::map<std::string, std::string> unobserved = {
    {"GS-R001", "SIGTSTP did not make it quiet"},
    {"GS-R004", "readiness did not fail"},
    {"DIR-QUIET", "it was never quiet"},
};

// A worker that keeps everything, with heartbeats of its own: its jobs of a second end before one names them.
probe_run run_of_rare_beats() {
    probe_run out;
    out.flags = {"--scenario", "drain"};
    out.worker = {"env", "OJS_HEARTBEAT_INTERVAL=4s", program("broken_worker")};
    out.status = 1;
    out.says = {"0 pass, 0 fail, 8 skipped", "no job was in flight at the signal",
                "\nfix first: OJS_HEARTBEAT_INTERVAL is probably ignored (GS-001, GS-004, "};
    return out;
}
}  // namespace

// [GS-003] [GS 5.2 (b)] [WP 2.3 (b)] [WP 9.4] [GS-001] [GS 4.2 (b)] [GS 5.1 (a)] [GS 5.2 (a)] [GS 5.3 (c)] [GS 12.3]
// [Website Phase 1] [Website Signals] [WP 7.2 (4)] [WP 7.2 (7)] [WP 9.2] [GS-002] [WP 9.1, 9.5] [GS-004]
// [Website Phase 2] [GS-005] [GS 5.3 (a)] [GS 7.2 (1)] [GS 7.2 (2)] [Website In-flight (a)] [Timeouts 9.4]
// [River no jobs lost] [River must return an error (b)] [Website In-flight (b)] [GS-R001] [GS 4.1 (b)] [GS 4.2 (a)]
// [WP 9.3] [GS-R002] [GS 3] [GS 4.2 (d)] [GS-R003] [GS 5.2 (c)] [GS 5.1 (d)] [WP 6.6] [WP 7.2 (2)]
// [Website Grace period (a)] [GS 6.1]
TEST_CASE("shutdown-probe: each breakage fails its own check only, and an intact worker passes every check") {
    constexpr std::size_t intact = 4;
    std::vector<probe_run> runs(intact + 1);
    std::set<std::string> judged;
    std::size_t next = 0;
    for (const words& scenario : list_of("shutdown-probe")) {
        std::size_t ids = scenario.size();  // what follows the last word that ends with a colon
        while (ids > 0 && scenario[ids - 1].back() != ':') --ids;
        REQUIRE(ids > 0);
        judged.insert(scenario.begin() + static_cast<std::ptrdiff_t>(ids), scenario.end());
        words& flags = runs[next++ % intact].flags;
        flags.insert(flags.end(), {"--scenario", scenario.front()});
    }
    for (std::size_t i = 0; i < intact; ++i) {
        runs[i].worker = {program("worker")};
        runs[i].says = {" 0 fail, 0 skipped"};
    }
    runs[intact].worker = {"sleep", "1000"};
    runs[intact].status = 2;
    runs[intact].failing = {"HANDSHAKE"};
    runs[intact].says = {"the command sent no FETCH and no BEAT to OJS_URL in 10 s", "39 not judged"};
    runs.push_back(run_of_serial_worker());
    runs.push_back(run_of_rare_beats());
    for (probe_run& each : runs_of_python()) runs.push_back(std::move(each));
    std::set<std::string> broken;
    for (const words& each : list_of("broken_worker")) {
        broken.insert(each[1]);
        runs.emplace_back();
        runs.back().flags = {"--scenario", each[2]};
        runs.back().worker = {program("broken_worker"), "--break", each[0]};
        runs.back().status = 1;
        runs.back().failing = {each[1]};
        runs.back().says = {"\n    request ", "\n    answer "};
        const auto more = unobserved.find(each[0]);
        if (more != unobserved.end()) runs.back().says.push_back(more->second);
    }
    CHECK(judged == broken);  // every check can be made to fail
    run_all(runs);
    std::set<std::string> passing;
    for (std::size_t i = 0; i < intact; ++i) passing.merge(runs[i].checks("PASS"));
    CHECK(passing == judged);
}

TEST_CASE("shutdown-probe: a worker that dies of SIGTERM -> every check of a stop fails, and no latency is negative") {
    probe_run run;
    run.flags = {"--scenario", "drain", "--scenario", "grace"};
    run.worker = {program("broken_worker"), "--dies"};
    run.start();
    CHECK(run.probe.wait(probe_limit) == 1);
    INFO(run.probe.output());
    CHECK(run.checks("PASS").empty());
    CHECK(run.probe.count("it was ended by SIGTERM") > 0);
    CHECK(run.probe.count("median -") + run.probe.count("worst -") == 0);
    std::size_t at = 0;
    for (const char* heading : {"\nlost: ", "\ndoubled: ", "\nlate: ", "\ncomfort: ", "\nfix first: "})
        CHECK_MESSAGE((at = run.probe.output().find(heading, at)) != std::string::npos, heading);
}

TEST_CASE("shutdown-probe: exit status 70 without a command or report, and 1 if no check of --all passes") {
    const struct {
        const char* flags;
        int status;
        words says;
    } rows[] = {
        {"--help", 0, {"  1      a check fails, or none passes"}},
        {"-- /nowhere/worker", 70, {"/nowhere/worker: No such file or directory"}},
        {"--json /nowhere/report -- true", 70, {}},
        {"--all --scenario drain --scenario early-term -- true",
         1,
         {"the worker ended while it started; it exited with status 0", "EARLY      skipped",
          "0 pass, 9 fail, 1 skipped"}},
    };
    for (const auto& row : rows) {
        CAPTURE(row.flags);
        process probe(test::words(program("shutdown-probe") + " " + row.flags), {});
        CHECK(probe.wait() == row.status);
        for (const std::string& text : row.says) CHECK_MESSAGE(probe.prints(text), text);
    }
}

TEST_CASE("shutdown-probe: a command that exits fails the handshake, and its last output is shown") {
    const std::string xml = scratch_file("probe.xml");
    process probe({program("shutdown-probe"), "--junit", xml, "--", "sh", "-c", "echo '<gone> & away'; exit 3"}, {});
    CHECK(probe.wait() == 2);
    CHECK(probe.prints("the command sent no FETCH and no BEAT to OJS_URL; it exited with status 3"));
    CHECK(probe.prints("] <gone> & away"));
    const std::string report = read_file(xml);
    CHECK(report.find("failures=\"1\"") != std::string::npos);
    CHECK(report.find("&lt;gone&gt; &amp; away") != std::string::npos);
}

TEST_CASE("shutdown-probe: each check is printed once judged; SIGTERM -> totals and report follow") {
    const std::string report = scratch_file("probe.json");
    process probe({program("shutdown-probe"), "--json", report, "--scenario", "drain", "--scenario", "grace-default",
                   "--", program("broken_worker")},
                  {});
    REQUIRE(probe.prints("EXIT-0     PASS"));
    CHECK(probe.end_by(SIGTERM) == 128 + SIGTERM);
    CHECK(probe.prints("8 pass, 0 fail, 0 skipped, 1 not judged, in "));
    CHECK(probe.prints("; ended by SIGTERM"));
    CHECK(json::parse(read_file(report))["checks"].items.size() == 8);
}

TEST_CASE("shutdown-probe: SIGINT ends the worker, the worker's child and the probe, with status 130") {
    // The worker and a child of its own hold the pipe's other end.
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    process probe({program("shutdown-probe"), "--scenario", "grace-default", "--", "sh", "-c",
                   "sleep 600 & echo >/proc/self/fd/" + std::to_string(ends[1]) + "; exec sleep 600"},
                  {});
    ::close(ends[1]);
    char byte = 0;
    REQUIRE(::read(ends[0], &byte, 1) == 1);
    CHECK(probe.end_by(SIGINT) == 130);
    CHECK(::read(ends[0], &byte, 1) == 0);  // nobody is left who could write
    ::close(ends[0]);
}
