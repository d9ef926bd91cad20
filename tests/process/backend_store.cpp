// dev_backend --store: what was answered is there after a crash, and files that cannot be a store are left alone.
#include <future>
#include <random>

#include "harness.hpp"
#include "raw_peer.hpp"

namespace {
constexpr int no_store = 74;

std::string store_path() { return scratch_file("store"); }

// What dev_backend says and exits with if it does not start.
struct refusal {
    int status;
    std::string why;
};

refusal refused(const std::string& path) {
    process backend({program("dev_backend"), "--port", "0", "--store", path}, {});
    const int status = backend.wait();
    return {status, backend.output()};
}

// A backend that is killed and started again at the same address, on the same file.
class stored_backend {
  public:
    explicit stored_backend(std::vector<std::string> flags = {}) : flags_(std::move(flags)) {
        flags_.insert(flags_.end(), {"--store", path_, "--port", port_.text()});
        start();
    }

    backend& operator*() { return *jobs_; }
    backend* operator->() { return jobs_.get(); }
    const std::string& path() const { return path_; }
    // Its exit status.
    int end(int signal) {
        jobs_->self().signal(signal);
        return jobs_->self().wait();
    }
    void start() { jobs_ = std::make_unique<backend>(flags_); }
    void restart(int signal) {
        end(signal);
        start();
    }

  private:
    const std::string path_ = store_path();
    const peer::reserved_port port_;
    std::vector<std::string> flags_;
    std::unique_ptr<backend> jobs_;
};

std::string claim(backend& jobs, const std::string& worker, const std::string& more = "") {
    const json claimed =
        jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":")" + worker + "\"" + more + "}");
    return claimed["jobs"].items.empty() ? "" : claimed["jobs"].items.front()["id"].text;
}

std::string by_id(const std::string& id, const std::string& more = "") {
    return "{\"job_id\":\"" + id + "\"" + more + "}";
}

// `text` with the first `from` replaced.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}
}  // namespace

TEST_CASE("store: SIGKILL and restart of dev_backend -> every job is unchanged and its claim still valid") {
    stored_backend jobs({"--retry-delay", "1h"});
    const std::string done =
        jobs->push("a", "[1.50,\"\\u00e4\\u0000\"]", 1, R"(,"meta":{"k":1e2},"x_more":[0])").front();
    REQUIRE(claim(*jobs, "w") == done);
    jobs->post("/ojs/v1/workers/ack", by_id(done, R"(,"result":{"n":1.0})"));
    const auto claimed = [&](const char* options, const std::string& more = "") {
        const std::string id = jobs->push("a", "[]", 1, options).front();
        REQUIRE(claim(*jobs, "w", more) == id);
        return id;
    };
    const std::string failed = claimed(R"(,"options":{"retry":{"max_attempts":5}})");
    const std::string dead = claimed(R"(,"options":{"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}})");
    for (const std::string& id : {failed, dead})
        jobs->post("/ojs/v1/workers/nack",
                   by_id(id, R"(,"error":{"code":"handler_error","message":"no"},"meta":{"checkpoint":{"row":7}})"));
    const std::string held = claimed("", ",\"visibility_timeout_ms\":600000");
    const std::string later = jobs->push("a", "[]", 1, R"(,"options":{"delay_until":"2199-01-01T00:00:00Z"})").front();
    const std::string first = jobs->push_one("a", "[]");
    const std::string second = jobs->push_one("a", "[]");
    const auto shown = [&] {
        std::string out;
        for (const std::string& id : {done, failed, dead, held, later, first, second})
            out += jobs->get("/ojs/v1/jobs/" + id) + "\n";
        return out;
    };
    const std::string before = shown();
    const json counts = jobs->summary();

    jobs.restart(SIGKILL);
    CHECK(shown() == before);
    for (const char* state : {"completed", "retryable", "discarded", "active", "scheduled", "available"}) {
        CAPTURE(state);
        CHECK(counts[state].number > 0);
        CHECK(jobs->summary()[state].number == counts[state].number);
    }
    // The worker that holds it need not know that anything happened.
    CHECK(jobs->post("/ojs/v1/workers/ack", by_id(held))["state"].is("completed"));
    CHECK(claim(*jobs, "w") == first);
    CHECK(claim(*jobs, "w") == second);
    CHECK(claim(*jobs, "w").empty());
    CHECK(jobs->post("/ojs/v1/dead-letter/" + dead + "/retry", "{}")["job"]["attempt"].number == 0);

    jobs.restart(SIGKILL);
    CHECK(jobs->state_of(held) == "completed");
    CHECK(jobs->state_of(dead) == "available");
    CHECK(jobs->state_of(later) == "scheduled");
    CHECK(jobs->job(failed)["errors"].items.size() == 1);
    jobs->post("/dev/reset", "{}");
    jobs.restart(SIGKILL);
    CHECK(jobs->summary()["pushed"].number == 0);
}

// [GS 9.1] [Website Server shutdown]
TEST_CASE("store: SIGTERM -> dev_backend writes the store last, to a file that only its owner can read") {
    stored_backend jobs;
    const std::string id = jobs->push_one("a", "[]");
    CHECK(jobs.end(SIGTERM) == 0);
    std::size_t at = 0;
    for (const char* step : {"requests", "scheduler", "storage"}) {
        const std::size_t found = jobs->self().output().find(std::string("shutdown: ") + step + " done", at);
        CHECK_MESSAGE(found != std::string::npos, step << " in " << jobs->self().output());
        at = found;
    }
    struct stat file {};
    REQUIRE(::stat(jobs.path().c_str(), &file) == 0);
    CHECK((file.st_mode & 0777U) == 0600);
    jobs.start();
    CHECK(jobs->state_of(id) == "available");
}

// OJS_TEST_JOBS: how many are enqueued; 400. OJS_TEST_KILLS: how often a worker and dev_backend are killed; 3.
TEST_CASE("store: SIGKILLs of workers and dev_backend lose no job, and no follow-up job is enqueued twice") {
    const std::uint64_t seed = number_from("OJS_TEST_SEED", std::random_device{}());
    const std::uint64_t kills = number_from("OJS_TEST_KILLS", 3);
    const auto count = static_cast<std::size_t>(number_from("OJS_TEST_JOBS", 400));
    INFO("OJS_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    stored_backend jobs({"--quiet"});
    const environment settings =
        settings_from("OJS_CONCURRENCY=4 OJS_POLL_INTERVAL=5ms OJS_VISIBILITY_TIMEOUT=2s OJS_HEARTBEAT_INTERVAL=500ms",
                      {{"OJS_URL", jobs->url()}, {"OJS_LOG_LEVEL", "error"}});
    std::vector<process> workers;
    for (int i = 0; i < 6; ++i) workers.emplace_back(std::vector<std::string>{program("follow_up")}, settings);
    ojs::client_options options;
    options.url = jobs->url();
    const auto client = ojs::client::create(options);
    REQUIRE(client);
    std::vector<std::string> ids(count);
    for (std::string& id : ids) id = ojs::new_job_id();
    std::atomic<std::size_t> next{0}, found{0}, failed{0};
    std::string why;
    const auto enqueue_all = [&] {
        for (std::size_t i = 0; (i = next++) < count;) {
            ojs::enqueue_request job;
            job.type = "order.ship";
            job.args_json = "[" + std::to_string(i) + "]";
            job.id = ids[i];
            const auto sent = client->enqueue(job, {ojs::deadline_after(guard * 10), {}});
            if (!sent && failed++ == 0) why = sent.error().text;
            found += sent && !sent->is_new ? 1 : 0;  // by a repetition: a response was lost
        }
    };
    std::future<void> producers[3];
    for (std::future<void>& each : producers) each = std::async(std::launch::async, enqueue_all);
    std::string printed;
    for (std::uint64_t kill = 0; kill < kills; ++kill) {
        const auto enough = static_cast<std::int64_t>(2 * count * (kill + 1) / (kills + 2) + random() % 8);
        REQUIRE(eventually([&] { return jobs->summary()["completed"].number >= enough; }, guard * 3));
        process& worker = workers[random() % workers.size()];
        worker.end_by(SIGKILL);
        printed += worker.output();
        jobs.restart(SIGKILL);
        worker = process({program("follow_up")}, settings);
    }
    for (std::future<void>& each : producers) each.get();
    CHECK_MESSAGE(failed == 0, why);
    for (const std::string& id : ids) {
        REQUIRE(eventually([&] { return jobs->state_of(id) == "completed"; }, guard * 3));
        REQUIRE(jobs->reaches(ojs::follow_up_id(id, "mail"), "completed"));
    }
    CHECK(jobs->summary()["pushed"].number == static_cast<std::int64_t>(2 * count));
    for (process& each : workers) {
        CHECK(each.end_by(SIGTERM) == 0);
        printed += each.output();
    }
    // A run is repeated only under a second claim: no protocol can say whether a worker that died had finished.
    std::map<std::string, int> runs;
    for (const std::string& each : words(printed)) runs[each] += each.size() == ids[0].size() ? 1 : 0;
    int doubled = 0;
    for (const auto& [id, times] : runs) {
        doubled += times > 1 ? 1 : 0;
        if (times > 1) CHECK(jobs->job(id)["attempt"].number >= times);
    }
    MESSAGE(count << " jobs, " << found.load() << " lost responses, " << doubled << " jobs run again after " << kills
                  << " kills");
}

TEST_CASE("store: a foreign, damaged or locked file is refused with status 74 and not changed") {
    stored_backend good;
    good->push("a", "[]", 1);
    const std::string id = good->push("a", "[1]", 1).front();
    const refusal second = refused(good.path());
    CHECK(second.status == no_store);
    CHECK(second.why.find("another process has it open") != std::string::npos);
    CHECK(good.end(SIGTERM) == 0);
    const std::string whole = read_file(good.path());
    const struct {
        std::string text;
        const char* why;
    } rows[] = {
        {"something else\n", "it is no store of dev_backend"},
        {replaced(whole, "store 2", "store 1"), "it is no store of dev_backend"},
        {replaced(whole, "\"args\":[1]", "\"args\":[1"), "line 3 is damaged: not JSON"},
        {replaced(whole, "\"args\":[1]", "\"args\":7"), "line 3 is damaged: args is missing or not an array"},
        {replaced(whole, "\"attempt\":0", "\"attempt\":-1"), "line 2 is damaged: attempt is not a whole number"},
        {replaced(whole, "\"state\":\"available\"", "\"state\":\"lost\""),
         "line 2 is damaged: no state is called lost"},
        {replaced(whole, "{\"id\":\"" + id, "{\"id\":\"other"), "line 3 is damaged: fixed is that of another job"},
    };
    for (const auto& each : rows) {
        CAPTURE(each.text);
        write_file(good.path(), each.text);
        const refusal said = refused(good.path());
        CHECK(said.status == no_store);
        CHECK_MESSAGE(said.why.find(good.path() + ": " + each.why) != std::string::npos, said.why);
        CHECK(read_file(good.path()) == each.text);
    }
    // No response has reported a line that is cut off.
    write_file(good.path(), whole + "[{\"id\":\"" + id + "\",\"st");
    good.start();
    CHECK(good->state_of(id) == "available");
    good->post("/dev/reset", "{}");
    good.restart(SIGKILL);
    CHECK(good->summary()["pushed"].number == 0);
}

TEST_CASE("store: on a full disk pushes fail with 503, and every job accepted before is kept") {
    // A limit of the process in place of a disk of that size, 512 KiB for each file: nobody needs to be root for it.
    const std::vector<std::string> limited = {"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""};
    const std::string path = store_path();
    backend small({"--store", path}, limited);
    const auto push = [&](std::size_t size) {
        const auto got =
            ask(small.url(), "POST", "/ojs/v1/jobs", R"({"type":"a","args":[")" + std::string(size, 'z') + "\"]}");
        REQUIRE(got);
        return *got;
    };
    std::vector<std::string> accepted;
    ojs::http_response last = push(20000);
    for (; last.status == 201 && accepted.size() < 1000; last = push(20000))
        accepted.push_back(json::parse(last.body)["job"]["id"].text);
    CHECK(accepted.size() > 5);
    CHECK(last.status == 503);
    CHECK_MESSAGE(last.body.find("not stored") != std::string::npos, last.body);
    CHECK(ask(small.url(), "GET", "/ojs/v1/health")->status == 503);
    CHECK(push(1).status == 503);
    CHECK(small.self().end_by(SIGTERM) == 1);
    CHECK(small.self().prints("shutdown: storage failed"));
    backend again({"--store", path});
    for (const std::string& id : accepted) CHECK(again.state_of(id) == "available");
    CHECK(again.summary()["pushed"].number == static_cast<std::int64_t>(accepted.size()));
}
