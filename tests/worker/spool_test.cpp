#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "recorder.hpp"

using namespace ojs;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string read_text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream out;
    out << file.rdbuf();
    return out.str();
}

void write_text(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

// As if it had last been changed an hour ago.
void make_old(const fs::path& path) {
    const timespec times[2] = {{::time(nullptr) - 3600, 0}, {::time(nullptr) - 3600, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

// A folder of its own, removed at the end.
class scratch {
  public:
    scratch() {
        char name[] = "/tmp/ojs-spool-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path_ = name;
    }
    ~scratch() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

// A spool directory and what the test does to it from outside.
class spool {
  public:
    explicit spool(fs::path where = {}) : path(where.empty() ? own_.path() / "spool" : where) {
        options.directory = path.string();
        options.recovery_interval = 0ms;
        options.on_event = [this](const spool_event& event) {
            const std::lock_guard<std::mutex> held(mutex_);
            events_.push_back(event);
        };
        worker.queues = {"default"};
    }

    std::unique_ptr<spool_transport> open() {
        auto out = std::make_unique<spool_transport>(options);
        const result<void> opened = out->open();
        REQUIRE_MESSAGE(opened, opened.error().text);
        return out;
    }
    // cp to a hidden name, then mv.
    void put(const std::string& name, const std::string& text) {
        write_text(path / "request" / ".cp", text);
        fs::rename(path / "request" / ".cp", path / "request" / name);
    }
    fetch_request asking(std::size_t count = 1) {
        fetch_request out;
        out.worker = &worker;
        out.count = count;
        return out;
    }
    std::vector<job> fetch(spool_transport& from, std::size_t count = 1) {
        result<std::vector<job>> got = from.fetch(asking(count), deadline_after(10s));
        REQUIRE_MESSAGE(got, got.error().text);
        return *got;
    }
    job fetch_one(spool_transport& from) {
        std::vector<job> got = fetch(from);
        REQUIRE(got.size() == 1);
        return got.front();
    }
    // Visible names, sorted.
    std::vector<std::string> names(const std::string& folder) const {
        std::vector<std::string> out;
        for (const auto& each : fs::directory_iterator(path / folder)) {
            const std::string name = each.path().filename();
            if (name.front() != '.') out.push_back(name);
        }
        std::sort(out.begin(), out.end());
        return out;
    }
    std::vector<std::string> hidden(const std::string& folder) const {
        std::vector<std::string> out;
        for (const auto& each : fs::directory_iterator(path / folder)) {
            const std::string name = each.path().filename();
            if (name.front() == '.') out.push_back(name);
        }
        return out;
    }
    std::string read(const std::string& name) const { return read_text(path / name); }
    std::vector<spool_event> events() {
        const std::lock_guard<std::mutex> held(mutex_);
        return events_;
    }
    int told(spool_event::kind what) {
        int out = 0;
        for (const spool_event& each : events()) out += each.what == what ? 1 : 0;
        return out;
    }
    // All that is left of owners.
    std::size_t owners() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(path / "processing"), {}));
    }

  private:
    scratch own_;
    std::mutex mutex_;
    std::vector<spool_event> events_;

  public:
    const fs::path path;
    spool_options options;
    worker_identity worker;
};

using names = std::vector<std::string>;

std::string member(const std::string& object, const char* key) {
    return std::string(detail::raw_member(object, key));
}

std::string spool_path(const job& claimed) {
    std::string out;
    REQUIRE(detail::raw_string(detail::raw_member(claimed.meta_json, "spool_path"), out));
    return out;
}

job_error boom(bool retryable = true) {
    return {"handler_error", "boom \"x\"", retryable, "{\"n\":1}"};
}

settled accept(const result<settled>& answer) {
    REQUIRE_MESSAGE(answer, answer.error().text);
    return *answer;
}

}  // namespace

// ---- a job's way ----

TEST_CASE("spool: a job is claimed, completed, and its file in done/ has the result and all it came with") {
    spool dir;
    const auto transport = dir.open();
    CHECK(dir.fetch(*transport).empty());
    dir.put(
        "a.json",
        R"({"type":"text.count","args":[12345678901234567890, 1.10],"x_unknown":{"big":98765432109876543210},)"
        R"("meta":{"trace":"t1"}})");
    const job claimed = dir.fetch_one(*transport);
    CHECK(claimed.id == "a");
    CHECK(claimed.type == "text.count");
    CHECK(claimed.queue == "default");
    CHECK(claimed.args_json == "[12345678901234567890, 1.10]");
    CHECK(claimed.attempt == 1);
    CHECK(claimed.max_attempts == 3);
    CHECK(claimed.malformed.empty());
    CHECK(member(claimed.meta_json, "trace") == "\"t1\"");
    CHECK(spool_path(claimed).front() == '/');
    CHECK(fs::exists(spool_path(claimed)));
    CHECK(dir.names("request").empty());
    CHECK(dir.fetch(*transport).empty());

    CHECK(accept(transport->ack({"a", "{\"words\":18446744073709551615}"}, deadline_after(1s))) ==
          settled::accepted);
    CHECK(dir.names("done") == names{"a.json"});
    const std::string done = dir.read("done/a.json");
    CHECK(member(done, "result") == "{\"words\":18446744073709551615}");
    CHECK(member(done, "state") == "\"completed\"");
    CHECK(member(done, "args") == "[12345678901234567890, 1.10]");
    CHECK(member(done, "x_unknown") == "{\"big\":98765432109876543210}");
    CHECK(member(done, "meta") == "{\"trace\":\"t1\"}");
    CHECK(!fs::exists(spool_path(claimed)));
}

TEST_CASE("spool: without a result the file goes to done/ as it came") {
    spool dir;
    const auto transport = dir.open();
    const std::string text = "  {\"type\" : \"noop\", \"args\":[],\n\"id\":\"my-id\"}\n\n";
    dir.put("a.json", text);
    CHECK(dir.fetch_one(*transport).id == "my-id");
    CHECK(accept(transport->ack({"my-id", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.read("done/a.json") == text);
}

TEST_CASE("spool: files are taken in the order of their names, also one that comes later") {
    spool dir;
    const auto transport = dir.open();
    for (const char* name : {"5-c.json", "5-a.json", "9-z.json", "0-now.json", "5-b.json"})
        dir.put(name, R"({"type":"noop","args":[]})");
    CHECK(dir.fetch_one(*transport).id == "0-now");
    CHECK(dir.fetch_one(*transport).id == "5-a");
#if OJS_SHUTDOWN_USE_INOTIFY
    dir.put("1-late.json", R"({"type":"noop","args":[]})");
    CHECK(dir.fetch_one(*transport).id == "1-late");
#endif
    const std::vector<job> rest = dir.fetch(*transport, 2);
    REQUIRE(rest.size() == 2);
    CHECK(rest[0].id == "5-b");
    CHECK(rest[1].id == "5-c");
    CHECK(dir.fetch_one(*transport).id == "9-z");
}

TEST_CASE("spool: settling again, or what was never claimed, is gone") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::gone);
    CHECK(accept(transport->fail({"a", boom(true), false, ""}, deadline_after(1s))) == settled::gone);
    CHECK(accept(transport->ack({"never", ""}, deadline_after(1s))) == settled::gone);
    CHECK(accept(transport->save_checkpoint({"a", "1"}, deadline_after(1s))) == settled::gone);
    CHECK(dir.names("done") == names{"a"});
    CHECK(dir.names("request").empty());
}

TEST_CASE("spool: a claimed file that someone takes away is gone, and nothing comes of it") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    fs::remove(spool_path(dir.fetch_one(*transport)));
    CHECK(accept(transport->fail({"a", boom(false), false, ""}, deadline_after(1s))) == settled::gone);
    CHECK(dir.names("failed").empty());
}

TEST_CASE("spool: of several threads that settle one job at the same time, one is accepted") {
    spool dir;
    const auto transport = dir.open();
    for (int i = 0; i < 20; ++i) {
        const std::string id = "j" + std::to_string(i);
        dir.put(id, R"({"type":"noop","args":[]})");
        dir.fetch_one(*transport);
        std::atomic<int> accepted{0};
        std::vector<std::thread> threads;
        for (int k = 0; k < 4; ++k) {
            threads.emplace_back([&, k] {
                const auto answer = k % 2 == 0
                                        ? transport->ack({id, "1"}, deadline_after(5s))
                                        : transport->fail({id, boom(true), false, ""}, deadline_after(5s));
                if (answer && *answer == settled::accepted) accepted.fetch_add(1);
            });
        }
        for (std::thread& each : threads) each.join();
        CHECK(accepted == 1);
        CHECK(dir.names("done").size() + dir.names("request").size() == static_cast<std::size_t>(i) + 1);
        for (const std::string& back : dir.names("request"))
            fs::rename(dir.path / "request" / back, dir.path / "done" / back);
    }
}

// ---- failing ----

TEST_CASE(
    "spool: a failed run waits its delay, which is kept in the file, and the last one goes to failed/") {
    spool dir;
    dir.options.retry_delays = {0ms, 1h};
    {
        const auto transport = dir.open();
        dir.put("a.json", R"({"type":"noop","args":[],"keep":1.50,"meta":{"m":1}})");
        CHECK(dir.fetch_one(*transport).attempt == 1);
        CHECK(accept(transport->fail({"a", boom(false), false, ""}, deadline_after(1s))) ==
              settled::accepted);
        CHECK(dir.names("failed") == names{"a.json"});
        const std::string failed = dir.read("failed/a.json");
        CHECK(member(failed, "state") == "\"discarded\"");
        CHECK(member(failed, "attempt") == "1");
        CHECK(member(failed, "keep") == "1.50");
        const std::string error = member(failed, "error");
        CHECK(member(error, "message") == "\"boom \\\"x\\\"\"");
        CHECK(member(error, "code") == "\"handler_error\"");
        CHECK(member(error, "details") == "{\"n\":1}");
        CHECK(member(error, "retryable") == "false");

        dir.put("c.json", R"({"type":"noop","args":[],"keep":1.50})");
        CHECK(dir.fetch_one(*transport).attempt == 1);
        CHECK(accept(transport->fail({"c", boom(true), false, ""}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("request") == names{"c.json"});
        CHECK(dir.fetch_one(*transport).attempt == 2);  // after no delay at all
        CHECK(accept(transport->fail({"c", boom(true), false, ""}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.fetch(*transport).empty());  // an hour from now
    }
    const auto other = dir.open();
    CHECK(dir.fetch(*other).empty());
    std::string text = dir.read("request/c.json");
    CHECK(member(text, "attempt") == "2");
    CHECK(member(text, "state") == "\"retryable\"");
    CHECK(member(member(text, "spool"), "delay_ms") == "3600000");
    const std::string due = member(member(text, "spool"), "not_before_ms");
    text.replace(text.find(due), due.size(), "1");
    dir.put("c.json", text);
    CHECK(dir.fetch_one(*other).attempt == 3);
    CHECK(accept(other->fail({"c", boom(true), false, ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("request").empty());
    CHECK(dir.names("failed") == names{"a.json", "c.json"});
    CHECK(member(dir.read("failed/c.json"), "attempt") == "3");
    CHECK(member(dir.read("failed/c.json"), "keep") == "1.50");
    CHECK(member(dir.read("failed/c.json"), "spool").empty());
}

TEST_CASE("spool: a job's own max_attempts counts, and more than the delays last take the last one again") {
    spool dir;
    dir.options.retry_delays = {0ms};
    const auto transport = dir.open();
    dir.put("one", R"({"type":"noop","args":[],"max_attempts":1})");
    CHECK(dir.fetch_one(*transport).max_attempts == 1);
    CHECK(accept(transport->fail({"one", boom(true), false, ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("failed") == names{"one"});
    dir.put("four", R"({"type":"noop","args":[],"max_attempts":4})");
    for (int run = 1; run <= 4; ++run) {
        CHECK(dir.fetch_one(*transport).attempt == run);
        CHECK(accept(transport->fail({"four", boom(true), false, ""}, deadline_after(1s))) ==
              settled::accepted);
    }
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.names("failed") == names{"four", "one"});
}

TEST_CASE("spool: a delay never lasts longer than it was meant to, wherever the clock was set") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[],"spool":{"not_before_ms":9000000000000000,"delay_ms":0}})");
    CHECK(dir.fetch_one(*transport).id == "a");
}

TEST_CASE("spool: handed back, a file is in request/ at once, whole, once, and no run is counted") {
    spool dir;
    const auto transport = dir.open();
    const std::string text = " {\"type\":\"noop\", \"args\":[ ]}\n";
    dir.put("a", text);
    for (int i = 0; i < 4; ++i) {
        CHECK(dir.fetch_one(*transport).attempt == 1);
        fail_request back{"a", boom(), true, ""};
        CHECK(accept(transport->fail(back, deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("request") == names{"a"});
        CHECK(dir.read("request/a") == text);
    }
    CHECK(dir.names("failed").empty());
    CHECK(dir.names("done").empty());
}
