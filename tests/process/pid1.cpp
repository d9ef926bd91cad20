// The worker as PID 1 of a PID namespace, alone in an empty root, as in an image made FROM scratch. The kernel drops
// a signal to PID 1 that is neither handled nor blocked at that moment.
#include <sched.h>
#include <sys/prctl.h>
#ifdef __linux__
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#endif

#include <filesystem>
#include <fstream>

#include "harness.hpp"

using namespace test;

namespace {

// A folder with the static worker and, if requested, an empty folder "proc".
std::string make_root(bool with_proc) {
    std::string path = scratch_file("root");
    std::filesystem::create_directory(path);
    std::filesystem::copy_file(program("static_worker"), path + "/worker");
    if (with_proc) std::filesystem::create_directory(path + "/proc");
    return path;
}

struct start_options {
    bool mount_proc = false;
    bool term_pending = false;  // blocked, as by `env --block-signal=TERM`, and sent before the exec
};

// Forks a child in its own namespaces; returns as fork() does. Without root it adds a user namespace.
pid_t fork_as_pid1() {
#ifdef __linux__
    const long user = ::geteuid() == 0 ? 0 : CLONE_NEWUSER;
    return static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | user | SIGCHLD, nullptr,
                                        nullptr, nullptr, nullptr));
#else
    errno = ENOSYS;
    return -1;
#endif
}

bool mount_proc(const std::string& root) {
#ifdef __linux__
    return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("proc", (root + "/proc").c_str(), "proc", 0, nullptr) == 0;
#else
    return root.empty();
#endif
}

// In the child, up to its exec: only async-signal-safe calls. Returns only if it fails.
void become_worker(const std::string& root, const start_options& options, const std::string& output,
                   char* const* variables) {
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    ::setpgid(0, 0);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (null < 0 || out < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0) return;
    if (options.mount_proc && !mount_proc(root)) return;
    if (::chroot(root.c_str()) != 0 || ::chdir("/") != 0) return;
    sigset_t mask;
    sigemptyset(&mask);
    if (options.term_pending) sigaddset(&mask, SIGTERM);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    if (options.term_pending) ::kill(::getpid(), SIGTERM);
    char name[] = "/worker";
    char* const arguments[] = {name, nullptr};
    ::execve(name, arguments, variables);
}

constexpr int not_started = 126;

// Returns right after the exec: its close-on-exec pipe has closed.
process start_as_pid1(const std::string& root, const environment& settings,
                      const start_options& options = {}) {
    std::vector<std::string> strings;
    for (const auto& [name, value] : settings) strings.push_back(name + "=" + value);
    std::vector<char*> variables;
    for (std::string& each : strings) variables.push_back(&each[0]);
    variables.push_back(nullptr);
    const std::string output = scratch_file("output");
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const pid_t child = fork_as_pid1();
    if (child == 0) {
        become_worker(root, options, output, variables.data());
        ::_exit(not_started);
    }
    ::close(ends[1]);
    char none = 0;
    while (::read(ends[0], &none, 1) < 0 && errno == EINTR) {
    }
    ::close(ends[0]);
    REQUIRE_MESSAGE(child > 0, "clone: " << std::strerror(errno));
    return process(child, output);
}

// Why these tests cannot run here; empty: they can.
std::string obstacle(bool with_proc) {
    if (::access(program("static_worker").c_str(), X_OK) != 0) return "there is no static_worker";
    const std::string root = make_root(with_proc);
    start_options options;
    options.mount_proc = with_proc;
    const pid_t child = fork_as_pid1();
    if (child == 0) {
        if (with_proc && !mount_proc(root)) ::_exit(errno);
        ::_exit(::chroot(root.c_str()) == 0 ? 0 : errno);
    }
    if (child < 0) return std::string("no PID namespace available: ") + std::strerror(errno);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status == 0) return "";
    return std::string(with_proc ? "no /proc or " : "no ") +
           "empty root available: " + std::strerror(WEXITSTATUS(status));
}

const std::string& known_obstacle(bool with_proc) {
    static const std::string found[] = {obstacle(false), obstacle(true)};
    return found[with_proc ? 1 : 0];
}

environment settings_for(const backend& jobs, const std::string& id) {
    return {{"OJS_URL", jobs.url()},
            {"OJS_WORKER_ID", id},
            {"OJS_LOG_FORMAT", "text"},
            {"OJS_HEARTBEAT_INTERVAL", "100ms"},
            {"OJS_POLL_INTERVAL", "20ms"}};
}

// Whether a SIGTERM would be kept now: blocked or handled.
bool keeps_term(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
        const bool counts = line.compare(0, 7, "SigBlk:") == 0 || line.compare(0, 7, "SigCgt:") == 0;
        if (counts && (std::stoull(line.substr(8), nullptr, 16) >> (SIGTERM - 1) & 1U) != 0) return true;
    }
    return false;
}

// Stands between a worker and its backend, and holds back the answers to ACKs until it lets go.
class relay {
  public:
    explicit relay(const std::string& backend_url)
        : server_(
              ojs::http_server::start("127.0.0.1:0", [this, backend_url](const ojs::http_request& request) {
                  auto answer = ask(backend_url, request.method, request.target, request.body);
                  ojs::http_response out;
                  out.drop = !answer;
                  if (!answer) return out;
                  out.status = answer->status;
                  out.body = answer->body;
                  if (request.target != "/ojs/v1/workers/ack") return out;
                  held_.set();
                  static_cast<void>(going_.wait());
                  return out;
              })) {
        REQUIRE(server_);
    }
    ~relay() { let_go(); }

    std::string url() const { return "http://" + server_->address(); }
    bool holds() const { return held_.wait(); }  // waits until it has an answer to hold back
    void let_go() { going_.set(); }

  private:
    event held_;
    event going_;
    ojs::result<ojs::http_server> server_;  // the last: it uses both
};

// Is quiet and resumes, serves, drains with a job in flight, and ends with 0.
void serve_and_drain(const std::string& root, const start_options& options) {
    backend jobs;
    relay between(jobs.url());
    environment settings = settings_for(jobs, "w");
    settings["OJS_URL"] = between.url();
    settings["OJS_REQUEST_TIMEOUT"] = "1m";
    process worker = start_as_pid1(root, settings, options);
    REQUIRE(jobs.event(beat_in_state("w", "running")).what == json::kind::object);
    worker.signal(SIGTSTP);
    REQUIRE(jobs.event(beat_in_state("w", "quiet")).what == json::kind::object);
    const std::string id = jobs.push_one("noop", "[]");
    worker.signal(SIGCONT);
    REQUIRE(between.holds());  // until its ACK is answered the job is in flight
    worker.signal(SIGTERM);
    const auto drains = [&](const json& event) {
        return beat_in_state("w", "quiet")(event) && event["active"].holds(id);
    };
    REQUIRE(jobs.event(drains).what == json::kind::object);
    between.let_go();
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(worker.prints("pid=1 "));
    CHECK(jobs.state_of(id) == "completed");
    CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
    CHECK(jobs.count(job_event(id, "nack")) == 0);
}

}  // namespace

TEST_CASE("static_worker: the build contains the static worker on Linux x86_64 and aarch64") {
    for (const bool with_proc : {false, true}) {
        if (!known_obstacle(with_proc).empty()) MESSAGE("skipped: " << known_obstacle(with_proc));
    }
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
    // A machine may refuse namespaces; but the worker must have been built.
    CHECK(::access(program("static_worker").c_str(), X_OK) == 0);
#endif
}

TEST_CASE("static_worker: PID 1 in an empty root serves, drains and exits with 0" *
          doctest::skip(!known_obstacle(false).empty())) {
    serve_and_drain(make_root(false), {});
}

TEST_CASE("static_worker: PID 1 in a root with only /proc serves, drains and exits with 0" *
          doctest::skip(!known_obstacle(true).empty())) {
    start_options options;
    options.mount_proc = true;
    serve_and_drain(make_root(true), options);
}

TEST_CASE("static_worker: as PID 1, a SIGTERM pending before exec -> it exits with 0, without a FETCH" *
          doctest::skip(!known_obstacle(false).empty())) {
    backend jobs;
    start_options options;
    options.term_pending = true;
    process worker = start_as_pid1(make_root(false), settings_for(jobs, "w"), options);
    REQUIRE_MESSAGE(worker.wait() == 0, worker.output());
    CHECK(jobs.count(worker_event("w", "fetch")) == 0);
}

#ifdef __linux__
// With the case before, a SIGTERM at any moment from there on is honoured: it stays pending until it is handled.
TEST_CASE("static_worker: the first system call blocks SIGTERM" *
          doctest::skip(::access(program("static_worker").c_str(), X_OK) != 0)) {
    const std::string path = program("static_worker");
    const pid_t child = ::fork();
    if (child == 0) {
        char* const none[] = {nullptr};
        if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) ::execve(path.c_str(), none, none);
        ::_exit(not_started);
    }
    const process worker(child, "");
    // It stops at the end of its exec, then at each entry to and exit from a system call.
    int status = 0;
    for (const char* stop : {"exec", "into the first call", "out of the first call"}) {
        CAPTURE(stop);
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFSTOPPED(status));
        CHECK(WSTOPSIG(status) == SIGTRAP);
        if (std::strcmp(stop, "out of the first call") == 0) break;
        CHECK_FALSE(keeps_term(child));
        REQUIRE(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
    }
    CHECK(keeps_term(child));
    ::kill(child, SIGKILL);
}
#endif
