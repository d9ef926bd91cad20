// The demonstration: a backend and a worker as processes of their own, jobs that read real files, a real SIGTERM in the
// middle, and what became of every job. Then the same with a grace period that is too short.
//
// Exits with 0 if no job was lost and none was done twice, 1 otherwise, and 130 after Ctrl-C. It expects dev_backend and
// worker beside itself, and leaves nothing behind: no process, no file.
#include <fcntl.h>
#include <picojson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ojs_shutdown.hpp"

extern char** environ;

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using texts = std::vector<std::string>;

constexpr int concurrency = 4;
constexpr int short_jobs = 20;   // done before the SIGTERM comes
constexpr int queued_jobs = 16;  // never begun before it comes
constexpr std::array<int, concurrency> in_flight_ms = {2500, 3500, 4500, 5500};
constexpr int short_ms = 600;
constexpr int too_long_jobs = 3;
constexpr int too_long_ms = 4000;
constexpr seconds patience{30};  // for any one step, before the demo gives up

// Thrown to end the demo early; children and files are cleared away on the way out.
struct failed {
    std::string why;
};
struct interrupted {
    int signal;
};

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// ---- output ----

enum class style { plain, title, good, bad, faint };

void say(const std::string& text, style how = style::plain) {
    static const bool colour = isatty(STDOUT_FILENO) == 1 && getenv("NO_COLOR") == nullptr;
    constexpr std::array<const char*, 5> codes = {"", "\033[1m", "\033[32m", "\033[31m", "\033[2m"};
    const char* code = colour ? codes[static_cast<std::size_t>(how)] : "";
    std::printf("%s%s%s\n", code, text.c_str(), *code == '\0' ? "" : "\033[0m");
    // Ignored, SIGPIPE becomes this error, and there is still time to clear up.
    if (std::fflush(stdout) != 0) throw failed{"nobody reads the output"};
}

std::string one_decimal(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", value);
    return text.data();
}

// ---- JSON ----

picojson::value parse(const std::string& text) {
    picojson::value out;
    const std::string why = picojson::parse(out, text);
    if (!why.empty() || !out.is<picojson::object>()) throw failed{"not a JSON object: " + text};
    return out;
}

const picojson::value& member(const picojson::value& object, const char* key) {
    static const picojson::value null;
    return object.is<picojson::object>() ? object.get(key) : null;
}

// A string as it is, anything else as JSON.
std::string text_of(const picojson::value& object, const char* key) {
    return member(object, key).to_str();
}

double number_of(const picojson::value& object, const char* key) {
    const picojson::value& found = member(object, key);
    return found.is<double>() ? found.get<double>() : 0;
}

texts ids_of(const picojson::value& event, const char* key) {
    texts out;
    const picojson::value& list = member(event, key);
    if (!list.is<picojson::array>()) return out;
    for (const picojson::value& id : list.get<picojson::array>()) out.push_back(id.to_str());
    return out;
}

// ---- files ----

class temporary_folder {
  public:
    temporary_folder() {
        std::string name = (fs::temp_directory_path() / "ojs-demo-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr)
            throw failed{"cannot make " + name + ": " + std::strerror(errno)};
        path_ = name;
    }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;
    ~temporary_folder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    std::string file(const std::string& name) const { return (path_ / name).string(); }

  private:
    fs::path path_;
};

// Gives the lines of a file that someone else is still writing, each once, when it is complete.
class line_reader {
  public:
    explicit line_reader(std::string path) : path_(std::move(path)) {}
    texts new_lines() {
        texts out;
        std::ifstream file(path_);
        file.seekg(offset_);
        for (std::string line; std::getline(file, line) && !file.eof();) {
            offset_ += static_cast<std::streamoff>(line.size()) + 1;
            out.push_back(line);
        }
        return out;
    }

  private:
    std::string path_;
    std::streamoff offset_ = 0;
};

// Of a size that is worth reading, readable, and without a NUL byte at its beginning.
bool is_text_file(const fs::directory_entry& entry) {
    std::error_code failed;
    if (!entry.is_regular_file(failed)) return false;
    const std::uintmax_t size = entry.file_size(failed);
    if (failed || size < 2000 || size > 2000000) return false;
    std::ifstream file(entry.path(), std::ios::binary);
    std::array<char, 1000> head{};
    if (!file.read(head.data(), head.size())) return false;
    return std::find(head.begin(), head.end(), '\0') == head.end() && entry.path().extension() != ".gz";
}

texts texts_below(const fs::path& folder, std::size_t most) {
    texts out;
    std::error_code failed;
    const auto skip = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator at(folder, skip, failed);
    for (; !failed && at != fs::recursive_directory_iterator() && out.size() < most; at.increment(failed)) {
        if (is_text_file(*at)) out.push_back(at->path().string());
    }
    return out;
}

texts generate_texts(const temporary_folder& folder) {
    texts out;
    for (int i = 0; i < 20; ++i) {
        out.push_back(folder.file("text-" + std::to_string(i)));
        std::ofstream file(out.back());
        for (int line = 0; line < 1000 + 100 * i; ++line)
            file << "the quick brown fox jumps over lazy dog " << line << '\n';
    }
    return out;
}

texts find_texts(const temporary_folder& folder) {
    texts out;
    for (const char* below : {"common-licenses", "perl", "doc", "perl5", "python3", "misc"}) {
        for (std::string& path : texts_below(fs::path("/usr/share") / below, 40))
            out.push_back(std::move(path));
    }
    if (out.size() >= 10) return out;
    say("jobs     no texts below /usr/share here, so some were generated");
    return generate_texts(folder);
}

// ---- child processes ----

// Started in place of a child's program: ties its life to ours, then becomes that program. argv: demo, this flag, our
// pid, program, arguments.
constexpr const char* child_flag = "--become-child";

int become_child(char** argv) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (std::to_string(getppid()) != argv[2]) return 1;  // we died before that took effect
#endif
    execv(argv[3], argv + 3);
    std::perror(argv[3]);
    return 127;
}

std::vector<char*> pointers(texts& strings) {
    std::vector<char*> out;
    for (std::string& each : strings) out.push_back(each.data());
    out.push_back(nullptr);
    return out;
}

// Ours, without what would configure the worker by accident.
texts environment_with(const texts& added) {
    texts out = added;
    for (char** each = environ; *each != nullptr; ++each) {
        if (std::strncmp(*each, "OJS_", 4) != 0) out.emplace_back(*each);
    }
    return out;
}

struct spawn_settings {
    posix_spawn_file_actions_t files{};
    posix_spawnattr_t attributes{};

    explicit spawn_settings(const std::string& output) {
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                         0600);
        posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
        // A group of its own, so that Ctrl-C reaches the demo alone; and no signal blocked or ignored.
        sigset_t none;
        sigset_t all;
        sigemptyset(&none);
        sigfillset(&all);
        sigdelset(&all, SIGKILL);
        sigdelset(&all, SIGSTOP);
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &all);
        posix_spawnattr_setpgroup(&attributes, 0);
        constexpr int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP;
        posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
    }
    spawn_settings(const spawn_settings&) = delete;
    spawn_settings& operator=(const spawn_settings&) = delete;
    ~spawn_settings() {
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
    }
};

// A process we started; killed, if it still runs, when this goes out of scope.
class child {
  public:
    child(const fs::path& demo, const texts& command, const texts& variables, const std::string& output) {
        texts arguments = {demo.string(), child_flag, std::to_string(getpid())};
        arguments.insert(arguments.end(), command.begin(), command.end());
        texts environment = environment_with(variables);
        const spawn_settings settings(output);
        const int error = posix_spawn(&pid_, demo.c_str(), &settings.files, &settings.attributes,
                                      pointers(arguments).data(), pointers(environment).data());
        if (error != 0) throw failed{"cannot start " + command.front() + ": " + std::strerror(error)};
    }
    child(const child&) = delete;
    child& operator=(const child&) = delete;
    ~child() {
        if (has_ended()) return;
        kill(pid_, SIGKILL);
        waitpid(pid_, &status_, 0);
    }

    pid_t pid() const { return pid_; }
    bool has_ended() {
        if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
        return ended_;
    }
    // Once has_ended(): the exit status, or 128 and the signal's number.
    int status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }
    void terminate() const { kill(pid_, SIGTERM); }

  private:
    pid_t pid_ = -1;
    bool ended_ = false;
    int status_ = 0;
};

struct worker_process {
    std::string name;
    std::string log;
    child process;
};

std::string last_line(const std::string& path) {
    const texts lines = line_reader(path).new_lines();
    return lines.empty() ? "(nothing)" : lines.back();
}

// ---- the account: what the backend's ledger says became of every claim ----

class account {
  public:
    void add(const picojson::value& event) {
        const std::string what = text_of(event, "event");
        const std::string id = text_of(event, "job_id");
        if (what == "push") {
            jobs_[id];
        } else if (what == "fetch") {
            for (const std::string& claimed : ids_of(event, "jobs")) claim(jobs_[claimed]);
        } else if (what == "ack" || what == "nack") {
            settle(event, jobs_[id], what == "ack" ? "completed" : text_of(event, "state"));
        } else if (what == "checkpoint") {
            entry& job = jobs_[id];
            const auto pass = static_cast<std::int64_t>(number_of(member(event, "state"), "pass"));
            if (job.first_pass == 0) job.first_pass = pass;
            job.last_pass = pass;
        } else if (what == "expired" || what == "requeued_at_deregistration" ||
                   what == "requeued_from_dead") {
            jobs_[id].state = "available";  // taken back unsettled: that claim counts as lost
        } else if (what == "promoted") {
            jobs_[id].state = "available";
        }
    }

    std::int64_t pushed() const { return static_cast<std::int64_t>(jobs_.size()); }
    std::int64_t in_state(std::string_view state) const {
        return std::count_if(jobs_.begin(), jobs_.end(),
                             [&](const auto& each) { return each.second.state == state; });
    }
    bool was_claimed(const std::string& id) const {
        const auto found = jobs_.find(id);
        return found != jobs_.end() && found->second.claims > 0;
    }
    // Of the passes that checkpoints tell of: the first since the last claim, and the last.
    std::int64_t first_pass(const std::string& id) const { return jobs_.at(id).first_pass; }
    std::int64_t last_pass(const std::string& id) const { return jobs_.at(id).last_pass; }
    std::int64_t handed_back() const { return handed_back_; }
    const picojson::value& last_result() const { return last_result_; }

    // Claims that nobody settled. Of no meaning while a worker runs.
    std::int64_t lost() const {
        return sum([](const entry& job) { return job.claims - job.settlements; });
    }
    // Settlements beyond one a claim, completions beyond one a job, and settlements the backend refused.
    std::int64_t duplicated() const {
        return refused_ + sum([](const entry& job) { return job.settlements - job.claims; }) +
               sum([](const entry& job) { return job.completions - 1; });
    }

  private:
    struct entry {
        int claims = 0;
        int settlements = 0;
        int completions = 0;
        std::int64_t first_pass = 0;
        std::int64_t last_pass = 0;
        std::string state = "available";
    };

    static void claim(entry& job) {
        job.first_pass = 0;
        ++job.claims;
        job.state = "active";
    }
    void settle(const picojson::value& event, entry& job, const std::string& state) {
        if (number_of(event, "status") != 200.0) {
            ++refused_;
            return;
        }
        ++job.settlements;
        if (state == "completed") ++job.completions;
        if (state == "completed") last_result_ = member(event, "result");
        if (text_of(event, "requeue") == "true") ++handed_back_;
        job.state = state;
    }
    template <class Count>
    std::int64_t sum(Count count) const {
        std::int64_t out = 0;
        for (const auto& each : jobs_) out += std::max(0, count(each.second));
        return out;
    }

    std::map<std::string, entry> jobs_;
    std::int64_t handed_back_ = 0;
    std::int64_t refused_ = 0;
    picojson::value last_result_;
};

// ---- the stage: everything the acts share ----

class stage {
  public:
    stage(fs::path demo, ojs::lifecycle& lifecycle, ojs::signals& signals)
        : demo_(std::move(demo)),
          lifecycle_(lifecycle),
          signals_(signals),
          ledger_(folder_.file("ledger.jsonl")),
          backend_(
              demo_,
              {sibling("dev_backend"), "--port", "0", "--ledger", folder_.file("ledger.jsonl"), "--quiet"},
              {}, folder_.file("backend.out")),
          address_(await_address()),
          client_(connect()) {}

    const temporary_folder& folder() const { return folder_; }
    const std::string& address() const { return address_; }
    const child& backend() const { return backend_; }
    account& books() { return books_; }

    worker_process start_worker(const std::string& name, const std::string& queues,
                                const std::string& grace) {
        const texts variables = {"OJS_URL=http://" + address_,
                                 "OJS_WORKER_ID=" + name,
                                 "OJS_QUEUES=" + queues,
                                 "OJS_CONCURRENCY=" + std::to_string(concurrency),
                                 "OJS_SHUTDOWN_GRACE_PERIOD=" + grace,
                                 "OJS_HEARTBEAT_INTERVAL=500ms",
                                 "OJS_POLL_INTERVAL=200ms",
                                 "OJS_LABELS=demo," + name,
                                 "OJS_LOG_FORMAT=json"};
        const std::string log = folder_.file(name + ".log");
        return {name, log, {demo_, {sibling("worker")}, variables, log}};
    }

    // Waits in steps until `done`, showing each new event of the ledger to `see` once it is in the books.
    using spectator = std::function<void(const picojson::value&)>;
    void watch_until(const std::function<bool()>& done, const spectator& see = nullptr) {
        const auto deadline = ojs::steady_clock::now() + patience;
        while (!done()) {
            if (ojs::steady_clock::now() > deadline) throw failed{"this takes too long; giving up"};
            if (backend_.has_ended()) throw failed{"the backend has ended"};
            read_ledger(see);
            pause();
        }
        read_ledger(see);
    }

    picojson::value call(const std::string& method, const std::string& path, const std::string& body = "") {
        ojs::http_call limits;
        limits.deadline = ojs::steady_clock::now() + seconds(5);
        const auto answer =
            client_.send({method, path, {{"Content-Type", "application/json"}}, body}, limits);
        if (!answer) throw failed{method + " " + path + ": " + answer.error().text};
        if (answer->status >= 300) throw failed{method + " " + path + " answered " + answer->body};
        return parse(answer->body);
    }

  private:
    std::string sibling(const char* name) const {
        const fs::path path = demo_.parent_path() / name;
        if (access(path.c_str(), X_OK) != 0)
            throw failed{path.string() + " is not there: build it first (make)"};
        return path.string();
    }
    std::string await_address() {
        constexpr std::string_view greeting = "listening on ";
        line_reader output(folder_.file("backend.out"));
        std::string first;
        watch_until([&] {
            for (const std::string& line : output.new_lines()) first = line;
            return !first.empty();
        });
        if (first.compare(0, greeting.size(), greeting) != 0) throw failed{"the backend says: " + first};
        return first.substr(greeting.size());
    }
    ojs::http_client connect() const {
        auto client = ojs::http_client::create("http://" + address_);
        if (!client) throw failed{client.error().text};
        return std::move(*client);
    }
    void read_ledger(const spectator& see) {
        for (const std::string& line : ledger_.new_lines()) {
            const picojson::value event = parse(line);
            books_.add(event);
            if (see) see(event);
        }
    }
    // A short sleep that Ctrl-C ends.
    void pause() {
        const ojs::received_signal got = signals_.wait(ojs::steady_clock::now() + milliseconds(20));
        if (lifecycle_.phase() >= ojs::phase::draining) throw interrupted{got.number};
    }

    fs::path demo_;
    ojs::lifecycle& lifecycle_;
    ojs::signals& signals_;
    temporary_folder folder_;
    line_reader ledger_;
    account books_;
    child backend_;
    std::string address_;
    ojs::http_client client_;
};

// Pushes one text.count job a duration; returns their ids.
texts push_jobs(stage& on, const std::string& queue, const texts& files,
                const std::vector<int>& durations_ms) {
    picojson::array jobs;
    for (std::size_t i = 0; i < durations_ms.size(); ++i) {
        picojson::object options;
        options["queue"] = picojson::value(queue);
        picojson::object job;
        job["type"] = picojson::value("text.count");
        constexpr double checkpoint_bytes = 64 * 1024;
        job["args"] =
            picojson::value(picojson::array{picojson::value(files[i * 7 % files.size()]),
                                            picojson::value(static_cast<double>(durations_ms[i])),
                                            picojson::value(1.0), picojson::value(checkpoint_bytes)});
        job["options"] = picojson::value(options);
        jobs.emplace_back(job);
    }
    picojson::object body;
    body["jobs"] = picojson::value(jobs);
    const picojson::value answer = on.call("POST", "/ojs/v1/jobs/batch", picojson::value(body).serialize());
    texts ids;
    for (const picojson::value& job : member(answer, "jobs").get<picojson::array>())
        ids.push_back(text_of(job, "id"));
    return ids;
}

// ---- the timeline of one shutdown ----

class timeline {
  public:
    timeline(stage& on, worker_process& worker) : on_(on), worker_(worker), log_(worker.log) {}

    // Sends SIGTERM and tells what happens until the process is gone. Returns the seconds that took.
    double stop() {
        child& process = worker_.process;
        log_.new_lines();  // what was said before is no part of this
        start_ns_ = monotonic_ns();
        process.terminate();
        on_.watch_until(
            [&] {
                read_log();
                return process.has_ended();
            },
            [&](const picojson::value& event) { see(event); });
        const double took = seconds_since_start(monotonic_ns());
        line(took, "worker exited with status " + std::to_string(process.status()),
             process.status() == 0 ? style::good : style::bad);
        if (process.status() != 0)
            throw failed{worker_.name + " did not settle its jobs: " + last_line(worker_.log)};
        return took;
    }

  private:
    double seconds_since_start(std::int64_t ns) const { return static_cast<double>(ns - start_ns_) / 1e9; }

    static void line(double at, const std::string& text, style how = style::plain) {
        say("t=" + one_decimal(std::max(at, 0.0)) + "s  " + text, how);
    }

    // The worker's own log tells its phases.
    void read_log() {
        for (const std::string& text : log_.new_lines()) {
            const picojson::value record = parse(text);
            if (text_of(record, "message") != "phase changed") continue;
            const picojson::value& change = member(record, "attributes");
            const std::string phase = text_of(change, "phase");
            const double now = seconds_since_start(monotonic_ns());
            if (phase == "draining") show_received(now);
            if (text_of(change, "event") == "grace_expired") {
                line(now, "grace period expired -> STOP: interrupt what is left", style::title);
            }
        }
    }

    // The log and the first heartbeat both tell of it; either may be seen first.
    void show_received(double at) {
        if (received_) return;
        received_ = true;
        line(at, "SIGTERM received", style::title);
        say("        -> QUIET: no more FETCH");
        say("        Active jobs: " + active());
    }

    // The backend's ledger tells what the worker says to it.
    void see(const picojson::value& event) {
        read_log();  // what made the worker say so comes first
        const std::string what = text_of(event, "event");
        const double at = seconds_since_start(static_cast<std::int64_t>(number_of(event, "mono_ns")));
        if (text_of(event, "worker_id") != worker_.name || at < 0) return;
        if (what == "beat") {
            show_received(at);
            const std::string count = std::to_string(ids_of(event, "active").size());
            line(at, "heartbeat state=" + text_of(event, "state") + " active=" + count, style::faint);
        } else if (what == "fetch") {
            line(at, "FETCH that was under way, " + std::to_string(ids_of(event, "jobs").size()) + " jobs");
        } else if (what == "ack") {
            ++completed_;
            line(at, "Active jobs: " + active() + " (" + std::to_string(completed_) + " completed)");
        } else if (what == "nack") {
            show_fail(at, event);
        }
    }

    static void show_fail(double at, const picojson::value& event) {
        const std::string id = text_of(event, "job_id");
        const std::string reason = text_of(member(event, "details"), "reason");
        line(at,
             "FAIL " + text_of(event, "type") + " reason=" + reason + " job .." + id.substr(id.size() - 6) +
                 " -> " + text_of(event, "state"),
             style::bad);
    }

    std::string active() { return std::to_string(on_.books().in_state("active")); }

    stage& on_;
    worker_process& worker_;
    line_reader log_;
    std::int64_t start_ns_ = 0;
    bool received_ = false;
    int completed_ = 0;
};

// ---- the acts ----

std::string progress(const account& books) {
    return std::to_string(books.in_state("completed")) + " completed, " +
           std::to_string(books.in_state("active")) + " active, " +
           std::to_string(books.in_state("available")) + " queued";
}

// Lets the worker run until `done`, with a line of progress a second.
void let_run(stage& on, worker_process& worker, const std::function<bool()>& done) {
    const auto start = ojs::steady_clock::now();
    int shown = 0;
    on.watch_until([&] {
        const auto now = ojs::steady_clock::now();
        if (now >= start + seconds(shown + 1)) {
            say("  after " + std::to_string(++shown) + "s: " + progress(on.books()), style::faint);
        }
        if (worker.process.has_ended())
            throw failed{worker.name + " ended by itself: " + last_line(worker.log)};
        return done();
    });
}

// What the backend itself counts must agree with what we read in its ledger.
void compare_with_backend(stage& on) {
    const picojson::value summary = on.call("GET", "/dev/summary");
    const auto counted = [&](const char* name) {
        return static_cast<std::int64_t>(number_of(summary, name));
    };
    const account& books = on.books();
    if (counted("pushed") != books.pushed() || counted("completed") != books.in_state("completed") ||
        counted("available") != books.in_state("available") ||
        counted("active") != books.in_state("active")) {
        throw failed{"the backend's summary and its ledger disagree: " + summary.serialize()};
    }
}

void show_account(stage& on) {
    const account& books = on.books();
    const auto row = [](const char* name, std::int64_t count, style how = style::plain) {
        std::string number = std::to_string(count);
        number.insert(0, number.size() < 4 ? 4 - number.size() : 0, ' ');
        say("  " + number + "  " + name, how);
    };
    say("\nThe backend's account:", style::title);
    row("pushed", books.pushed());
    row("completed", books.in_state("completed"));
    row("handed back by a worker", books.handed_back());
    row("still queued", books.in_state("available"));
    row("lost", books.lost(), books.lost() == 0 ? style::good : style::bad);
    row("duplicated", books.duplicated(), books.duplicated() == 0 ? style::good : style::bad);
    compare_with_backend(on);
    if (books.lost() != 0 || books.duplicated() != 0) throw failed{"jobs were lost or done twice"};
}

void show_last_result(const account& books) {
    const picojson::value& result = books.last_result();
    say("The last result: " + fs::path(text_of(result, "path")).filename().string() + ", " +
            text_of(result, "lines") + " lines, " + text_of(result, "words") + " words, crc32 " +
            text_of(result, "crc32"),
        style::faint);
}

void graceful_act(stage& on, const texts& files) {
    std::vector<int> durations(short_jobs, short_ms);
    durations.insert(durations.end(), in_flight_ms.begin(), in_flight_ms.end());
    durations.insert(durations.end(), queued_jobs, short_ms);
    const texts ids = push_jobs(on, "texts", files, durations);
    worker_process worker = on.start_worker("worker-1", "texts", "20s");
    say("worker   pid " + std::to_string(worker.process.pid()) + ", " + std::to_string(concurrency) +
        " jobs at a time");
    say("jobs     " + std::to_string(ids.size()) + " text.count over " + std::to_string(files.size()) +
        " files, such as " + files.front());

    say("\n1. A shutdown with time enough (grace period 20s)", style::title);
    const auto earliest = ojs::steady_clock::now() + seconds(4);
    const std::string& last_in_flight = ids[short_jobs + concurrency - 1];
    let_run(on, worker,
            [&] { return ojs::steady_clock::now() >= earliest && on.books().was_claimed(last_in_flight); });
    say("  kill -TERM " + std::to_string(worker.process.pid()));
    const double took = timeline(on, worker).stop();
    say("Total shutdown time: " + one_decimal(took) + " seconds (within the 20s grace period)");
    show_account(on);
    show_last_result(on.books());
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
    std::string out;
    for (const std::int64_t each : numbers) out += (out.empty() ? "" : ", ") + std::to_string(each);
    return out;
}

// Interrupted jobs, and how far their checkpoints say they have come.
struct interrupted_jobs {
    texts ids;
    std::vector<std::int64_t> passes;
};

interrupted_jobs check_back_in_queue(stage& on, const texts& ids) {
    interrupted_jobs out{ids, {}};
    for (const std::string& id : ids) {
        const std::string state = text_of(member(on.call("GET", "/ojs/v1/jobs/" + id), "job"), "state");
        if (state != "available") throw failed{"job " + id + " is " + state + ", not back in the queue"};
        out.passes.push_back(on.books().last_pass(id));
    }
    say("The " + std::to_string(ids.size()) + " interrupted jobs are back in the queue: state available");
    say("Their checkpoints tell how far they came: pass " + list_of(out.passes));
    return out;
}

void check_resumed(const account& books, const interrupted_jobs& jobs) {
    std::vector<std::int64_t> resumed;
    for (std::size_t i = 0; i < jobs.ids.size(); ++i) {
        resumed.push_back(books.first_pass(jobs.ids[i]));
        if (resumed[i] < jobs.passes[i]) throw failed{"job " + jobs.ids[i] + " started over"};
    }
    say("The interrupted jobs went on from there: in pass " + list_of(resumed));
}

interrupted_jobs short_grace_act(stage& on, const texts& files) {
    say("\n2. A shutdown without (grace period 1s, jobs of " + std::to_string(too_long_ms / 1000) + "s)",
        style::title);
    const texts ids = push_jobs(on, "long", files, std::vector<int>(too_long_jobs, too_long_ms));
    worker_process worker = on.start_worker("worker-2", "long", "1s");
    const auto all_claimed = [&] {
        return std::all_of(ids.begin(), ids.end(),
                           [&](const std::string& id) { return on.books().was_claimed(id); });
    };
    let_run(on, worker, all_claimed);
    const auto earliest = ojs::steady_clock::now() + milliseconds(800);
    let_run(on, worker, [&] { return ojs::steady_clock::now() >= earliest; });
    say("  kill -TERM " + std::to_string(worker.process.pid()));
    timeline(on, worker).stop();
    return check_back_in_queue(on, ids);
}

void second_worker_act(stage& on, const interrupted_jobs& left) {
    say("\n3. Another worker finishes everything", style::title);
    worker_process worker = on.start_worker("worker-3", "long,texts", "20s");
    let_run(on, worker, [&] { return on.books().in_state("completed") == on.books().pushed(); });
    say("  kill -TERM " + std::to_string(worker.process.pid()));
    timeline(on, worker).stop();
    check_resumed(on.books(), left);
    show_account(on);
}

void play(const fs::path& demo, ojs::lifecycle& lifecycle, ojs::signals& signals) {
    stage on(demo, lifecycle, signals);
    say("A backend and a worker, real jobs, a real SIGTERM: what becomes of every job", style::title);
    say("backend  pid " + std::to_string(on.backend().pid()) + " on " + on.address() + ", in memory");
    const texts files = find_texts(on.folder());
    graceful_act(on, files);
    const interrupted_jobs left = short_grace_act(on, files);
    second_worker_act(on, left);
    say("\nEvery job was completed once; none was lost.", style::good);
}

fs::path own_path(const char* argv0) {
    std::error_code failed;
    const fs::path link = fs::read_symlink("/proc/self/exe", failed);
    return failed ? fs::absolute(argv0) : link;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 3 && std::string_view(argv[1]) == child_flag) return become_child(argv);
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);
    if (!signals) return ojs::report_usage(signals.error());
    if (argc > 1) return ojs::report_usage({ojs::errc::invalid_argument, 0, "demo takes no arguments"});
    signal(SIGPIPE, SIG_IGN);
    try {
        play(own_path(argv[0]), lifecycle, *signals);
    } catch (const interrupted& by) {
        std::fputs("\ninterrupted: everything that was started is stopped\n", stderr);
        return 128 + (by.signal != 0 ? by.signal : SIGINT);
    } catch (const failed& reason) {
        std::fprintf(stderr, "demo failed: %s\n", reason.why.c_str());
        return 1;
    }
    return 0;
}
