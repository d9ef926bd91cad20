// The guide's test scenarios and use cases, on the real controller with real children. What takes an hour there takes a
// second here, through the configuration; where the defaults matter they are left alone.
#ifdef __linux__
#include <sys/ptrace.h>
#endif

#include "files.hpp"
#include "harness.hpp"
#include "raw_peer.hpp"
#include "text.hpp"

using namespace test;
namespace fs = std::filesystem;

namespace {

// Every byte there is, several times over.
std::string job_bytes() {
    std::string out;
    std::uint32_t state = 1;
    for (int i = 0; i < 100000; ++i) {
        state = state * 1664525 + 1013904223;
        out += static_cast<char>(state >> 24);
    }
    return out;
}

std::string in_quotes(const std::string& text) {
    return '"' + text + '"';
}

// A controller with its spool, its termination-mode file, and the FIFO that its children hold.
class stage {
  public:
    // `mode` is what the children do; `more` is put into the configuration: ,"key":value...
    explicit stage(const std::string& mode = "deaf", const std::string& more = "") {
        fifo_ = path("fifo");
        REQUIRE(::mkfifo(fifo_.c_str(), 0600) == 0);
        REQUIRE(::mkfifo((fifo_ + ".go").c_str(), 0600) == 0);
        REQUIRE(::mkdir(path("spool").c_str(), 0700) == 0);
        REQUIRE(::mkdir(path("spool/request").c_str(), 0700) == 0);
        reader_ = ::open(fifo_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        go_ = ::open((fifo_ + ".go").c_str(), O_RDWR | O_CLOEXEC);
        REQUIRE(reader_ >= 0);
        REQUIRE(go_ >= 0);
        configure(mode, more);
    }
    stage(const stage&) = delete;
    stage& operator=(const stage&) = delete;
    ~stage() {
        controller = process();  // and with it its children, by their death signal
        ::close(reader_);
        ::close(go_);
    }

    std::string path(const std::string& name) const { return folder_.file(name); }
    std::string mode_file() const { return path("termination-type"); }

    void configure(const std::string& mode, const std::string& more) {
        configure_command('[' + in_quotes(program("child_job")) + ',' + in_quotes(mode) + ',' +
                              in_quotes(fifo_) + ",\"{job}\"]",
                          ",\"termination_type_file\":" + in_quotes(mode_file()) + more);
    }
    void configure_command(const std::string& command, const std::string& more = "") {
        write_file(path("config.json"),
                   "{\"spool_dir\":" + in_quotes(path("spool")) + ",\"command\":" + command + more + "}");
    }

    // As the queue wants it: written elsewhere, and moved there when it is whole.
    void put_job(const std::string& name, const std::string& bytes = job_bytes()) {
        write_file(path("new"), bytes);
        fs::rename(path("new"), path("spool/request/" + name));
    }

    void start(const environment& extra = {}) {
        controller = process({program("controller"), "--config", path("config.json")}, extra);
    }

    // With one job, whose child runs.
    void start_with_job() {
        put_job("job-1");
        start();
        child();
    }

    // The next line of a child, with what it consists of; empty at the guard.
    std::string line() {
        std::string out;
        while (wait_for_fifo()) {
            char byte = 0;
            const ssize_t got = ::read(reader_, &byte, 1);
            if (got == 1 && byte == '\n') return out;
            if (got == 1) out += byte;
            // It is not open, or not yet opened by the next child.
            if (got == 0 && !eventually([&] { return has_writer(); })) return out;
        }
        return out;
    }
    // Waits for a child to run; its process id.
    pid_t child() {
        const std::string text = line();
        const std::size_t blank = text.find(' ');
        REQUIRE_MESSAGE(blank != std::string::npos,
                        "the child says '" << text << "'; " << controller.output());
        job_path = text.substr(text.find(' ', blank + 1) + 1);
        return std::atoi(text.c_str() + blank);
    }
    // Nobody who had the FIFO open, children and grandchildren, is left.
    bool all_gone() {
        ::close(::open(fifo_.c_str(),
                       O_WRONLY | O_NONBLOCK | O_CLOEXEC));  // else, before the first, it has no end
        while (wait_for_fifo()) {
            char bytes[256];
            if (::read(reader_, bytes, sizeof bytes) == 0) return true;
        }
        return false;
    }
    void let_finish() { REQUIRE(::write(go_, "g", 1) == 1); }

    // Names in a folder of the spool, without what the spool keeps for itself.
    std::vector<std::string> names(const std::string& folder) const {
        std::vector<std::string> out;
        std::error_code missing;  // until the controller has made it
        for (const auto& each : fs::recursive_directory_iterator(path("spool/" + folder), missing)) {
            const std::string name = each.path().filename().string();
            if (each.is_regular_file() && name.front() != '.') out.push_back(name);
        }
        return out;
    }
    // The job is where it is said to be, whole, and nowhere else.
    bool job_is_only_in(const std::string& wanted) const {
        const std::vector<std::string> one = {"job-1"};
        for (const char* folder : {"request", "processing", "done", "failed"}) {
            if (names(folder) != (wanted == folder ? one : std::vector<std::string>())) return false;
        }
        const std::string where = wanted == "processing" ? job_path : path("spool/" + wanted + "/job-1");
        return read_file(where) == job_bytes();
    }

    // The controller's program with its configuration: the hook, too, as there may be no shell.
    process run(const std::vector<std::string>& flags, const std::string& name = program("controller"),
                std::vector<std::string> below = {}) const {
        below.push_back(name);
        below.insert(below.end(), flags.begin(), flags.end());
        below.insert(below.end(), {"--config", path("config.json")});
        return process(below, {});
    }
    process reclaim() const { return run({"--reclaim", std::to_string(controller.pid())}); }
    // From the signal to the exit, in milliseconds.
    std::int64_t stop_by(int number) {
        const std::int64_t began = monotonic_ns();
        controller.signal(number);
        CHECK(controller.wait() == 0);
        return (monotonic_ns() - began) / 1000000;
    }

    // Whether the log holds these lines, as logfmt of that level, in this order.
    bool logs(const std::vector<std::pair<const char*, std::string>>& lines) {
        const std::string& all = controller.output();
        std::size_t at = 0;
        for (const auto& [level, text] : lines) {
            const std::string wanted = std::string(" level=") + level + " msg=" + in_quotes(text);
            const std::size_t found = all.find(wanted, at);
            if (found == std::string::npos) MESSAGE("not in the log: " << wanted << "\n" << all);
            if (found == std::string::npos) return false;
            at = found + wanted.size();
        }
        return true;
    }
    bool prints(const std::string& text) { return controller.prints(text); }

    process controller;
    std::string job_path;  // where the last child's job is

  private:
    bool has_writer() const {
        pollfd hung_up{reader_, POLLIN, 0};
        return ::poll(&hung_up, 1, 0) == 0 || (hung_up.revents & POLLIN) != 0;
    }
    bool wait_for_fifo() const {
        pollfd readable{reader_, POLLIN, 0};
        return ::poll(&readable, 1, static_cast<int>(guard.count())) == 1;
    }

    const temporary_folder folder_;
    std::string fifo_;
    int reader_ = -1;
    int go_ = -1;
};

constexpr const char* initiating = "Initiating immediate shutdown to requeue job before VM termination";
constexpr const char* killing = "Spot reclaim: Immediately killing process execution-job-1 to requeue job";
constexpr const char* reputting = "Job job-1 was killed by us. Reputting it in the request folder";
constexpr const char* processing =
    "Job execution-job-1 is currently processing. Will wait for completion or grace period expiry.";
constexpr const char* no_claim = " contains SPOT_RECLAIM: no job is claimed until that changes";
constexpr const char* completed = "Job completed before grace period, cancelling context for cleanup";
constexpr const char* complete = "Graceful shutdown complete";

// What every reclaim must come to: the group is gone, the job is back, once and whole.
// `named`: by SIGUSR1, or by what the file says.
void check_requeued(stage& on, bool named) {
    const std::string by = named ? " (SIGUSR1 or " + on.mode_file() + "=SPOT_RECLAIM)" : "";
    CHECK(on.all_gone());
    CHECK(on.job_is_only_in("request"));
    // Two threads say what they do: the kill does not wait for the log.
    CHECK(on.logs({{"warning", "Spot instance reclamation detected" + by},
                   {"warning", initiating},
                   {"info", complete}}));
    CHECK(on.logs({{"warning", killing}, {"info", reputting}, {"info", complete}}));
}

// The status of a GET at a Unix socket; 0 if nobody answers.
int ask(const std::string& socket_path, const std::string& target, std::string* body = nullptr) {
    ojs::http_request request;
    request.target = target;
    const auto answer = peer::make_client("unix:" + socket_path).send(request, peer::call());
    if (answer && body != nullptr) *body = answer->body;
    return answer ? answer->status : 0;
}

// A signal comes while a job runs.
struct scenario {
    const char* name;
    const char* before;  // what the file holds at the start; nullptr: there is none
    const char* later;   // what it holds when the signal comes; nullptr: as before
    int number;
    const char* reason;  // a part of the log; nullptr: the file was not asked
};

}  // namespace

// ---- the guide's tests and use cases ----

// [Spot SIGUSR1] [Spot SIGTERM] [Spot file missing] [Spot file SPOT_RECLAIM] [Spot file (b)] [Spot use case 2]
// [Spot use case 4] [Spot decision matrix] [Spot fast exit] [Spot troubleshooting]
TEST_CASE(
    "controller: SPOT_RECLAIM, no mode file or SIGUSR1 -> a stop kills the child and requeues the job") {
    constexpr const char* of_file = " contains 'SPOT_RECLAIM', treating as spot instance reclaim";
    constexpr const char* missing = " not found, defaulting to spot instance reclaim mode";
    const scenario rows[] = {
        {"Test 1: Spot Reclaim with File", nullptr, "SPOT_RECLAIM\n", SIGTERM, of_file},
        {"Test 2: Spot Reclaim without File (Default); Use Case 2", nullptr, nullptr, SIGTERM, missing},
        {"Test 4: SIGUSR1 Signal; Use Case 4, Option C", nullptr, nullptr, SIGUSR1, nullptr},
        {"Test 4, NORMAL_SHUTDOWN", nullptr, "NORMAL_SHUTDOWN\n", SIGUSR1, nullptr},
        {"Use Case 4: Local Development, Option B - Spot Reclaim Mode", nullptr, nullptr, SIGINT, missing},
        {"SIGHUP", nullptr, nullptr, SIGHUP, missing},
        {"a SPOT_RECLAIM from before the start", "SPOT_RECLAIM\n", nullptr, SIGTERM, of_file},
        {"a stale NORMAL_SHUTDOWN, replaced", "NORMAL_SHUTDOWN\n", "SPOT_RECLAIM\n", SIGTERM, of_file},
    };
    for (const scenario& row : rows) {
        CAPTURE(row.name);
        stage on;
        if (row.before != nullptr) write_file(on.mode_file(), row.before);
        on.start_with_job();
        if (row.later != nullptr) write_file(on.mode_file(), row.later);
        on.stop_by(row.number);
        const std::string reason = row.reason == nullptr ? "" : "File " + on.mode_file() + row.reason;
        if (row.reason != nullptr) CHECK(on.logs({{"warning", reason}, {"warning", killing}}));
        check_requeued(on, row.number == SIGUSR1 || row.reason == of_file);
        CHECK(on.controller.count("no job is claimed") == 0);
        CHECK(on.controller.count(", treating as ") + on.controller.count(", defaulting to ") ==
              (row.reason == nullptr ? 0 : 1));
        CHECK(on.controller.count("Grace period:") == 0);
        CHECK(on.controller.count("using graceful shutdown") == 0);
    }
}

// [Spot first signal wins] [Spot target (c)] [Spot file NORMAL_SHUTDOWN] [Spot use case 4]
TEST_CASE("controller: NORMAL_SHUTDOWN -> after a stop signal the job completes within the grace period") {
    // Test 3: Normal Shutdown; Use Case 4, Option A
    for (const auto& [number, name] :
         {std::pair(SIGTERM, "SIGTERM"), {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}}) {
        stage on("finish");  // and the default grace period
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.start_with_job();
        on.controller.signal(number);
        REQUIRE(on.prints(processing));
        CHECK(on.prints(std::string("msg=\"Received ") + name + ". Grace period: 3550s (until 2"));
        // The first signal wins, and later ones change nothing.
        for (const int later : {SIGUSR1, SIGTERM, SIGINT, SIGUSR1, SIGTTIN}) on.controller.signal(later);
        REQUIRE(on.prints("jobs in flight"));  // SIGTTIN's, the last
        CHECK(on.job_is_only_in("processing"));
        on.let_finish();
        CHECK(on.controller.wait() == 0);
        CHECK(on.job_is_only_in("done"));
        CHECK(on.logs(
            {{"info", "File " + on.mode_file() + " contains NORMAL_SHUTDOWN, using graceful shutdown"},
             {"info", processing},
             {"info", completed},
             {"info", complete}}));
        CHECK(on.controller.count("Spot instance reclamation") == 0);
    }
}

// [Spot use case 1, race] [Spot use case 2]
TEST_CASE("controller: SIGTERM before the preStop hook's SIGUSR1 -> the job is requeued, once (Test 5)") {
    stage on;
    on.start_with_job();
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints("not found, defaulting to spot instance reclaim mode"));
    write_file(on.mode_file(), "SPOT_RECLAIM\n");  // the preStop hook was slow
    on.controller.signal(SIGUSR1);
    CHECK(on.controller.wait() == 0);
    check_requeued(on, false);
    CHECK(on.controller.count("Immediately killing") == 1);
}

// [Spot use case 1]
TEST_CASE("controller: the preStop hook --reclaim, even run twice, requeues the job (Use Case 1)") {
    stage on;
    on.start_with_job();
    process hook = on.reclaim();
    process again = on.reclaim();
    // Either may come first. The controller named may be gone by the time the other comes.
    const std::pair<int, int> both = std::minmax({hook.wait(), again.wait()});
    CHECK(both.first == 0);
    CHECK((both.second == 0 || both.second == 1));
    CHECK(read_file(on.mode_file()) == "SPOT_RECLAIM\n");
    CHECK(on.controller.wait() == 0);
    on.controller.signal(SIGTERM);  // Kubernetes, too late to matter
    check_requeued(on, true);
}

// [Spot target (b)]
TEST_CASE("controller: --reclaim, without a pid or with 1, reaches a controller that runs below PID 1") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty() || !fs::exists("/proc/thread-self/children")) return;
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{"--reclaim"}, std::vector<std::string>{"--reclaim", "1"}}) {
        CAPTURE(flags.size());
        stage on;
        on.put_job("job-1");
        on.controller = on.run({}, program("controller"), container);
        on.child();
        const std::string init = init_of(on.controller);
        REQUIRE_FALSE(init.empty());
        process hook =
            on.run(flags, program("controller"), {"nsenter", "--target", init, "--pid", "--mount"});
        // The namespace may end under the hook, which has done its work then.
        const int status = hook.wait();
        CHECK_MESSAGE((status == 0 || status == 128 + SIGKILL || status == -SIGKILL), hook.output());
        CHECK(read_file(on.mode_file()) == "SPOT_RECLAIM\n");
        CHECK(on.controller.wait() == 0);
        check_requeued(on, true);
    }
}

// [Spot target (a)] [Spot best practice 3]
TEST_CASE(
    "controller: --reclaim finds no running controller, or PID is no controller -> the mode file is "
    "unchanged") {
    stage on;
    const std::string path = on.path("controller");  // a program that nobody else runs
    fs::copy_file(program("controller"), path);
    for (const std::string& before : {std::string(), std::string("NORMAL_SHUTDOWN\n")}) {
        CAPTURE(before);
        if (!before.empty()) write_file(on.mode_file(), before);
        process hook = on.run({"--reclaim"}, path);
        CHECK(hook.wait() == 0);
        CHECK(hook.output().find("nothing to reclaim: ") == 0);
        process of_pid_typed_by_hand = on.run({"--reclaim", "2147483647"}, path);
        CHECK(of_pid_typed_by_hand.wait() == 1);
        process stranger({"sleep", "1000"}, {});
        process at_stranger = on.run({"--reclaim", std::to_string(stranger.pid())}, path);
        CHECK(at_stranger.wait() == 1);
        CHECK(at_stranger.output().find("is not prepared for SIGUSR1") != std::string::npos);
        stranger.signal(SIGKILL);
        CHECK(fs::exists(on.mode_file()) == !before.empty());
        CHECK(read_file(on.mode_file()) == before);
    }
}

TEST_CASE("controller: --reclaim cannot write the mode file -> it exits with 1 but still requeues the job") {
    stage on;
    on.start_with_job();
    fs::create_directory(on.mode_file());
    process hook = on.reclaim();
    CHECK(hook.wait() == 1);
    CHECK_MESSAGE(hook.count(on.mode_file()) > 0, hook.output());
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("request"));
}

// [Spot use case 3] [Spot metrics server]
TEST_CASE(
    "controller: SIGTERM after --mark-normal -> the running job completes, no other starts (Use Case 3)") {
    stage on("finish");
    on.configure("finish", ",\"metrics_address\":" + in_quotes("unix:" + on.path("metrics")));
    process init = on.run({"--mark-normal"});
    CHECK(init.wait() == 0);
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    on.start_with_job();
    on.put_job("job-2");  // comes second, and no longer begins
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    // The metrics server is the last to go.
    CHECK(ask(on.path("metrics"), "/metrics") == 200);
    CHECK(ask(on.path("metrics"), "/readyz") == 503);
    on.let_finish();
    CHECK(on.controller.wait() == 0);
    CHECK(ask(on.path("metrics"), "/metrics") == 0);
    CHECK(on.names("done") == std::vector<std::string>{"job-1"});
    CHECK(on.names("request") == std::vector<std::string>{"job-2"});
    CHECK(on.logs({{"info", completed}, {"info", "Shutting down metrics server"}, {"info", complete}}));
}

// [Spot use case 3, too long]
TEST_CASE(
    "controller: a child still running as the grace period ends gets SIGTERM, then SIGKILL (Use Case 3)") {
    stage on("deaf", ",\"termination_grace_period\":\"800ms\",\"child_process_shutdown_timeout\":\"300ms\"");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN");
    on.start_with_job();
    CHECK(on.stop_by(SIGTERM) >= 800);
    CHECK(on.all_gone());
    CHECK(on.job_is_only_in("request"));
    CHECK(on.logs({{"info", processing},
                   {"warning", "Grace period is about to expire. Sending SIGTERM to process execution-job-1"},
                   {"info", reputting},
                   {"info", complete}}));
    CHECK(on.prints("end=\"killed by SIGKILL\""));
}

// [Spot use case 3, too long]
TEST_CASE("controller: a child that obeys SIGTERM ends the stop before the grace period does (Use Case 3)") {
    // And so the default of the child's share is effective: 10 s of these 11.
    stage on("obey", ",\"termination_grace_period\":11");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN");
    on.start_with_job();
    const std::int64_t took = on.stop_by(SIGTERM);
    CHECK(took >= 1000);
    CHECK(took < 11000);
    CHECK(on.line() == "SIGTERM");
    CHECK(on.all_gone());
    // It may have obeyed in the middle of its work: it goes back, whatever its exit status says.
    CHECK(on.job_is_only_in("request"));
    CHECK(on.prints("end=\"exit status 0\""));
    CHECK(on.logs({{"info", reputting}, {"info", complete}}));
}

// ---- what else may happen ----

TEST_CASE("controller: --mark-normal replaces the mode file and never writes through a link") {
    stage on;
    const std::string victim = on.path("victim");
    const auto write_mode = [&] {  // under the umask that takes most away
        process writer({"/bin/sh", "-c", "umask 777; exec \"$0\" --mark-normal --config \"$1\"",
                        program("controller"), on.path("config.json")},
                       {});
        return writer.wait();
    };
    const auto is_our_file = [&] {
        struct stat about {};
        return ::lstat(on.mode_file().c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
               about.st_uid == ::geteuid() && (about.st_mode & 07777) == 0644;
    };
    write_file(victim, "keep");
    // A link where it goes, and where an easily guessed name of something new would be.
    fs::create_symlink(victim, on.mode_file());
    fs::create_symlink(victim, on.mode_file() + ".new");
    CHECK(write_mode() == 0);
    CHECK(read_file(victim) == "keep");
    CHECK(is_our_file());
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    // A file that somebody else has open, and may own: it is replaced, not written into.
    fs::remove(on.mode_file());
    fs::create_hard_link(victim, on.mode_file());
    if (::geteuid() == 0) REQUIRE(::chown(victim.c_str(), 65533, static_cast<gid_t>(-1)) == 0);
    CHECK(write_mode() == 0);
    CHECK(read_file(victim) == "keep");
    CHECK(is_our_file());
    // A folder is neither replaced nor written into, and nothing is left beside it.
    fs::remove(on.mode_file());
    fs::create_directory(on.mode_file());
    CHECK(write_mode() == 1);
    int beside = 0;
    for (const auto& each : fs::directory_iterator(on.path(""))) {
        beside += each.path().filename().string().find("termination-type.") == 0 ? 1 : 0;
    }
    CHECK(beside == 1);  // the link
}

// [Spot file (b)]
TEST_CASE("controller: SPOT_RECLAIM in the mode file stops claims only if it is written after start-up") {
    stage on;
    on.configure("finish", ",\"metrics_address\":" + in_quotes("unix:" + on.path("metrics")));
    const auto shows = [&](const std::string& state) {
        std::string ready;
        std::string metrics;
        CHECK(ask(on.path("metrics"), "/readyz", &ready) == 200);
        CHECK(ask(on.path("metrics"), "/metrics", &metrics) == 200);
        return ready.find("\"spot_reclaim\":\"" + state + "\"") != std::string::npos &&
               metrics.find("ojs_worker_spot_reclaim{state=\"" + state + "\"} 1") != std::string::npos;
    };
    write_file(on.mode_file(), "\tSPOT_RECLAIM \r\n");
    on.start_with_job();
    CHECK(on.prints("'SPOT_RECLAIM' (left over from an earlier stop?): a stop by signal hands jobs back"));
    CHECK(shows("left_over"));
    on.put_job("job-2");
    write_file(on.mode_file(), "SPOT_RECLAIM\n");
    CHECK(shows("announced"));
    on.let_finish();
    REQUIRE(on.prints("level=warning msg=\"File " + on.mode_file() + no_claim));
    CHECK(on.names("done") == std::vector<std::string>{"job-1"});
    CHECK(on.names("request") == std::vector<std::string>{"job-2"});
    write_file(on.mode_file(), "  NORMAL_SHUTDOWN  \r\n");
    on.child();
    CHECK(on.controller.count(" no longer contains SPOT_RECLAIM: jobs are claimed again") == 1);
    CHECK_FALSE(shows("announced"));
    on.stop_by(SIGUSR1);
}

// [Spot first signal wins]
TEST_CASE("controller: SIGUSR1 pending together with another stop signal -> the stop is a reclaim") {
    for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
        CAPTURE(number);
        stage on;
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.start_with_job();
        on.controller.freeze();
        for (const int each : {number, SIGUSR1, SIGCONT}) on.controller.signal(each);
        CHECK(on.controller.wait() == 0);
        check_requeued(on, true);
    }
}

TEST_CASE("termination mode: the file's disk does not respond -> a stop is treated as a spot reclaim") {
    process worker({program("hung_file_worker")}, {});
    CHECK(worker.wait() == 0);
    CHECK(worker.count("File /hung/mode does not answer, defaulting to spot instance reclaim mode") == 1);
    CHECK(worker.count("Spot instance reclamation detected") == 1);
}

// [Spot file (a)]
TEST_CASE(
    "controller: no job and no mode file configured -> SIGTERM consults /tmp/termination-type and exits") {
    stage on;
    on.configure_command("[\"true\"]");
    on.start();
    REQUIRE(on.prints("worker started"));
    on.stop_by(SIGTERM);
    CHECK(on.controller.count("msg=\"File /tmp/termination-type ") == 1);
    CHECK(on.logs({{"info", complete}}));
    CHECK(on.controller.count("metrics server") == 0);
}

// [Spot job, exactly one place]
TEST_CASE("controller: a reclaim with three children -> all of their jobs return to request/") {
    stage on("deaf", ",\"controller\":{\"concurrency\":3}");
    for (const char* name : {"a", "b", "c", "d"}) on.put_job(name);
    on.start();
    for (int i = 0; i < 3; ++i) on.child();
    on.stop_by(SIGUSR1);
    CHECK(on.all_gone());
    std::vector<std::string> names = on.names("request");
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"a", "b", "c", "d"});
    for (const std::string& name : names) CHECK(read_file(on.path("spool/request/" + name)) == job_bytes());
}

// [Spot retry_delays]
TEST_CASE("controller: a child that fails is retried by retry_delays, then its job moves to failed/") {
    stage on("fail");  // and the default: three runs
    on.put_job("job-1");
    on.start();
    for (int run = 0; run < 3; ++run) on.child();
    CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
    CHECK(on.controller.count("msg=\"Job job-1 failed\" error=\"exit status 3\"") == 3);
    on.stop_by(SIGTERM);

    on.configure("deaf", ",\"retry_delays\":[]");  // and killed by someone else
    fs::remove_all(on.path("spool/failed"));
    on.put_job("job-1");
    on.start();
    ::kill(on.child(), SIGKILL);
    CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
    CHECK(on.controller.count("msg=\"Job job-1 failed\" error=\"killed by SIGKILL\"") == 1);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: a child that removes its own file and exits with 0 has completed its job") {
    stage on;
    on.configure_command("[\"rm\",\"{job}\"]");
    on.put_job("job-1");
    on.start();
    REQUIRE(on.prints("level=info msg=\"Job job-1 removed or moved its own file; it is done without\""));
    on.stop_by(SIGTERM);
    CHECK(on.prints(" completed=1 failed=0 "));
    CHECK(on.prints(" gone=0 "));
    CHECK(on.controller.count("claim lost") == 0);
    CHECK(on.names("request").empty());
    CHECK(on.names("failed").empty());
}

TEST_CASE(
    "controller: the command cannot be executed -> no attempt counts, and the jobs run after it is "
    "replaced") {
    struct {
        const char* text;
        mode_t mode;
        const char* error;
    } const rows[] = {{"#!/no/such/interpreter\n", 0700, "No such file or directory (errno 2)"},
                      {"", 0, "No such file or directory (errno 2)"},
                      {"#!/bin/sh\n", 0600, "Permission denied (errno 13)"},
                      {"\1\2\3\4", 0700, "Exec format error (errno 8)"},
                      {"#!/bin/sh\n", 0700, "Text file busy (errno 26)"},
                      {"#!/bin/sh\nkill -SEGV $$\n", 0700, "killed by SIGSEGV"}};  // as half a program
    for (const auto& row : rows) {
        CAPTURE(row.error);
        stage on;
        const std::string prover = on.path("prover");
        const auto deploy = [&](const std::string& text, mode_t mode) {
            fs::remove(prover);
            if (mode == 0) return;
            write_file(prover, text);
            REQUIRE(::chmod(prover.c_str(), mode) == 0);
        };
        deploy("#!/bin/sh\n", 0700);  // for the check at start-up
        on.configure_command("[" + in_quotes(prover) + ",\"{job}\"]",
                             ",\"retry_delays\":[],\"concurrency\":2");
        on.start();
        REQUIRE(on.prints("worker started"));
        deploy(row.text, row.mode);
        const int writer =
            ::strstr(row.error, "busy") != nullptr ? ::open(prover.c_str(), O_WRONLY | O_CLOEXEC) : -1;
        for (const char* name : {"job-1", "job-2", "job-3"}) on.put_job(name);
        const std::string refused = std::string(row.error) + "\" attempt_counted=no";
        CHECK(eventually([&] { return on.controller.count(refused.c_str()) >= 3; }));
        CHECK(on.names("failed").empty());
        ::close(writer);
        deploy("#!/bin/sh\n", 0700);
        CHECK(eventually([&] { return on.names("done").size() == 3; }));
        CHECK(on.controller.count("attempt=2") == 0);
        on.stop_by(SIGTERM);
    }
}

TEST_CASE("controller: each failed start counts as an attempt if the job's own file is the program") {
    stage on;
    on.configure_command(R"(["{job}"])", ",\"retry_delays\":[\"1ms\"]");
    on.put_job("job-1");
    on.start();
    CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
    CHECK(on.controller.count("msg=\"Job job-1 cannot be started\"") == 2);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: a child gets its job file but no token, and its output is logged line by line") {
    stage on;
    on.configure_command(R"(["sh","-c","env; echo first; printf 'a \"b\"' >&2; cmp $0 $1","{job}","{job}"])");
    on.put_job("job-1");
    // Found by PATH, and started with SIGCHLD ignored.
    on.controller = process({"/bin/sh", "-c", "trap '' CHLD; exec \"$0\" --config \"$1\"",
                             program("controller"), on.path("config.json")},
                            {{"OJS_AUTH_TOKEN", "canary"},
                             {"OJS_HEALTH_TOKEN", "canary"},
                             {"OJS_OTHER", "passed on"},
                             {"PATH", "/no/such/folder:/usr/bin:/bin"}});
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    CHECK(on.controller.count("Process execution-job-1 started") == 1);
    CHECK(on.prints("msg=\"first\" process=execution-job-1 stream=stdout"));
    CHECK(on.prints("msg=\"a \\\"b\\\"\" process=execution-job-1 stream=stderr"));
    CHECK(on.prints("msg=\"OJS_OTHER=passed on\""));
    CHECK(on.controller.count("canary") == 0);
    on.stop_by(SIGTERM);
}

// [Spot job, exactly one place]
TEST_CASE(
    "controller: a stop at varying moments -> the job is whole in request/ or done/, and no process is "
    "left") {
    // The job ends by itself at about the same time. OJS_TEST_ROUNDS for more than a glance.
    const auto rounds = static_cast<int>(number_from("OJS_TEST_ROUNDS", 12));
    for (int round = 0; round < rounds; ++round) {
        stage on("finish");
        on.let_finish();
        on.put_job("job-1");
        on.start();
        REQUIRE(on.prints("worker started"));
        std::this_thread::sleep_for(std::chrono::microseconds(round * 7919 % 12000));  // another moment each
        on.stop_by(round % 2 == 0 ? SIGTERM : SIGUSR1);
        CHECK_MESSAGE((on.job_is_only_in("request") || on.job_is_only_in("done")), on.controller.output());
        CHECK(on.all_gone());
    }
}

#ifdef __linux__
// [Spot grace period, spot]
TEST_CASE("controller: a job whose child survives SIGKILL stays claimed until the child has ended") {
    stage on("finish");
    on.put_job("job-1");
    on.start();
    const pid_t child = on.child();
    // Held short of its end, as by a kernel that is busy with it.
    const long at_exit = PTRACE_O_TRACEEXIT;
    if (::ptrace(PTRACE_SEIZE, child, nullptr, reinterpret_cast<void*>(at_exit)) != 0) {
        MESSAGE("no process may be traced here: skipped");
        on.stop_by(SIGUSR1);
        return;
    }
    on.controller.signal(SIGUSR1);
    REQUIRE(eventually([&] {
        int status = 0;
        return ::waitpid(child, &status, __WALL | WNOHANG) == child && WIFSTOPPED(status) &&
               status >> 16 == PTRACE_EVENT_EXIT;
    }));
    REQUIRE(on.prints("Process execution-job-1 is still there"));
    CHECK(on.prints("its process may still run; the job stays claimed"));
    CHECK(on.job_is_only_in("processing"));
    // It outlasts the stop: the controller stays, and with it the claim.
    REQUIRE(on.prints("Process execution-job-1 does not end. Waiting for it"));
    CHECK_FALSE(on.controller.ended());
    CHECK(on.job_is_only_in("processing"));
    CHECK(on.prints("job could not be reported"));
    ::ptrace(PTRACE_DETACH, child, nullptr, nullptr);
    CHECK(on.controller.wait() == 75);
    CHECK(on.all_gone());
    CHECK(on.job_is_only_in("request"));
}

// [Spot crash]
TEST_CASE(
    "controller: SIGKILL of a controller also ends its child, and the next controller recovers the job") {
    stage on("finish");
    on.start_with_job();
    ::kill(on.controller.pid(), SIGKILL);
    CHECK(on.controller.wait() == -SIGKILL);
    CHECK(on.all_gone());
    on.start();
    on.child();
    on.let_finish();
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    on.stop_by(SIGTERM);
}
#endif

// ---- configuration ----

TEST_CASE(
    "controller: an invalid configuration ends start-up with status 64 and an error that locates the fault") {
    struct refused_text {
        const char* text;
        const char* says;
    };
    std::string deep;
    for (int i = 0; i < 150000; ++i) deep += "{\"a\":";
    const refused_text rows[] = {
        {"", "invalid JSON: there is nothing"},
        {deep.c_str(), "invalid JSON"},
        {"[]", "is not a JSON object"},
        {"{} x", "something follows the value in line 1"},
        {"{\"command\":[\"true\"]}", "spool_dir is missing"},
        {"{\"spool_dir\":\"/tmp\"}", "command is missing"},
        {"{\"spool_dir\":\"\"}", "spool_dir: must be a string, not empty"},
        {"{\"spool_dir\":\"a\\u0000b\"}", "spool_dir: contains a NUL byte"},
        {"{\"command\":\"true\"}", "command: must be an array"},
        {"{\"command\":[]}", "command: must name a program"},
        {"{\"command\":[\"\"]}", "command: must name a program"},
        {"{\"command\":[\"true\",1]}", "command: must be an array of strings"},
        {"{\"spool_dir\":\"s\",\"command\":[\"/no/such/prover\"]}", "/no/such/prover: No such file"},
        {"{\"spool_dir\":\"s\",\"command\":[\"/etc/passwd\"]}", "/etc/passwd: Permission denied"},
        {"{\"spool_dir\":\"s\",\"command\":[\"/\"]}", "command: /: Is a directory"},
        {"{\"spool_dir\":\"s\",\"command\":[\"no-such-prover\"]}",
         "command: no-such-prover: is in no folder of PATH"},
        {"{\"concurrency\":1,\"spool_dir\":\"s\",\"concurrency\":1}", "concurrency: is given twice"},
        {"{\"controller\":7}", "controller: must be an object"},
        {"{\"controller\":{\"controller\":{}}}", "controller: is unknown"},
        {"{\"controller\":{\"concurrency\":1,\"concurrency\":1}}", "concurrency: is given twice"},
        {"{\"controller\":{\"concurrency\":1},\"concurrency\":1}", "concurrency: is given twice"},
        {"{\"retry_delays\":1}", "retry_delays: must be an array"},
        {"{\"retry_delays\":[-1]}", "retry_delays: must be from 0"},
        {"{\"termination_grace_period\":\"3550 s\"}", "termination_grace_period: '3550 s' is not a duration"},
        {"{\"termination_grace_period\":true}", "termination_grace_period: must be a duration"},
        {"{\"container_grace_period\":0}", "container_grace_period: must be longer than 0"},
        {"{\"spot_instance_mode\":\"no\"}", "spot_instance_mode: must be true or false"},
        {"{\"concurrency\":0}", "concurrency: must be an integer"},
        {"{\"concurrency\":1.5}", "concurrency: must be an integer"},
        {"{\"termination_grace\":1}", "termination_grace: is unknown"},
        {"{BASE,\"termination_grace_period\":10}", "child_process_shutdown_timeout must be shorter than"},
        {"{BASE,\"metrics_address\":\"nonsense\"}", "metrics_address: "},
        {"{BASE,\"metrics_address\":\"192.0.2.1:1\"}", "metrics_address '192.0.2.1:1'"},
        // TOML that the guide does not use.
        {"\n[controller]\ncommand = [\n",
         "config.toml: line 3: command: must be a \"string\", number, boolean or array"},
        {"spool_dir = \"a\" b", "config.toml: line 1: spool_dir: must be"},
        {"concurrency = null", "config.toml: line 1: concurrency: must be"},
        {"# c\nretry_delays = [{\"a\": 1}]", "config.toml: line 2: retry_delays: must be"},
        {"a.b = 1", "config.toml: line 1: 'a.b = 1': must be KEY = VALUE"},
        {"{\"concurrency\": 1}", "config.toml: line 1: '{\"concurrency\": 1}': must be"},
        {"[[controller]]", "config.toml: line 1: '[[controller]]': must be [NAME]"},
        {"[a.b] # c", "config.toml: line 1: '[a.b] # c': must be [NAME]"},
        {"[controller]\n[controller]", "config.toml: line 2: controller: is given twice"},
        {"concurrency = 1\nconcurrency = 1", "config.toml: line 2: concurrency: is given twice"},
        {"concurrency = 1\n[controller]\nconcurrency = 1", "config.toml: concurrency: is given twice"},
    };
    stage on;
    const std::string base = "\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"true\"]";
    for (const refused_text& row : rows) {
        CAPTURE(std::string(row.text, 0, 100));
        std::string text = row.text;
        if (text.find("BASE") != std::string::npos) text.replace(text.find("BASE"), 4, base);
        const std::string file =
            on.path(std::string(row.says).find("config.toml") == 0 ? "config.toml" : "config.json");
        write_file(file, text);
        process refused({program("controller"), "--config", file}, {});
        CHECK(refused.wait() == 64);
        CHECK_MESSAGE(refused.count(row.says) == 1, refused.output());
    }
}

// The guide's own "Controller Config", word for word.
constexpr const char* config_of_guide = R"([controller]
retry_delays = [0, 1]

# Graceful shutdown settings (only used when file = "NORMAL_SHUTDOWN")
termination_grace_period = "3550s"           # 59 minutes
child_process_shutdown_timeout = "10s"       # SIGTERM → SIGKILL timeout

# Optional: custom path for termination-mode file
# Defaults to /tmp/termination-type if not specified
# termination_type_file = "/tmp/termination-type"

# Spot instance mode flag (DEPRECATED, not checked by code)
# Behavior now controlled by termination-mode file
spot_instance_mode = false
)";

// [Spot spot_instance_mode]
TEST_CASE("controller: the guide's config.toml works once spool_dir and command are added") {
    stage on("finish");
    const std::string config = on.path("config.toml");
    write_file(config, config_of_guide + ("spool_dir = " + in_quotes(on.path("spool"))) + "\ncommand = [" +
                           in_quotes(program("child_job")) + ", \"finish\", " + in_quotes(on.path("fifo")) +
                           ", \"{job}\"] # ]\r\ntermination_type_file=" + in_quotes(on.mode_file()));
    process mark({program("controller"), "--mark-normal", "--config", config}, {});
    CHECK(mark.wait() == 0);
    on.put_job("job-1");
    on.controller = process({program("controller"), "--config", config}, {});
    on.child();
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    CHECK(on.prints("msg=\"Received SIGTERM. Grace period: 3550s (until 2"));
    on.let_finish();
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("done"));
    CHECK(on.prints("spot_instance_mode is deprecated"));
}

TEST_CASE(
    "controller: a container_grace_period that is too short gives a warning with the controller's own keys") {
    const std::pair<const char*, const char*> rows[] = {
        {"3600", nullptr}, {"3550", "level=warning msg=\"the drain (59m10s) and the reports after it ("}};
    for (const auto& row : rows) {
        const char* const granted = row.first;
        const char* const says = row.second;
        CAPTURE(granted);
        stage on("finish",
                 std::string(",\"termination_grace_period\":3550,\"container_grace_period\":") + granted);
        on.start();
        REQUIRE(on.prints("worker started"));
        on.stop_by(SIGTERM);
        CHECK_MESSAGE(on.controller.count("OJS_") == 0, on.controller.output());
        CHECK(on.controller.count("heartbeat interval") == 0);  // on which nothing hangs here
        CHECK((on.controller.count("finding=budget") > 0) == (says != nullptr));
        if (says == nullptr) continue;
        CHECK(on.controller.count(says) == 1);
        CHECK(on.controller.count(
                  "set container_grace_period to the same, or lower termination_grace_period") == 1);
    }
}

TEST_CASE("controller: --config overrides OJS_CONTROLLER_CONFIG, and no configuration at all is an error") {
    stage on("finish");
    const std::string other = on.path("other.json");
    write_file(other, "{\"termination_type_file\":" + in_quotes(on.path("of-the-variable")) + "}");
    const auto with = [&](const std::string& config, const std::string& flags) {
        return process(words(program("controller") + " " + flags), {{"OJS_CONTROLLER_CONFIG", config}});
    };
    CHECK(with(other, "--mark-normal").wait() == 0);
    CHECK(fs::exists(on.path("of-the-variable")));
    CHECK_FALSE(fs::exists(on.mode_file()));
    CHECK(with(other, "--mark-normal --config " + on.path("config.json")).wait() == 0);
    CHECK(fs::exists(on.mode_file()));
    CHECK(with(on.path("config.json"), "").prints("worker started"));
    process absent = with(on.path("absent"), "");
    CHECK(absent.wait() == 64);
    CHECK(absent.prints("cannot read " + on.path("absent")));
    if (fs::exists("/etc/controller/controller.json")) {
        MESSAGE("this machine has the usual one: without any is skipped");
        return;
    }
    process none = with("", "");
    CHECK(none.wait() == 64);
    CHECK(none.output() ==
          "error: there is no configuration: give --config FILE, name it in OJS_CONTROLLER_CONFIG, or put it "
          "at /etc/controller/controller.json; see --help\n");
}

TEST_CASE("controller: an invalid flag or an unusable configuration file ends start-up with status 64") {
    stage on;
    const std::string config = on.path("config.json");
    const std::string absent = on.path("absent");
    const std::vector<std::string> rows[] = {{""},
                                             {"--config", ""},
                                             {"--config", config, "--config", config},
                                             {"--config", config, "more"},
                                             {"--config", absent},
                                             {"--config", on.path("spool")},
                                             {"--config", on.path("fifo")},
                                             {"--mark-normal", "--config", absent}};
    const auto run = [](std::vector<std::string> flags, int status, const std::string& says) {
        flags.insert(flags.begin(), program("controller"));
        process one(flags, {});
        CHECK(one.wait() == status);
        CHECK_MESSAGE(one.count(says) == 1, one.output());
    };
    for (const std::vector<std::string>& row : rows) run(row, 64, "error: ");
    for (const char* row : {"--config", "--config --help", "--unknown", "config.json",
                            "--reclaim --mark-normal", "--reclaim 0", "--reclaim 1x"})
        run(words(row), 64, "error: ");
    run({"--help"}, 0, "usage: ");
    write_file(config, "{\"termination_type_file\":\"/no/such/folder/file\"}");
    run({"--mark-normal", "--config", config}, 1,
        "cannot write /no/such/folder/file: No such file or directory");
    write_file(config, "{\"spool_dir\":\"/no/such/folder/spool\",\"command\":[\"true\"]}");
    run({"--config", config}, 64, "error: ");
}
