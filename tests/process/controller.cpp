// The guide's test scenarios and use cases, on the real controller with real children. What takes an hour there takes a
// second here, through the configuration; where the defaults matter they are left alone.
#ifdef __linux__
#include <sys/ptrace.h>
#endif

#include "harness.hpp"

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

std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

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
        configure_command(
            '[' + in_quotes(program("child_job")) + ',' + in_quotes(mode) + ',' + in_quotes(fifo_) + ",\"{job}\"]",
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
        REQUIRE_MESSAGE(blank != std::string::npos, "the child says '" << text << "'; " << controller.output());
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
    // From the metrics server, at a socket of that name; status 0 if there is none.
    ojs::http_response get(const std::string& target) const {
        ojs::http_response none;
        none.status = 0;
        return test::ask("unix:" + path("metrics"), "GET", target).value_or(none);
    }

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
    CHECK(
        on.logs({{"warning", "Spot instance reclamation detected" + by}, {"warning", initiating}, {"info", complete}}));
    CHECK(on.logs({{"warning", killing}, {"info", reputting}, {"info", complete}}));
}
}  // namespace

// ---- the guide's tests and use cases ----

// [Spot SIGUSR1] [Spot SIGTERM] [Spot file missing] [Spot file SPOT_RECLAIM] [Spot file (b)] [Spot use case 2]
// [Spot use case 4] [Spot decision matrix] [Spot fast exit] [Spot troubleshooting] [Spot first signal wins]
// [Spot log lines] [Spot job, exactly one place]
TEST_CASE("controller: SPOT_RECLAIM, no mode file, or SIGUSR1 -> the child is killed and the job requeued") {
    constexpr const char* of_file = " contains 'SPOT_RECLAIM', treating as spot instance reclaim";
    constexpr const char* missing = " not found, defaulting to spot instance reclaim mode";
    const struct {
        const char* name;
        const char* before;        // what the file holds at the start; nullptr: there is none
        const char* later;         // what it holds when the signals come; nullptr: as before
        std::vector<int> signals;  // while a job runs, all at once
        const char* reason;        // a part of the log; nullptr: the file was not asked
    } rows[] = {
        {"Test 1: Spot Reclaim with File", nullptr, "SPOT_RECLAIM\n", {SIGTERM}, of_file},
        {"Test 2: Spot Reclaim without File (Default); Use Case 2", nullptr, nullptr, {SIGTERM}, missing},
        {"Test 4: SIGUSR1 Signal; Use Case 4, Option C", nullptr, nullptr, {SIGUSR1}, nullptr},
        {"Test 4, NORMAL_SHUTDOWN", nullptr, "NORMAL_SHUTDOWN\n", {SIGUSR1}, nullptr},
        {"Use Case 4: Local Development, Option B", nullptr, nullptr, {SIGINT}, missing},
        {"a stale NORMAL_SHUTDOWN, replaced", "NORMAL_SHUTDOWN\n", "SPOT_RECLAIM\n", {SIGTERM}, of_file},
        // Of these the kernel delivers SIGHUP before SIGUSR1, and SIGTERM after it.
        {"SIGUSR1 pending with SIGHUP", "NORMAL_SHUTDOWN\n", nullptr, {SIGHUP, SIGUSR1}, nullptr},
        {"SIGUSR1 pending with SIGTERM", "NORMAL_SHUTDOWN\n", nullptr, {SIGTERM, SIGUSR1}, nullptr},
    };
    for (const auto& row : rows) {
        CAPTURE(row.name);
        stage on;
        if (row.before != nullptr) write_file(on.mode_file(), row.before);
        on.start_with_job();
        if (row.later != nullptr) write_file(on.mode_file(), row.later);
        on.controller.freeze();
        for (const int number : row.signals) on.controller.signal(number);
        on.stop_by(SIGCONT);
        const std::string reason = row.reason == nullptr ? "" : "File " + on.mode_file() + row.reason;
        if (row.reason != nullptr) CHECK(on.logs({{"warning", reason}, {"warning", killing}}));
        check_requeued(on, row.signals.back() == SIGUSR1 || row.reason == of_file);
        CHECK(on.controller.count(", treating as ") + on.controller.count(", defaulting to ") ==
              (row.reason == nullptr ? 0 : 1));
        CHECK(on.controller.count("using graceful shutdown") == 0);
    }
}

// [Spot first signal wins] [Spot target (c)] [Spot file NORMAL_SHUTDOWN] [Spot use case 4] [Spot log lines]
TEST_CASE("controller: NORMAL_SHUTDOWN -> after a stop signal the job completes within the grace period") {
    // Test 3: Normal Shutdown; Use Case 4, Option A
    for (const auto& [number, name] : {std::pair(SIGTERM, "SIGTERM"), {SIGHUP, "SIGHUP"}}) {
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
        CHECK(on.logs({{"info", "File " + on.mode_file() + " contains NORMAL_SHUTDOWN, using graceful shutdown"},
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
    CHECK(on.controller.end_by(SIGUSR1) == 0);
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
TEST_CASE("controller: --reclaim without a pid, or with pid 1, reaches a controller that runs below PID 1") {
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
        process hook = on.run(flags, program("controller"), {"nsenter", "--target", init, "--pid", "--mount"});
        // The namespace may end under the hook, which has done its work then.
        const int status = hook.wait();
        CHECK_MESSAGE((status == 0 || status == 128 + SIGKILL || status == -SIGKILL), hook.output());
        CHECK(read_file(on.mode_file()) == "SPOT_RECLAIM\n");
        CHECK(on.controller.wait() == 0);
        check_requeued(on, true);
    }
}

// [Spot target (a)] [Spot best practice 3]
TEST_CASE("controller: --reclaim without a controller, or with a pid that is none -> the mode file is unchanged") {
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
        CHECK(at_stranger.output().find("has no handler for SIGUSR1") != std::string::npos);
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

// [Spot use case 3] [Spot metrics server] [Spot spot_instance_mode]
TEST_CASE("controller: SIGTERM after --mark-normal -> the job completes, and no other job starts (Use Case 3)") {
    stage on("finish");
    const std::string config = on.path("config.toml");
    write_file(config, config_of_guide + ("spool_dir = " + in_quotes(on.path("spool"))) + "\ncommand = [" +
                           in_quotes(program("child_job")) + ", \"finish\", " + in_quotes(on.path("fifo")) +
                           ", \"{job}\"] # ]\r\ntermination_type_file=" + in_quotes(on.mode_file()) +
                           "\nmetrics_address = " + in_quotes("unix:" + on.path("metrics")));
    process init({program("controller"), "--mark-normal", "--config", config}, {});
    CHECK(init.wait() == 0);
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    on.put_job("job-1");
    on.controller = process({program("controller"), "--config", config}, {});
    on.child();
    on.put_job("job-2");  // comes second, and no longer begins
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    CHECK(on.prints("msg=\"Received SIGTERM. Grace period: 3550s (until 2"));
    // The metrics server is the last to go.
    CHECK(on.get("/metrics").status == 200);
    CHECK(on.get("/readyz").status == 503);
    on.let_finish();
    CHECK(on.controller.wait() == 0);
    CHECK(on.get("/metrics").status == 0);
    CHECK(on.names("done") == std::vector<std::string>{"job-1"});
    CHECK(on.names("request") == std::vector<std::string>{"job-2"});
    CHECK(on.logs({{"info", completed}, {"info", "Shutting down metrics server"}, {"info", complete}}));
    CHECK(on.prints("spot_instance_mode is deprecated"));
}

// [Spot use case 3, too long]
TEST_CASE("controller: a child that outlasts the grace period gets SIGTERM, then SIGKILL (Use Case 3)") {
    const struct {
        const char* child;
        const char* grace;
        const char* share;  // of the child after SIGTERM
        std::int64_t min_ms;
        const char* end;
    } rows[] = {
        {"deaf", "800ms", "300ms", 800, "killed by SIGKILL"},
        // It may have obeyed in the middle of its work: it goes back, whatever its exit status says.
        {"obey", "1h", "59m59s800ms", 200, "exit status 0"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.child);
        stage on(row.child, ",\"termination_grace_period\":" + in_quotes(row.grace) +
                                ",\"child_process_shutdown_timeout\":" + in_quotes(row.share));
        write_file(on.mode_file(), "NORMAL_SHUTDOWN");
        on.start_with_job();
        CHECK(on.stop_by(SIGTERM) >= row.min_ms);
        if (row.child == std::string("obey")) CHECK(on.line() == "SIGTERM");
        CHECK(on.all_gone());
        CHECK(on.job_is_only_in("request"));
        CHECK(on.logs({{"info", processing},
                       {"warning", "Grace period is about to expire. Sending SIGTERM to process execution-job-1"},
                       {"info", reputting},
                       {"info", complete}}));
        CHECK(on.prints(std::string("end=\"") + row.end + "\""));
    }
}

// ---- what else may happen ----

TEST_CASE("controller: --mark-normal replaces the mode file and never writes through a link") {
    stage on;
    const std::string victim = on.path("victim");
    write_file(victim, "keep");
    // A link where it goes, and where an easily guessed name of something new would be.
    fs::create_symlink(victim, on.mode_file());
    fs::create_symlink(victim, on.mode_file() + ".new");
    // Under the umask that takes most away.
    const process writer({"/bin/sh", "-c", "umask 777; exec \"$0\" --mark-normal --config \"$1\"",
                          program("controller"), on.path("config.json")},
                         {});
    CHECK(writer.wait() == 0);
    CHECK(read_file(victim) == "keep");
    struct stat about {};
    REQUIRE(::lstat(on.mode_file().c_str(), &about) == 0);
    CHECK(about.st_mode == (S_IFREG | 0644));
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    // A folder is neither replaced nor written into, and nothing is left beside it.
    fs::remove(on.mode_file());
    fs::create_directory(on.mode_file());
    const auto before = std::distance(fs::directory_iterator(on.path("")), {});
    CHECK(on.run({"--mark-normal"}).wait() == 1);
    CHECK(std::distance(fs::directory_iterator(on.path("")), {}) == before);
}

// [Spot file (b)]
TEST_CASE("controller: SPOT_RECLAIM in the mode file stops claims only if it is written after start-up") {
    stage on;
    on.configure("finish", ",\"metrics_address\":" + in_quotes("unix:" + on.path("metrics")));
    const auto shows = [&](const std::string& state) {
        return holds(on.get("/readyz").body, "\"spot_reclaim\":\"" + state + "\"") &&
               holds(on.get("/metrics").body, "ojs_worker_spot_reclaim{state=\"" + state + "\"} 1");
    };
    write_file(on.mode_file(), "\tSPOT_RECLAIM \r\n");
    on.start_with_job();
    CHECK(on.prints("'SPOT_RECLAIM' (left over from an earlier stop?): a stop by signal requeues jobs at once"));
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

// [Spot file (a)]
TEST_CASE("controller: SIGTERM without a job or mode file option -> it reads /tmp/termination-type and exits") {
    stage on;
    on.configure_command("[\"true\"]");
    on.start();
    REQUIRE(on.prints("worker started"));
    on.stop_by(SIGTERM);
    CHECK(on.controller.count("msg=\"File /tmp/termination-type ") == 1);
    CHECK(on.logs({{"info", complete}}));
    CHECK(on.controller.count("metrics server") == 0);
}

// [Spot retry_delays]
TEST_CASE("controller: a child that fails is retried after each of retry_delays, then its job moves to failed/") {
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

TEST_CASE("controller: a missing or partly written command -> no attempt is counted until it is replaced") {
    for (const bool is_missing : {true, false}) {
        CAPTURE(is_missing);
        stage on;
        const std::string prover = on.path("prover");
        const auto deploy = [&](const std::string& text) {
            write_file(prover + ".new", "#!/bin/sh\n" + text);
            REQUIRE(::chmod((prover + ".new").c_str(), 0700) == 0);
            fs::rename(prover + ".new", prover);
        };
        deploy("");  // for the check at start-up
        on.configure_command("[" + in_quotes(prover) + ",\"{job}\"]", ",\"retry_delays\":[],\"concurrency\":2");
        on.start();
        REQUIRE(on.prints("worker started"));
        is_missing ? static_cast<void>(fs::remove(prover)) : deploy("kill -SEGV $$\n");
        for (const char* name : {"job-1", "job-2", "job-3"}) on.put_job(name);
        const char* const refused = is_missing ? "No such file or directory (errno 2)\" attempt_counted=no"
                                               : "killed by SIGSEGV\" attempt_counted=no";
        CHECK(eventually([&] { return on.controller.count(refused) >= 3; }));
        CHECK(on.names("failed").empty());
        deploy("");
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
    on.controller = process(
        {"/bin/sh", "-c", "trap '' CHLD; exec \"$0\" --config \"$1\"", program("controller"), on.path("config.json")},
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
TEST_CASE("controller: SIGKILL of a controller ends its child too, and the next one recovers the job") {
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

TEST_CASE("controller: an invalid configuration ends start-up with 64 and an error that locates the fault") {
    std::string deep;
    for (int i = 0; i < 150000; ++i) deep += "{\"a\":";
    // One of each kind. BASE: a valid spool_dir and command.
    const struct {
        std::string text;
        const char* says;
    } rows[] = {
        {"", "invalid JSON in line 1"},
        {deep, "invalid JSON"},
        {"{\"command\":[\"true\"]}", "spool_dir is missing"},
        {"{\"spool_dir\":\"/tmp\"}", "command is missing"},
        {"{\"spool_dir\":\"/etc/passwd/s\",\"command\":[\"true\"]}", "error: "},
        {"{\"command\":[\"\"]}", "command: must name a program"},
        {"{\"spool_dir\":\"s\",\"command\":[\"/etc/passwd\"]}", "/etc/passwd: Permission denied"},
        {"{\"spool_dir\":\"s\",\"command\":[\"no-such-prover\"]}", "command: no-such-prover: is in no folder of PATH"},
        {"{\"concurrency\":1,\"spool_dir\":\"s\",\"concurrency\":1}", "concurrency: is given twice"},
        {"{\"controller\":{\"concurrency\":1},\"concurrency\":1}", "concurrency: is given twice"},
        {"{\"retry_delays\":[-1]}", "retry_delays: must be from 0"},
        {"{\"termination_grace_period\":\"3550 s\"}", "termination_grace_period: '3550 s' is not a duration"},
        {"{\"termination_grace_period\":true}", "termination_grace_period: must be a duration"},
        {"{\"spot_instance_mode\":\"no\"}", "spot_instance_mode: must be true or false"},
        {"{\"concurrency\":1.5}", "concurrency: must be an integer"},
        {"{\"termination_grace\":1}", "termination_grace: is unknown"},
        // The child's share is 10 s by default: not all of the grace period.
        {"{BASE,\"termination_grace_period\":10}", "child_process_shutdown_timeout must be shorter than"},
        {"{BASE,\"termination_grace_period\":\"10001ms\",\"metrics_address\":\"nonsense\"}", "metrics_address: "},
        // TOML that the guide does not use.
        {"\n[controller]\ncommand = [\n",
         "config.toml: line 3: command: must be a \"string\", number, boolean or array"},
        {"a.b = 1", "config.toml: line 1: 'a.b = 1': must be KEY = VALUE"},
        {"[[controller]]", "config.toml: line 1: '[[controller]]': must be [NAME]"},
        {"concurrency = 1\n[controller]\nconcurrency = 1", "config.toml: concurrency: is given twice"},
    };
    stage on;
    const std::string base = "\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"true\"]";
    for (const auto& row : rows) {
        CAPTURE(row.text.substr(0, 100));
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

TEST_CASE("controller: a short container_grace_period -> the warning names the controller's own keys") {
    stage on("finish", ",\"termination_grace_period\":3550,\"container_grace_period\":3550");
    on.start();
    REQUIRE(on.prints("worker started"));
    on.stop_by(SIGTERM);
    INFO(on.controller.output());
    CHECK(on.controller.count("OJS_") == 0);
    CHECK(on.controller.count("level=warning msg=\"the drain (59m10s) and the reports after it (") == 1);
    CHECK(on.controller.count("set container_grace_period to that, or lower termination_grace_period") == 1);
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
    CHECK(with(on.path("absent"), "--mark-normal --config " + on.path("config.json")).wait() == 0);
    CHECK(fs::exists(on.mode_file()));
    if (fs::exists("/etc/controller/controller.json")) return;  // the usual one
    process none = with("", "");
    CHECK(none.wait() == 64);
    CHECK(none.count("there is no configuration: give --config FILE, name it in OJS_CONTROLLER_CONFIG") == 1);
}

TEST_CASE("controller: an invalid flag or an unusable configuration file ends start-up with status 64") {
    stage on;
    const std::string config = on.path("config.json");
    const auto run = [](const std::string& flags, int status, const std::string& says) {
        CAPTURE(flags);
        process one(words(program("controller") + " " + flags), {});
        CHECK(one.wait() == status);
        CHECK_MESSAGE(one.count(says) == 1, one.output());
    };
    for (const std::string& flags : {"--config " + on.path("absent"), "--config " + on.path("fifo"),
                                     "--mark-normal --config " + on.path("absent")})
        run(flags, 64, "error: ");
    run("--help", 0, "usage: ");
    write_file(config, "{\"termination_type_file\":\"/no/such/folder/file\"}");
    run("--mark-normal --config " + config, 1, "cannot write /no/such/folder/file: No such file or directory");
}
