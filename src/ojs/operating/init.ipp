#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "../base/detail/text.hpp"
#include "../core/signals.hpp"
#include "../core/signals.ipp"
#include "init.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Takes the status of every child that has ended. True once that of `program` is among them, in `status`.
inline bool reap(pid_t program, int& status) {
    bool ended = false;
    for (;;) {
        int each = 0;
        const pid_t child = ::waitpid(-1, &each, WNOHANG);
        if (child <= 0) return ended;
        if (child != program) continue;
        status = each;
        ended = true;
    }
}

[[noreturn]] inline void be_init(pid_t program, const sigset_t& all) {
#ifdef __linux__
    ::prctl(PR_SET_NAME, "ojs-init");  // what detect_container() knows it by
#endif
    int status = 0;
    while (!reap(program, status)) {
        int number = 0;
        // Not sigwaitinfo(), which not every system has.
        if (::sigwait(&all, &number) == 0 && number != SIGCHLD) ::kill(program, number);
    }
    ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

// Makes the program's process group that of the terminal, so that Ctrl-C reaches it once, and not by way of us as well.
// SIGTTOU is blocked, or this would stop it.
inline void take_terminal() {
    if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
    ::setpgid(0, 0);
    ::tcsetpgrp(STDIN_FILENO, ::getpid());
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<void> as_init(init_options options) {
    if (getpid() != 1 && !options.always) return {};
    // The child would lose its claim on them: a fork gives signals back.
    if (detail::process.claim.load() != 0) {
        return error{errc::busy, 0, "as_init() must come before signals::install()"};
    }
    sigset_t all;
    sigset_t previous;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &previous);
    struct sigaction usual {};
    struct sigaction on_child {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, &on_child);  // if it were ignored, there would be no statuses
    const pid_t program = ::fork();
    if (program > 0) detail::be_init(program, all);
    const int failed = errno;
    if (program == 0) detail::take_terminal();
    ::sigaction(SIGCHLD, &on_child, nullptr);
    ::sigprocmask(SIG_SETMASK, &previous, nullptr);
    if (program == 0) return {};
    return error{errc::system, failed,
                 detail::cat({"cannot start the program below PID 1: ", detail::errno_text(failed)})};
}

}  // namespace v0_1_0
}  // namespace ojs
