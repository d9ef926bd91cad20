// child_launch: starts a child from its options, up to its exec() or to the step that failed.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <iterator>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/detail/wake.hpp"
#include "../child_process.hpp"

extern "C" char** environ;

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// Repeats `call` while a signal interrupts it. Async-signal-safe.
template <class Call>
auto retry_interrupted(Call call) noexcept {
    for (;;) {
        const auto out = call();
        if (out >= 0 || errno != EINTR) return out;
    }
}
inline pid_t reap_status(pid_t child, int* status = nullptr, int flags = 0) noexcept {
    return retry_interrupted([&] { return ::waitpid(child, status, flags); });
}

inline constexpr int first_free_descriptor = 3;  // after the standard streams
inline constexpr long max_descriptors = 65536;   // without close_range()
inline constexpr long min_descriptors = 4096;    // some may be older than a lower limit
// The secrets of this process, and the variables of its service manager.
inline constexpr const char* private_variables[] = {"OJS_AUTH_TOKEN", "OJS_HEALTH_TOKEN", "NOTIFY_SOCKET",
                                                    "WATCHDOG_PID", "WATCHDOG_USEC"};
inline constexpr int parent_poll_interval = 100;  // ms, of a child that waits for before_exec
inline constexpr const char* default_path = "/usr/local/bin:/usr/bin:/bin";

inline error invalid_options(const std::string& text) {
    return {errc::invalid_argument, 0, cat({"child_options: ", text})};
}

inline bool has_nul(const std::vector<std::string>& texts) {
    const auto contains_nul = [](const std::string& each) { return each.find('\0') != std::string::npos; };
    return std::any_of(texts.begin(), texts.end(), contains_nul);
}

inline bool same_variable(const char* a, const char* b) noexcept {
    const std::size_t length = strcspn(a, "=");
    return length == strcspn(b, "=") && strncmp(a, b, length) == 0;
}

inline bool is_private_variable(const char* text) noexcept {
    const auto is_it = [text](const char* each) { return same_variable(each, text); };
    return std::any_of(std::begin(private_variables), std::end(private_variables), is_it);
}

inline bool make_pipe(unique_fd& reader, unique_fd& writer) {
    int ends[2] = {-1, -1};
#ifdef __APPLE__
    if (::pipe(ends) != 0) return false;
    for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
#else
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
#endif
    reader = unique_fd(ends[0]);
    writer = unique_fd(ends[1]);
    return reader && writer;
}

// False: the deadline has passed, or `interrupt_fd` is readable.
inline bool await_readable(int fd, time_point deadline, int interrupt_fd = -1) noexcept {
    pollfd watched[] = {{fd, POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    for (;;) {
        const int ready = ::poll(watched, 2, poll_timeout(deadline));
        if (ready > 0) return watched[0].revents != 0;
        if (steady_clock::now() >= deadline) return false;
    }
}

// Prepares before the fork all that the child needs, as it must not allocate. Points into the options.
class child_launch {
  public:
    child_launch() = default;
    child_launch(const child_launch&) = delete;
    child_launch& operator=(const child_launch&) = delete;

    result<void> prepare(const child_options& options) {
        options_ = &options;
        result<void> checked = check(options);
        if (!checked) return checked;
        for (const std::string& each : options.command) arguments_.push_back(const_cast<char*>(each.c_str()));
        arguments_.push_back(nullptr);
        choose_environment(options);
        choose_candidates(options);
        const long limit = ::sysconf(_SC_OPEN_MAX);
        descriptor_limit_ =
            static_cast<int>(limit < 0 ? max_descriptors : std::clamp(limit, min_descriptors, max_descriptors));
        const child_stream* streams[] = {&options.input, &options.output, &options.errors};
        for (int number = 0; number < 3; ++number) {
            result<void> opened = open_stream(number, *streams[number]);
            if (!opened) return opened;
        }
        return {};
    }

    // Without a start: as exec() would find it. A script's interpreter is not looked at.
    result<void> find_program(const child_options& options) {
        result<void> checked = check(options);
        if (!checked) return checked;
        choose_environment(options);
        choose_candidates(options);
        const std::string& directory = options.working_directory;
        if (!directory.empty() && !is_folder(directory))
            return error{errc::invalid_argument, 0, cat({"working_directory ", directory, ": no such folder"})};
        const char* why = nullptr;
        std::string shown;
        for (const std::string& each : candidates_) {
            const bool relative = each[0] != '/' && !directory.empty();
            const std::string path = relative ? cat({directory, "/", each}) : each;
            const char* const fault = fault_of_program(path);
            if (fault == nullptr) return {};
            if (why != nullptr && fault == not_found) continue;  // what is there says more
            why = fault;
            shown = path;
        }
        if (why == nullptr || (why == not_found && candidates_.size() > 1)) {
            shown = options.command[0];
            why = "not found in the folders of PATH";
        }
        return error{errc::invalid_argument, 0, cat({printable(shown), ": ", why})};
    }

    // Not posix_spawn(), which has no limits and no death signal. Signals are blocked across the fork.
    result<pid_t> run() {
        unique_fd reader;
        if (!make_pipe(reader, report_)) return cannot_start("pipe()", errno);
        if (options_->before_exec && !make_pipe(gate_, gate_opener_)) return cannot_start("pipe()", errno);
        sigset_t all;
        sigset_t previous;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &previous);
        parent_ = ::getpid();
        const pid_t child = ::fork();
        if (child == 0) become_program();
        const int failed = errno;
        pthread_sigmask(SIG_SETMASK, &previous, nullptr);
        if (child < 0) return cannot_start("fork()", failed);
        for (unique_fd& each : child_ends_) each.reset();
        report_.reset();
        const result<void> known = open_gate(child);
        if (!known) return known.error();
        const time_point deadline = deadline_after(options_->start_timeout);
        if (!await_readable(reader.get(), deadline, interrupt_fd))
            return abandon_start(child, reader.get(), steady_clock::now() < deadline);
        failure why{};
        const ssize_t got = retry_interrupted([&] { return ::read(reader.get(), &why, sizeof why); });
        if (got != static_cast<ssize_t>(sizeof why)) return child;  // exec() closed the pipe
        reap_status(child);
        return cannot_start(why.step, static_cast<int>(why.sys_errno));
    }

    unique_fd our_ends[3];  // of pipes
    int interrupt_fd = -1;  // readable: run() is cancelled

  private:
    static constexpr int inherited = -1;
    static constexpr int as_output = -2;

    result<void> check(const child_options& options) const {
        if (options.command.empty() || options.command[0].empty()) return invalid_options("command is empty");
        if (has_nul(options.command) || has_nul(options.environment))
            return invalid_options("command or environment contains a NUL byte");
        for (const std::string& each : options.environment) {
            if (each.find('=') == 0 || each.find('=') == std::string::npos)
                return invalid_options(cat({"environment: '", printable(each, 40), "' is not NAME=value"}));
        }
        if (options.input.kind == child_stream_kind::lines || options.input.kind == child_stream_kind::output ||
            options.output.kind == child_stream_kind::output) {
            return invalid_options("input cannot be lines() or output(), and output cannot be output()");
        }
        for (const child_stream* each : {&options.output, &options.errors})
            if (each->kind == child_stream_kind::lines && !each->on_line)
                return invalid_options("lines() needs a function");
        for (const int each : options.keep_descriptors)
            if (::fcntl(each, F_GETFD) < 0) return invalid_options(cat({"keep_descriptors: ", each, " is not open"}));
        if (options.death_signal < 0 || options.death_signal >= NSIG) {
            return invalid_options(cat({"death_signal: there is no signal ", options.death_signal}));
        }
#ifndef __linux__
        if (options.death_signal != 0)
            return error{errc::unsupported, 0, "child_options: death_signal exists only on Linux"};
#endif
        return {};
    }

    void choose_environment(const child_options& options) {
        const std::vector<std::string>& given = options.environment;
        // The last of several variables of one name counts: those of the process are unique.
        const auto add = [&](const char* variable, std::size_t later) {
            while (later < given.size() && !same_variable(variable, given[later].c_str())) ++later;
            if (later == given.size()) environment_.push_back(const_cast<char*>(variable));
        };
        for (char** each = options.inherit_environment ? environ : nullptr; each != nullptr && *each != nullptr; ++each)
            if (options.inherit_private_variables || !is_private_variable(*each)) add(*each, 0);
        for (std::size_t i = 0; i < given.size(); ++i) add(given[i].c_str(), i + 1);
        environment_.push_back(nullptr);
    }

    const char* variable(const char* name) const {
        for (const char* each : environment_) {
            if (each != nullptr && same_variable(each, name) && strchr(each, '=') != nullptr)
                return strchr(each, '=') + 1;
        }
        return nullptr;
    }

    static constexpr const char* not_found = "no such file";
    static bool is_folder(const std::string& path) {
        struct stat found {};
        return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
    }
    // Null: it can be executed.
    static const char* fault_of_program(const std::string& path) {
        struct stat found {};
        if (::stat(path.c_str(), &found) != 0) return errno == EACCES ? "no access" : not_found;
        if (!S_ISREG(found.st_mode)) return "not a regular file";
        return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? nullptr : "not executable";
    }

    // An empty part of PATH would mean the working directory: that is left out.
    void choose_candidates(const child_options& options) {
        const std::string& name = options.command[0];
        if (name.find('/') != std::string::npos) return candidates_.push_back(name);
        const char* path = variable("PATH");
        for (std::string_view rest = path != nullptr ? path : default_path; !rest.empty();) {
            const std::string_view part = next_part(rest, ":");
            if (!part.empty()) candidates_.push_back(cat({part, "/", name}));
        }
    }

    result<void> open_stream(int number, const child_stream& stream) {
        switch (stream.kind) {
            case child_stream_kind::inherit: return {};
            case child_stream_kind::output: streams_[number] = as_output; return {};
            case child_stream_kind::pipe:
            case child_stream_kind::lines: return open_pipe(number);
            case child_stream_kind::null: return open_file(number, "/dev/null");
            case child_stream_kind::file: break;
        }
        return open_file(number, stream.path);
    }

    result<void> open_pipe(int number) {
        unique_fd reader;
        unique_fd writer;
        if (!make_pipe(reader, writer)) return cannot_start("pipe()", errno);
        if (number == STDIN_FILENO) std::swap(reader, writer);  // the child reads
        our_ends[number] = std::move(reader);
        child_ends_[number] = std::move(writer);
        streams_[number] = child_ends_[number].get();
        return {};
    }

    result<void> open_file(int number, const std::string& path) {
        const int access = number == STDIN_FILENO ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;
        // O_NONBLOCK only for the open: a FIFO must not block us.
        const int flags = access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
        child_ends_[number] = unique_fd(::open(path.c_str(), flags, 0666));
        const int file = streams_[number] = child_ends_[number].get();
        if (file < 0) return cannot_start(cat({"'", printable(path), "'"}), errno);
        ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);
        return {};
    }

    error cannot_start(std::string_view where, int failed) const {
        return {errc::system, failed,
                cat({"cannot start '", printable(options_->command[0]), "': ", where, where.empty() ? "" : ": ",
                     errno_text(failed)})};
    }

    // Runs before_exec, and lets the waiting child continue to its exec().
    result<void> open_gate(pid_t child) {
        if (!options_->before_exec) return {};
        result<void> known;
        try {
            known = options_->before_exec(child);
        } catch (...) {
            known = invalid_options(cat({"before_exec threw: ", thrown_text()}));
        }
        if (known && retry_interrupted([&] { return ::write(gate_opener_.get(), "", 1); }) == 1) return {};
        if (known) known = cannot_start("pipe()", errno);
        ::kill(child, SIGKILL);
        reap_status(child);
        return known;
    }

    // The pipe ends with the child. A child that the kernel still holds is not waited for: it will not run.
    error abandon_start(pid_t child, int report, bool in_time) const {
        ::kill(child, SIGKILL);
        const bool ended = await_readable(report, deadline_after(std::chrono::milliseconds(1000)));
        reap_status(child, nullptr, ended ? 0 : WNOHANG);
        return {in_time ? errc::cancelled : errc::timed_out, 0,
                cat({"cannot start '", printable(options_->command[0]),
                     "': ", in_time ? "cancelled before exec()" : "no exec() within ",
                     in_time ? "" : format_duration(options_->start_timeout),
                     ended ? "" : ", and the kernel holds the process"})};
    }

    // ---- in the child: only async-signal-safe calls; each step returns 0 or an errno ----

    struct failure {
        const char* step;  // the child's memory is a copy of ours, with the same pointers
        long sys_errno;    // as long as a pointer: no padding
    };

    [[noreturn]] void become_program() const noexcept {
        static constexpr struct {
            const char* name;
            int (child_launch::*take)() const noexcept;
        } steps[] = {
            {"descriptors", &child_launch::close_others},
            {"own_group", &child_launch::enter_group},
            {"death_signal", &child_launch::set_death_signal},
            {"before_exec", &child_launch::await_gate},
            {"standard streams", &child_launch::set_streams},
            {"keep_descriptors", &child_launch::keep_descriptors},
            {"working_directory", &child_launch::enter_directory},
            {"limits", &child_launch::set_limits},
            {"signals", &child_launch::reset_signals},
            {"", &child_launch::exec},
        };
        failure why{};
        for (const auto& each : steps) {
            why = {each.name, (this->*each.take)()};
            if (why.sys_errno != 0) break;
        }
        retry_interrupted([&] { return ::write(report_.get(), &why, sizeof why); });
        ::_exit(127);
    }

    // First: another child's start is detected only when every copy of its pipe is closed, this one's as well.
    int close_others() const noexcept {
        for (int from = first_free_descriptor, next = 0; from < INT_MAX; from = next + 1) {
            next = next_kept(from);
#if OJS_SHUTDOWN_USE_CLOSE_RANGE && defined(SYS_close_range)
            if (::syscall(SYS_close_range, from, next - 1, 0) == 0) continue;
#endif
            for (int fd = from; fd < next && fd < descriptor_limit_; ++fd) ::close(fd);
        }
        return 0;
    }

    int next_kept(int from) const noexcept {
        int out = INT_MAX - 1;
        const auto keep = [&](int fd) { out = fd >= from ? std::min(fd, out) : out; };
        for (const unique_fd* each : {&report_, &gate_, &child_ends_[0], &child_ends_[1], &child_ends_[2]})
            keep(each->get());
        for (const int fd : options_->keep_descriptors) keep(fd);
        return out;
    }

    int enter_group() const noexcept { return options_->own_group && ::setpgid(0, 0) != 0 ? errno : 0; }

    int set_death_signal() const noexcept {
#ifdef __linux__
        if (options_->death_signal == 0) return 0;
        if (::prctl(PR_SET_PDEATHSIG, options_->death_signal) != 0) return errno;
        if (::getppid() != parent_) ::_exit(127);  // it died before prctl()
#endif
        return 0;
    }

    // The parent may end before it opens the gate. That closes the pipe, unless another program has a copy of it.
    int await_gate() const noexcept {
        if (!gate_) return 0;
        pollfd watched{gate_.get(), POLLIN, 0};
        while (::poll(&watched, 1, parent_poll_interval) <= 0) {
            if (::getppid() != parent_) ::_exit(127);
        }
        char opened = 0;
        if (::read(gate_.get(), &opened, 1) != 1) ::_exit(127);
        return 0;
    }

    int set_streams() const noexcept {
        for (int number = 0; number < 3; ++number) {
            const int from = streams_[number] == as_output ? STDOUT_FILENO : streams_[number];
            if (from != inherited && ::dup2(from, number) < 0) return errno;
        }
        return 0;
    }

    int keep_descriptors() const noexcept {
        for (const int fd : options_->keep_descriptors) {
            if (fd >= first_free_descriptor && ::fcntl(fd, F_SETFD, 0) < 0) return errno;
        }
        return 0;
    }

    int enter_directory() const noexcept {
        const std::string& directory = options_->working_directory;
        return !directory.empty() && ::chdir(directory.c_str()) != 0 ? errno : 0;
    }

    int set_limits() const noexcept {
        for (const child_limit& each : options_->limits) {
            rlimit limit{};
            limit.rlim_cur = static_cast<rlim_t>(each.soft);
            limit.rlim_max = static_cast<rlim_t>(each.hard);
            using resource = decltype(RLIMIT_CPU);  // an enumeration in C++ with glibc
            if (::setrlimit(static_cast<resource>(each.resource), &limit) != 0) return errno;
        }
        return 0;
    }

    int reset_signals() const noexcept {
        reset_child_signals();
        return 0;
    }

    int exec() const noexcept {
        int refused = 0;
        int failed = ENOENT;
        for (const std::string& each : candidates_) {
            ::execve(each.c_str(), arguments_.begin(), environment_.begin());
            failed = errno;
            if (failed == EACCES) refused = failed;  // a later candidate may be executable
            if (failed != EACCES && failed != ENOENT && failed != ENOTDIR) return failed;
        }
        return refused != 0 ? refused : failed;
    }

    const child_options* options_ = nullptr;
    array<char*> arguments_;
    array<char*> environment_;
    std::vector<std::string> candidates_;
    unique_fd child_ends_[3];
    unique_fd report_;       // the child's end: closed by exec(), else receives the failure
    unique_fd gate_;         // the child's end, with before_exec
    unique_fd gate_opener_;  // ours
    int streams_[3] = {inherited, inherited, inherited};
    int descriptor_limit_ = 0;
    pid_t parent_ = 0;
};
}  // namespace detail

OJS_SHUTDOWN_INLINE void reset_child_signals() noexcept {
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; ++number) ::sigaction(number, &usual, nullptr);
    sigset_t none;
    sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}
}  // namespace v0_1_0
}  // namespace ojs
