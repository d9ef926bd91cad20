// dev_backend --store: what was answered is there after a crash, and files that cannot be a store are left alone.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <random>

#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

constexpr int no_store = 74;

std::string store_path() {
    return scratch_file("store");
}

// What dev_backend says and exits with where it does not even begin.
struct refusal {
    int status;
    std::string why;
};

refusal refused(const std::string& path, std::vector<std::string> below = {}) {
    below.insert(below.end(), {program("dev_backend"), "--port", "0", "--store", path});
    process backend(below, {});
    const int status = backend.wait();
    return {status, backend.output()};
}

bool has_sqlite() {
    const bool out = refused("/dev/null/x").why.find("without SQLite") == std::string::npos;
    if (!out) MESSAGE("skipped: dev_backend is built without SQLite");
    return out;
}

// Keeps a free port of loopback from other programs: only a server that asks for it by its number can listen there.
class kept_port {
  public:
    kept_port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const int yes = 1;
        REQUIRE(::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
        REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
        text_ = std::to_string(ntohs(address.sin_port));
    }
    kept_port(const kept_port&) = delete;
    kept_port& operator=(const kept_port&) = delete;
    ~kept_port() { ::close(fd_); }

    const std::string& text() const { return text_; }

  private:
    const int fd_;
    std::string text_;
};

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
    const kept_port port_;
    std::vector<std::string> flags_;
    std::unique_ptr<backend> jobs_;
};

std::string claim(backend& jobs, const std::string& worker, const std::string& more = "") {
    const json claimed = jobs.post("/ojs/v1/workers/fetch",
                                   R"({"queues":["default"],"worker_id":")" + worker + "\"" + more + "}");
    return claimed["jobs"].items.empty() ? "" : claimed["jobs"].items.front()["id"].text;
}

std::string by_id(const std::string& id, const std::string& more = "") {
    return "{\"job_id\":\"" + id + "\"" + more + "}";
}

// Takes jobs and ACKs them, on and on, and knows what it was answered.
class witness {
  public:
    explicit witness(const std::string& url) : url_(url), thread_([this] { run(); }) {}
    witness(const witness&) = delete;
    witness& operator=(const witness&) = delete;
    ~witness() {
        stopping_ = true;
        thread_.join();
    }
    std::set<std::string> acknowledged() {
        const std::lock_guard<std::mutex> held(mutex_);
        return acknowledged_;
    }

  private:
    void run() {
        const auto request = [&](const char* path, const std::string& body) {
            const auto got = ask(url_, "POST", path, body,
                                 {{"Content-Type", "application/json"}, {"X-OJS-Worker-ID", "witness"}});
            return got && got->status == 200 ? json::parse(got->body) : json();
        };
        while (!stopping_) {
            const json got =
                request("/ojs/v1/workers/fetch",
                        R"({"queues":["default"],"worker_id":"witness","visibility_timeout_ms":2000})");
            if (got["jobs"].items.empty()) {
                std::this_thread::sleep_for(milliseconds(5));
                continue;
            }
            const std::string id = got["jobs"].items.front()["id"].text;
            if (!request("/ojs/v1/workers/ack", by_id(id))["acknowledged"].flag) continue;
            const std::lock_guard<std::mutex> held(mutex_);
            acknowledged_.insert(id);
        }
    }

    const std::string url_;
    std::mutex mutex_;
    std::set<std::string> acknowledged_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace

TEST_CASE("store: SIGKILL and restart of dev_backend -> every job is unchanged and its claim still valid") {
    if (!has_sqlite()) return;
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
    const std::string dead =
        claimed(R"(,"options":{"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}})");
    for (const std::string& id : {failed, dead})
        jobs->post("/ojs/v1/workers/nack", by_id(id, R"(,"error":{"code":"handler_error","message":"no"})"));
    const std::string held = claimed("", ",\"visibility_timeout_ms\":600000");
    jobs->post("/ojs/v1/jobs/" + held + "/checkpoint", R"({"state":{"row":7}})");
    const std::string later =
        jobs->push("a", "[]", 1, R"(,"options":{"delay_until":"2199-01-01T00:00:00Z"})").front();
    const std::string staged = jobs->push("a", "[]", 1, R"(,"options":{"pending":true})").front();
    const std::string first = jobs->push_one("a", "[]");
    const std::string second = jobs->push_one("a", "[]");
    const auto shown = [&] { return jobs->get("/ojs/v1/admin/jobs?order=asc&per_page=100"); };
    const std::string before = shown();
    const json counts = jobs->summary();
    const std::string last = json::parse(jobs->get("/ojs/v1/events"))["cursor"].text;

    jobs.restart(SIGKILL);
    CHECK(shown() == before);
    for (const char* state :
         {"completed", "retryable", "discarded", "active", "scheduled", "pending", "available"}) {
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
    jobs->post("/ojs/v1/jobs/" + staged + "/activate", "{}");
    // The next page has what came after: the dead letter, and the one that was staged.
    const json events = json::parse(jobs->get("/ojs/v1/events?types=job.enqueued&after=" + last));
    CHECK(events["events"].items.size() == 2);

    jobs.restart(SIGKILL);
    CHECK(jobs->state_of(held) == "completed");
    CHECK(jobs->state_of(dead) == "available");
    CHECK(jobs->state_of(staged) == "available");
    CHECK(jobs->state_of(later) == "scheduled");
    CHECK(jobs->job(failed)["errors"].items.size() == 1);
    jobs->post("/dev/reset", "{}");
    jobs.restart(SIGKILL);
    CHECK(jobs->summary()["pushed"].number == 0);
}

// [GS 9.1] [Website Server shutdown]
TEST_CASE("store: SIGTERM -> dev_backend closes the store last and leaves a single file") {
    if (!has_sqlite()) return;
    stored_backend jobs;
    const std::string id = jobs->push_one("a", "[]");
    CHECK(jobs.end(SIGTERM) == 0);
    std::size_t at = 0;
    for (const char* step : {"requests", "scheduler", "storage"}) {
        const std::size_t found = jobs->self().output().find(std::string("shutdown: ") + step + " done", at);
        CHECK_MESSAGE(found != std::string::npos, step << " in " << jobs->self().output());
        at = found;
    }
    CHECK(read_file(jobs.path()).compare(0, 15, "SQLite format 3") == 0);
    for (const char* beside : {"-wal", "-shm", "-journal"})
        CHECK(::access((jobs.path() + beside).c_str(), F_OK) != 0);
    struct stat file {};
    REQUIRE(::stat(jobs.path().c_str(), &file) == 0);
    CHECK((file.st_mode & 0777U) == 0600);
    jobs.start();
    CHECK(jobs->state_of(id) == "available");
}

// An ACK with a response is never undone; an accepted job is there.
// OJS_TEST_KILLS: how often; 3.
TEST_CASE("store: SIGKILLs of dev_backend under four workers lose no accepted job and no acknowledged ACK") {
    if (!has_sqlite()) return;
    const std::uint64_t seed = number_from("OJS_TEST_SEED", std::random_device{}());
    const std::uint64_t kills = number_from("OJS_TEST_KILLS", 3);
    INFO("OJS_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    stored_backend jobs({"--retry-delay", "10ms", "--quiet"});
    std::vector<process> workers;
    for (int i = 0; i < 4; ++i) {
        workers.push_back(start_worker(jobs->url(), "w" + std::to_string(i),
                                       {{"OJS_CONCURRENCY", "4"},
                                        {"OJS_POLL_INTERVAL", "5ms"},
                                        {"OJS_VISIBILITY_TIMEOUT", "2s"},
                                        {"OJS_REQUEST_TIMEOUT", "2s"}}));
    }
    witness clients(jobs->url());
    std::vector<std::string> accepted;
    std::set<std::string> completed;
    for (std::uint64_t kill = 0; kill < kills; ++kill) {
        for (int i = 0; i < 20; ++i) {
            for (std::string& id : jobs->push("test.sleep", "[2]", 5)) accepted.push_back(std::move(id));
        }
        const std::size_t wanted = completed.size() + 1 + random() % 60;
        REQUIRE(eventually(
            [&] { return jobs->summary()["completed"].number >= static_cast<std::int64_t>(wanted); }));
        jobs.end(SIGKILL);
        for (const json& event : jobs->events()) {
            if (event["event"].is("ack") && event["status"].number == 200)
                completed.insert(event["job_id"].text);
        }
        jobs.start();
        CHECK(jobs->summary()["pushed"].number == static_cast<std::int64_t>(accepted.size()));
        // The ledger may be a commit ahead of the disk: an ACK that it tells of and nobody was answered.
        std::set<std::string> now;
        for (const std::string& id : completed) {
            if (jobs->state_of(id) == "completed") now.insert(id);
        }
        completed = now;
        for (const std::string& id : clients.acknowledged()) CHECK(jobs->state_of(id) == "completed");
    }
    CHECK_FALSE(clients.acknowledged().empty());
    for (const std::string& id : accepted) CHECK(jobs->reaches(id, "completed"));
    for (process& each : workers) {
        each.signal(SIGTERM);
        CHECK(each.wait() == 0);
    }
}

TEST_CASE("store: a second dev_backend on the same file exits with status 74, and the first continues") {
    if (!has_sqlite()) return;
    stored_backend jobs;
    const std::string id = jobs->push_one("a", "[]");
    const refusal second = refused(jobs.path());
    CHECK(second.status == no_store);
    CHECK(second.why.find("another process has it open") != std::string::npos);
    CHECK(claim(*jobs, "w") == id);
}

namespace {

// A store of ours, but for the bytes at one place.
void write_changed(const std::string& path, std::size_t at, const std::string& bytes) {
    stored_backend good;
    for (int i = 0; i < 14; ++i) good->push("a", "[\"" + std::string(2000, 'y') + "\"]", 5);
    CHECK(good.end(SIGTERM) == 0);
    std::string all = read_file(good.path());
    REQUIRE(all.size() > 100000);
    write_file(path, all.replace(at, bytes.size(), bytes));
}

}  // namespace

TEST_CASE("store: a path that is not a valid store is refused and not changed") {
    if (!has_sqlite()) return;
    const std::string path = store_path();
    std::string expected;
    SUBCASE("text") {
        write_file(path, std::string(5000, 'x'));
        expected = "file is not a database";
    }
    SUBCASE("somebody else's database") {
        write_changed(path, 68, "SQL");  // the application id
        expected = "it is no store of dev_backend";
    }
    SUBCASE("a later format") {
        write_changed(path, 63, "\2");  // the user version
        expected = "it is of format 2, this reads 1";
    }
    SUBCASE("a damaged store") {
        write_changed(path, 40960, std::string(40960, '\x5a'));
        expected = "damaged";
    }
    SUBCASE("a folder") {
        REQUIRE(::mkdir(path.c_str(), 0700) == 0);
        expected = "Is a directory";
    }
    const auto bytes = [&] { return std::filesystem::is_directory(path) ? "" : read_file(path); };
    const std::string before = bytes();
    const refusal said = refused(path);
    CHECK(said.status == no_store);
    CHECK_MESSAGE(said.why.find(expected) != std::string::npos, said.why);
    CHECK(said.why.find(path) != std::string::npos);
    CHECK(bytes() == before);
}

TEST_CASE("store: a store with a damaged row is refused with an error that contains the job's id") {
    if (!has_sqlite()) return;
    stored_backend good;
    good->push("a", "[]", 1);
    const std::string id = good->push("a", "[1]", 1).front();
    CHECK(good.end(SIGTERM) == 0);
    const std::vector<std::string> all = {
        "meta='{\"a\":'", "errors='[{]'",   "result='tru'", "error='{\"code\"'", "fixed='{}'", "fixed='x'",
        "state='lost'",   "attempt='many'", "turn=1",       "lease_ms=-1"};
    std::vector<std::string> command = {
        "python3", "-c",
        "import shutil, sqlite3, sys\nfor n, damage in enumerate(sys.argv[3:]):\n"
        "  d = sqlite3.connect(shutil.copy(sys.argv[1], sys.argv[1] + str(n)))\n"
        "  d.execute(f'update jobs set {damage} where id=?', [sys.argv[2]])\n  d.commit()\n",
        good.path(), id};
    command.insert(command.end(), all.begin(), all.end());
    process damages(command, {});
    REQUIRE_MESSAGE(damages.wait() == 0, damages.output());
    for (std::size_t i = 0; i < all.size(); ++i) {
        CAPTURE(all[i]);
        const std::string path = good.path() + std::to_string(i);
        const refusal said = refused(path);
        CHECK(said.status == no_store);
        CHECK_MESSAGE(said.why.find(path + ": job " + id + " cannot be read: ") != std::string::npos,
                      said.why);
    }
}

TEST_CASE("store: a file without write permission is refused") {
    if (!has_sqlite()) return;
    stored_backend good;
    CHECK(good.end(SIGTERM) == 0);
    REQUIRE(::chmod(good.path().c_str(), 0444) == 0);
    std::vector<std::string> below;
    if (::geteuid() == 0) below = {"/usr/bin/env", "setpriv", "--reuid=65534", "--clear-groups"};
    const refusal said = refused(good.path(), below);
    CHECK(said.status == no_store);
    CHECK_MESSAGE(said.why.find("Permission denied") != std::string::npos, said.why);
}

namespace {

// A store that has 512 KiB for each of its files: a limit of the process, which nobody needs to be root for, in place of a
// disk of that size.
class small_disk : public backend {
  public:
    explicit small_disk(std::string path = store_path())
        : backend({"--dead-after", "2s", "--store", path},
                  {"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""}),
          path_(std::move(path)) {}
    const std::string& path() const { return path_; }

    ojs::http_response request(const char* method, const std::string& target, const std::string& body) const {
        auto answer = ask(url(), method, target, body);
        REQUIRE(answer);
        return *answer;
    }
    // Until it is full; returns the ids of what was accepted, and the answer to what was not.
    template <class Before>
    std::vector<std::string> fill(ojs::http_response& last, Before before_each) const {
        std::vector<std::string> accepted;
        const std::string body = "{\"type\":\"a\",\"args\":[\"" + std::string(20000, 'z') + "\"]}";
        while (true) {
            before_each();
            last = request("POST", "/ojs/v1/jobs", body);
            if (last.status != 201) return accepted;
            accepted.push_back(json::parse(last.body)["job"]["id"].text);
            REQUIRE(accepted.size() < 1000);
        }
    }

  private:
    const std::string path_;
};

}  // namespace

TEST_CASE("store: on a full disk pushes fail with 5xx, and every job accepted before is kept") {
    if (!has_sqlite()) return;
    small_disk small;
    CHECK(small.request("GET", "/readyz", "").status == 200);
    ojs::http_response answer;
    const std::vector<std::string> accepted = small.fill(answer, [] {});
    CHECK(small.request("GET", "/readyz", "").status == 503);
    CHECK(accepted.size() > 5);
    CHECK(answer.status >= 500);
    CHECK_MESSAGE(answer.body.find("not stored") != std::string::npos, answer.body);
    CHECK(small.request("GET", "/ojs/v1/health", "").status == 503);
    CHECK(small.request("POST", "/ojs/v1/jobs", R"({"type":"a","args":[]})").status == 503);
    small.self().signal(SIGTERM);
    CHECK(small.self().wait() == 1);
    CHECK(small.self().prints("shutdown: storage failed"));
    backend again({"--store", small.path()});
    for (const std::string& id : accepted) CHECK(again.state_of(id) == "available");
    CHECK(again.summary()["pushed"].number <=
          static_cast<std::int64_t>(accepted.size()) + 1);  // the one with the 500
}

TEST_CASE("store: on a full disk no lease ends and no worker is declared dead") {
    if (!has_sqlite()) return;
    small_disk small;
    const std::string pushed = small.request("POST", "/ojs/v1/jobs", R"({"type":"a","args":[]})").body;
    const std::string id = json::parse(pushed)["job"]["id"].text;
    REQUIRE(small
                .request("POST", "/ojs/v1/workers/fetch",
                         R"({"queues":["default"],"worker_id":"w","visibility_timeout_ms":2000})")
                .body.find(id) != std::string::npos);
    ojs::http_response answer;
    small.fill(answer, [&] {
        small.request("POST", "/ojs/v1/workers/heartbeat",
                      R"({"worker_id":"w","active_jobs":[")" + id + "\"]}");
    });
    CHECK(answer.status >= 500);
    // Half as long again as either would take; what is not stored gets no response, so the ledger alone knows.
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const auto count = [&](const char* event) {
        return small.count([&](const json& each) { return each["event"].is(event); });
    };
    CHECK(count("beat") > 0);
    CHECK(count("expired") == 0);
    CHECK(count("dead") == 0);
}

// A duplicate is refused because of a job that is not on disk yet: no response, not even a refusal, comes before it is.
TEST_CASE(
    "store: six pushes of one id that do not fit on the disk -> all fail with 5xx, none as a duplicate") {
    if (!has_sqlite()) return;
    const small_disk small;
    const std::string body = R"({"type":"a","id":"019539a4-aaaa-7000-8000-111111111111","args":[")" +
                             std::string(600000, 'z') + "\"]}";  // more than there is room for
    std::vector<std::thread> clients;
    std::atomic<int> responses{0};
    for (int i = 0; i < 6; ++i) {
        clients.emplace_back(
            [&] { responses += small.request("POST", "/ojs/v1/jobs", body).status < 500 ? 1 : 0; });
    }
    for (std::thread& each : clients) each.join();
    CHECK(responses == 0);
}

TEST_CASE("store: a path that is special to SQLite, such as :memory:, creates an ordinary file") {
    if (!has_sqlite()) return;
    const std::string folder = scratch_file("folder");
    REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
    for (const char* name : {":memory:", "file:x?mode=memory"}) {
        process run({"/usr/bin/env", "-C", folder, program("dev_backend"), "--port", "0", "--store", name},
                    {});
        REQUIRE(run.prints("listening on "));
        run.signal(SIGTERM);
        CHECK(run.wait() == 0);
        CHECK(read_file(folder + "/" + name).compare(0, 15, "SQLite format 3") == 0);
    }
}

namespace {

// A backend whose output goes to the shell command `reader`.
struct piped_backend {
    piped_backend(const std::string& flags, const std::string& reader)
        : shell({"/bin/sh", "-c",
                 "{ \"$0\" --port 0 " + flags +
                     " 2>&1 & echo $! >\"$1.pid\"; wait $!; echo $? >\"$1.status\"; } | " + reader,
                 program("dev_backend"), path},
                {{"OJS_SERVER_SHUTDOWN_TIMEOUT", "1h"}}) {
        REQUIRE(shell.prints("listening on "));
        REQUIRE(shell.prints("\n"));
        REQUIRE(eventually([&] { return read_file(path + ".pid").find('\n') != std::string::npos; }));
    }
    // Its exit status, on SIGTERM.
    std::string end() {
        REQUIRE(::kill(std::stoi(read_file(path + ".pid")), SIGTERM) == 0);
        CHECK(shell.wait() == 0);
        return read_file(path + ".status");
    }

    const std::string path = store_path();
    process shell;
};

}  // namespace

TEST_CASE(
    "store: standard output is a pipe without a reader -> dev_backend still exits with 0 and closes the "
    "store") {
    if (!has_sqlite()) return;
    piped_backend piped("--store \"$1\"", "head -n 1");
    CHECK(piped.end() == "0\n");
    CHECK(::access((piped.path + "-wal").c_str(), F_OK) != 0);
}

TEST_CASE(
    "dev_backend: standard output is full and not read -> SIGTERM still ends dev_backend, with status 1") {
    piped_backend piped("", "{ head -n 1; until [ -s \"$1.status\" ]; do sleep 0.05; done; }");
    const std::string& said = piped.shell.output();
    const std::size_t at = said.find("127.0.0.1:");
    const std::string url = "http://" + said.substr(at, said.find('\n', at) - at);
    const auto got =
        ask(url, "POST", "/ojs/v1/workers/heartbeat",
            R"({"worker_id":"w","note":")" + std::string(1000000, 'x') + "\"}");  // more than a pipe holds
    REQUIRE(got);
    CHECK(got->status == 200);
    CHECK(piped.end() == "1\n");
}

TEST_CASE("dev_backend: a port in use ends start-up with 69, and a --ledger FIFO without a reader with 64") {
    const backend jobs;
    const std::string pipe = store_path() + ".pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const std::string port = jobs.url().substr(jobs.url().rfind(':') + 1);
    process taken({program("dev_backend"), "--port", port}, {});
    CHECK(taken.wait() == 69);
    CHECK(taken.prints("in use"));
    process unread({program("dev_backend"), "--port", "0", "--ledger", pipe}, {});
    CHECK(unread.wait() == 64);
    CHECK(unread.prints("cannot write"));
}
