// child_process: a program in its own process group, ended with all its descendants there.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../base/detail/sync.hpp"
#include "../base/error.hpp"
#include "../core/cancel_token.hpp"

#ifndef OJS_SHUTDOWN_USE_PIDFD
#ifdef __linux__
/// 0: a thread waits for each child, as on systems other than Linux and kernels without pidfd_open().
#define OJS_SHUTDOWN_USE_PIDFD 1
#else
#define OJS_SHUTDOWN_USE_PIDFD 0
#endif
#endif
#ifndef OJS_SHUTDOWN_USE_CLOSE_RANGE
#ifdef __linux__
/// 0: a child closes its descriptors one by one, as on systems other than Linux and kernels without close_range().
#define OJS_SHUTDOWN_USE_CLOSE_RANGE 1
#else
#define OJS_SHUTDOWN_USE_CLOSE_RANGE 0
#endif
#endif

namespace ojs {
inline namespace v0_1_0 {
/// The kinds of child_stream, made by its functions of the same names.
enum class child_stream_kind { null, inherit, file, pipe, lines, output };

/// What a child's standard stream is connected to.
struct child_stream {
    static child_stream null() { return {child_stream_kind::null, {}, {}}; }        ///< /dev/null
    static child_stream inherit() { return {child_stream_kind::inherit, {}, {}}; }  ///< our stream
    /// Standard input is read from the file's beginning; output is appended, and the file created if necessary. Opened
    /// in this process before the fork, without waiting: a FIFO without a reader is an error.
    static child_stream file(std::string path) { return {child_stream_kind::file, std::move(path), {}}; }
    /// A pipe; our end is child_process::input(), output() or errors().
    static child_stream pipe() { return {child_stream_kind::pipe, {}, {}}; }
    /// Calls `on_line` for every line, without its newline, on a separate thread; longer lines arrive in pieces of 8
    /// KiB. It must be short, as a slow callback blocks the child, and must not use the child_process. Its exceptions
    /// are dropped. When wait() returns, every line written before the child ended has been passed on, and the stream
    /// is closed. terminate() and kill() wait for that until the grace is over, at least 100 ms, and drop the rest. Not
    /// for input.
    static child_stream lines(function<void(std::string_view)> on_line) {
        return {child_stream_kind::lines, {}, std::move(on_line)};
    }
    /// The child's output, of which its errors become a part: for child_options::errors only.
    static child_stream output() { return {child_stream_kind::output, {}, {}}; }

    child_stream_kind kind;                    ///< set by the functions above
    std::string path;                          ///< of file()
    function<void(std::string_view)> on_line;  ///< of lines()
};

/// A resource limit of the child.
struct child_limit {
    int resource = 0;        ///< RLIMIT_CPU, RLIMIT_AS, ... of setrlimit(2)
    std::uint64_t soft = 0;  ///< in the resource's unit
    std::uint64_t hard = 0;  ///< in the same unit
};

/// How a child is started.
struct child_options {
    /// The program and its arguments; no shell is involved. A name without a slash is looked up in the PATH of the
    /// child's environment (default: /usr/local/bin:/usr/bin:/bin).
    std::vector<std::string> command;
    std::vector<std::string> environment;  ///< "NAME=value", added to or replacing inherited ones
    bool inherit_environment = true;       ///< start() reads ours: no other thread may call setenv() meanwhile
    /// Inherit also OJS_AUTH_TOKEN, OJS_HEALTH_TOKEN, NOTIFY_SOCKET, WATCHDOG_PID and WATCHDOG_USEC: the secrets of
    /// this process, and the variables of its service manager. Those in `environment` are always passed.
    bool inherit_private_variables = false;
    std::string working_directory;                  ///< empty: ours
    child_stream input = child_stream::null();      ///< standard input
    child_stream output = child_stream::inherit();  ///< standard output
    child_stream errors = child_stream::inherit();  ///< standard error
    /// Further descriptors that the child inherits, under the same numbers. All others are closed, with or without
    /// close-on-exec.
    std::vector<int> keep_descriptors;
    /// The child leads its own process group, which receives the signals. False: it stays in our group, and signals
    /// reach the child but not its descendants.
    bool own_group = true;
    /// False: processes left in its group are killed when the child ends by itself.
    bool leave_orphans = false;
    std::vector<child_limit> limits;  ///< set before exec()
    /// From fork() to exec(): a program on an unresponsive file system must not block the caller.
    std::chrono::milliseconds start_timeout{30000};
    /// Called with the child's process id before its exec(), so that the id can be saved first. If it fails, start()
    /// returns its error and there is no child. If this process ends meanwhile, so does the child.
    function<result<void>(pid_t)> before_exec;
    // Linux: the signal that the child gets when this process ends for any reason; 0: none, the child may outlive it.
    // Grandchildren do not inherit it, and the kernel drops it for set-user-ID programs. The kernel binds it to the
    // thread that forked, so each child keeps a thread here until it ends. Other systems: errc::unsupported.
#ifdef __linux__
    int death_signal = SIGKILL;  ///< sent when this process ends, see above
#else
    int death_signal = 0;
#endif
};

/// How a child ended.
struct child_exit {
    int code = 0;              ///< its exit status, 0 to 255; 0 if a signal ended it
    int signal = 0;            ///< the signal that ended it, or 0
    bool core_dumped = false;  ///< true: a core file was left

    bool ok() const noexcept { return code == 0 && signal == 0; }  ///< exit status 0
    /// "exit status 3", "killed by SIGKILL"; explains 126, 127 and 128+n. Thread-safe.
    std::string describe() const;
};

class child_process;

namespace detail {
class child_state;
// child_process::start(). With `thread_outlives_child`, death_signal needs no further thread. errc::cancelled:
// `interrupt_fd` became readable before the program ran; otherwise as errc::timed_out.
result<child_process> start_child(const child_options& options, int interrupt_fd, bool thread_outlives_child);
// Whether start() would find an executable program now. errc::invalid_argument: the path and the reason.
result<void> check_program(const child_options& options);
}  // namespace detail

/// A started program, with its process group. Its signals are reset: an empty mask and default dispositions.
///
///     ojs::child_options options;
///     options.command = {"convert", "in.png", "out.jpg"};
///     auto child = ojs::child_process::start(options);
///     auto end = child ? child->wait_until(ojs::time_point::max(), job.token()) : child.error();
///     if (!end && end.error().code == ojs::errc::cancelled) end = child->terminate(10s);
///
/// Every member is thread-safe, except for moving and destroying; none is async-signal-safe. Other children of the
/// process are never reaped. If other code reaps this one (waitpid(-1), or SIGCHLD ignored), waiting fails with
/// errc::system and ECHILD; processes left in its group are ended nevertheless. [Spot]
class child_process {
  public:
    /// Returns when the program runs. Errors: errc::invalid_argument for invalid options; errc::system, with errno, for
    /// a failed step from fork() to exec(); errc::timed_out after start_timeout. There is no child then, or a killed
    /// one that the kernel still holds before exec().
    static result<child_process> start(const child_options& options);

    child_process() noexcept;                                  ///< no child; to be assigned to
    child_process(child_process&& other) noexcept;             ///< `other` has no child then
    child_process& operator=(child_process&& other) noexcept;  ///< swaps the children
    /// Kills a running child as kill() does. Does nothing in a process forked meanwhile.
    ~child_process();

    pid_t pid() const noexcept;  ///< the id of the child and of its group; 0: no child
    /// Becomes readable when the child has ended, for a poll loop. Do not read from it. -1: no child.
    int fd() const noexcept;
    /// Our ends of streams that are pipe(); else -1. They block, and belong to this object. Writing to a child that has
    /// closed its input raises SIGPIPE.
    int input() const noexcept;
    int output() const noexcept;  ///< our end of the output, like input()
    int errors() const noexcept;  ///< our end of the errors, like input()
    /// Closes the child's input. No other thread may write to it meanwhile.
    void close_input() noexcept;

    /// Waits until the child has ended, takes its status, and ends the rest of its group. May be repeated.
    /// errc::timed_out at the deadline; errc::cancelled once `token` is cancelled (both: the child may still run);
    /// errc::system without a free descriptor for the token.
    result<child_exit> wait(time_point deadline = time_point::max());
    result<child_exit> wait_until(time_point deadline, const cancel_token& token);  ///< wait() that `token` ends

    /// Sends a signal to the group. errc::system: ESRCH once it has ended, ECHILD if other code took the status.
    result<void> signal(int number);
    /// Sends SIGTERM (and SIGCONT, for stopped processes) to the group, and SIGKILL to the rest of it after `grace`.
    /// With /proc the complete group gets the grace, else it ends with the child itself. `kill_timeout` and errors as
    /// for kill().
    result<child_exit> terminate(detail::any_ms grace, detail::any_ms kill_timeout = std::chrono::milliseconds(5000));
    /// Sends SIGKILL to the group. errc::timed_out if the child has not ended after `kill_timeout`: the kernel is busy
    /// with it, or does not permit the signal. It may then still run: its work must not be given to another process.
    result<child_exit> kill(detail::any_ms kill_timeout = std::chrono::milliseconds(5000));

  private:
    friend result<child_process> detail::start_child(const child_options&, int, bool);
    detail::ref<detail::child_state> state_;
};

/// Resets the signal dispositions of a child made by fork(), then empties its signal mask. Fork with all signals
/// blocked, and call it in the child before exec(). Async-signal-safe.
void reset_child_signals() noexcept;
}  // namespace v0_1_0
}  // namespace ojs
