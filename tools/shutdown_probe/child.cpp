// child: fork and exec, a thread that waits, a thread that reads.
#include "child.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>

extern char** environ;

namespace probe {
namespace {
constexpr std::size_t max_lines = 4000;
constexpr std::size_t max_line_length = 4000;

// The groups to kill when the probe itself is ended by a signal.
std::array<std::atomic<pid_t>, 8> groups{};

int register_group(pid_t group) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
        pid_t none = 0;
        if (groups[i].compare_exchange_strong(none, group)) return static_cast<int>(i);
    }
    return -1;
}

std::vector<std::string> variables(const environment& extra) {
    std::vector<std::string> out;
    for (char** each = environ; *each != nullptr; ++each) {
        const std::string name(*each, std::strcspn(*each, "="));
        if (name.compare(0, 4, "OJS_") != 0 && extra.count(name) == 0) out.emplace_back(*each);
    }
    for (const auto& [name, value] : extra) out.push_back(name + "=" + value);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (std::string& each : strings) out.push_back(each.data());
    out.push_back(nullptr);
    return out;
}

// In the child. Signals as in a fresh program, whatever started the probe had ignored or blocked.
[[noreturn]] void become(char* const* command, char* const* variables, pid_t parent, int output, int report, int go) {
    ::setpgid(0, 0);
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
#else
    static_cast<void>(parent);
#endif
    char byte = 0;  // waits until the group is registered, so that a signal to the probe leaves no orphan
    while (::read(go, &byte, 1) < 0 && errno == EINTR) {
    }
    for (const int number : {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGHUP, SIGPIPE, SIGTTIN, SIGUSR1, SIGCHLD})
        ::signal(number, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(output, 1);
    ::dup2(output, 2);
    environ = const_cast<char**>(variables);
    ::execvp(command[0], command);
    const int failure = errno;
    static_cast<void>(!::write(report, &failure, sizeof failure));
    ::_exit(127);
}

bool make_pipe(int (&ends)[2]) { return ::pipe2(ends, O_CLOEXEC) == 0; }
}  // namespace

void child::kill_all() noexcept {
    for (const std::atomic<pid_t>& each : groups) {
        const pid_t group = each.load();
        if (group > 0) ::kill(-group, SIGKILL);
    }
}

bool child::start(const std::vector<std::string>& command, const environment& extra, std::string& why) {
    int output[2];
    int report[2];
    int go[2];
    if (!make_pipe(output) || !make_pipe(report) || !make_pipe(go) || !make_pipe(stop_pipe_)) {
        why = std::string("no pipe: ") + std::strerror(errno);
        return false;
    }
    std::vector<std::string> words = command;
    std::vector<std::string> settings = variables(extra);
    const std::vector<char*> argv = pointers(words);
    const std::vector<char*> envp = pointers(settings);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become(argv.data(), envp.data(), parent, output[1], report[1], go[0]);
    ::close(output[1]);
    ::close(report[1]);
    ::close(go[0]);
    int failure = pid_ < 0 ? errno : 0;
    if (pid_ > 0) {
        ::setpgid(pid_, pid_);
        slot_ = register_group(pid_);
        static_cast<void>(!::write(go[1], "x", 1));
        while (::read(report[0], &failure, sizeof failure) < 0 && errno == EINTR) {
        }
        watcher_ = std::thread([this] { watch(); });
        listener_ = std::thread([this, fd = output[0]] { listen(fd); });
    } else {
        pid_ = 0;
        ::close(output[0]);
    }
    ::close(report[0]);
    ::close(go[1]);
    if (failure != 0) why = command.front() + ": " + std::strerror(failure);
    return failure == 0;
}

child::~child() {
    kill_group();
    for (const int fd : stop_pipe_) {
        if (fd >= 0) ::close(fd);
    }
}

void child::signal(int number) const {
    ::kill(pid_, number);  // reaped only after its group is gone, so the id cannot be reused
}

bool child::wait(milliseconds limit) {
    std::unique_lock<std::mutex> held(mutex_);
    return changed_.wait_for(held, limit, [this] { return ended_; });
}

void child::kill_group() {
    if (pid_ == 0) return;
    ::kill(-pid_, SIGKILL);
    if (watcher_.joinable()) watcher_.join();
    ::kill(-pid_, SIGKILL);  // grandchildren, where the process itself had ended before
    if (listener_.joinable()) {
        static_cast<void>(!::write(stop_pipe_[1], "x", 1));
        listener_.join();
    }
    if (slot_ >= 0) groups[static_cast<std::size_t>(slot_)] = 0;
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
}

// Records the time and the status; the process stays a zombie until kill_group().
void child::watch() {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    const std::lock_guard<std::mutex> held(mutex_);
    ended_at_ = clock::now();
    status_ = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    ended_ = true;
    changed_.notify_all();
}

// Reads all output, so that the worker never blocks on it.
void child::listen(int fd) {
    std::string rest;
    std::array<pollfd, 2> sources{{{fd, POLLIN, 0}, {stop_pipe_[0], POLLIN, 0}}};
    for (;;) {
        if (::poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) break;
        if ((sources[0].revents & (POLLIN | POLLHUP)) == 0) {
            if (sources[1].revents != 0) break;
            continue;
        }
        std::array<char, 16 * 1024> chunk{};
        const ssize_t n = ::read(fd, chunk.data(), chunk.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        rest.append(chunk.data(), static_cast<std::size_t>(n));
        const moment now = clock::now();
        const std::lock_guard<std::mutex> held(mutex_);
        std::size_t begin = 0;
        for (std::size_t end = 0; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
            lines_.push_back({now, rest.substr(begin, std::min(end - begin, max_line_length))});
        rest.erase(0, begin);
        if (rest.size() > max_line_length) rest.resize(max_line_length);
        while (lines_.size() > max_lines) lines_.pop_front();
        changed_.notify_all();
    }
    ::close(fd);
}

std::vector<line> child::output() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return {lines_.begin(), lines_.end()};
}

bool child::wait_output(const std::function<bool(const line&)>& matches, milliseconds limit) {
    std::unique_lock<std::mutex> held(mutex_);
    return changed_.wait_for(held, limit, [&] {
        for (const line& each : lines_) {
            if (matches(each)) return true;
        }
        return false;
    });
}

std::int64_t child::resident_kb() const {
    std::FILE* file = std::fopen(("/proc/" + std::to_string(pid_) + "/status").c_str(), "re");
    if (file == nullptr) return 0;
    std::array<char, 256> text{};
    long long kb = 0;
    while (std::fgets(text.data(), static_cast<int>(text.size()), file) != nullptr) {
        if (std::sscanf(text.data(), "VmRSS: %lld", &kb) == 1) break;
    }
    std::fclose(file);
    return kb;
}
}  // namespace probe
