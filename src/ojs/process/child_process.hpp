// child_process: a program in a process group of its own, ended with all it started.
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

// 0: a thread waits for each child, as everywhere but on Linux; found out at run time as well.
#ifndef OJS_SHUTDOWN_USE_PIDFD
#define OJS_SHUTDOWN_USE_PIDFD OJS_SHUTDOWN_ON_LINUX
#endif
// 0: a child closes its descriptors one by one, as everywhere but on Linux; found out at run time as well.
#ifndef OJS_SHUTDOWN_USE_CLOSE_RANGE
#define OJS_SHUTDOWN_USE_CLOSE_RANGE OJS_SHUTDOWN_ON_LINUX
#endif

namespace ojs {
inline namespace v0_1_0 {

enum class child_stream_kind { null, inherit, file, pipe, lines, output };

// Where one of the three standard streams of a child leads.
struct child_stream {
    static child_stream null() { return {child_stream_kind::null, {}, {}}; }        // /dev/null
    static child_stream inherit() { return {child_stream_kind::inherit, {}, {}}; }  // where ours leads
    // As standard input read from its beginning; else appended to, and made if need be. Opened here, before the child
    // is there, and without waiting: a FIFO that nobody reads is an error.
    static child_stream file(std::string path) { return {child_stream_kind::file, std::move(path), {}}; }
    // Our end is child_process::input(), output() or errors().
    static child_stream pipe() { return {child_stream_kind::pipe, {}, {}}; }
    // Calls back for every line, without its end, from a thread of its own; what is longer than 8 KiB comes in pieces
    // of that size. Must be short, as the child waits for it in the end, and not use the child_process. What it throws
    // is dropped. Every line written before the child ended has been passed on when wait() returns; then the stream is
    // closed. terminate() and kill() wait for that until the grace is over, at least 100 ms, and drop the rest. Not for
    // input.
    static child_stream lines(function<void(std::string_view)> on_line) {
        return {child_stream_kind::lines, {}, std::move(on_line)};
    }
    static child_stream output() {
        return {child_stream_kind::output, {}, {}};
    }  // of errors alone: with the output

    child_stream_kind kind;
    std::string path;
    function<void(std::string_view)> on_line;
};

struct child_limit {
    int resource = 0;  // RLIMIT_CPU, RLIMIT_AS, ... as setrlimit(2) takes it
    std::uint64_t soft = 0;
    std::uint64_t hard = 0;
};

struct child_options {
    // The program and its arguments, as they are: there is no shell. A name without a slash is looked up in the PATH
    // of the child's environment (/usr/local/bin:/usr/bin:/bin where it has none).
    std::vector<std::string> command;
    std::vector<std::string>
        environment;                  // "NAME=value", each added to what the child inherits, or instead of it
    bool inherit_environment = true;  // ours is read meanwhile: not while another thread calls setenv()
    // Then also OJS_AUTH_TOKEN, OJS_HEALTH_TOKEN, NOTIFY_SOCKET, WATCHDOG_PID and WATCHDOG_USEC: this process's
    // secrets, and what its service manager says to it alone. One that is given in `environment` is passed on in any
    // case.
    bool inherit_private_variables = false;
    std::string working_directory;  // empty: ours
    child_stream input = child_stream::null();
    child_stream output = child_stream::inherit();
    child_stream errors = child_stream::inherit();
    // Descriptors, by their numbers, that the child gets beside those three. It gets no others, whether they are
    // close-on-exec or not.
    std::vector<int> keep_descriptors;
    // The leader of a process group of its own, which is what signals go to. False: in ours, and signals go to the
    // child alone, so that what it has started is out of reach.
    bool own_group = true;
    // What is left of its group when the child ends by itself is killed; true: left alone.
    bool leave_orphans = false;
    std::vector<child_limit> limits;
    // From fork() to exec(): a program on a file system that does not answer must not hold up who starts it.
    std::chrono::milliseconds start_timeout{30000};
    // Called with the child's number before it becomes the program, so that it can be written down first. An error is
    // start()'s, and there is no child then; should this process end meanwhile, the child ends too.
    function<result<void>(pid_t)> before_exec;
    // Linux: the signal that the child gets when this process ends in any way; 0: none, and the child may outlive it.
    // Grandchildren do not inherit it, and the kernel drops it for a set-user-ID program. The kernel ties it to the
    // thread that forked: each child keeps such a thread here until it ends. Elsewhere errc::unsupported.
#ifdef __linux__
    int death_signal = SIGKILL;
#else
    int death_signal = 0;
#endif
};

// How a child ended.
struct child_exit {
    int code = 0;    // its exit status, 0 to 255; 0 where a signal ended it
    int signal = 0;  // the signal that ended it, or 0
    bool core_dumped = false;

    bool ok() const noexcept { return code == 0 && signal == 0; }
    // "exit status 3", "killed by SIGKILL"; what 126, 127 and 128+n mean is said too. Thread-safe.
    std::string describe() const;
};

class child_process;

namespace detail {
class child_state;
// child_process::start(), for a thread that lives as long as the child where `thread_stays`: death_signal then needs
// no other. errc::cancelled: `interrupt_fd` became readable before the program ran; then as for errc::timed_out.
result<child_process> start_child(const child_options& options, int interrupt_fd, bool thread_outlives_child);
}  // namespace detail

// A program that was started, with its process group. It has clean signals: an empty mask and default dispositions.
//
//     ojs::child_options options;
//     options.command = {"convert", "in.png", "out.jpg"};
//     auto child = ojs::child_process::start(options);
//     auto end = child ? child->wait_until(ojs::time_point::max(), job.token()) : child.error();
//     if (!end && end.error().code == ojs::errc::cancelled) end = child->terminate(10s);
//
// Every member is thread-safe, except for moving and destroying; none is async-signal-safe. No other child of the
// process is ever waited for. Should someone else take the status of this one (waitpid(-1), or SIGCHLD ignored), the
// waits say so with errc::system and ECHILD; what is left of its group is ended all the same. [Spot]
class child_process {
  public:
    // Returns when the program runs, or with why it does not: errc::invalid_argument for options that cannot be meant,
    // errc::system, with errno, for everything from fork() to exec() that failed; errc::timed_out after start_timeout.
    // Then there is no child, or one that was killed before exec(), and that the kernel holds.
    static result<child_process> start(const child_options& options);

    child_process() noexcept;  // no child; only to be assigned to
    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&& other) noexcept;
    // A child that still runs is killed as by kill(). Does nothing in a process forked off meanwhile.
    ~child_process();

    pid_t pid() const noexcept;  // also of its group; 0: no child
    // Readable once the child has ended, for a poll loop. Not to be read. -1: no child.
    int fd() const noexcept;
    // Our ends of streams that are pipe(); else -1. They block, and belong to this object. Writing to a child that does
    // not read any more raises SIGPIPE.
    int input() const noexcept;
    int output() const noexcept;
    int errors() const noexcept;
    // The child reads the end of its input. Not while another thread writes there.
    void close_input() noexcept;

    // Waits until the child has ended, takes its status, and ends what is left of its group. May be repeated.
    // errc::timed_out at the deadline; errc::cancelled once `token` is cancelled: then the child may still run;
    // errc::system where there is no descriptor left for the token.
    result<child_exit> wait(time_point deadline = time_point::max());
    result<child_exit> wait_until(time_point deadline, const cancel_token& token);

    // To the group. errc::system: ESRCH once it is over, ECHILD where the status was taken by someone else.
    result<void> signal(int number);
    // SIGTERM (and SIGCONT, for what is stopped) to the group, then SIGKILL to whatever of it is left after `grace`.
    // The grace is the whole group's where /proc tells who is in it, else it ends with the child itself. `patience` and
    // errors as of kill().
    result<child_exit> terminate(std::chrono::milliseconds grace,
                                 std::chrono::milliseconds kill_timeout = std::chrono::milliseconds(5000));
    // SIGKILL to the group. errc::timed_out if the child has not ended after `patience`: the kernel is busy with it, or
    // does not let us. Then it may still run: whatever it works on must not be given to another.
    result<child_exit> kill(std::chrono::milliseconds kill_timeout = std::chrono::milliseconds(5000));

  private:
    friend result<child_process> detail::start_child(const child_options&, int, bool);
    detail::ref<detail::child_state> state_;
};

// For your own fork(): gives the child default dispositions and then an empty signal mask. Call it in the child, which
// should have been forked with all signals blocked, before exec(). Async-signal-safe.
void child_reset() noexcept;

}  // namespace v0_1_0
}  // namespace ojs
