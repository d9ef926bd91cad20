#pragma once

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "../base/detail/light.hpp"
#include "../base/detail/proc.ipp"
#include "../base/detail/signal_names.ipp"
#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "../core/detail/wake.hpp"
#include "../core/signals.hpp"
#include "child_process.hpp"
#include "detail/child_lines.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline constexpr std::chrono::milliseconds group_poll_interval{10};  // once the leader has ended
inline constexpr std::chrono::milliseconds min_output_time{100};     // after terminate() and kill()

inline bool has_ended(pid_t pid) {
    const char state = read_stat("", cat({static_cast<long long>(pid)})).state;
    return state == 0 || state == 'Z' || state == 'X';
}

inline array<pid_t> all_processes() {
    array<pid_t> out;
    if (!OJS_SHUTDOWN_USE_PROC) return out;
    DIR* const folder = ::opendir("/proc");
    if (folder == nullptr) return out;
    while (const dirent* entry = ::readdir(folder)) {
        std::uint64_t number = 0;
        if (parse_number(entry->d_name, INT_MAX, number) && number != 0) out.push_back(static_cast<pid_t>(number));
    }
    ::closedir(folder);
    return out;
}

// False without /proc. Not kill(-group, 0): it finds the leader as well, which is reaped last to reserve the id.
inline bool group_has_others(pid_t group) {
    for (const pid_t pid : all_processes()) {
        if (pid != group && ::getpgid(pid) == group && !has_ended(pid)) return true;
    }
    return false;
}

inline bool ends_by_default(int number) noexcept {
    for (const int each : {SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH})
        if (number == each) return false;
    return known_signal_name(number) != nullptr;
}

// Sets whether the child has ended, without reaping it; without WNOHANG in `flags`, waits for that. False with errno.
inline bool check_exit(pid_t pid, int flags, bool& ended) noexcept {
    siginfo_t about{};
    const auto id = static_cast<id_t>(pid);
    const int failed = retry_interrupted([&] { return ::waitid(P_PID, id, &about, WEXITED | WNOWAIT | flags); });
    ended = about.si_pid != 0;
    return failed == 0;
}

// Becomes readable when the child has ended: a pidfd or, without one, a thread's wake. Neither reaps the child.
class exit_watch {
  public:
    result<void> start(pid_t pid) {
#if OJS_SHUTDOWN_USE_PIDFD && defined(SYS_pidfd_open)
        pidfd_ = unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
        if (pidfd_) return {};
#endif
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        shared_ = make_ref<ended_flag>();
        shared_->waker = std::move(*waker);
        const auto wait = [flag = shared_, pid] {
            bool ended = false;
            check_exit(pid, 0, ended);
            flag->waker.notify();
        };
        result<thread> started = thread::start(wait, {64 * 1024, false, "ojs-waits"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    int fd() const noexcept { return pidfd_ ? pidfd_.get() : shared_ ? shared_->waker.fd() : -1; }
    // The thread still runs if the child does.
    void join_or_detach(bool child_is_gone) { child_is_gone ? thread_.join() : thread_.detach(); }

  private:
    struct ended_flag : ref_counted {
        wake waker;
    };
    unique_fd pidfd_;
    ref<ended_flag> shared_;
    thread thread_;
};

class child_state : public ref_counted {
  public:
    explicit child_state(const child_options& options)
        : owner_(::getpid()),
          own_group_(options.own_group),
          kill_orphans_(options.own_group && !options.leave_orphans) {}
    ~child_state() override {
        watch_.join_or_detach(is_over());
        if (thread_) thread_->finish();
    }

    result<void> watch(pid_t pid, ref<child_thread> thread) {
        pid_ = pid;
        thread_ = std::move(thread);
        return watch_.start(pid_);
    }
    pid_t pid() const noexcept { return pid_; }
    int fd() const noexcept { return watch_.fd(); }
    bool is_forked_copy() const noexcept { return ::getpid() != owner_; }

    bool is_over() {
        const unique_lock held(mutex_);
        return stage_ == stage::over;
    }
    // `wake_fd` ends the wait with errc::cancelled when it becomes readable; -1: none.
    result<child_exit> wait(time_point deadline, int wake_fd) {
        for (;;) {
            const stage now_is = update_stage();
            if (now_is == stage::over) return end();
            const time_point now = steady_clock::now();
            if (now >= deadline) return error{errc::timed_out, 0, cat({"process ", pid_, " still runs"})};
            // An ended leader stays readable, so only time can end this wait.
            const bool lingers = now_is == stage::lingering;
            const time_point soon = now + group_poll_interval;
            pollfd watched[] = {{lingers ? -1 : fd(), POLLIN, 0}, {wake_fd, POLLIN, 0}};
            ::poll(watched, 2, poll_timeout(lingers ? std::min(soon, deadline) : deadline));
            if (watched[1].revents != 0 && update_stage() != stage::over)
                return error{errc::cancelled, 0, cat({"cancelled; process ", pid_, " still runs"})};
        }
    }

    result<void> signal(int number) {
        const unique_lock held(mutex_);
        return send(number);
    }

    // Sends `number` and SIGCONT. At `output_deadline` the rest of its own group is killed and its output ends.
    void request_exit(int number, time_point output_deadline) {
        const unique_lock held(mutex_);
        kill_orphans_ = own_group_;
        linger_until_ = output_until_ = output_deadline;
        static_cast<void>(send(number));
        static_cast<void>(send(SIGCONT));
    }

    unique_fd our_ends[3];

  private:
    enum class stage { running, lingering, over };

    // The only place where an ended child is reaped.
    stage update_stage() {
        const unique_lock held(mutex_);
        if (stage_ == stage::over) return stage_;
        bool ended = false;
        if (!check_exit(pid_, WNOHANG, ended)) return on_status_lost(errno);
        if (!ended) return stage::running;
        if (steady_clock::now() < linger_until_ && own_group_ && group_has_others(pid_)) return stage::lingering;
        return reap();
    }

    // The group is killed before its leader is reaped: until then the id cannot be reused.
    stage reap() {
        if (kill_orphans_) ::kill(-pid_, SIGKILL);
        int status = 0;
        if (reap_status(pid_, &status) < 0) return on_status_lost(errno);
        child_exit outcome;
        outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
#ifdef WCOREDUMP
        outcome.core_dumped = WIFSIGNALED(status) && WCOREDUMP(status);
#endif
        outcome_ = outcome;
        return stage_ = stage::over;
    }

    // A group with members keeps the id reserved; a process with that id means that the group is empty.
    stage on_status_lost(int failed) {
        if (kill_orphans_ && ::kill(pid_, 0) != 0 && errno == ESRCH) ::kill(-pid_, SIGKILL);
        outcome_ = error{errc::system, failed,
                         cat({"the exit status of process ", pid_,
                              " was taken by another part of this program (waitpid(-1), or SIGCHLD ignored): ",
                              errno_text(failed)})};
        return stage_ = stage::over;
    }

    // The child is over: takes its last output, ends that thread, and returns the outcome.
    result<child_exit> end() {
        unique_lock held(mutex_);
        if (thread_ && !is_forked_copy()) {
            thread_->output_deadline.store(std::max(output_until_, steady_clock::now() + min_output_time));
            held.unlock();
            thread_->finish();
            held.lock();
        }
        return outcome_;
    }

    // With the mutex held, so that the child is not reaped meanwhile and its id stays reserved.
    result<void> send(int number) {
        const error has_ended{errc::system, ESRCH, cat({"process ", pid_, " has ended"})};
        if (stage_ == stage::over) return outcome_ ? has_ended : outcome_.error();
        bool ended = false;
        if (!check_exit(pid_, WNOHANG, ended)) {
            on_status_lost(errno);
            return outcome_.error();
        }
        // It may have moved to another group of its session.
        const bool leads = own_group_ && ::getpgid(pid_) == pid_;
        int failed = own_group_ && ::kill(-pid_, number) != 0 ? errno : 0;
        if (!leads) failed = ::kill(pid_, number) != 0 ? errno : 0;
        if (failed == 0) return {};
        return error{errc::system, failed,
                     cat({"cannot send ", signal_name(number), " to process ", pid_, ": ", errno_text(failed)})};
    }

    pid_t pid_ = 0;
    const pid_t owner_;
    const bool own_group_;
    bool kill_orphans_;  // when the leader has ended
    ref<child_thread> thread_;
    exit_watch watch_;
    mutex mutex_;
    stage stage_ = stage::running;
    result<child_exit> outcome_ = child_exit();
    time_point linger_until_ = time_point::min();  // the group may outlive its leader until then
    time_point output_until_ = time_point::max();  // output is passed on until then
};

inline error no_child() { return {errc::invalid_argument, 0, "this child_process has no child"}; }
}  // namespace detail

OJS_SHUTDOWN_INLINE std::string child_exit::describe() const {
    using detail::cat;
    if (signal != 0) return cat({"killed by ", signal_name(signal), core_dumped ? " (core dumped)" : ""});
    const bool signalled = code > 128 && detail::ends_by_default(code - 128);
    const std::string meaning = code == 126   ? "cannot be executed"
                                : code == 127 ? "was not found"
                                : signalled   ? cat({"was ended by ", signal_name(code - 128)})
                                              : std::string();
    return cat({"exit status ", code, meaning.empty() ? "" : ": by the custom of shells, a command it ran ", meaning});
}

OJS_SHUTDOWN_INLINE result<child_process> child_process::start(const child_options& options) {
    return detail::start_child(options, -1, false);
}

OJS_SHUTDOWN_INLINE result<child_process> detail::start_child(const child_options& options, int interrupt_fd,
                                                              bool thread_outlives_child) {
    detail::fill_standard_descriptors();  // or dup2(2) could close one of our pipes
    detail::child_launch launch;
    const result<void> prepared = launch.prepare(options);
    if (!prepared) return prepared.error();
    launch.interrupt_fd = interrupt_fd;
    const bool needs_thread = (options.death_signal != 0 && !thread_outlives_child) ||
                              options.output.kind == child_stream_kind::lines ||
                              options.errors.kind == child_stream_kind::lines;
    // Before the fork: a child without a state would have no owner.
    detail::ref<detail::child_state> state = detail::make_ref<detail::child_state>(options);
    detail::ref<detail::child_thread> thread;
    const result<pid_t> pid = needs_thread ? detail::child_thread::launch(launch, options, thread) : launch.run();
    if (!pid) return pid.error();
    child_process out;
    out.state_ = std::move(state);
    for (int i = 0; i < 3; ++i) out.state_->our_ends[i] = std::move(launch.our_ends[i]);
    const result<void> watched = out.state_->watch(*pid, std::move(thread));
    if (!watched) return watched.error();  // and the child is killed
    return result<child_process>(std::move(out));
}

OJS_SHUTDOWN_INLINE result<void> detail::check_program(const child_options& options) {
    return detail::child_launch().find_program(options);
}

OJS_SHUTDOWN_INLINE child_process::child_process() noexcept {}
OJS_SHUTDOWN_INLINE child_process::child_process(child_process&& other) noexcept : state_(std::move(other.state_)) {}
OJS_SHUTDOWN_INLINE child_process& child_process::operator=(child_process&& other) noexcept {
    detail::swap(state_, other.state_);
    return *this;
}
OJS_SHUTDOWN_INLINE child_process::~child_process() {
    if (!state_) return;
    if (state_->is_forked_copy()) {
        state_->retain();  // not our child, and its threads do not exist here
    } else if (!state_->is_over()) {
        static_cast<void>(kill());
    }
}

OJS_SHUTDOWN_INLINE pid_t child_process::pid() const noexcept { return state_ ? state_->pid() : 0; }
OJS_SHUTDOWN_INLINE int child_process::fd() const noexcept { return state_ ? state_->fd() : -1; }
OJS_SHUTDOWN_INLINE int child_process::input() const noexcept { return state_ ? state_->our_ends[0].get() : -1; }
OJS_SHUTDOWN_INLINE int child_process::output() const noexcept { return state_ ? state_->our_ends[1].get() : -1; }
OJS_SHUTDOWN_INLINE int child_process::errors() const noexcept { return state_ ? state_->our_ends[2].get() : -1; }
OJS_SHUTDOWN_INLINE void child_process::close_input() noexcept {
    if (state_) state_->our_ends[0].reset();
}

OJS_SHUTDOWN_INLINE result<child_exit> child_process::wait(time_point deadline) {
    return state_ ? state_->wait(deadline, -1) : detail::no_child();
}

OJS_SHUTDOWN_INLINE result<child_exit> child_process::wait_until(time_point deadline, const cancel_token& token) {
    if (!state_) return detail::no_child();
    const result<int> wake_fd = token.fd();
    if (!wake_fd) return wake_fd.error();
    result<child_exit> ended = state_->wait(deadline, *wake_fd);
    if (!ended && ended.error().code == errc::cancelled)
        static_cast<void>(token.cancelled());  // marks the cancellation as seen
    return ended;
}

OJS_SHUTDOWN_INLINE result<void> child_process::signal(int number) {
    return state_ ? state_->signal(number) : detail::no_child();
}

OJS_SHUTDOWN_INLINE result<child_exit> child_process::terminate(detail::any_ms grace, detail::any_ms kill_timeout) {
    if (!state_) return detail::no_child();
    const time_point deadline = deadline_after(grace);
    state_->request_exit(SIGTERM, deadline);
    result<child_exit> ended = state_->wait(deadline, -1);
    if (ended || ended.error().code != errc::timed_out) return ended;
    return kill(kill_timeout);
}

OJS_SHUTDOWN_INLINE result<child_exit> child_process::kill(detail::any_ms kill_timeout) {
    if (!state_) return detail::no_child();
    state_->request_exit(SIGKILL, time_point::min());
    return state_->wait(deadline_after(kill_timeout), -1);
}
}  // namespace v0_1_0
}  // namespace ojs
