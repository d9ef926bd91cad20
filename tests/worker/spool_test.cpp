#include <dirent.h>
#include <fcntl.h>
#ifdef __linux__
#include <linux/fs.h>
#endif
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
    const auto third = dir.open();
    CHECK(dir.fetch_one(*third).attempt == 3);
    CHECK(accept(third->fail({"c", boom(true), false, ""}, deadline_after(1s))) == settled::accepted);
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

// ---- any file ----

namespace {

// Bytes that are no JSON, no text and not even UTF-8.
const std::string odd_bytes("\0\xff\xfe{\"type\":\n", 12);

fail_request hand_back(const std::string& id, std::string checkpoint = {}) {
    return {id, boom(), true, std::move(checkpoint)};
}

}  // namespace

TEST_CASE("spool: with any_file every regular file is a job, and stays as it is") {
    spool dir;
    dir.options.any_file = true;
    const auto transport = dir.open();
    dir.put("4-200-prove.json", odd_bytes);
    const ino_t inode = [&] {
        struct stat about {};
        REQUIRE(::stat((dir.path / "request/4-200-prove.json").c_str(), &about) == 0);
        return about.st_ino;
    }();
    job claimed = dir.fetch_one(*transport);
    CHECK(claimed.id == "4-200-prove.json");
    CHECK(claimed.type == "file");
    CHECK(claimed.queue == "default");
    CHECK(claimed.attempt == 1);
    CHECK(claimed.malformed.empty());
    CHECK(read_text(spool_path(claimed)) == odd_bytes);

    // Handed back: byte for byte, and no run is counted.
    for (int i = 0; i < 3; ++i) {
        CHECK(accept(transport->fail(hand_back(claimed.id), deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("request") == names{"4-200-prove.json"});
        CHECK(dir.hidden("request").empty());
        CHECK(dir.read("request/4-200-prove.json") == odd_bytes);
        claimed = dir.fetch_one(*transport);
        CHECK(claimed.attempt == 1);
    }
    CHECK(accept(transport->ack({claimed.id, "{\"n\":1}"}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.read("done/4-200-prove.json") == odd_bytes);
    struct stat about {};
    REQUIRE(::stat((dir.path / "done/4-200-prove.json").c_str(), &about) == 0);
    CHECK(about.st_ino == inode);
    CHECK(dir.hidden("done").empty());
    CHECK(accept(transport->ack({claimed.id, ""}, deadline_after(1s))) == settled::gone);
}

TEST_CASE("spool: with any_file runs, delay, checkpoint and error are kept beside the file") {
    spool dir;
    dir.options.any_file = true;
    dir.options.retry_delays = {0ms, 1h};
    {
        const auto transport = dir.open();
        dir.put("proof", odd_bytes);
        CHECK(dir.fetch_one(*transport).attempt == 1);
        CHECK(accept(transport->fail({"proof", boom(), false, "{\"at\":7}"}, deadline_after(1s))) ==
              settled::accepted);
        const job second = dir.fetch_one(*transport);
        CHECK(second.attempt == 2);
        CHECK(member(second.meta_json, "checkpoint") == "{\"at\":7}");
        CHECK(*transport->load_checkpoint("proof", deadline_after(1s)) == "{\"at\":7}");
        // Handed back in its second run, it comes again as its second.
        CHECK(accept(transport->fail(hand_back("proof"), deadline_after(1s))) == settled::accepted);
        const job again = dir.fetch_one(*transport);
        CHECK(again.attempt == 2);
        CHECK(member(again.meta_json, "checkpoint") == "{\"at\":7}");
        CHECK(accept(transport->fail({"proof", boom(), false, ""}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.fetch(*transport).empty());
    }
    dir.options.retry_delays = {0ms, 0ms};
    const auto other = dir.open();
    CHECK(dir.fetch(*other).empty());  // the delay was decided when it failed
    const fs::path beside = dir.path / "request" / ".about.proof";
    std::string about = read_text(beside);
    CHECK(member(about, "attempt") == "2");
    about.replace(about.find("3600000"), 7, "0");
    write_text(beside, about);
    dir.put("other", "x");  // news, so that it is looked at again
    const std::vector<job> both = [&] {
        const auto fresh = dir.open();
        return dir.fetch(*fresh, 5);
    }();
    CHECK(both.size() == 2);
}

TEST_CASE("spool: with any_file a file that failed for good has its error beside it") {
    spool dir;
    dir.options.any_file = true;
    dir.options.retry_delays = {};
    const auto transport = dir.open();
    dir.put("proof", odd_bytes);
    CHECK(dir.fetch_one(*transport).max_attempts == 1);
    CHECK(accept(transport->fail({"proof", boom(), false, ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("failed") == names{"proof"});
    CHECK(dir.read("failed/proof") == odd_bytes);
    const std::string about = dir.read("failed/.about.proof");
    CHECK(member(about, "attempt") == "1");
    CHECK(member(member(about, "error"), "message") == "\"boom \\\"x\\\"\"");
    CHECK(dir.names("request").empty());
    CHECK(dir.hidden("request").empty());

    // Moved back by a person, without what was beside it or with it, it is a new job.
    fs::rename(dir.path / "failed/proof", dir.path / "request/proof");
    CHECK(dir.fetch_one(*transport).attempt == 1);
}

TEST_CASE("spool: what is kept beside a file is not believed of another of the same name") {
    spool dir;
    dir.options.any_file = true;
    const auto transport = dir.open();
    dir.put("proof", odd_bytes);
    dir.fetch_one(*transport);
    CHECK(accept(transport->fail({"proof", boom(), false, "1"}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.hidden("request") == names{".about.proof"});
    write_text(dir.path / "request/.cp", "another");
    fs::rename(dir.path / "request/.cp",
               dir.path / "request/proof");  // while the first is still there: another inode
    const job claimed = dir.fetch_one(*transport);
    CHECK(claimed.attempt == 1);
    CHECK(member(claimed.meta_json, "checkpoint").empty());
}

TEST_CASE("spool: a name that is taken is not overwritten, in any folder") {
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        spool dir;
        dir.options.any_file = any_file;
        const auto transport = dir.open();
        const std::string first = R"({"type":"noop","args":[1]})";
        const std::string second = R"({"type":"noop","args":[2]})";
        for (const char* folder : {"done", "failed"}) {
            write_text(dir.path / folder / "a", "there before");
            write_text(dir.path / folder / "a.1", "there before too");
        }
        dir.put("a", first);
        dir.fetch_one(*transport);
        dir.put("a", second);
        CHECK(dir.fetch(*transport).empty());  // one "a" at a time
        CHECK(accept(transport->fail(hand_back("a"), deadline_after(1s))) == settled::accepted);
        CHECK(dir.read("request/a") == second);
        CHECK(dir.read("request/a.1") == first);
        const auto fresh = dir.open();
        CHECK(dir.fetch(*fresh, 5).size() == 2);
        CHECK(accept(fresh->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
        CHECK(accept(fresh->fail({"a.1", boom(false), false, ""}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("done") == names{"a", "a.1", "a.2"});
        CHECK(dir.read("done/a.2") == second);
        CHECK(dir.names("failed") == names{"a", "a.1", "a.1.1"});
        CHECK(dir.read("failed/a") == "there before");
    }
}

// ---- what is not run ----

TEST_CASE(
    "spool: links, folders, FIFOs, odd names and other people's files are refused, told once, and stay") {
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        spool dir;
        dir.options.any_file = any_file;
        const auto transport = dir.open();
        const fs::path request = dir.path / "request";
        const std::string good = R"({"type":"noop","args":[]})";
        write_text(dir.path / "outside", good);
        fs::create_symlink(dir.path / "outside", request / "symlink");
        fs::create_symlink("/etc/passwd", request / "symlink-away");
        fs::create_symlink("nowhere", request / "symlink-broken");
        fs::create_directory(request / "folder");
        REQUIRE(::mkfifo((request / "fifo").c_str(), 0600) == 0);
        fs::create_hard_link(dir.path / "outside", request / "hardlink");
        names refused = {"symlink", "symlink-away", "symlink-broken", "folder", "fifo", "hardlink"};
        for (const std::string& odd :
             {std::string("new\nline"), std::string("bell\a"), std::string("\x7f"), std::string("\xff\xfe"),
              std::string("over\xc0\xaf"), std::string(201, 'x')}) {
            write_text(request / odd, good);
            refused.push_back(odd);
        }
        if (::geteuid() == 0) {
            write_text(request / "foreign", good);
            REQUIRE(::chown((request / "foreign").c_str(), 12345, 12345) == 0);
            refused.emplace_back("foreign");
        }
        write_text(request / ".hidden", good);
        const std::string longest(200, 'y');
        write_text(request / longest, good);
        make_old(request / longest);

        const job only = dir.fetch_one(*transport);
        CHECK(only.id == longest);
        for (int i = 0; i < 3; ++i) CHECK(dir.fetch(*transport, 10).empty());
        CHECK(dir.told(spool_event::kind::refused) == static_cast<int>(refused.size()));
        for (const spool_event& each : dir.events()) {
            CHECK(!each.text.empty());
            CHECK(!contains(each.name, "\n"));
        }
        for (const std::string& name : refused) CHECK(fs::exists(fs::symlink_status(request / name)));
        CHECK(fs::exists(request / ".hidden"));
        CHECK(dir.names("failed").empty());
        CHECK(accept(transport->ack({longest, ""}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("done") == names{longest});
    }
}

TEST_CASE("spool: a socket and a device are not opened") {
    spool dir;
    const auto transport = dir.open();
    if (::mknod((dir.path / "request/null").c_str(), S_IFCHR | 0600, 0x103) != 0) {
        MESSAGE("skipped: no devices can be made here");
        return;
    }
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.told(spool_event::kind::refused) == 1);
    CHECK(contains(dir.events().front().text, "device"));
}

namespace {

bool kernel_says_it_is_written(const fs::path& path) {
#ifdef F_SETLEASE
    const detail::unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return ::fcntl(file.get(), F_SETLEASE, F_RDLCK) != 0 && errno == EAGAIN;
#else
    return false;
#endif
}

}  // namespace

TEST_CASE("spool: a file that is still being written is left alone until it is whole") {
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        spool dir;
        dir.options.any_file = any_file;
        dir.options.settle_time = 1h;
        const auto transport = dir.open();
        const int writer = ::open((dir.path / "request/a").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE(writer >= 0);
        REQUIRE(::write(writer, "{\"type\":\"noop\"", 14) == 14);
        CHECK(dir.fetch(*transport).empty());
        REQUIRE(::write(writer, ",\"args\":[]}", 11) == 11);
        // Whole, but still open for writing: where the kernel tells us, we wait.
        const bool told_by_kernel = kernel_says_it_is_written(dir.path / "request/a");
        if (told_by_kernel) {
            const auto fresh = dir.open();
            CHECK(dir.fetch(*fresh).empty());
        } else {
            MESSAGE("this kernel does not say who has a file open for writing");
        }
        ::close(writer);
        const auto fresh = dir.open();
        CHECK(dir.fetch_one(*fresh).malformed.empty());
    }
}

TEST_CASE("spool: incomplete JSON is not failed while it is fresh, and is when it stays so") {
    spool dir;
    dir.options.settle_time = 1h;
    const auto transport = dir.open();
    write_text(dir.path / "request/a.json", "{\"type\":\"noop\",\"ar");
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.names("request") == names{"a.json"});
    make_old(dir.path / "request/a.json");
    const auto fresh = dir.open();
    const job claimed = dir.fetch_one(*fresh);
    CHECK(claimed.id == "a");
    CHECK(contains(claimed.malformed, "invalid JSON"));
}

TEST_CASE("spool: a settle_time of a moment ends by itself, and the transport says when") {
    spool dir;
    dir.options.settle_time = 50ms;
    const auto transport = dir.open();
    recorder::event told;
    write_text(dir.path / "request/a.json", "{");
    CHECK(dir.fetch(*transport).empty());
    transport->when_work_may_wait([&] { told.set(); });
    CHECK(dir.fetch(*transport).size() <= 1);
    if (dir.names("request").empty()) return;  // a slow machine: it was due already
    REQUIRE(told.wait());
    transport->when_work_may_wait(nullptr);
}

TEST_CASE("spool: what is no job is FAILed with its reason, keeps its bytes, and does not come back") {
    const std::pair<std::string, std::string> bad[] = {
        {"{", "invalid JSON"},
        {"", "there is nothing"},
        {"[1,2]", "not a JSON object"},
        {"\"text\"", "not a JSON object"},
        {R"({"type":"noop"} trailing)", "something follows"},
        {R"({"type":"noop","args":[1e400]})", "too large"},
        {R"({"args":[]})", "type is missing"},
        {R"({"type":7,"args":[]})", "type is missing"},
        {R"({"type":"noop"})", "args: missing"},
        {R"({"type":"noop","args":{}})", "args is not an array"}};
    for (const auto& [text, reason] : bad) {
        CAPTURE(text);
        spool dir;
        const auto transport = dir.open();
        write_text(dir.path / "request/bad.json", text);
        make_old(dir.path / "request/bad.json");
        const job claimed = dir.fetch_one(*transport);
        CHECK(claimed.id == "bad");
        CHECK(contains(claimed.malformed, reason));
        CHECK(accept(transport->fail({"bad", {"invalid_payload", claimed.malformed, false, "{}"}, false, ""},
                                     deadline_after(1s))) == settled::accepted);
        CHECK(dir.names("failed") == names{"bad.json"});
        CHECK(dir.names("request").empty());
        const bool is_object = contains(reason, "args") || contains(reason, "type");
        const std::string holder =
            is_object ? dir.read("failed/bad.json") : dir.read("failed/.about.bad.json");
        CHECK(contains(member(holder, "error"), reason));
        if (!is_object) CHECK(dir.read("failed/bad.json") == text);
        CHECK(dir.fetch(*transport).empty());
    }
}

TEST_CASE("spool: deep nesting, NUL bytes and a file that is too long are failed, not read on and on") {
    spool dir;
    const auto transport = dir.open();
    write_text(dir.path / "request/1-deep", std::string(100000, '[') + std::string(100000, ']'));
    write_text(dir.path / "request/2-nul", std::string("{\"type\":\"a\0b\",\"args\":[]}", 24));
    write_text(dir.path / "request/3-long", "{");
    REQUIRE(::truncate((dir.path / "request/3-long").c_str(), std::int64_t{1} << 40) == 0);
    for (const char* name : {"1-deep", "2-nul", "3-long"}) make_old(dir.path / "request" / name);
    const std::vector<job> got = dir.fetch(*transport, 5);
    REQUIRE(got.size() == 3);
    CHECK(contains(got[0].malformed, "nested"));
    CHECK(contains(got[1].malformed, "invalid JSON"));
    CHECK(contains(got[2].malformed, "longer than"));
}

TEST_CASE("spool: members of the wrong type do not stop a job, and an id is what the file says") {
    spool dir;
    const auto transport = dir.open();
    dir.put(
        "a",
        R"({"type":"noop","args":[],"id":7,"queue":null,"meta":[1],"attempt":"x","max_attempts":-1,"spool":3})");
    const job claimed = dir.fetch_one(*transport);
    CHECK(claimed.id == "a");
    CHECK(claimed.queue == "default");
    CHECK(claimed.attempt == 1);
    CHECK(claimed.max_attempts == 3);
    CHECK(fs::exists(spool_path(claimed)));
    CHECK(accept(transport->fail({"a", boom(), false, "{\"c\":1}"}, deadline_after(1s))) ==
          settled::accepted);
    CHECK(member(member(dir.read("request/a"), "meta"), "checkpoint") == "{\"c\":1}");
}

TEST_CASE("spool: two files with one id are not claimed at the same time by one transport") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[1],"id":"same"})");
    dir.put("b", R"({"type":"noop","args":[2],"id":"same"})");
    CHECK(dir.fetch(*transport, 5).size() == 1);
    CHECK(accept(transport->ack({"same", ""}, deadline_after(1s))) == settled::accepted);
    const auto fresh = dir.open();
    CHECK(dir.fetch(*fresh, 5).size() == 1);
    CHECK(accept(fresh->ack({"same", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("done") == names{"a", "b"});
}

TEST_CASE("spool: a job of a queue that is not ours is left to others") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[],"queue":"mail"})");
    dir.put("b", R"({"type":"noop","args":[]})");
    CHECK(dir.fetch_one(*transport).id == "b");
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.names("request") == names{"a"});
    dir.worker.queues = {"other", "mail"};
    const auto other = dir.open();
    CHECK(dir.fetch_one(*other).queue == "mail");
}

// ---- claiming ----

TEST_CASE("spool: nothing is claimed once it is no longer wanted, also in the middle") {
    spool dir;
    const auto transport = dir.open();
    for (const char* name : {"a", "b", "c"}) dir.put(name, R"({"type":"noop","args":[]})");
    fetch_request request = dir.asking(3);
    request.still_wanted = [] { return false; };
    const auto refused = transport->fetch(request, deadline_after(1s));
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::cancelled);
    CHECK(dir.names("request").size() == 3);
    CHECK(dir.owners() == 1);

    // Asked before each: what was claimed before it changed is returned.
    int asked = 0;
    request.still_wanted = [&] { return ++asked <= 2; };
    const auto some = transport->fetch(request, deadline_after(1s));
    REQUIRE(some);
    CHECK(some->size() == 1);
    CHECK(dir.names("request").size() == 2);
}

TEST_CASE(
    "spool: a file exchanged or changed between the look and the claim is not taken for what was seen") {
    for (const bool exchanged : {true, false}) {
        CAPTURE(exchanged);
        spool dir;
        const auto transport = dir.open();
        dir.put("a", R"({"type":"seen","args":[]})");
        fetch_request request = dir.asking();
        int asked = 0;
        request.still_wanted = [&] {
            if (++asked != 2) return true;  // the second time is right before the claim
            if (exchanged) {
                dir.put("a", R"({"type":"other","args":[]})");
            } else {
                std::ofstream(dir.path / "request/a") << R"({"type":"longer","args":[]})";
            }
            return true;
        };
        const auto got = transport->fetch(request, deadline_after(1s));
        REQUIRE(got);
        CHECK(got->empty());
        CHECK(dir.names("request") == names{"a"});
        CHECK(dir.fetch_one(*transport).type == (exchanged ? "other" : "longer"));
    }
}

TEST_CASE("spool: a deadline that has passed claims nothing") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    const auto answer = transport->fetch(dir.asking(), steady_clock::now() - 1s);
    CHECK(!answer);
    CHECK(dir.names("request") == names{"a"});
    CHECK(dir.fetch(*transport).size() == 1);
}

TEST_CASE("spool: several transports on one directory, several threads each: every job is had once") {
    spool dir;
    constexpr int jobs = 400;
    { const auto makes_it = dir.open(); }
    for (int i = 0; i < jobs; ++i)
        write_text(dir.path / "request" / ("j" + std::to_string(i)), R"({"type":"noop","args":[]})");
    std::mutex mutex;
    std::multiset<std::string> had;
    std::vector<std::unique_ptr<spool_transport>> transports;
    for (int i = 0; i < 4; ++i) transports.push_back(dir.open());
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
            spool_transport& own = *transports[static_cast<std::size_t>(i % 4)];
            for (;;) {
                const auto got = own.fetch(dir.asking(3), deadline_after(20s));
                if (!got || got->empty()) return;
                for (const job& each : *got) {
                    {
                        const std::lock_guard<std::mutex> held(mutex);
                        had.insert(each.id);
                    }
                    static_cast<void>(own.ack({each.id, ""}, deadline_after(20s)));
                }
            }
        });
    }
    for (std::thread& each : threads) each.join();
    CHECK(had.size() == jobs);
    CHECK(std::set<std::string>(had.begin(), had.end()).size() == jobs);
    CHECK(dir.names("done").size() == jobs);
    CHECK(dir.names("request").empty());
}

TEST_CASE("spool: heartbeats renew what is held, and nothing else") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    const auto answer = transport->heartbeat({&dir.worker, "running", {"a", "b"}}, deadline_after(1s));
    REQUIRE(answer);
    CHECK(answer->extends("a"));
    CHECK(!answer->extends("b"));
}

// ---- checkpoints ----

TEST_CASE("spool: a checkpoint travels with a FAIL in meta.checkpoint, and one that was saved does as well") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[],"meta":{"m":1,"checkpoint":"old"}})");
    CHECK(member(dir.fetch_one(*transport).meta_json, "checkpoint") == "\"old\"");
    CHECK(*transport->load_checkpoint("a", deadline_after(1s)) == "\"old\"");
    CHECK(accept(transport->save_checkpoint({"a", "{\"step\":12345678901234567890}"}, deadline_after(1s))) ==
          settled::accepted);
    CHECK(*transport->load_checkpoint("a", deadline_after(1s)) == "{\"step\":12345678901234567890}");
    CHECK(accept(transport->fail(hand_back("a"), deadline_after(1s))) == settled::accepted);
    const job again = dir.fetch_one(*transport);
    CHECK(again.attempt == 1);
    CHECK(member(again.meta_json, "checkpoint") == "{\"step\":12345678901234567890}");
    CHECK(member(again.meta_json, "m") == "1");
    CHECK(accept(transport->fail({"a", boom(), false, "[3]"}, deadline_after(1s))) == settled::accepted);
    const job third = dir.fetch_one(*transport);
    CHECK(third.attempt == 2);
    CHECK(member(third.meta_json, "checkpoint") == "[3]");
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.owners() == 1);
    CHECK(dir.names("processing").size() == 1);
}

TEST_CASE("spool: a checkpoint that is no JSON is refused, and spoils no FAIL") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    const auto refused = transport->save_checkpoint({"a", "{broken"}, deadline_after(1s));
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::invalid_argument);
    CHECK(accept(transport->fail({"a", boom(), false, "{broken"}, deadline_after(1s))) == settled::accepted);
    CHECK(member(dir.fetch_one(*transport).meta_json, "checkpoint").empty());
}

// ---- dead workers ----

namespace {

// Nothing can be moved into it, by nobody. Not everywhere to be had.
class immutable_folder {
  public:
    explicit immutable_folder(const fs::path& path)
        : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
        set_ = change(true);
    }
    ~immutable_folder() { release(); }
    explicit operator bool() const { return set_; }
    void release() const { change(false); }

  private:
    bool change(bool on) const {
#ifdef FS_IOC_SETFLAGS
        int flags = 0;
        if (::ioctl(fd_.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
        flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
        return ::ioctl(fd_.get(), FS_IOC_SETFLAGS, &flags) == 0;
#else
        static_cast<void>(on);
        return false;
#endif
    }
    const detail::unique_fd fd_;
    bool set_ = false;
};

}  // namespace

TEST_CASE(
    "spool: a dead worker's job comes back with its run counted and its checkpoint kept; a live one's does "
    "not") {
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        spool dir;
        dir.options.any_file = any_file;
        const auto alive = dir.open();
        dir.put("a", R"({"type":"noop","args":[]})");
        dir.fetch_one(*alive);
        {
            const auto dead = dir.open();
            dir.put("b", R"({"type":"noop","args":[]})");
            dir.fetch_one(*dead);
            CHECK(accept(dead->save_checkpoint({"b", "{\"at\":5}"}, deadline_after(1s))) ==
                  settled::accepted);
            CHECK(dir.owners() == 2);
        }
        CHECK(dir.owners() == 2);
        const auto other = dir.open();
        const std::vector<job> got = dir.fetch(*other, 5);
        REQUIRE(got.size() == 1);
        CHECK(got[0].id == "b");
        CHECK(got[0].attempt == 2);
        CHECK(member(got[0].meta_json, "checkpoint") == "{\"at\":5}");
        CHECK(dir.told(spool_event::kind::recovered) == 1);
        CHECK(dir.owners() == 2);  // alive and other
        CHECK(accept(alive->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
    }
}

TEST_CASE("spool: a worker killed by SIGKILL is recovered by another process's kernel's word") {
    spool dir;
    dir.options.retry_delays = {0ms};
    { const auto makes_it = dir.open(); }
    for (int run = 1; run <= 2; ++run) {
        if (run == 1) dir.put("a", R"({"type":"noop","args":[]})");
        int ready[2] = {-1, -1};
        REQUIRE(::pipe(ready) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            spool_transport transport(dir.options);
            const bool opened = transport.open().has_value();
            const auto got = transport.fetch(dir.asking(), deadline_after(10s));
            const char said = opened && got && got->size() == 1 && got->front().attempt == run ? 'y' : 'n';
            static_cast<void>(!::write(ready[1], &said, 1));
            for (;;) ::pause();
        }
        char said = 0;
        REQUIRE(::read(ready[0], &said, 1) == 1);
        ::close(ready[0]);
        ::close(ready[1]);
        CHECK(said == 'y');
        const auto other = dir.open();
        CHECK(dir.fetch(*other).empty());  // it lives, and may be as slow as it likes
        CHECK(dir.owners() == 2);
        ::kill(child, SIGKILL);
        REQUIRE(::waitpid(child, nullptr, 0) == child);
    }
    const auto other = dir.open();
    CHECK(dir.fetch(*other).empty());  // both runs are used up
    CHECK(dir.names("failed") == names{"a"});
    CHECK(contains(dir.read("failed/a"), "worker_lost"));
    CHECK(dir.owners() == 1);
}

TEST_CASE("spool: what a dead worker had decided is carried out, whatever was already done of it") {
    const std::string job_text = R"({"type":"noop","args":[]})";
    const std::string decided = R"({"type":"noop","args":[],"result":1})";
    for (const char* end : {"done", "failed", "request"}) {
        for (const bool still_there : {true, false}) {
            CAPTURE(end);
            CAPTURE(still_there);
            spool dir;
            { const auto makes_it = dir.open(); }
            const fs::path dead = dir.path / "processing" / "1-dead";
            fs::create_directory(dead);
            write_text(dead / ".owner", "{}");
            if (still_there) write_text(dead / "a", job_text);
            write_text(dead / (std::string(".") + end + ".a"), decided);
            write_text(dead / ".tmp.3", "half wri");
            write_text(dead / ".checkpoint.a", "1");
            const auto transport = dir.open();
            dir.worker.queues = {"none of these"};
            CHECK(dir.fetch(*transport, 5).empty());
            CHECK(dir.names(end) == names{"a"});
            CHECK(dir.read(std::string(end) + "/a") == decided);
            CHECK(!fs::exists(dead));
        }
    }
}

TEST_CASE("spool: a dead worker's job that cannot be moved now is kept, decision and all, until it can") {
    spool dir;
    { const auto makes_it = dir.open(); }
    const immutable_folder done(dir.path / "done");
    if (!done) {
        MESSAGE("skipped: no folder can be made immutable here");
        return;
    }
    const fs::path dead = dir.path / "processing" / "1-dead";
    fs::create_directory(dead);
    write_text(dead / ".owner", "{}");
    write_text(dead / "a", R"({"type":"noop","args":[]})");
    write_text(dead / ".done.a", R"({"type":"noop","args":[],"result":1})");
    write_text(dead / ".unknown", "of someone else");
    const auto transport = dir.open();
    for (int i = 0; i < 3; ++i) CHECK(dir.fetch(*transport).empty());
    CHECK(fs::exists(dead / ".done.a"));
    done.release();
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.names("done") == names{"a"});
    CHECK(contains(dir.read("done/a"), "result"));
    CHECK(fs::exists(dead / ".unknown"));  // what is not ours is not thrown away
    fs::remove(dead / ".unknown");
    CHECK(dir.fetch(*transport).empty());
    CHECK(!fs::exists(dead));
}

TEST_CASE("spool: with any_file, too, dying between two steps of settling loses and doubles nothing") {
    struct moment {
        std::string what;
        bool file;
        const char* sidecar;  // in the dead worker's folder; null: none
        const char* ends_in;
        int runs;  // that count, where it is in request/
    };
    const moment moments[] = {
        {"claimed, sidecar written first", true, "{\"attempt\":1}", "request", 1},
        {"claimed, and the sidecar already gone: it was being handed back", true, nullptr, "request", 0},
        {"decided to fail it", true, "{\"attempt\":3,\"settled\":\"failed\",\"error\":{}}", "failed", 0},
        {"decided to hand it back", true, "{\"attempt\":0,\"settled\":\"request\"}", "request", 0},
        {"runs used up", true, "{\"attempt\":3}", "failed", 0},
        {"sidecar unreadable", true, "{\"atte", "request", 0},
    };
    for (const moment& each : moments) {
        CAPTURE(each.what);
        spool dir;
        dir.options.any_file = true;
        { const auto makes_it = dir.open(); }
        const fs::path dead = dir.path / "processing" / "1-dead";
        fs::create_directory(dead);
        write_text(dead / ".owner", "{}");
        if (each.file) write_text(dead / "a", odd_bytes);
        struct stat about {};
        REQUIRE(::stat((dead / "a").c_str(), &about) == 0);
        if (each.sidecar != nullptr) {
            std::string text = each.sidecar;
            text.insert(1, "\"inode\":" + std::to_string(about.st_ino) + ",");
            write_text(dead / ".about.a", text);
        }
        const auto transport = dir.open();
        fetch_request nothing = dir.asking(5);
        int asked = 0;
        nothing.still_wanted = [&] { return ++asked == 1; };
        static_cast<void>(transport->fetch(nothing, deadline_after(5s)));  // recovers, and claims nothing
        CHECK(!fs::exists(dead));
        CHECK(dir.names(each.ends_in) == names{"a"});
        CHECK(dir.names("request").size() + dir.names("failed").size() + dir.names("done").size() == 1);
        CHECK(dir.read(std::string(each.ends_in) + "/a") == odd_bytes);
        if (std::string(each.ends_in) == "request") CHECK(dir.fetch_one(*transport).attempt == each.runs + 1);
        if (std::string(each.ends_in) == "failed") CHECK(dir.hidden("failed") == names{".about.a"});
    }
}

TEST_CASE("spool: a folder of which nobody can say whose it is is left alone, and told once") {
    spool dir;
    const auto transport = dir.open();
    const fs::path odd = dir.path / "processing" / "somebody";
    fs::create_directory(odd);
    write_text(odd / "a", R"({"type":"noop","args":[]})");  // and no lock file
    fs::create_symlink("/tmp", dir.path / "processing" / "link");
    write_text(dir.path / "processing" / "file", "not a folder");
    for (int i = 0; i < 3; ++i) CHECK(dir.fetch(*transport).empty());
    CHECK(dir.told(spool_event::kind::unjudged) == 3);
    CHECK(fs::exists(odd / "a"));
    CHECK(dir.told(spool_event::kind::recovered) == 0);
}

TEST_CASE(
    "spool: an empty folder without a lock is taken away when it is old, not while someone may be making "
    "it") {
    spool dir;
    const auto transport = dir.open();
    fs::create_directory(dir.path / "processing" / "young");
    fs::create_directory(dir.path / "processing" / "old");
    make_old(dir.path / "processing" / "old");
    CHECK(dir.fetch(*transport).empty());
    CHECK(fs::exists(dir.path / "processing" / "young"));
    CHECK(!fs::exists(dir.path / "processing" / "old"));
}

TEST_CASE("spool: a transport that ends without jobs leaves nothing behind") {
    spool dir;
    {
        const auto transport = dir.open();
        dir.put("a", R"({"type":"noop","args":[]})");
        dir.fetch_one(*transport);
        CHECK(accept(transport->ack({"a", "1"}, deadline_after(1s))) == settled::accepted);
        CHECK(dir.owners() == 1);
    }
    CHECK(dir.owners() == 0);
    CHECK(dir.hidden("done").empty());
    CHECK(dir.hidden("request").empty());
}

TEST_CASE("spool: the owner's record says who it is") {
    spool dir;
    const auto transport = dir.open();
    const std::string record = dir.read("processing/" + dir.names("processing").front() + "/.owner");
    CHECK(member(record, "pid") == std::to_string(::getpid()));
    for (const char* key : {"start_time", "boot_id", "pid_namespace", "host"})
        CHECK(!member(record, key).empty());
#if OJS_SHUTDOWN_USE_PROC
    const std::string stat = read_text("/proc/self/stat");
    const std::string started = member(record, "start_time");
    CHECK(contains(stat, " " + started.substr(1, started.size() - 2) + " "));
    CHECK(contains(member(record, "boot_id"), read_text("/proc/sys/kernel/random/boot_id").substr(0, 36)));
    CHECK(contains(member(record, "pid_namespace"), "pid:["));
#endif
}

// ---- trouble ----

namespace {

// A file system of 64 KiB, if we may mount one.
class small_disk {
  public:
    small_disk() { mounted_ = ::mount("spool", at_.path().c_str(), "tmpfs", 0, "size=64k,mode=0700") == 0; }
    ~small_disk() {
        if (mounted_) ::umount2(at_.path().c_str(), MNT_DETACH);
    }
    explicit operator bool() const { return mounted_; }
    const fs::path& path() const { return at_.path(); }
    bool set_read_only(bool on) const {
        const unsigned long flags = MS_REMOUNT | (on ? static_cast<unsigned long>(MS_RDONLY) : 0);
        return ::mount(nullptr, at_.path().c_str(), nullptr, flags, nullptr) == 0;
    }
    // To the last byte.
    void fill() const { std::ofstream(at_.path() / "filler") << std::string(1 << 20, 'x'); }
    void make_room() const { fs::remove(at_.path() / "filler"); }

  private:
    scratch at_;
    bool mounted_ = false;
};

// No descriptor can be opened for as long as this lives.
class no_descriptors {
  public:
    no_descriptors() {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        rlimit none = before_;
        none.rlim_cur = 0;
        ::setrlimit(RLIMIT_NOFILE, &none);
    }
    ~no_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  private:
    rlimit before_{};
};

}  // namespace

TEST_CASE("spool: on a full disk nothing is lost, the error says so, and it goes on when there is room") {
    const small_disk disk;
    if (!disk) {
        MESSAGE("skipped: no file system can be mounted here");
        return;
    }
    spool dir(disk.path() / "spool");
    const auto transport = dir.open();
    const std::string text = R"({"type":"noop","args":[]})";
    for (const char* name : {"a", "b", "c"}) dir.put(name, text);
    REQUIRE(dir.fetch(*transport, 3).size() == 3);
    disk.fill();
    const auto refused = transport->fail({"a", boom(), false, ""}, deadline_after(1s));
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::unavailable);
    CHECK(refused.error().sys_errno == ENOSPC);
    CHECK(contains(refused.error().text, "No space left"));
    CHECK(!transport->ack({"b", "\"result\""}, deadline_after(1s)));
    CHECK(!transport->save_checkpoint({"b", "1"}, deadline_after(1s)));
    CHECK(dir.names("request").empty());
    CHECK(dir.names("done").empty());
    const auto answer = transport->heartbeat({&dir.worker, "running", {"a", "b", "c"}}, deadline_after(1s));
    CHECK(answer->jobs_extended.size() == 3);  // all still ours
    // What needs no room works.
    CHECK(accept(transport->fail(hand_back("c"), deadline_after(1s))) == settled::accepted);
    CHECK(dir.fetch_one(*transport).id == "c");
    CHECK(!spool_enqueue(dir.path.string(), {"noop", "[]", "default", 0, ""}));
    CHECK(dir.names("request").empty());
    CHECK(dir.hidden("request").empty());

    disk.make_room();
    CHECK(accept(transport->fail({"a", boom(), false, ""}, deadline_after(1s))) == settled::accepted);
    CHECK(accept(transport->ack({"b", "\"result\""}, deadline_after(1s))) == settled::accepted);
    CHECK(accept(transport->ack({"c", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("request") == names{"a"});
    CHECK(member(dir.read("request/a"), "attempt") == "1");
    CHECK(dir.names("done") == names{"b", "c"});
    CHECK(member(dir.read("done/b"), "result") == "\"result\"");
}

TEST_CASE("spool: with any_file a full disk keeps a job from being claimed, which is then done later") {
    const small_disk disk;
    if (!disk) {
        MESSAGE("skipped: no file system can be mounted here");
        return;
    }
    spool dir(disk.path() / "spool");
    dir.options.any_file = true;
    const auto transport = dir.open();
    dir.put("a", odd_bytes);
    disk.fill();
    const auto refused = transport->fetch(dir.asking(), deadline_after(1s));
    REQUIRE(!refused);
    CHECK(refused.error().sys_errno == ENOSPC);
    CHECK(dir.names("request") == names{"a"});
    disk.make_room();
    CHECK(dir.fetch_one(*transport).attempt == 1);
}

TEST_CASE("spool: on a read-only file system there is a clear error, and nothing is lost") {
    const small_disk disk;
    if (!disk) {
        MESSAGE("skipped: no file system can be mounted here");
        return;
    }
    spool dir(disk.path() / "spool");
    const auto transport = dir.open();
    for (const char* name : {"a", "b"}) dir.put(name, R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    REQUIRE(disk.set_read_only(true));
    const auto refused = transport->fetch(dir.asking(), deadline_after(1s));
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::unavailable);
    CHECK(contains(refused.error().text, "Read-only file system"));
    CHECK(!transport->ack({"a", ""}, deadline_after(1s)));
    CHECK(!transport->fail({"a", boom(), false, ""}, deadline_after(1s)));
    spool_transport other(dir.options);
    const auto opened = other.open();
    REQUIRE(!opened);
    CHECK(contains(opened.error().text, "Read-only file system"));
    REQUIRE(disk.set_read_only(false));
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.fetch_one(*transport).id == "b");
}

TEST_CASE("spool: folders on different file systems are refused from the start") {
    scratch at;
    {
        spool makes_it(at.path() / "spool");
        static_cast<void>(makes_it.open());
    }
    const fs::path done = at.path() / "spool" / "done";
    if (::mount("spool", done.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) {
        MESSAGE("skipped: no file system can be mounted here");
        return;
    }
    spool_options options;
    options.directory = (at.path() / "spool").string();
    spool_transport transport(options);
    const auto opened = transport.open();
    ::umount2(done.c_str(), MNT_DETACH);
    REQUIRE(!opened);
    CHECK(contains(opened.error().text, "done is on another file system"));
}

TEST_CASE("spool: without a free descriptor nothing is lost, and what needs none still works") {
    spool dir;
    const auto transport = dir.open();
    for (const char* name : {"a", "b", "c"}) dir.put(name, R"({"type":"noop","args":[]})");
    REQUIRE(dir.fetch(*transport, 2).size() == 2);
    result<std::vector<job>> fetched = std::vector<job>();
    result<settled> failed = settled::accepted;
    result<settled> acked = settled::gone;
    {
        const no_descriptors now;
        fetched = transport->fetch(dir.asking(), deadline_after(1s));
        failed = transport->fail({"a", boom(), false, ""}, deadline_after(1s));
        acked = transport->ack({"b", ""}, deadline_after(1s));
    }
    REQUIRE(!fetched);
    CHECK(fetched.error().code == errc::unavailable);
    CHECK(contains(fetched.error().text, "Too many open files"));
    REQUIRE(!failed);
    CHECK(failed.error().sys_errno == EMFILE);
    CHECK(accept(acked) == settled::accepted);
    CHECK(dir.names("request") == names{"c"});
    CHECK(dir.fetch_one(*transport).id == "c");
    CHECK(accept(transport->fail({"a", boom(), false, ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("request") == names{"a"});
}

TEST_CASE("spool: a directory that is taken away is an error until it is back; what is in it is not lost") {
    spool dir;
    const auto transport = dir.open();
    dir.put("a", R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    const fs::path away = dir.path.string() + ".away";
    fs::rename(dir.path, away);
    for (int i = 0; i < 2; ++i) {
        const auto refused = transport->fetch(dir.asking(), deadline_after(1s));
        REQUIRE(!refused);
        CHECK(refused.error().code == errc::unavailable);
        CHECK(contains(refused.error().text, "No such file or directory"));
        CHECK(!fs::exists(dir.path));  // it may be a volume that is not mounted: nothing is made in its place
    }
    fs::rename(away, dir.path);
    dir.put("b", R"({"type":"noop","args":[]})");
    CHECK(dir.fetch_one(*transport).id == "b");
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
    CHECK(dir.names("done") == names{"a"});
}

TEST_CASE("spool: a folder that is taken away is made anew, and no job in hand is given up for it") {
    for (const char* folder : {"done", "failed", "request"}) {
        CAPTURE(folder);
        spool dir;
        const auto transport = dir.open();
        dir.put("a", R"({"type":"noop","args":[]})");
        dir.fetch_one(*transport);
        fs::remove_all(dir.path / folder);
        const auto settle = [&]() -> result<settled> {
            if (std::string(folder) == "done") return transport->ack({"a", ""}, deadline_after(1s));
            if (std::string(folder) == "failed")
                return transport->fail({"a", boom(false), false, ""}, deadline_after(1s));
            return transport->fail(hand_back("a"), deadline_after(1s));
        };
        const auto refused = settle();
        REQUIRE(!refused);
        CHECK(refused.error().code == errc::unavailable);
        CHECK(dir.fetch(*transport).empty());
        CHECK(accept(settle()) == settled::accepted);
        CHECK(dir.names(folder) == names{"a"});
    }
}

TEST_CASE(
    "spool: with its own folder taken away a transport goes on in a new one, and what it held is gone") {
    spool dir;
    const auto transport = dir.open();
    for (const char* name : {"a", "b"}) dir.put(name, R"({"type":"noop","args":[]})");
    dir.fetch_one(*transport);
    fs::remove_all(dir.path / "processing");
    CHECK(!transport->fetch(dir.asking(), deadline_after(1s)));  // it wanted to claim b into it
    CHECK(dir.fetch_one(*transport).id == "b");
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::gone);
    CHECK(accept(transport->ack({"b", ""}, deadline_after(1s))) == settled::accepted);
}

TEST_CASE("spool: what cannot be a spool directory is a clear error, and nothing is made") {
    scratch at;
    write_text(at.path() / "file", "");
    fs::create_directory(at.path() / "odd");
    write_text(at.path() / "odd" / "done", "");
    fs::create_directory(at.path() / "linked");
    fs::create_directory_symlink("/tmp", at.path() / "linked" / "processing");
    const std::string at_path = at.path().string();
    struct attempt {
        std::string directory;
        std::string text;
    };
    std::vector<attempt> attempts = {{"", "no directory"},
                                     {at_path + "/file", "Not a directory"},
                                     {at_path + "/file/spool", "Not a directory"},
                                     {at_path + "/none/spool", "No such file"},
                                     {at_path + "/odd", "not a directory"},
                                     {at_path + "/linked", "not a directory"},
                                     {std::string("a\0b", 3), "NUL"},
                                     {std::string(5000, 'x'), "name too long"}};
    if (::geteuid() == 0) {
        fs::create_directories(at.path() / "foreign" / "failed");
        REQUIRE(::chown((at.path() / "foreign" / "failed").c_str(), 12345, 12345) == 0);
        attempts.push_back({at_path + "/foreign", "belongs to user 12345"});
    }
    for (const attempt& each : attempts) {
        CAPTURE(each.directory);
        spool_options options;
        options.directory = each.directory;
        spool_transport transport(options);
        const auto opened = transport.open();
        REQUIRE(!opened);
        CHECK_MESSAGE(contains(opened.error().text, each.text), opened.error().text);
        worker_identity who;
        fetch_request request;
        request.worker = &who;
        CHECK(!transport.fetch(request, deadline_after(1s)));
        CHECK(accept(transport.ack({"a", ""}, deadline_after(1s))) == settled::gone);
        const auto put = spool_enqueue(each.directory, {"noop", "[]", "default", 0, ""});
        REQUIRE(!put);
        CHECK_MESSAGE(contains(put.error().text, each.text), put.error().text);
    }
    CHECK(!fs::exists(at.path() / "none"));
}

TEST_CASE("spool: a directory given by a relative path is still found after the program has gone elsewhere") {
    spool dir;
    const fs::path before = fs::current_path();
    fs::current_path(dir.path.parent_path());
    dir.options.directory = "spool";
    const auto transport = dir.open();
    fs::current_path(before);
    dir.put("a", R"({"type":"noop","args":[]})");
    const job claimed = dir.fetch_one(*transport);
    CHECK(fs::exists(spool_path(claimed)));
    CHECK(accept(transport->ack({"a", ""}, deadline_after(1s))) == settled::accepted);
}

// ---- putting jobs in ----

TEST_CASE("spool_enqueue: a job arrives whole, and in its place in the order") {
    spool dir;
    const std::string where = dir.path.string();
    const auto first = spool_enqueue(where, {"text.count", "[12345678901234567890,\"x\"]", "default", 7, ""});
    REQUIRE_MESSAGE(first, first.error().text);
    const auto second = spool_enqueue(where, {"noop", "[]", "default", 0, ""});
    const auto urgent = spool_enqueue(where, {"noop", "[]", "default", 0, "0-urgent.json"});
    REQUIRE(second);
    REQUIRE(urgent);
    CHECK(*urgent == "0-urgent");
    const auto transport = dir.open();
    CHECK(dir.fetch_one(*transport).id == "0-urgent");
    const job claimed = dir.fetch_one(*transport);
    CHECK(claimed.id == *first);
    CHECK(claimed.type == "text.count");
    CHECK(claimed.args_json == "[12345678901234567890,\"x\"]");
    CHECK(claimed.max_attempts == 7);
    CHECK(dir.fetch_one(*transport).id == *second);
}

TEST_CASE(
    "spool_enqueue: what is no job, or a name that leads elsewhere, is refused, and nothing is left behind") {
    spool dir;
    const std::string where = dir.path.string();
    REQUIRE(spool_enqueue(where, {"noop", "[]", "default", 0, "taken"}));
    const spool_job bad[] = {{"", "[]", "default", 0, ""},
                             {"noop", "{}", "default", 0, ""},
                             {"noop", "", "default", 0, ""},
                             {"noop", "[1,]", "default", 0, ""},
                             {"noop", "[]", "default", -1, ""},
                             {"noop", "[]", "", 0, ""},
                             {"noop", "[]", "default", 0, "../outside"},
                             {"noop", "[]", "default", 0, ".."},
                             {"noop", "[]", "default", 0, ".hidden"},
                             {"noop", "[]", "default", 0, "a/b"},
                             {"noop", "[]", "default", 0, "a\nb"},
                             {"noop", "[]", "default", 0, std::string("a\0b", 3)},
                             {"noop", "[]", "default", 0, "\xff"},
                             {"noop", "[]", "default", 0, std::string(201, 'x')},
                             {"noop", "[]", "default", 0, "taken"}};
    for (const spool_job& each : bad) {
        CAPTURE(each.name);
        const auto put = spool_enqueue(where, each);
        REQUIRE(!put);
        CHECK(put.error().code == errc::invalid_argument);
    }
    CHECK(dir.names("request") == names{"taken"});
    CHECK(dir.hidden("request").empty());
    CHECK(!fs::exists(dir.path / "outside"));
}

TEST_CASE("spool_enqueue: many at the same time all arrive") {
    spool dir;
    std::vector<std::thread> threads;
    std::atomic<int> put{0};
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int k = 0; k < 25; ++k)
                put += spool_enqueue(dir.path.string(), {"noop", "[]", "default", 0, ""}) ? 1 : 0;
        });
    }
    for (std::thread& each : threads) each.join();
    CHECK(put == 100);
    CHECK(dir.names("request").size() == 100);
}

// ---- with a worker ----

TEST_CASE("spool: the transport says when there may be work, and no more once it was told to stop") {
#if OJS_SHUTDOWN_USE_INOTIFY
    spool dir;
    const auto transport = dir.open();
    CHECK(dir.fetch(*transport).empty());
    recorder::counter told;
    transport->when_work_may_wait([&] { told.add(); });
    dir.put("a", R"({"type":"noop","args":[]})");
    REQUIRE(told.wait_for(1));
    CHECK(dir.fetch(*transport).size() == 1);
    dir.put("b", R"({"type":"noop","args":[]})");
    REQUIRE(told.wait_for(2));
    transport->when_work_may_wait(nullptr);
    const int before = told.count();
    CHECK(dir.fetch(*transport).size() == 1);
    dir.put("c", R"({"type":"noop","args":[]})");
    CHECK(dir.fetch(*transport).size() == 1);
    CHECK(told.count() == before);
    transport->when_work_may_wait([&] { told.add(); });  // and once more
    dir.put("d", R"({"type":"noop","args":[]})");
    REQUIRE(told.wait_for(before + 1));
#endif
}

TEST_CASE(
    "spool: a worker with a spool: URL runs what is put in, at once, and stops with everything settled") {
    spool dir;
    worker_options options;
    options.url = "spool:" + dir.path.string();
    options.poll_interval = OJS_SHUTDOWN_USE_INOTIFY ? 1h : 10ms;
    options.log.level = log_level::off;
    recorder::counter ran;
    recorder::event running;
    {
        worker own(options);
        own.register_handler("test.count", [&](job_context&) { ran.add(); });
        own.register_handler("test.throw",
                             [&](job_context&) -> outcome { throw std::runtime_error("thrown"); });
        own.register_handler("test.wait", [&](job_context& job) {
            running.set();
            job.sleep_for(1h);
        });
        REQUIRE(own.start());
        for (int i = 0; i < 20; ++i)
            REQUIRE(spool_enqueue(dir.path.string(), {"test.count", "[]", "default", 0, ""}));
        REQUIRE(ran.wait_for(20));
        REQUIRE(spool_enqueue(dir.path.string(), {"test.throw", "[]", "default", 1, "t"}));
        REQUIRE(spool_enqueue(dir.path.string(), {"test.unknown", "[]", "default", 0, "u"}));
        REQUIRE(spool_enqueue(dir.path.string(), {"test.wait", "[]", "default", 0, "w"}));
        REQUIRE(running.wait());
        CHECK(own.stop_and_cancel(20s));
        CHECK(own.exit_code() == 0);
        const worker_report report = own.report();
        CHECK(report.interrupted == 1);
        CHECK(report.unreported.empty());
    }
    CHECK(dir.names("request") == names{"w"});
    CHECK(dir.names("done").size() == 20);
    CHECK(dir.names("failed") == names{"t", "u"});
    CHECK(dir.owners() == 0);
}

TEST_CASE("spool: URLs of spool directories are checked where options are") {
    const auto url_of = [](const char* url) {
        return worker_options::from_environment(
            [=](const char* name) { return std::string(name) == "OJS_URL" ? url : nullptr; });
    };
    for (const char* good : {"spool:/var/spool/jobs", "spool:jobs", "spool:./a b"}) CHECK(url_of(good));
    for (const char* bad : {"spool:", "spool", "Spool:/x"}) CHECK(!url_of(bad));
}

TEST_CASE("spool: a worker with a URL that names no usable directory does not start") {
    scratch at;
    write_text(at.path() / "file", "");
    for (const std::string& url : {std::string("spool:"), "spool:" + at.path().string() + "/file",
                                   "spool:" + at.path().string() + "/none/spool"}) {
        CAPTURE(url);
        worker_options options;
        options.url = url;
        options.log.level = log_level::off;
        worker own(options);
        own.register_handler("noop", [](job_context&) {});
        const auto started = own.start();
        REQUIRE(!started);
        CHECK(!started.error().text.empty());
    }
}
