// signal_worker: quiets, resumes or stops a running worker from another process.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "../base/error.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Sends the signal of `command`: "quiet" (SIGTSTP), "resume" (SIGCONT) or "stop" (SIGTERM, or the first of
/// OJS_STOP_SIGNALS in the caller's environment) [GS 4.1], or "reclaim" (SIGUSR1), which is not sent to a process that
/// neither handles, blocks nor ignores it: that process would end. [Spot]
///
/// The target is `pid`; if that is 0, PID 1 if it runs our program, else the one other process that does. A child of
/// such a process (the worker below run_as_init(), a fork) does not count: its parent gets the signal; run_as_init()
/// forwards it. Programs are compared by /proc/PID/exe or, if that is unreadable, by argv[0]. For a "reclaim" to an
/// init that forwards signals, the child of the init must be prepared.
///
/// After "quiet" and "resume" it waits, for half a second at most, until the kernel has delivered the signal (of
/// SIGCONT, SIGTSTP and SIGTTIN, one that is sent drops one that is pending); it does not see behind an init that
/// forwards.
///
/// Returns the signalled process. Errors: invalid_argument (unknown command, negative pid); busy (several candidates,
/// listed in the text); system with sys_errno ESRCH (no such process, or no candidate) or EPERM; unsupported (pid 0
/// without /proc, or a "reclaim" that would end the process). Thread-safe.
result<pid_t> signal_worker(std::string_view command, pid_t pid = 0);

/// The process that signal_worker() would signal, for a caller that prepares something first; with the same errors. A
/// "reclaim" to an init whose program has ended is a system error with ESRCH. Thread-safe.
result<pid_t> find_worker(std::string_view command, pid_t pid = 0);
}  // namespace v0_1_0
}  // namespace ojs
