// signal_worker: quiets, resumes or stops a worker from another run of its program.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "../base/error.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Sends the signal of the command `what`: "quiet" (SIGTSTP), "resume" (SIGCONT) or "stop" (SIGTERM, or the first of
// OJS_STOP_SIGNALS in the caller's environment) [GS 4.1], or "reclaim" (SIGUSR1), which is not sent to a process that
// has no use for it and would end. [Spot]
//
// To `pid`; or, where that is 0, to PID 1 if it runs the same program as we do, else to the one other process that
// does. A process started by one of them (the worker below as_init(), a fork) does not count: its parent gets the
// signal, and as_init() passes it on. The program is told by /proc/PID/exe, or by the name it was called by where
// that cannot be read. Where an init that passes signals on gets a "reclaim", it is its child that has to have a use
// for it.
//
// Returns the process signalled. Errors: invalid_argument (no such word, a negative pid); busy (several candidates,
// which the text lists); system with sys_errno ESRCH (no such process, or no candidate) or EPERM; unsupported (pid 0
// where there is no /proc, or a "reclaim" for a process that it would end). Thread-safe.
result<pid_t> signal_worker(std::string_view command, pid_t pid = 0);

// The process that signal_worker() would signal, for a caller that has to prepare something first; with the same
// errors. A "reclaim" whose init has lost its program is a system error with ESRCH. Thread-safe.
result<pid_t> find_worker(std::string_view command, pid_t pid = 0);

}  // namespace v0_1_0
}  // namespace ojs
