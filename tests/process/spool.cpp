// A spool directory under fire: OJS_TEST_SPOOL_JOBS jobs, workers killed at random moments (OJS_TEST_SEED); --enqueue.
#include <random>
#include <sstream>

#include "harness.hpp"

namespace fs = std::filesystem;

namespace {
// Visible names only: what begins with a dot is no job.
std::multiset<std::string> names_in(const fs::path& folder) {
    std::multiset<std::string> out;
    std::error_code missing;  // before the first worker makes it
    for (const auto& each : fs::recursive_directory_iterator(folder, missing)) {
        const std::string name = each.path().filename();
        if (each.is_regular_file() && name.front() != '.') out.insert(name);
    }
    return out;
}

struct run {
    std::int64_t begin = 0;
    std::int64_t end = 0;  // by the handler, or when it was killed
    bool is_done = false;
};

// Adds what test.run has printed in a worker that was killed, or told to end, at `killed`. Returns how many runs had not ended.
int add_runs(process& worker, std::int64_t killed, std::map<std::string, std::vector<run>>& to) {
    std::map<std::string, run*> open;
    std::istringstream lines(worker.output());
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string what, job, attempt, name;
        std::int64_t at = 0;
        words >> what >> job >> attempt >> name >> at;
        if (what == "begin") {
            to[job].push_back({at, killed, false});
            open[job] = &to[job].back();
        } else if (what == "end") {
            *open[job] = {open[job]->begin, at, true};
            open.erase(job);
        }
    }
    return static_cast<int>(open.size());
}
}  // namespace

TEST_CASE("spool: eight workers killed at random -> each job ends in done/ once, and no two run a job at once") {
    const std::uint64_t seed = number_from("OJS_TEST_SEED", std::random_device{}());
    const auto total = static_cast<std::size_t>(number_from("OJS_TEST_SPOOL_JOBS", 400));
    MESSAGE("OJS_TEST_SEED=" << seed << " OJS_TEST_SPOOL_JOBS=" << total);
    std::mt19937_64 random(seed);
    const fs::path directory = scratch_file("spool");
    for (const fs::path& folder : {directory, directory / "request"}) REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
    std::multiset<std::string> put;
    for (std::size_t i = 0; i < total; ++i) {
        put.insert("j" + std::to_string(i));
        write_file(directory / "request" / ("j" + std::to_string(i)),
                   R"({"type":"test.run","max_attempts":1000000,"args":[)" + std::to_string(random() % 20) + "]}");
    }
    const auto start = [&] {
        return start_worker("spool:" + directory.string(), "w",
                            {{"OJS_CONCURRENCY", "4"}, {"OJS_VISIBILITY_TIMEOUT", "1h"}});
    };
    std::vector<process> workers;
    for (int i = 0; i < 8; ++i) workers.push_back(start());
    std::map<std::string, std::vector<run>> runs;
    int killed = 0;
    int in_flight = 0;
    const auto done = [&] { return names_in(directory / "done").size() == total; };
    for (; killed % 10 != 0 || !done(); ++killed) {  // looking through the folder is slow
        process& victim = workers[random() % workers.size()];
        // It has begun a job: else nobody would get anywhere.
        REQUIRE(eventually([&] { return victim.count("begin ") > 0 || done(); }));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));  // at any moment of its work
        const std::int64_t now = monotonic_ns();
        CHECK(victim.end_by(SIGKILL) == -SIGKILL);
        in_flight += add_runs(victim, now, runs);
        victim = start();
    }
    process last = start();  // takes away what those left that were killed last
    REQUIRE(last.prints("worker started"));
    workers.push_back(std::move(last));
    for (process& each : workers) REQUIRE(each.prints("worker started"));
    for (process& each : workers) each.signal(SIGTERM);
    for (process& each : workers) {
        CHECK(each.wait() == 0);
        add_runs(each, monotonic_ns(), runs);
    }
    CHECK(names_in(directory / "done") == put);  // none lost, none doubled
    for (const char* folder : {"request", "processing", "failed"}) CHECK(names_in(directory / folder).empty());
    CHECK(runs.size() == total);
    for (auto& of : runs) {
        std::vector<run>& its = of.second;
        CAPTURE(of.first);
        std::sort(its.begin(), its.end(), [](const run& a, const run& b) { return a.begin < b.begin; });
        for (std::size_t i = 1; i < its.size(); ++i) CHECK(its[i - 1].end <= its[i].begin);
        CHECK(its.back().is_done);
    }
    CHECK(in_flight > 0);
    MESSAGE(total << " jobs, " << killed << " workers killed with " << in_flight << " runs in flight");
}

TEST_CASE("spool: a worker without a backend runs the jobs added by worker --enqueue") {
    const fs::path directory = scratch_file("spool-enqueue");
    const environment settings = {{"OJS_URL", "spool:" + directory.string()}, {"OJS_POLL_INTERVAL", "50ms"}};
    const auto enqueue = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {program("worker"), "--enqueue"});
        return process(words, settings);
    };
    process put = enqueue({"text.count", "/etc/passwd", "0"});
    CHECK(put.wait() == 0);
    const std::string id = put.output().substr(0, put.output().find('\n'));
    process other = enqueue({"noop", "007", "{\"n\":12345678901234567890}", "[1", "-1.5e3", ""});
    CHECK(other.wait() == 0);
    const std::string second = other.output().substr(0, other.output().find('\n'));
    CHECK(read_file(directory / "request" / (second + ".json"))
              .find(R"("args":["007",{"n":12345678901234567890},"[1",-1.5e3,""])") != std::string::npos);
    process worker({program("worker")}, settings);
    CHECK(eventually([&] { return fs::exists(directory / "done") && names_in(directory / "done").size() == 2; }));
    CHECK(worker.end_by(SIGTERM) == 0);
    const json done = json::parse(read_file(directory / "done" / (id + ".json")));
    CHECK(done["result"]["path"].is("/etc/passwd"));
}
