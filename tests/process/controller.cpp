// The guide's test scenarios and use cases, on the real controller with real children. What takes an hour there takes a
// second here, through the configuration; where the defaults matter they are left alone.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/ptrace.h>
#endif
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "files.hpp"
#include "harness.hpp"

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

// A controller with its spool, its termination type file, and the FIFO that its children hold.
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
        write_file(path("config.json"),
                   "{\"spool_dir\":" + in_quotes(path("spool")) + ",\"command\":[" +
                       in_quotes(program("child_job")) + "," + in_quotes(mode) + "," + in_quotes(fifo_) +
                       ",\"{job}\"],\"termination_type_file\":" + in_quotes(mode_file()) + more + "}");
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
            // Nobody has it open any more, or the next child not yet.
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
void check_requeued(stage& on, std::int64_t took, const std::string& how) {
    CHECK(on.all_gone());
    CHECK(on.job_is_only_in("request"));
    MESSAGE(how << ": " << took << " ms from the signal to the exit");
    CHECK(took < 10000);  // of 1000: only a hang is a failure here
}

// One request of HTTP at a Unix socket; empty if nobody answers.
std::string ask(const std::string& socket_path, const std::string& target) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::string out;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
        char bytes[4096];
        for (ssize_t got = 1; got > 0;) {
            got = ::read(fd, bytes, sizeof bytes);
            if (got > 0) out.append(bytes, static_cast<std::size_t>(got));
        }
    }
    ::close(fd);
    return out;
}

#ifdef __linux__
// Holds a process that has got its SIGKILL short of its end, as a kernel does that is busy with it. Only for the thread
// that made it, and for processes of a single one.
class captor {
  public:
    explicit captor(pid_t held) : pid_(held) {
        const long flag = PTRACE_O_TRACEEXIT;
        holds_ = ::ptrace(PTRACE_SEIZE, pid_, nullptr, reinterpret_cast<void*>(flag)) == 0;
    }
    captor(const captor&) = delete;
    captor& operator=(const captor&) = delete;
    ~captor() { release(); }
    bool holds() const { return holds_; }
    // True once it has been killed, and is held.
    bool has_caught() const {
        return eventually([&] {
            int status = 0;
            return ::waitpid(pid_, &status, __WALL | WNOHANG) == pid_ && WIFSTOPPED(status) &&
                   status >> 16 == PTRACE_EVENT_EXIT;
        });
    }
    void release() {
        if (std::exchange(holds_, false)) ::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    }

  private:
    const pid_t pid_;
    bool holds_ = false;
};
#endif

}  // namespace

// ---- the guide's test scenarios ----

TEST_CASE("controller: Test 1: Spot Reclaim with File") {
    stage on;
    on.start_with_job();
    write_file(on.mode_file(), "SPOT_RECLAIM\n");
    const std::int64_t took = on.stop_by(SIGTERM);
    check_requeued(on, took, "spot reclaim with file");
    CHECK(on.logs(
        {{"warning",
          "File " + on.mode_file() + " contains 'SPOT_RECLAIM', treating as spot instance reclaim"},
         {"warning", "Spot instance reclamation detected (SIGUSR1 or " + on.mode_file() + "=SPOT_RECLAIM)"},
         {"warning", initiating},
         {"warning", killing},
         {"info", reputting},
         {"info", complete}}));
}

TEST_CASE("controller: Test 1: with the file from the start no job is begun that would be killed") {
    stage on;
    write_file(on.mode_file(), "SPOT_RECLAIM\n");
    on.put_job("job-1");
    on.start();
    REQUIRE(on.prints(no_claim));
    on.stop_by(SIGTERM);
    CHECK(on.job_is_only_in("request"));
    CHECK(on.logs({{"warning", "File " + on.mode_file() + no_claim},
                   {"warning",
                    "File " + on.mode_file() + " contains 'SPOT_RECLAIM', treating as spot instance reclaim"},
                   {"info", complete}}));
    CHECK(on.controller.count("Process execution-job-1 started") == 0);
}

TEST_CASE("controller: Test 2: Spot Reclaim without File (Default)") {
    stage on;
    on.start_with_job();
    const std::int64_t took = on.stop_by(SIGTERM);
    check_requeued(on, took, "spot reclaim without file");
    CHECK(on.logs(
        {{"warning", "File " + on.mode_file() + " not found, defaulting to spot instance reclaim mode"},
         {"warning", "Spot instance reclamation detected"},
         {"warning", initiating},
         {"warning", killing},
         {"info", reputting},
         {"info", complete}}));
}

TEST_CASE("controller: Test 3: Normal Shutdown") {
    stage on("finish");  // and the default grace period
    write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
    on.start_with_job();
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    CHECK(on.prints("msg=\"Received SIGTERM. Grace period: 3550s (until 2"));
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

TEST_CASE("controller: Test 4: SIGUSR1 Signal") {
    for (const std::string content : {"", "NORMAL_SHUTDOWN\n", "SPOT_RECLAIM\n", "anything\n"}) {
        CAPTURE(content);
        stage on;
        on.start_with_job();
        if (!content.empty()) write_file(on.mode_file(), content);
        const std::int64_t took = on.stop_by(SIGUSR1);
        check_requeued(on, took, "SIGUSR1");
        CHECK(on.logs({{"warning", "Spot instance reclamation detected (SIGUSR1 or " + on.mode_file() +
                                       "=SPOT_RECLAIM)"},
                       {"warning", killing},
                       {"info", reputting},
                       {"info", complete}}));
        CHECK(on.controller.count("Grace period:") == 0);
        CHECK(on.controller.count("using graceful shutdown") == 0);
    }
}

TEST_CASE("controller: Test 5: Race Condition (SIGTERM before preStop)") {
    stage on;
    on.start_with_job();
    const std::int64_t began = monotonic_ns();
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints("not found, defaulting to spot instance reclaim mode"));
    write_file(on.mode_file(), "SPOT_RECLAIM\n");  // the preStop hook was slow
    on.controller.signal(SIGUSR1);
    CHECK(on.controller.wait() == 0);
    check_requeued(on, (monotonic_ns() - began) / 1000000, "SIGTERM before preStop");
    CHECK(on.logs(
        {{"warning", "Spot instance reclamation detected"}, {"warning", killing}, {"info", complete}}));
    CHECK(on.controller.count("Immediately killing") == 1);
}

// ---- the guide's use cases ----

TEST_CASE("controller: Use Case 1: Spot Instance with PreStop Hook") {
    stage on;
    on.start_with_job();
    const std::int64_t began = monotonic_ns();
    // The hook: the controller's own program, as there may be no shell.
    process hook({program("controller"), "--reclaim", std::to_string(on.controller.pid()), "--config",
                  on.path("config.json")},
                 {});
    CHECK(hook.wait() == 0);
    CHECK(read_file(on.mode_file()) == "SPOT_RECLAIM\n");
    CHECK(on.controller.wait() == 0);
    const std::int64_t took = (monotonic_ns() - began) / 1000000;
    on.controller.signal(SIGTERM);  // Kubernetes, too late to matter
    check_requeued(on, took, "preStop hook");
    CHECK(on.logs(
        {{"warning", "Spot instance reclamation detected (SIGUSR1 or " + on.mode_file() + "=SPOT_RECLAIM)"},
         {"warning", initiating},
         {"warning", killing},
         {"info", reputting},
         {"info", complete}}));
}

// ---- as PID 1 of a container ----

namespace {

// A controller below as_init() in a PID namespace of its own, and programs run beside it as an orchestrator does.
struct contained : stage {
    static bool possible() {
        process probe({"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"}, {});
        return probe.wait() == 0;
    }
    void start_with_job() {
        put_job("job-1");
        controller = process({"unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
                              program("controller"), "--config", path("config.json")},
                             {});
        child();
        init_ = only_child_of(controller.pid());
    }
    process exec(const std::vector<std::string>& flags) const {
        std::vector<std::string> words = {"nsenter", "--target", std::to_string(init_),
                                          "--pid",   "--mount",  program("controller")};
        words.insert(words.end(), flags.begin(), flags.end());
        words.insert(words.end(), {"--config", path("config.json")});
        return process(words, {});
    }

  private:
    static pid_t only_child_of(pid_t parent) {
        pid_t found = 0;
        for (const fs::directory_entry& each : fs::directory_iterator("/proc")) {
            const std::string name = each.path().filename().string();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            const std::string stat = read_file("/proc/" + name + "/stat");
            const std::size_t comm_end = stat.rfind(')');
            if (comm_end == std::string::npos || std::atoi(stat.c_str() + comm_end + 4) != parent) continue;
            CHECK(found == 0);
            found = std::atoi(stat.c_str());
        }
        REQUIRE(found > 0);
        return found;
    }
    pid_t init_ = 0;
};

}  // namespace

TEST_CASE("controller: the preStop hook reaches a controller below PID 1") {
    if (!contained::possible()) {
        MESSAGE("skipped: no PID namespaces here");
        return;
    }
    for (const std::string& pid : {std::string(), std::string("1")}) {
        CAPTURE(pid);
        contained on;
        on.start_with_job();
        const std::int64_t began = monotonic_ns();
        process hook = on.exec(pid.empty() ? std::vector<std::string>{"--reclaim"}
                                           : std::vector<std::string>{"--reclaim", pid});
        INFO(hook.output());
        // The namespace may end under the hook, which has done its work then.
        const int status = hook.wait();
        CHECK((status == 0 || status == 128 + SIGKILL || status == -SIGKILL));
        CHECK(read_file(on.mode_file()) == "SPOT_RECLAIM\n");
        CHECK(on.controller.wait() == 0);
        CHECK((monotonic_ns() - began) / 1000000 < 20000);
        CHECK(on.job_is_only_in("request"));
        CHECK(on.logs({{"warning", killing}, {"info", reputting}, {"info", complete}}));
    }
}

TEST_CASE("controller: a hook that comes too late is no failure, and changes no mode file") {
    stage on;
    const std::string path = on.path("controller");  // a program that nobody else runs
    fs::copy_file(program("controller"), path);
    for (const std::string& before : {std::string(), std::string("NORMAL_SHUTDOWN\n")}) {
        CAPTURE(before);
        if (!before.empty()) write_file(on.mode_file(), before);
        process hook({path, "--reclaim", "--config", on.path("config.json")}, {});
        CHECK(hook.wait() == 0);
        CHECK(hook.output().find("nothing to reclaim: ") == 0);
        process of_pid_typed_by_hand({path, "--reclaim", "2147483647", "--config", on.path("config.json")},
                                     {});
        CHECK(of_pid_typed_by_hand.wait() == 1);
        process stranger({"sleep", "1000"}, {});
        process at_stranger(
            {path, "--reclaim", std::to_string(stranger.pid()), "--config", on.path("config.json")}, {});
        CHECK(at_stranger.wait() == 1);
        CHECK(at_stranger.output().find("is not prepared for SIGUSR1") != std::string::npos);
        stranger.signal(SIGKILL);
        CHECK(fs::exists(on.mode_file()) == !before.empty());
        CHECK(read_file(on.mode_file()) == before);
    }
}

TEST_CASE("controller: a hook that runs twice does what one does") {
    stage on;
    on.start_with_job();
    const std::vector<std::string> hook = {program("controller"), "--reclaim",
                                           std::to_string(on.controller.pid()), "--config",
                                           on.path("config.json")};
    process first(hook, {});
    process second(hook, {});
    // Either may come first. The controller named may be gone by the time the other comes.
    const std::pair<int, int> both = std::minmax({first.wait(), second.wait()});
    CHECK(both.first == 0);
    CHECK((both.second == 0 || both.second == 1));
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("request"));
}

TEST_CASE("controller: a hook that cannot write the mode file says so, and still reclaims") {
    stage on;
    on.start_with_job();
    fs::create_directory(on.mode_file());
    process hook({program("controller"), "--reclaim", std::to_string(on.controller.pid()), "--config",
                  on.path("config.json")},
                 {});
    const int status = hook.wait();
    INFO(hook.output());
    CHECK(hook.output().find(on.mode_file()) != std::string::npos);
    CHECK(status == 1);
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("request"));
}

TEST_CASE("controller: Use Case 2: Spot Instance WITHOUT PreStop Hook (Fallback)") {
    stage on;
    on.start_with_job();
    const std::int64_t took = on.stop_by(SIGTERM);
    check_requeued(on, took, "no hook");
    CHECK(on.logs(
        {{"warning", "File " + on.mode_file() + " not found, defaulting to spot instance reclaim mode"},
         {"warning", "Spot instance reclamation detected"},
         {"warning", killing}}));

    // Another instance goes on with it.
    on.configure("finish", "");
    on.start();
    on.child();
    on.let_finish();
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: Use Case 3: Normal Kubernetes Deployment (Rolling Update)") {
    stage on("finish");
    on.configure("finish", ",\"metrics_address\":" + in_quotes("unix:" + on.path("metrics")));
    process init({program("controller"), "--mark-normal", "--config", on.path("config.json")}, {});
    CHECK(init.wait() == 0);
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    on.start_with_job();
    on.put_job("job-2");  // comes second, and is not begun any more
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    // The metrics server is the last to go.
    CHECK(ask(on.path("metrics"), "/metrics").find("200 OK") != std::string::npos);
    CHECK(ask(on.path("metrics"), "/readyz").find(" 503 ") != std::string::npos);
    on.let_finish();
    CHECK(on.controller.wait() == 0);
    CHECK(ask(on.path("metrics"), "/metrics").empty());
    CHECK(on.names("done") == std::vector<std::string>{"job-1"});
    CHECK(on.names("request") == std::vector<std::string>{"job-2"});
    CHECK(on.logs({{"info", "File " + on.mode_file() + " contains NORMAL_SHUTDOWN, using graceful shutdown"},
                   {"info", processing},
                   {"info", completed},
                   {"info", "Shutting down metrics server"},
                   {"info", complete}}));
}

TEST_CASE("controller: Use Case 3: If Job Takes Too Long: SIGTERM, then SIGKILL") {
    stage on("deaf");
    on.configure("deaf",
                 ",\"termination_grace_period\":\"800ms\",\"child_process_shutdown_timeout\":\"300ms\"");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN");
    on.start_with_job();
    const std::int64_t took = on.stop_by(SIGTERM);
    CHECK(took >= 800);
    check_requeued(on, took, "grace period of 800 ms over");
    CHECK(on.logs({{"info", processing},
                   {"warning", "Grace period is about to expire. Sending SIGTERM to process execution-job-1"},
                   {"info", reputting},
                   {"info", complete}}));
    CHECK(on.prints("end=\"killed by SIGKILL\""));
}

TEST_CASE("controller: Use Case 3: a child that obeys SIGTERM ends before the grace period does") {
    // And so the default of the child's share is effective: 10 s of these 11.
    stage on("obey");
    on.configure("obey", ",\"termination_grace_period\":11");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN");
    on.start_with_job();
    const std::int64_t took = on.stop_by(SIGTERM);
    CHECK(took >= 1000);
    CHECK(took < 6000);
    CHECK(on.line() == "SIGTERM");
    CHECK(on.all_gone());
    // It may have obeyed in the middle of its work: it goes back, whatever its exit status says.
    CHECK(on.job_is_only_in("request"));
    CHECK(on.prints("end=\"exit status 0\""));
    CHECK(on.logs({{"info", reputting}, {"info", complete}}));
}

TEST_CASE("controller: Use Case 4: Local Development, Option A - Normal Shutdown Mode") {
    for (const char* name : {"SIGTERM", "SIGINT"}) {
        CAPTURE(name);
        stage on("finish");
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.start_with_job();
        on.controller.signal(std::string(name) == "SIGINT" ? SIGINT : SIGTERM);
        CHECK(on.prints(std::string("msg=\"Received ") + name + ". Grace period: 3550s (until "));
        on.let_finish();
        CHECK(on.controller.wait() == 0);
        CHECK(on.job_is_only_in("done"));
    }
}

TEST_CASE("controller: Use Case 4: Local Development, Option B - Spot Reclaim Mode") {
    for (const int number : {SIGTERM, SIGINT}) {
        CAPTURE(number);
        stage on;
        on.start_with_job();
        check_requeued(on, on.stop_by(number), "local, no file");
        CHECK(on.logs({{"warning", "Spot instance reclamation detected"}, {"warning", killing}}));
    }
}

TEST_CASE("controller: Use Case 4: Local Development, Option C - Test SIGUSR1") {
    stage on;
    on.start_with_job();
    check_requeued(on, on.stop_by(SIGUSR1), "local, SIGUSR1");
}

// ---- what else may happen ----

TEST_CASE("controller: the first signal wins, and later ones change nothing") {
    stage on("finish");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
    on.start_with_job();
    on.controller.signal(SIGTERM);
    REQUIRE(on.prints(processing));
    for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGUSR1}) on.controller.signal(number);
    on.controller.signal(SIGTTIN);
    REQUIRE(on.prints("jobs in flight"));
    CHECK(on.job_is_only_in("processing"));
    on.let_finish();
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("done"));
    CHECK(on.controller.count("Spot instance reclamation") == 0);
}

TEST_CASE("controller: SIGHUP is as SIGTERM, unless it came ignored") {
    SUBCASE("a normal stop") {
        stage on("finish");
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.start_with_job();
        on.controller.signal(SIGHUP);
        REQUIRE(on.prints(processing));
        CHECK(on.prints("Received SIGHUP. Grace period: 3550s"));
        on.let_finish();
        CHECK(on.controller.wait() == 0);
        CHECK(on.job_is_only_in("done"));
    }
    SUBCASE("a reclaim") {
        stage on;
        on.start_with_job();
        check_requeued(on, on.stop_by(SIGHUP), "SIGHUP");
    }
    SUBCASE("ignored, as by nohup") {
        stage on("finish");
        on.put_job("job-1");
        on.controller = process({"/bin/sh", "-c", "trap '' HUP; exec \"$0\" --config \"$1\"",
                                 program("controller"), on.path("config.json")},
                                {});
        on.child();
        on.controller.signal(SIGHUP);
        on.controller.signal(SIGTTIN);  // comes after it
        REQUIRE(on.prints("jobs in flight"));
        CHECK(on.controller.count("phase changed") == 0);
        on.let_finish();
        CHECK(eventually([&] { return on.job_is_only_in("done"); }));
        on.stop_by(SIGTERM);
    }
}

TEST_CASE("controller: a mode file of another user than its own or root is ignored, and logged") {
    if (::geteuid() != 0) {
        MESSAGE("only root may give a file to somebody else: skipped");
        return;
    }
    stage on;
    write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
    REQUIRE(::chown(on.mode_file().c_str(), 65533, static_cast<gid_t>(-1)) == 0);
    on.start_with_job();
    check_requeued(on, on.stop_by(SIGTERM), "a file of somebody else");
    CHECK(on.prints("belongs to user 65533, neither to this one (0) nor to root, and counts as not found"));
}

TEST_CASE("controller: the file is written anew: no link is followed, and nobody's file is written into") {
    stage on;
    const std::string victim = on.path("victim");
    const auto write_mode = [&](const char* flag) {  // under the umask that takes most away
        process writer({"/bin/sh", "-c", "umask 777; exec \"$0\" \"$@\"", program("controller"), flag,
                        "--config", on.path("config.json")},
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
    CHECK(write_mode("--mark-normal") == 0);
    CHECK(read_file(victim) == "keep");
    CHECK(is_our_file());
    CHECK(read_file(on.mode_file()) == "NORMAL_SHUTDOWN\n");
    // A file that somebody else has open, and may own: it is replaced, not written into.
    fs::remove(on.mode_file());
    fs::create_hard_link(victim, on.mode_file());
    if (::geteuid() == 0) REQUIRE(::chown(victim.c_str(), 65533, static_cast<gid_t>(-1)) == 0);
    CHECK(write_mode("--mark-normal") == 0);
    CHECK(read_file(victim) == "keep");
    CHECK(is_our_file());
    // A folder is neither replaced nor written into, and nothing is left beside it.
    fs::remove(on.mode_file());
    fs::create_directory(on.mode_file());
    CHECK(write_mode("--mark-normal") == 1);
    int beside = 0;
    for (const auto& each : fs::directory_iterator(on.path(""))) {
        beside += each.path().filename().string().find("termination-type.") == 0 ? 1 : 0;
    }
    CHECK(beside == 1);  // the link
}

TEST_CASE("controller: its own secrets and its service manager's variables stay with it") {
    stage on;
    write_file(on.path("config.json"),
               "{\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"env\"]}");
    on.put_job("job-1");
    on.start({{"OJS_AUTH_TOKEN", "canary"}, {"OJS_HEALTH_TOKEN", "canary"}, {"OJS_OTHER", "passed on"}});
    CHECK(eventually([&] { return on.names("done").size() == 1; }));
    CHECK(on.prints("msg=\"OJS_OTHER=passed on\""));
    CHECK(on.controller.count("canary") == 0);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: an address for metrics that is taken is refused by the key's name") {
    stage on;
    stage other;
    const std::string taken = ",\"metrics_address\":" + in_quotes("unix:" + on.path("metrics"));
    on.configure("finish", taken);
    on.start();
    REQUIRE(on.prints("worker started"));
    other.configure("finish", taken);
    other.start();
    CHECK(other.controller.wait() == 64);
    CHECK(other.controller.count("metrics_address '") == 1);
    CHECK(other.controller.count("health_address") == 0);
    CHECK(other.controller.count("OJS_") == 0);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: the file counts as it is when the signal comes") {
    SUBCASE("a stale NORMAL_SHUTDOWN, replaced before the signal") {
        stage on;
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.start_with_job();
        write_file(on.mode_file(), "SPOT_RECLAIM\n");
        check_requeued(on, on.stop_by(SIGTERM), "stale file");
    }
    SUBCASE("a stale SPOT_RECLAIM, replaced before the signal") {
        stage on("finish");
        write_file(on.mode_file(), "\tSPOT_RECLAIM \r\n");
        on.put_job("job-1");
        on.start();
        REQUIRE(on.prints(no_claim));
        CHECK(on.job_is_only_in("request"));
        write_file(on.mode_file(), "  NORMAL_SHUTDOWN  \r\n");
        on.child();
        CHECK(on.controller.count(no_claim) == 1);
        CHECK(on.controller.count(" no longer contains SPOT_RECLAIM: jobs are claimed again") == 1);
        on.controller.signal(SIGTERM);
        REQUIRE(on.prints(processing));
        on.let_finish();
        CHECK(on.controller.wait() == 0);
        CHECK(on.job_is_only_in("done"));
    }
    SUBCASE("a FIFO in its place holds nobody up") {
        stage on;
        REQUIRE(::mkfifo(on.mode_file().c_str(), 0600) == 0);
        on.start_with_job();
        check_requeued(on, on.stop_by(SIGTERM), "a FIFO as the file");
    }
}

TEST_CASE("controller: a reclaim that is announced while a job runs lets it run, and holds back the next") {
    stage on("finish");
    on.start_with_job();
    on.put_job("job-2");
    write_file(on.mode_file(), "SPOT_RECLAIM\n");
    on.let_finish();
    REQUIRE(on.prints(no_claim));
    CHECK(on.names("done") == std::vector<std::string>{"job-1"});
    CHECK(on.names("request") == std::vector<std::string>{"job-2"});
    fs::remove(on.mode_file());  // as at the start, when there was none
    on.child();
    on.let_finish();
    CHECK(eventually([&] { return on.names("done").size() == 2; }));
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: words other than SPOT_RECLAIM hold no job back") {
    for (const std::string content : {"", "spot_reclaim", "SPOT_RECLAIM now", "SPOT_RECLAIMED"}) {
        CAPTURE(content);
        stage on("finish");
        write_file(on.mode_file(), content);
        on.start_with_job();
        CHECK(on.controller.count("no job is claimed") == 0);
        on.stop_by(SIGUSR1);
    }
}

TEST_CASE("controller: without a job it stops at once, and names the default mode file") {
    stage on("finish");
    write_file(on.path("config.json"),
               "{\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"true\"]}");
    on.start();
    REQUIRE(on.prints("worker started"));
    on.stop_by(SIGTERM);
    CHECK(on.controller.count("msg=\"File /tmp/termination-type ") == 1);
    CHECK(on.logs({{"info", complete}}));
    CHECK(on.controller.count("metrics server") == 0);
}

TEST_CASE("controller: the jobs of several children all return to request/") {
    stage on("deaf");
    on.configure("deaf", ",\"concurrency\":3");
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

TEST_CASE("controller: a child that fails is retried by retry_delays, and its job ends in failed/") {
    SUBCASE("the default: three runs") {
        stage on("fail");
        on.put_job("job-1");
        on.start();
        for (int run = 0; run < 3; ++run) on.child();
        CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
        CHECK(on.controller.count("msg=\"Job job-1 failed\" error=\"exit status 3\"") == 3);
        on.stop_by(SIGTERM);
    }
    SUBCASE("none: one run") {
        stage on("fail", "");
        on.configure("fail", ",\"retry_delays\":[]");
        on.start_with_job();
        CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
        CHECK(on.controller.count("Job job-1 failed") == 1);
        on.stop_by(SIGTERM);
    }
}

TEST_CASE("controller: moved from failed/ to request/ by hand, a job has one more run") {
    stage on;
    on.configure("fail", ",\"retry_delays\":[0]");
    on.put_job("job-1");
    on.start();
    for (int runs = 2; runs < 4; ++runs) {
        CHECK(eventually([&] { return fs::exists(on.path("spool/failed/.about.job-1")); }));
        CHECK(on.job_is_only_in("failed"));
        CHECK(on.controller.count("Process execution-job-1 started") == runs);
        fs::rename(on.path("spool/failed/job-1"), on.path("spool/request/job-1"));
        REQUIRE(on.prints("attempt=" + std::to_string(runs + 1)));
        CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
    }
    on.stop_by(SIGTERM);
    CHECK(on.controller.count("Process execution-job-1 started") == 4);
}

TEST_CASE("controller: a child that removed or moved its own file and exits with 0 has completed its job") {
    for (const char* how : {"rm -- \"$0\"", "mv -- \"$0\" \"$0.elsewhere\""}) {
        CAPTURE(how);
        stage on;
        std::string text = how;
        for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2)
            text.insert(at, "\\");
        write_file(on.path("config.json"),
                   "{\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"sh\",\"-c\"," +
                       in_quotes(text) +
                       ",\"{job}\"],\"termination_type_file\":" + in_quotes(on.mode_file()) + "}");
        write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
        on.put_job("job-1");
        on.start();
        REQUIRE(on.prints("level=info msg=\"Job job-1 removed or moved its own file; it is done without\""));
        on.stop_by(SIGTERM);
        CHECK(on.prints(" completed=1 failed=0 "));
        CHECK(on.prints(" gone=0 "));
        CHECK(on.controller.count("settled elsewhere") == 0);
        CHECK(on.names("request").empty());
        CHECK(on.names("failed").empty());
    }
}

TEST_CASE("controller: a command without a slash is found by PATH") {
    stage on;
    fs::create_directory(on.path("bin"));
    fs::create_symlink(program("child_job"), on.path("bin/prover"));
    std::string config = read_file(on.path("config.json"));
    const std::string path = program("child_job");
    config.replace(config.find(path), path.size(), "prover");
    write_file(on.path("config.json"), config);
    on.start({{"PATH", "/no/such/folder"}});
    CHECK(on.controller.wait() == 64);
    CHECK(on.controller.count("command: prover: is in no folder of PATH") == 1);
    on.put_job("job-1");
    on.start({{"PATH", "/no/such/folder:" + on.path("bin")}});
    on.child();
    on.stop_by(SIGUSR1);
}

TEST_CASE("controller: a child killed by someone else has failed") {
    stage on("finish");
    on.configure("finish", ",\"retry_delays\":[0]");
    on.put_job("job-1");
    on.start();
    ::kill(on.child(), SIGKILL);
    on.child();  // the second run
    on.let_finish();
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    CHECK(on.controller.count("msg=\"Job job-1 failed\" error=\"killed by SIGKILL\"") == 1);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: a command that cannot be started fails its jobs, and says why") {
    stage on;
    const std::string prover = on.path("prover");
    write_file(prover, "#!/no/such/interpreter\n");
    REQUIRE(::chmod(prover.c_str(), 0700) == 0);
    write_file(on.path("config.json"), "{\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[" +
                                           in_quotes(prover) + ",\"{job}\"],\"retry_delays\":[\"1ms\"]}");
    on.put_job("job-1");
    on.start();
    CHECK(eventually([&] { return on.job_is_only_in("failed"); }));
    CHECK(on.controller.count("msg=\"Job job-1 cannot be started\"") == 2);
    CHECK(on.prints("/prover': No such file or directory (errno 2)"));
    on.stop_by(SIGTERM);
}

TEST_CASE(
    "controller: what a child prints is logged, line by line, and {job} is its file wherever it stands") {
    stage on;
    write_file(on.path("config.json"), "{\"spool_dir\":" + in_quotes(on.path("spool")) +
                                           ",\"command\":[\"sh\",\"-c\",\"echo first; printf 'a \\\"b\\\"' "
                                           ">&2; cmp $0 $1\",\"{job}\",\"{job}\"]}");
    on.put_job("job-1");
    on.start();
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    CHECK(on.prints("msg=\"first\" process=execution-job-1 stream=stdout"));
    CHECK(on.prints("msg=\"a \\\"b\\\"\" process=execution-job-1 stream=stderr"));
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: whenever the signal comes, the job is in one place, whole, and nobody is left") {
    // The job ends by itself at about the same time. OJS_TEST_ROUNDS for more than a glance.
    const char* wanted = ::getenv("OJS_TEST_ROUNDS");
    const int rounds = wanted != nullptr ? std::atoi(wanted) : 12;
    int requeued = 0;
    for (int round = 0; round < rounds; ++round) {
        stage on("finish");
        on.let_finish();
        on.put_job("job-1");
        on.start();
        REQUIRE(on.prints("worker started"));
        std::this_thread::sleep_for(std::chrono::microseconds(round * 7919 % 12000));  // another moment each
        on.stop_by(round % 2 == 0 ? SIGTERM : SIGUSR1);
        const bool back = on.job_is_only_in("request");
        CHECK_MESSAGE((back || on.job_is_only_in("done")), on.controller.output());
        CHECK(on.all_gone());
        requeued += back ? 1 : 0;
    }
    MESSAGE(requeued << " of " << rounds << " jobs went back");
}

#ifdef __linux__
TEST_CASE("controller: a job whose child survives SIGKILL stays claimed until the child has ended") {
    stage on;
    on.put_job("job-1");
    on.configure("finish", "");
    on.start();
    const pid_t child = on.child();
    captor held(child);
    if (!held.holds()) {
        MESSAGE("no process may be traced here: skipped");
        on.stop_by(SIGUSR1);
        return;
    }
    SUBCASE("it ends while the stop still waits: the job goes back") {
        on.controller.signal(SIGUSR1);
        REQUIRE(held.has_caught());
        REQUIRE(on.prints("Process execution-job-1 is still there"));
        CHECK(on.prints("its process may still run; the job stays claimed"));
        CHECK(on.job_is_only_in("processing"));
        held.release();
        const int status = on.controller.wait();
        CHECK((status == 0 || status == 75));  // 75: this test was slow, and the stop did not wait for it
    }
    SUBCASE("it outlasts the stop: the controller stays, and with it the claim") {
        on.controller.signal(SIGUSR1);
        REQUIRE(held.has_caught());
        REQUIRE(on.prints("Process execution-job-1 does not end. Waiting for it"));
        CHECK_FALSE(on.controller.ended());
        CHECK(on.job_is_only_in("processing"));
        CHECK(on.prints("job could not be reported"));
        held.release();
        CHECK(on.controller.wait() == 75);
    }
    CHECK(on.all_gone());
    CHECK(on.job_is_only_in("request"));
}

TEST_CASE("controller: when it is killed its child dies too, and the next one recovers the job") {
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

TEST_CASE("controller: a wrong configuration is refused with the key's name, and nothing is started") {
    struct wrong {
        const char* text;
        const char* says;
    };
    const wrong all[] = {
        {"", "invalid JSON: there is nothing"},
        {"[]", "is not a JSON object"},
        {"{} x", "something follows the value in line 1"},
        {"{\"spool_dir\":", "invalid JSON: syntax error in line 1"},
        {"{\"command\":[\"true\"]}", "spool_dir is missing"},
        {"{\"spool_dir\":\"/tmp\"}", "command is missing"},
        {"{\"spool_dir\":\"\"}", "spool_dir: must be a string, not empty"},
        {"{\"spool_dir\":7}", "spool_dir: must be a string"},
        {"{\"spool_dir\":\"a\\u0000b\"}", "spool_dir: holds a NUL byte"},
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
        {"{\"a\":1,\"a\":1}", "a: is given twice"},
        {"{\"controller\":7}", "controller: must be an object"},
        {"{\"controller\":{\"controller\":{}}}", "controller: is unknown"},
        {"{\"controller\":{\"concurrency\":1,\"concurrency\":1}}", "concurrency: is given twice"},
        {"{\"controller\":{\"concurrency\":1},\"concurrency\":1}", "concurrency: is given twice"},
        {"spool_dir: /tmp", "invalid JSON"},
        {"{\"retry_delays\":1}", "retry_delays: must be an array"},
        {"{\"retry_delays\":[-1]}", "retry_delays: must be from 0"},
        {"{\"retry_delays\":[\"1x\"]}", "retry_delays: '1x' is not a duration"},
        {"{\"termination_grace_period\":\"3550 s\"}", "termination_grace_period: '3550 s' is not a duration"},
        {"{\"termination_grace_period\":true}", "termination_grace_period: must be a duration"},
        {"{\"termination_grace_period\":1e12}", "termination_grace_period: must be from 0"},
        {"{\"termination_grace_period\":1e999}", "a number is too large"},
        {"{\"container_grace_period\":0}", "container_grace_period: must be longer than 0"},
        {"{\"child_process_shutdown_timeout\":\"\"}", "child_process_shutdown_timeout: '' is not a duration"},
        {"{\"termination_type_file\":\"\"}", "termination_type_file: must be a string"},
        {"{\"spot_instance_mode\":\"no\"}", "spot_instance_mode: must be true or false"},
        {"{\"concurrency\":0}", "concurrency: must be a whole number"},
        {"{\"concurrency\":1.5}", "concurrency: must be a whole number"},
        {"{\"metrics_address\":8080}", "metrics_address: must be a string"},
        {"{\"termination_grace\":1}", "termination_grace: is unknown"},
        {"{BASE,\"termination_grace_period\":10}", "child_process_shutdown_timeout must be shorter than"},
        {"{BASE,\"metrics_address\":\"nonsense\"}", "metrics_address: "},
        {"{BASE,\"metrics_address\":\"192.0.2.1:1\"}", "metrics_address '192.0.2.1:1'"},
    };
    stage on;
    const std::string base = "\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"true\"]";
    for (const wrong& each : all) {
        CAPTURE(each.text);
        std::string text = each.text;
        if (text.find("BASE") != std::string::npos) text.replace(text.find("BASE"), 4, base);
        write_file(on.path("config.json"), text);
        on.start();
        CHECK(on.controller.wait() == 64);
        CHECK_MESSAGE(on.controller.count(each.says) == 1, on.controller.output());
    }
}

// The guide's own "Controller Config", word for word.
constexpr const char* config_of_guide = R"([controller]
retry_delays = [0, 1]

# Graceful shutdown settings (only used when file = "NORMAL_SHUTDOWN")
termination_grace_period = "3550s"           # 59 minutes
child_process_shutdown_timeout = "10s"       # SIGTERM → SIGKILL timeout

# Optional: custom path for termination type file
# Defaults to /tmp/termination-type if not specified
# termination_type_file = "/tmp/termination-type"

# Spot instance mode flag (DEPRECATED, not checked by code)
# Behavior now controlled by termination type file
spot_instance_mode = false
)";

TEST_CASE("controller: the guide's config.toml runs, with the queue and the command it does not name") {
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

TEST_CASE("controller: TOML that the guide does not use is refused with its line and key") {
    struct wrong {
        const char* text;
        const char* says;
    };
    const wrong all[] = {
        {"\n[controller]\ncommand = [\n",
         ": line 3: command: must be a \"string\", number, boolean or array"},
        {"termination_type_file = 'C:'", ": line 1: termination_type_file: must be"},
        {"spool_dir = \"a\" b", ": line 1: spool_dir: must be"},
        {"concurrency = 1_0", ": line 1: concurrency: must be"},
        {"concurrency =", ": line 1: concurrency: must be"},
        {"concurrency = null", ": line 1: concurrency: must be"},
        {"concurrency = 1e999", ": line 1: concurrency: must be"},
        {"# c\nretry_delays = [{\"a\": 1}]", ": line 2: retry_delays: must be"},
        {"a.b = 1", ": line 1: 'a.b = 1': must be KEY = VALUE"},
        {"\"concurrency\" = 1", ": line 1: '\"concurrency\" = 1': must be"},
        {"{\"concurrency\": 1}", ": line 1: '{\"concurrency\": 1}': must be"},
        {"[[controller]]", ": line 1: '[[controller]]': must be [NAME]"},
        {"[a.b] # c", ": line 1: '[a.b] # c': must be [NAME]"},
        {"[controller]\n[controller]", ": line 2: controller: is given twice"},
        {"concurrency = 1\nconcurrency = 1", ": line 2: concurrency: is given twice"},
        {"concurrency = 1\n[controller]\nconcurrency = 1", ": concurrency: is given twice"},
        {"[prover]\nconcurrency = 1", ": prover: is unknown"},
        {"controller = 1", ": controller: must be an object"},
        {"concurrency = 0", ": concurrency: must be a whole number"},
    };
    stage on;
    const std::string config = on.path("config.toml");
    for (const wrong& each : all) {
        CAPTURE(each.text);
        write_file(config, each.text);
        process refused({program("controller"), "--config", config}, {});
        CHECK(refused.wait() == 64);
        CHECK_MESSAGE(refused.count(config + each.says) == 1, refused.output());
    }
}

TEST_CASE("controller: an object \"controller\" is as good as what it holds") {
    stage on("finish");
    const std::string flat = read_file(on.path("config.json"));
    write_file(on.path("config.json"), "{\"concurrency\":2,\"controller\":" + flat + "}");
    on.start_with_job();
    on.let_finish();
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    CHECK(on.prints("concurrency=2"));
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: what the container grants must hold the grace period, in the words of its own keys") {
    stage on("finish");
    const auto start_with = [&](const char* grace, const char* granted) {
        on.configure("finish", std::string(",\"termination_grace_period\":") + grace +
                                   ",\"container_grace_period\":" + granted);
        on.start();
        REQUIRE(on.prints("worker started"));
        on.stop_by(SIGTERM);
        CHECK_MESSAGE(on.controller.count("OJS_") == 0, on.controller.output());
    };
    start_with("3550", "3600");
    CHECK(on.controller.count("finding=budget") == 0);
    start_with("3550", "3552");
    CHECK(on.controller.count("finding=budget-tight") == 1);
    for (const char* granted : {"3550", "\"50m\""}) {
        start_with("3550", granted);
        CHECK(on.controller.count("level=warning msg=\"the grace period of 59m10s cannot fit into the ") ==
              1);
        CHECK(on.controller.count(
                  "and set container_grace_period to the same; or set termination_grace_period to ") == 1);
    }
    start_with("\"800ms\",\"child_process_shutdown_timeout\":0", "3600");
    CHECK(on.controller.count("heartbeat interval") == 0);  // on which nothing hangs here
}

TEST_CASE("controller: spot_instance_mode is ignored with a warning") {
    stage on("finish");
    on.configure("finish", ",\"spot_instance_mode\":true");
    write_file(on.mode_file(), "NORMAL_SHUTDOWN\n");
    on.start_with_job();
    CHECK(on.controller.count("level=warning msg=\"spot_instance_mode is deprecated") == 1);
    on.controller.signal(SIGTERM);
    CHECK(on.prints("using graceful shutdown"));
    on.let_finish();
    CHECK(on.controller.wait() == 0);
}

TEST_CASE("controller: the flag's configuration precedes the variable's, and that the default one") {
    stage on("finish");
    const std::string other = on.path("other.json");
    write_file(other, "{\"termination_type_file\":" + in_quotes(on.path("of-the-variable")) + "}");
    const environment named = {{"OJS_CONTROLLER_CONFIG", other}};
    const auto mark = [&](const std::vector<std::string>& flags) {
        std::vector<std::string> words = {program("controller"), "--mark-normal"};
        words.insert(words.end(), flags.begin(), flags.end());
        return process(words, named).wait();
    };
    CHECK(mark({}) == 0);
    CHECK(fs::exists(on.path("of-the-variable")));
    CHECK_FALSE(fs::exists(on.mode_file()));
    CHECK(mark({"--config", on.path("config.json")}) == 0);
    CHECK(fs::exists(on.mode_file()));

    process works({program("controller")}, {{"OJS_CONTROLLER_CONFIG", on.path("config.json")}});
    CHECK(works.prints("worker started"));
    process absent({program("controller")}, {{"OJS_CONTROLLER_CONFIG", on.path("absent")}});
    CHECK(absent.wait() == 64);
    CHECK(absent.prints("cannot read " + on.path("absent")));
    if (fs::exists("/etc/controller/controller.json")) {
        MESSAGE("this machine has the usual one: without any is skipped");
        return;
    }
    process none({program("controller")}, {{"OJS_CONTROLLER_CONFIG", ""}});
    CHECK(none.wait() == 64);
    CHECK(none.output() ==
          "error: there is no configuration: give --config FILE, name it in OJS_CONTROLLER_CONFIG, or put it "
          "at "
          "/etc/controller/controller.json; see --help\n");
}

TEST_CASE("controller: wrong flags and files are status 64") {
    stage on;
    const auto status = [&](std::vector<std::string> flags) {
        flags.insert(flags.begin(), program("controller"));
        process run(flags, {});
        const int out = run.wait();
        CHECK(run.count("error: ") == (out == 0 ? 0 : 1));
        return out;
    };
    const std::string config = on.path("config.json");
    CHECK(status({""}) == 64);
    CHECK(status({"--config"}) == 64);
    CHECK(status({"--config", ""}) == 64);
    CHECK(status({"--config", "--help"}) == 64);
    CHECK(status({"--config", config, "--config", config}) == 64);
    CHECK(status({"--config", config, "more"}) == 64);
    CHECK(status({"--unknown"}) == 64);
    CHECK(status({"config.json"}) == 64);
    CHECK(status({"--config", on.path("absent")}) == 64);
    CHECK(status({"--config", on.path("spool")}) == 64);
    CHECK(status({"--config", on.path("fifo")}) == 64);
    CHECK(status({"--reclaim", "--mark-normal"}) == 64);
    CHECK(status({"--reclaim", "0"}) == 64);
    CHECK(status({"--reclaim", "1x"}) == 64);
    CHECK(status({"--mark-normal", "--config", on.path("absent")}) == 64);
    CHECK(status({"--help"}) == 0);

    write_file(config, "{\"termination_type_file\":\"/no/such/folder/file\"}");
    process cannot({program("controller"), "--mark-normal", "--config", config}, {});
    CHECK(cannot.wait() == 1);
    CHECK(cannot.prints("cannot write /no/such/folder/file: No such file or directory"));
    write_file(config, "{\"spool_dir\":\"/no/such/folder/spool\",\"command\":[\"true\"]}");
    CHECK(status({"--config", config}) == 64);
}

// ---- what it may be started with ----

TEST_CASE("controller: started with SIGCHLD ignored, it still learns how its children end") {
    stage on;
    write_file(on.path("config.json"),
               "{\"spool_dir\":" + in_quotes(on.path("spool")) + ",\"command\":[\"true\"]}");
    on.put_job("job-1");
    on.controller = process({"/bin/sh", "-c", "trap '' CHLD; exec \"$0\" --config \"$1\"",
                             program("controller"), on.path("config.json")},
                            {});
    CHECK(eventually([&] { return on.job_is_only_in("done"); }));
    CHECK(on.controller.count("Process execution-job-1 started") == 1);
    on.stop_by(SIGTERM);
}

TEST_CASE("controller: a blocked log delays no reclaim") {
    stage on;
    write_file(
        on.path("config.json"),
        "{\"spool_dir\":" + in_quotes(on.path("spool")) +
            ",\"command\":[\"sh\",\"-c\",\"yes $(printf %0100d 0) | head -c 300000; echo >$0; sleep 600\"," +
            in_quotes(on.path("flooded")) + "]}");
    const std::string log = on.path("log");
    REQUIRE(::mkfifo(log.c_str(), 0600) == 0);
    const int reader = ::open(log.c_str(), O_RDWR | O_CLOEXEC);  // and never read
    REQUIRE(reader >= 0);
    on.put_job("job-1");
    on.controller = process({"/bin/sh", "-c", "exec \"$0\" --config \"$1\" 2>\"$2\"", program("controller"),
                             on.path("config.json"), log},
                            {});
    CHECK(eventually([&] { return fs::exists(on.path("flooded")); }));
    on.controller.signal(SIGUSR1);
    CHECK(on.controller.wait() == 0);
    CHECK(on.job_is_only_in("request"));
    ::close(reader);
}

TEST_CASE("controller: a configuration nested too deep is refused") {
    stage on;
    std::string deep;
    for (int i = 0; i < 150000; ++i) deep += "{\"a\":";
    write_file(on.path("config.json"), deep);
    on.start();
    CHECK(on.controller.wait() == 64);
}
