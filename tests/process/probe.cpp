// shutdown-probe judges: a worker that keeps everything holds every row, and each breakage fails the row it should
// and no other.
#include "files.hpp"
#include "harness.hpp"
#include "text.hpp"

using namespace test;

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
        CHECK(rows("FAILS") == failing);
        for (const std::string& text : says) CHECK(probe.count(text) > 0);
    }

    // The rows with that result.
    std::set<std::string> rows(const char* result) const {
        std::set<std::string> out;
        const json parsed = json::parse(read_file(report));
        for (const json& row : parsed["rows"].items) {
            if (row["result"].is(result)) out.insert(row["id"].text);
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

// A first try in another language: no heartbeat, no signals.
constexpr const char* naive_worker = R"(
import json, os, time, urllib.request

def call(route, **body):
    url = os.environ["OJS_URL"] + "/ojs/v1/workers/" + route
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())))

while True:
    for job in call("fetch", queues=["default"], worker_id="me", count=1)["jobs"]:
        call("ack", job_id=job["id"])
    time.sleep(0.05)
)";

// They mostly sleep: a few at a time.
void run_all(std::vector<probe_run>& runs) {
    constexpr std::size_t at_a_time = 16;
    for (std::size_t i = 0; i < runs.size() + at_a_time; ++i) {
        if (i < runs.size()) runs[i].start();
        if (i >= at_a_time) runs[i - at_a_time].check();
    }
}

std::vector<probe_run> runs_of_python() {
    const std::string example = "examples/python_worker.py";
    const bool starts = process({"python3", "-c", ""}, {}).wait(milliseconds(3000)) == 0;
    if (!starts || access(example.c_str(), R_OK) != 0) {
        MESSAGE("skipped: workers in Python; no python3 that starts in 3 s, or no ", example);
        return {};
    }
    std::vector<probe_run> out(4);
    out[0].flags = {"--scenario", "drain", "--scenario", "grace", "--scenario", "tstp"};
    out[0].says = {"12 hold, 0 fail, 0 skipped"};
    out[1].flags = {"--scenario",      "second-term", "--scenario",
                    "fetch-in-flight", "--scenario",  "lost-answer"};
    out[1].says = {"4 hold, 0 fail, 0 skipped"};
    out[2].flags = {"--scenario", "away-for-good", "--scenario", "terminate", "--scenario", "frozen"};
    out[2].says = {"4 hold, 0 fail, 0 skipped"};
    for (probe_run& each : out) each.worker = {"python3", example};
    out[3].worker = {"python3", "-c", naive_worker};
    out[3].status = 2;
    out[3].failing = {"HANDSHAKE"};
    out[3].says = {"no BEAT to OJS_URL", "BEAT: missing; send POST OJS_URL",
                   "SIGTERM: it was ended by Terminated"};
    return out;
}

constexpr const char* default_grace = "grace-default";

// It waits for 30 s: it begins with the first case that wants it, and the last one sees it end.
probe_run& default_grace_run() {
    static probe_run run;
    if (run.probe.pid() == 0) {
        run.flags = {"--scenario", default_grace};
        run.worker = {program("broken_worker")};
        run.says = {"1 hold, 0 fail, 0 skipped"};
        run.start();
    }
    return run;
}

}  // namespace

TEST_CASE("shutdown-probe: each breakage fails its row and no other; without one every row holds") {
    default_grace_run();
    constexpr std::size_t intact = 4;
    std::vector<probe_run> runs(intact + 1);
    std::set<std::string> judged;
    std::size_t next = 0;
    for (const words& scenario : list_of("shutdown-probe")) {
        std::size_t ids = scenario.size();  // what follows the last word that ends with a colon
        while (ids > 0 && scenario[ids - 1].back() != ':') --ids;
        REQUIRE(ids > 0);
        judged.insert(scenario.begin() + static_cast<std::ptrdiff_t>(ids), scenario.end());
        if (scenario.front() == default_grace) continue;
        words& flags = runs[next++ % intact].flags;
        flags.insert(flags.end(), {"--scenario", scenario.front()});
    }
    for (std::size_t i = 0; i < intact; ++i) {
        runs[i].worker = {program("broken_worker")};
        runs[i].says = {" 0 fail, 0 skipped"};
    }
    runs[intact].worker = {"sleep", "1000"};
    runs[intact].status = 2;
    runs[intact].failing = {"HANDSHAKE"};
    runs[intact].says = {"the command sent no FETCH and no BEAT to OJS_URL in 10 s", "39 not judged"};
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
    }
    CHECK(judged == broken);  // every row can be made to fail
    run_all(runs);
    std::set<std::string> holding;
    for (std::size_t i = 0; i < intact; ++i) holding.merge(runs[i].rows("holds"));
    CHECK(holding == judged);
}

TEST_CASE("shutdown-probe: --help tells its statuses; a command that cannot be started is 70") {
    const std::string probe = program("shutdown-probe");
    process help({probe, "--help"}, {});
    CHECK(help.wait() == 0);
    CHECK(help.prints(
        "Exit status: 0 no requirement fails; 1 some fail; 2 the handshake fails; 64 usage error; 70"));
    process missing({probe, "--", "/nowhere/worker"}, {});
    CHECK(missing.wait() == 70);
    CHECK(missing.prints("/nowhere/worker: No such file or directory"));
    CHECK(process({probe, "--json", "/nowhere/report", "--", "true"}, {}).wait() == 70);
}

TEST_CASE("shutdown-probe: a command that ends fails the handshake, and the last it said is shown") {
    const std::string xml = scratch_file("probe.xml");
    process probe(
        {program("shutdown-probe"), "--junit", xml, "--", "sh", "-c", "echo '<gone> & away'; exit 3"}, {});
    CHECK(probe.wait() == 2);
    CHECK(probe.prints("the command sent no FETCH and no BEAT to OJS_URL; it exited with status 3"));
    CHECK(probe.prints("] <gone> & away"));
    const std::string report = read_file(xml);
    CHECK(report.find("failures=\"1\"") != std::string::npos);
    CHECK(report.find("&lt;gone&gt; &amp; away") != std::string::npos);
}

TEST_CASE("shutdown-probe: with --all it continues after the handshake; nothing claimed, nothing holds") {
    process probe(
        {program("shutdown-probe"), "--all", "--scenario", "drain", "--scenario", "early-term", "--", "true"},
        {});
    CHECK(probe.wait() == 1);
    CHECK(probe.prints("the worker ended while it started; it exited with status 0"));
    CHECK(probe.prints("EARLY      skipped"));
    CHECK(probe.prints("0 hold, 8 fail, 1 skipped"));
}

TEST_CASE("shutdown-probe: rows are printed as they are judged; SIGTERM adds the sums and the reports") {
    const std::string report = scratch_file("probe.json");
    process probe({program("shutdown-probe"), "--json", report, "--scenario", "drain", "--scenario",
                   "grace-default", "--", program("broken_worker")},
                  {});
    REQUIRE(probe.prints("EXIT-0     holds"));
    probe.signal(SIGTERM);
    CHECK(probe.wait() == 128 + SIGTERM);
    CHECK(probe.prints("7 hold, 0 fail, 0 skipped, 1 not judged, in "));
    CHECK(probe.prints("; ended by signal: Terminated"));
    CHECK(json::parse(read_file(report))["rows"].items.size() == 7);
}

TEST_CASE("shutdown-probe: interrupted, it exits with 130 and leaves no worker behind") {
    // The worker and a child of its own hold the pipe's other end.
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    process probe({program("shutdown-probe"), "--scenario", "grace-default", "--", "sh", "-c",
                   "sleep 600 & echo >/proc/self/fd/" + std::to_string(ends[1]) + "; exec sleep 600"},
                  {});
    ::close(ends[1]);
    char byte = 0;
    REQUIRE(::read(ends[0], &byte, 1) == 1);
    probe.signal(SIGINT);
    CHECK(probe.wait() == 130);
    CHECK(::read(ends[0], &byte, 1) == 0);  // nobody is left who could write
    ::close(ends[0]);
}

TEST_CASE("shutdown-probe: a worker without a setting has 30 seconds of grace") {
    default_grace_run().check();
}
