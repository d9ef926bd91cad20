// The example worker's text.count, killed before and after the backend has stored a checkpoint.
#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

constexpr std::int64_t file_size = 200003;
constexpr std::int64_t passes = 12;
constexpr std::int64_t interval = 512 * 1024;
constexpr std::int64_t chunk = 16 * 1024;

std::string write_text() {
    std::string path = scratch_file("text");
    std::ofstream out(path, std::ios::binary);
    for (std::int64_t i = 0; i < file_size; ++i) out << "abcdefghij \n"[i * i % 12];
    return path;
}

process count_worker(const std::string& url, const std::string& id) {
    return process({program("worker")}, {{"OJS_URL", url},
                                         {"OJS_WORKER_ID", id},
                                         {"OJS_HEARTBEAT_INTERVAL", "50ms"},
                                         {"OJS_POLL_INTERVAL", "20ms"},
                                         {"OJS_CONCURRENCY", "1"},
                                         {"OJS_VISIBILITY_TIMEOUT", "60s"}});
}

std::string result_of(backend& jobs, const std::string& id) {
    std::string out;
    for (const char* key : {"bytes", "lines", "words", "passes", "crc32"})
        out += jobs.job(id)["result"][key].text + " ";
    return out;
}

bool saves_checkpoint(const ojs::http_request& request) {
    return request.method == "POST" && request.target.find("/checkpoint") != std::string::npos;
}

}  // namespace

// [GS 1] [GS 7.1 (a)] [GS 7.2 (3)] [Website In-flight (c)] [WP 10.1 - 10.3]
TEST_CASE("text.count: SIGKILL -> the next run repeats at most the interval since the last checkpoint") {
    backend jobs({"--dead-after", "2s"});  // a live one is silent for less
    // The second checkpoint of the job is stored, and the fourth, of the next run, is not: then its worker is killed.
    std::atomic<int> saves{0};
    event reached[2];
    event killed[2];
    const relay between(jobs.url(), [&](const ojs::http_request& request, bool answered) {
        if (!saves_checkpoint(request)) return true;
        const int number = answered ? saves.load() : ++saves;
        const int moment = answered && number == 2 ? 0 : !answered && number == 4 ? 1 : -1;
        if (moment < 0) return true;
        reached[moment].set();
        static_cast<void>(killed[moment].wait());
        return false;
    });
    const std::string args =
        "[\"" + write_text() + "\",0," + std::to_string(passes) + "," + std::to_string(interval) + "]";
    const std::string id = jobs.push_one("text.count", args);
    for (int run = 0; run < 2; ++run) {
        const std::string name = "w" + std::to_string(run);
        const process worker = count_worker(between.url(), name);
        REQUIRE(reached[run].wait());
        // It is known to be dead only after its first heartbeat; before it, its lease must end.
        REQUIRE(jobs.event(worker_event(name, "beat")).what == json::kind::object);
        worker.signal(SIGKILL);
        CHECK(worker.wait() == -SIGKILL);
        killed[run].set();
        REQUIRE(jobs.reaches(id, "available"));
    }
    const process last = count_worker(jobs.url(), "last");
    REQUIRE(jobs.reaches(id, "completed"));
    const std::string undisturbed = jobs.push_one("text.count", args);
    REQUIRE(jobs.reaches(undisturbed, "completed"));
    CHECK(result_of(jobs, id) == result_of(jobs, undisturbed));
    CHECK(jobs.job(id)["result"]["bytes"].number == file_size);
    CHECK(jobs.job(id)["result"]["passes"].number == passes);
    // Each is one interval after the one before, whichever run it is from: no run starts over, and none skips anything.
    std::int64_t before = 0;
    int count = 0;
    for (const json& each : jobs.events()) {
        if (!job_event(id, "checkpoint")(each)) continue;
        const json& state = each["state"];
        const std::int64_t position = (state["pass"].number - 1) * file_size + state["offset"].number;
        CHECK(position - before >= interval);
        CHECK(position - before < interval + chunk);
        before = position;
        ++count;
    }
    CHECK(count == 4);
}
