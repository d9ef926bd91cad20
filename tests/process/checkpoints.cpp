// The example worker's text.count, ended at random points until it is done: how much it did in all, by its own
// checkpoints and by the kernel's account of what it read. Settings from the environment:
//
//   OJS_TEST_SEED              repeats a run's random choices (it is printed)
//   OJS_TEST_CHECKPOINT_PASSES how often the file is counted; default 24
#include <random>

#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

constexpr std::int64_t file_size = 200003;
constexpr std::int64_t interval = 512 * 1024;
constexpr std::int64_t chunk = 16 * 1024;

std::int64_t pass_count() {
    return static_cast<std::int64_t>(number_from("OJS_TEST_CHECKPOINT_PASSES", 24));
}

std::uint64_t seed() {
    static const std::uint64_t chosen = number_from("OJS_TEST_SEED", std::random_device{}());
    return chosen;
}

std::string write_text() {
    std::string path = scratch_file("text");
    std::mt19937_64 random(1);
    std::ofstream out(path, std::ios::binary);
    for (std::int64_t i = 0; i < file_size; ++i) out << "abcdefghij \n"[random() % 12];
    return path;
}

std::string count_args(const std::string& path, std::int64_t passes) {
    return "[\"" + path + "\",0," + std::to_string(passes) + "," + std::to_string(interval) + "]";
}

process count_worker(backend& jobs, const std::string& id, const environment& extra = {}) {
    environment settings = {
        {"OJS_URL", jobs.url()},       {"OJS_WORKER_ID", id},    {"OJS_HEARTBEAT_INTERVAL", "50ms"},
        {"OJS_POLL_INTERVAL", "20ms"}, {"OJS_CONCURRENCY", "1"}, {"OJS_VISIBILITY_TIMEOUT", "60s"}};
    for (const auto& [name, value] : extra) settings[name] = value;
    return process({program("worker")}, settings);
}

// What a process has read() so far, sockets aside; -1 where the kernel does not tell.
std::int64_t bytes_read(const process& of) {
    std::ifstream account("/proc/" + std::to_string(of.pid()) + "/io");
    std::string name;
    std::int64_t value = 0;
    while (account >> name >> value) {
        if (name == "rchar:") return value;
    }
    return -1;
}

// What a worker reads before it has a job.
std::int64_t bytes_read_idle() {
    backend jobs;
    const process worker = count_worker(jobs, "idle");
    REQUIRE(jobs.event(worker_event("idle", "beat")).what == json::kind::object);
    return bytes_read(worker);
}

// How far a checkpoint is in the whole job, in bytes.
std::int64_t position(const json& state) {
    return (state["pass"].number - 1) * file_size + state["offset"].number;
}

std::string result_of(backend& jobs, const std::string& id) {
    std::string out;
    for (const char* key : {"bytes", "lines", "words", "passes", "crc32"})
        out += jobs.job(id)["result"][key].text + " ";
    return out;
}

struct tally {
    int interruptions = 0;
    std::int64_t bytes = 0;  // by the kernel's account
    bool accounted = true;   // there is such a thing
};

// Starts worker after worker on the job, and has `interrupt` end each at a random point, until the job is done.
template <class Interrupt>
tally work_through(backend& jobs, const std::string& id, const environment& settings, milliseconds step,
                   bool with_events, Interrupt interrupt) {
    const std::int64_t idle = bytes_read_idle();
    std::mt19937_64 random(seed());
    tally out;
    const auto done = [&] { return jobs.state_of(id) == "completed"; };
    const auto end = clock::now() + seconds(120);
    for (int run = 1; !done() && clock::now() < end; ++run) {
        const std::string name = "w" + std::to_string(run) + "-" + id;
        process worker = count_worker(jobs, name, settings);
        // So many checkpoints, where the backend tells of them, and up to two intervals more; else by the kernel's account.
        const int checkpoints = static_cast<int>(random() % 3);
        const auto more =
            std::chrono::microseconds(random() % static_cast<std::uint64_t>(step.count() * 2000 + 1));
        const auto bytes = static_cast<std::int64_t>(random() % (4 * interval));
        const auto claimed = [&](const json& event) {
            return worker_event(name, "fetch")(event) && event["jobs"].holds(id);
        };
        REQUIRE(jobs.event(claimed).what == json::kind::object);
        // A worker is known to be dead only after its first heartbeat; before it, its lease must end.
        REQUIRE(jobs.event(worker_event(name, "beat")).what == json::kind::object);
        if (with_events)
            eventually([&] { return jobs.count(worker_event(name, "checkpoint")) >= checkpoints || done(); });
        else if (idle >= 0)
            eventually([&] { return bytes_read(worker) - idle >= bytes || done(); });
        if (with_events || idle < 0) std::this_thread::sleep_for(more);  // at any moment of its work
        interrupt(worker);
        const std::int64_t read = bytes_read(worker);
        out.accounted = out.accounted && idle >= 0 && read >= 0;
        out.bytes += read - idle;
        worker.signal(SIGKILL);
        if (!done()) ++out.interruptions;
        // Before the next one starts: it is back, by its FAIL or because its worker is dead.
        REQUIRE(eventually([&] { return jobs.state_of(id) != "active"; }));
    }
    CHECK(jobs.state_of(id) == "completed");
    return out;
}

// No run started from less than the last checkpoint before it, nor came to its own first one later than that allows.
void check_checkpoints(backend& jobs, const std::string& id) {
    std::int64_t last = 0;
    int count = 0;
    for (const json& each : jobs.events()) {
        if (!job_event(id, "checkpoint")(each)) continue;
        if (each["status"].number != 200) continue;  // from a worker slow enough to be taken for dead
        const std::int64_t here = position(each["state"]);
        CHECK(here - last >= interval);  // starting over would be less
        CHECK(here - last < interval + chunk);
        last = here;
        ++count;
    }
    CHECK(count > 5);
}

void check_work(const tally& done, std::int64_t minimum) {
    MESSAGE("seed " << seed() << ": " << done.interruptions << " interruptions; read " << done.bytes / 1024
                    << " KiB, at least " << minimum / 1024 << ", at most "
                    << (minimum + done.interruptions * interval) / 1024 << " and what starting takes");
    if (!done.accounted) {
        MESSAGE("this kernel keeps no account of what a process read");
        return;
    }
    // A chunk on its way at the interruption, and what a start reads more or less of.
    const std::int64_t slack = (done.interruptions + 1) * (chunk + 32 * 1024);
    CHECK(done.bytes + slack >= minimum);
    CHECK(done.bytes <= minimum + done.interruptions * interval + slack);
}

// The job without an interruption: its result, and how long an interval takes.
std::string count_undisturbed(backend& jobs, const std::string& args, milliseconds& step) {
    const std::string id = jobs.push_one("text.count", args);
    const process worker = count_worker(jobs, "undisturbed");
    const json claimed = jobs.event([&](const json& event) {
        return worker_event("undisturbed", "fetch")(event) && event["jobs"].holds(id);
    });
    const json acked = jobs.event(job_event(id, "ack"));
    REQUIRE(acked.what == json::kind::object);
    const std::int64_t took = acked["recv_mono_ns"].number - claimed["recv_mono_ns"].number;
    step = milliseconds(took / 1000000 * interval / (pass_count() * file_size));
    worker.signal(SIGTERM);
    REQUIRE(worker.wait() == 0);
    return result_of(jobs, id);
}

}  // namespace

// [GS 1] [GS 7.1 (a)] [GS 7.2 (3)] [Website In-flight (c)] [WP 10.1 - 10.3]
TEST_CASE("text.count: SIGKILL at random points -> at most one checkpoint interval is repeated each time") {
    backend jobs({"--dead-after", "2s"});  // a live one is silent for less
    const std::string args = count_args(write_text(), pass_count());
    milliseconds step{0};
    const std::string expected = count_undisturbed(jobs, args, step);
    CHECK(expected.compare(0, 7, std::to_string(file_size) + " ") == 0);
    CHECK(expected.find(" " + std::to_string(pass_count()) + " ") != std::string::npos);
    std::string id;
    tally done;
    for (int i = 0; i < 5 && done.interruptions == 0; ++i) {  // a job may be done before it is interrupted
        id = jobs.push_one("text.count", args);
        done = work_through(jobs, id, {}, step, true, [](const process& worker) {
            worker.freeze();  // what it has read is read while it stands still
        });
    }
    CHECK(result_of(jobs, id) == expected);
    CHECK(done.interruptions > 0);
    check_checkpoints(jobs, id);
    check_work(done, pass_count() * file_size);
}

// [GS 7.2 (3)] [Website In-flight (b)]
TEST_CASE(
    "text.count: SIGTERM with a 5 ms grace period -> the next run repeats at most a checkpoint interval") {
    for (const bool with_route : {true, false}) {
        CAPTURE(with_route);
        backend jobs(with_route ? std::vector<std::string>{} : std::vector<std::string>{"--no-checkpoints"});
        const std::string args = count_args(write_text(), pass_count());
        milliseconds step{0};
        const std::string expected = count_undisturbed(jobs, args, step);
        std::string id;
        tally done;
        int failed = 0;
        for (int i = 0; i < 5 && done.interruptions == 0; ++i) {
            id = jobs.push_one("text.count", args);
            done = work_through(jobs, id, {{"OJS_SHUTDOWN_GRACE_PERIOD", "5ms"}}, step, with_route,
                                [&](const process& worker) {
                                    worker.signal(SIGTERM);
                                    CHECK(worker.wait() == 0);
                                    ++failed;
                                });
        }
        CHECK(result_of(jobs, id) == expected);
        CHECK(done.interruptions > 0);
        CHECK(failed >= done.interruptions);
        CHECK(jobs.job(id)["attempt"].number == 1);  // requeued each time: no attempt used up
        if (with_route) check_checkpoints(jobs, id);
        check_work(done, pass_count() * file_size);
    }
}

TEST_CASE("text.count: a run resumes only from a valid checkpoint of the same, unchanged file") {
    backend jobs;
    const std::string path = write_text();
    const std::string args = count_args(path, 6);
    const process worker = count_worker(jobs, "w");
    const auto count_checkpoints = [&](const std::string& id) {
        return jobs.count(job_event(id, "checkpoint"));
    };
    const auto run = [&](const std::string& meta) {
        const std::string id = jobs.push("text.count", args, 1, meta).front();
        REQUIRE(jobs.reaches(id, "completed"));
        return id;
    };
    const std::string whole = run("");
    const std::string expected = result_of(jobs, whole);
    REQUIRE(count_checkpoints(whole) == 2);
    const std::string version = jobs.event(job_event(whole, "checkpoint"))["state"]["version"].text;
    REQUIRE_FALSE(version.empty());

    // By the members of one that it will take: the last pass, at its beginning.
    const std::vector<std::pair<std::string, std::string>> good = {{"job", "\"text.count\""},
                                                                   {"path", "\"" + path + "\""},
                                                                   {"version", "\"" + version + "\""},
                                                                   {"pass", "6"},
                                                                   {"offset", "0"},
                                                                   {"lines", "0"},
                                                                   {"words", "0"},
                                                                   {"in_word", "0"},
                                                                   {"crc_state", "4294967295"},
                                                                   {"worked_ms", "0"}};
    const auto with = [&](const std::string& key, const std::string& value) {
        std::string members;
        for (const auto& [name, source] : good) {
            if (name == key && value.empty()) continue;
            members += (members.empty() ? "\"" : ",\"") + name + "\":" + (name == key ? value : source);
        }
        return ",\"meta\":{\"checkpoint\":{" + members + "}}";
    };
    const std::string taken = run(with("", ""));
    CHECK(result_of(jobs, taken) == expected);
    CHECK(count_checkpoints(taken) == 0);

    std::vector<std::string> foreign = {with("version", "\"" + version + "0\""),
                                        with("pass", "0"),
                                        with("offset", std::to_string(file_size + 1)),
                                        with("crc_state", "4294967296"),
                                        ",\"meta\":{\"checkpoint\":7}",
                                        ",\"meta\":{\"checkpoint\":{}}"};
    for (const auto& [name, value] : good) {
        foreign.push_back(with(name, ""));
        foreign.push_back(with(name, value.front() == '"' ? "7" : "1e300"));
    }
    for (const char* value : {"0.5", "\"1\"", "-1"}) foreign.push_back(with("pass", value));
    for (const std::string& meta : foreign) {
        CAPTURE(meta);
        const std::string id = run(meta);
        CHECK(result_of(jobs, id) == expected);
        CHECK(count_checkpoints(id) == 2);
    }
    // Nor from its own, once the file has changed.
    write_file(path, read_file(path) + "one more line\n");
    CHECK(count_checkpoints(run(with("", ""))) == 2);
}
