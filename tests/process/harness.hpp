// What the process tests share: programs as real processes, the example backend with its ledger, and JSON as picojson
// reads it, so that the library's reader does not judge itself.
#pragma once
#include "test.hpp"

namespace test {
using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How long to wait for what must happen. Generous: it ends a test that would hang, and proves nothing else.
inline constexpr milliseconds guard{20000};

struct json {
    enum class kind { null, boolean, number, string, array, object };

    // Null for what is not there, so that events[i]["error"]["code"].text needs no checks in between.
    const json& operator[](const char* key) const;
    bool has(const char* key) const { return (*this)[key].what != kind::null; }
    bool holds(const std::string& wanted) const;  // an array of strings
    bool is(const char* wanted) const { return what == kind::string && text == wanted; }
    static json parse(const std::string& text);  // null where it is not JSON

    kind what = kind::null;
    bool flag = false;
    std::int64_t number = 0;
    std::string text;
    std::vector<json> items;
    std::vector<std::pair<std::string, json>> members;
};

// A command that runs the one that follows it in a PID namespace; empty, which it says, where there is none.
std::vector<std::string> pid_namespace();
std::string program(const std::string& name);  // in $OJS_TEST_BIN, or beside this program
std::int64_t monotonic_ns();
std::uint64_t number_from(const char* variable, std::uint64_t fallback);  // of the environment
std::string scratch_file(const std::string& name);                        // a new path; the folder is removed at exit

using environment = std::map<std::string, std::string>;
// `more`, and those of a text such as "A=1 B=2".
environment settings_from(const std::string& text, environment more = {});

// A program in a process group of its own, its output in a file. Whatever is left of it is killed with the object.
class process {
  public:
    process() = default;
    process(const std::vector<std::string>& command, const environment& extra);
    // A child that was started some other way: the leader of its process group, its output in the file at `output`.
    process(pid_t child, std::string output) : pid_(child), path_(std::move(output)) {}
    process(process&& other) noexcept { swap(other); }
    process& operator=(process&& other) noexcept {
        swap(other);
        return *this;
    }
    ~process();

    pid_t pid() const { return pid_; }
    void signal(int number) const;
    // SIGSTOP; returns when it stands still: until then its threads go on, one by one.
    void freeze() const;
    // The exit status, or minus the signal that ended it; `running` at the guard. The program is not reaped before
    // the destructor, so its id stays its own.
    static constexpr int running = 1000;
    int wait(milliseconds limit = guard) const;
    bool ended() const { return wait(milliseconds(0)) != running; }
    // What wait() returns after this signal.
    int end_by(int number) const {
        signal(number);
        return wait();
    }

    const std::string& output();  // so far
    bool prints(const std::string& text, milliseconds limit = guard);
    int count(const std::string& text);  // how often the output holds it

  private:
    void swap(process& other) noexcept;
    pid_t pid_ = 0;
    std::string path_;
    std::string output_;
};

// As seen from here, PID 1 of the namespace that `outside`, started below pid_namespace(), has made; empty: unknown.
std::string init_of(const process& outside);
// Processes with OJS_TEST_MARK=mark in their environment, by /proc.
int count_marked(const std::string& mark);

// One request to a server.
ojs::result<ojs::http_response> ask(const std::string& url, const std::string& method, const std::string& path,
                                    const std::string& body = "",
                                    const ojs::http_headers& headers = {
                                        {"Content-Type", "application/openjobspec+json"}});

// tools/dev_backend.
class backend {
  public:
    // `launcher` is a command that runs the one that follows it.
    explicit backend(std::vector<std::string> flags = {}, std::vector<std::string> launcher = {});

    const std::string& url() const { return url_; }
    std::uint16_t port() const { return static_cast<std::uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1))); }
    const std::vector<json>& events();  // the ledger so far
    // Ids of `count` new jobs; `more` is added to each, such as `,"max_attempts":1`.
    std::vector<std::string> push(const std::string& type, const std::string& args, int count = 1,
                                  const std::string& more = "");
    std::string push_one(const std::string& type, const std::string& args) { return push(type, args).front(); }
    json summary();
    json job(const std::string& id);
    std::string state_of(const std::string& id) { return job(id)["state"].text; }
    json post(const std::string& path, const std::string& body);
    std::string get(const std::string& path);  // the body
    process& self() { return process_; }

    // Waits until `holds(event)` for one event of the ledger, and returns that; null after the guard.
    template <class Predicate>
    json event(Predicate holds, milliseconds limit = guard) {
        json found;
        eventually(
            [&] {
                for (const json& each : events()) {
                    if (!holds(each)) continue;
                    found = each;
                    return true;
                }
                return false;
            },
            limit);
        return found;
    }
    template <class Predicate>
    int count(Predicate holds) {
        int found = 0;
        for (const json& each : events()) found += holds(each) ? 1 : 0;
        return found;
    }
    bool reaches(const std::string& id, const char* state) {
        return eventually([&] { return state_of(id) == state; });
    }

  private:
    std::string call(const char* method, const std::string& path, const std::string& body);
    std::string ledger_;
    process process_;
    std::string url_;
    std::size_t read_ = 0;
    std::vector<json> events_;
};

// Jobs of type test.gate with its args() run until it is opened: until the test has done what must come before.
class gate {
  public:
    std::string args() const { return "[\"" + path_ + "\"]"; }
    void open() const;

  private:
    const std::string path_ = scratch_file("gate");
};

// The events of one worker: `worker("w1", "beat")`.
inline auto worker_event(const std::string& worker, const char* what) {
    return [=](const json& event) { return event["event"].is(what) && event["worker_id"].text == worker; };
}
inline auto job_event(const std::string& job, const char* what) {
    return [=](const json& event) { return event["event"].is(what) && event["job_id"].text == job; };
}
inline auto beat_in_state(const std::string& worker, const char* state) {
    return [=](const json& event) {
        return event["event"].is("beat") && event["worker_id"].text == worker && event["state"].is(state);
    };
}

// test_worker with settings quick enough for a test; `extra` wins.
process start_worker(const std::string& url, const std::string& id, const environment& extra = {});
}  // namespace test

using namespace test;
