// as_init: lets a program be its own init as PID 1 of a container.
#pragma once

#include "../base/error.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct init_options {
    bool always = false;  // also where this process is not PID 1
};

// To be called first in main: before signals are claimed, before any thread is started, before anything is printed.
//
// As PID 1 it forks. It returns in the child, which goes on as the program, and whose children are its own to wait
// for, as ever. The parent stays PID 1, passes every signal on, takes the statuses of orphans, and exits with the
// program's status (128+n if signal n ended it). Signals are blocked across the fork, so none is lost. Elsewhere it
// does nothing and returns at once. errc::busy: signals are claimed already; errc::system: no fork.
//
// A worker started this way sees PID 1 as the sender of what was passed on.
result<void> as_init(init_options options = {});

}  // namespace v0_1_0
}  // namespace ojs
