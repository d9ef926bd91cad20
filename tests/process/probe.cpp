// shutdown-probe judges: a worker that keeps everything holds every row, and each breakage fails the row it should
// and no other.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

constexpr milliseconds probe_limit{180000};

// One run of the probe, in progress.
struct probe_run {
    std::vector<std::string> breakage;  // id, row, scenario; empty: none, and every scenario
    std::string report;
    process probe;

    explicit probe_run(std::vector<std::string> what) : breakage(std::move(what)) {
        static int number = 0;
        report = scratch_file("probe" + std::to_string(++number) + ".json");
        std::vector<std::string> command = {program("shutdown-probe"), "--json", report};
        if (!breakage.empty()) command.insert(command.end(), {"--scenario", breakage[2]});
        command.insert(command.end(), {"--", program("broken_worker")});
        if (!breakage.empty()) command.insert(command.end(), {"--break", breakage[0]});
        probe = process(command, {});
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

    void check() {
        INFO(probe.output());
        if (breakage.empty()) {
            CHECK(probe.wait(milliseconds(0)) == 0);
            CHECK(rows("FAILS").empty());
            CHECK(rows("skipped").empty());
            CHECK(rows("holds").size() >= 39);
        } else {
            INFO(breakage[0] << " breaks " << breakage[1] << " in scenario " << breakage[2]);
            CHECK(probe.wait(milliseconds(0)) == 1);
            CHECK(rows("FAILS") == std::set<std::string>{breakage[1]});
        }
    }
};

// Lines of what `program --list` prints, in words, to the first empty one.
std::vector<std::vector<std::string>> list_of(const char* name) {
    process lists({program(name), "--list"}, {});
    REQUIRE(lists.wait() == 0);
    std::vector<std::vector<std::string>> out;
    std::istringstream lines(lists.output());
    for (std::string line; std::getline(lines, line) && !line.empty();) {
        std::istringstream words(line);
        out.emplace_back();
        for (std::string word; words >> word;) out.back().push_back(word);
    }
    return out;
}

}  // namespace

TEST_CASE("shutdown-probe: each breakage fails its row and no other; without one every row holds") {
    // They mostly sleep: a few at a time. The run of everything takes longest and begins first.
    constexpr std::size_t at_a_time = 8;
    std::vector<std::vector<std::string>> to_do = list_of("broken_worker");
    REQUIRE(to_do.size() >= 38);
    to_do.insert(to_do.begin(), std::vector<std::string>());
    std::vector<std::unique_ptr<probe_run>> under_way;
    const auto end = clock::now() + probe_limit;
    for (std::size_t next = 0; next < to_do.size() || !under_way.empty();) {
        if (next < to_do.size() && under_way.size() < at_a_time)
            under_way.push_back(std::make_unique<probe_run>(to_do[next++]));
        for (auto each = under_way.begin(); each != under_way.end();) {
            if (!(*each)->probe.ended()) {
                ++each;
                continue;
            }
            (*each)->check();
            each = under_way.erase(each);
        }
        REQUIRE(clock::now() < end);
        ::usleep(10000);  // from one look to the next
    }
}

TEST_CASE("shutdown-probe: every row of its list can be made to fail") {
    std::set<std::string> broken;
    for (const auto& each : list_of("broken_worker")) broken.insert(each[1]);
    std::set<std::string> judged;
    for (const auto& scenario : list_of("shutdown-probe")) {
        std::size_t ids = scenario.size();  // what follows the last word that ends with a colon
        while (ids > 0 && scenario[ids - 1].back() != ':') --ids;
        REQUIRE(ids > 0);
        judged.insert(scenario.begin() + static_cast<std::ptrdiff_t>(ids), scenario.end());
    }
    CHECK(judged == broken);
}

TEST_CASE("shutdown-probe: wrong usage is 64, a command that cannot be started is 70") {
    const std::string probe = program("shutdown-probe");
    CHECK(process({probe}, {}).wait() == 64);
    CHECK(process({probe, "--scenario", "none", "--", "true"}, {}).wait() == 64);
    CHECK(process({probe, "--scenario"}, {}).wait() == 64);
    CHECK(process({probe, "--help"}, {}).wait() == 0);
    process missing({probe, "--", "/nowhere/worker"}, {});
    CHECK(missing.wait() == 70);
    CHECK(missing.prints("/nowhere/worker: No such file or directory"));
}

TEST_CASE("shutdown-probe: a command that is no worker fails its rows, and the last it said is shown") {
    const std::string xml = scratch_file("probe.xml");
    process probe({program("shutdown-probe"), "--scenario", "drain", "--junit", xml, "--", "sh", "-c",
                   "echo '<gone> & away'; exit 3"},
                  {});
    CHECK(probe.wait() == 1);
    CHECK(probe.prints("the worker ended while it started; it exited with status 3"));
    CHECK(probe.prints("] <gone> & away"));
    const std::string report = read_file(xml);
    CHECK(report.find("failures=\"7\"") != std::string::npos);
    CHECK(report.find("&lt;gone&gt; &amp; away") != std::string::npos);
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
