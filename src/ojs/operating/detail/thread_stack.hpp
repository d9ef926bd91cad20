// capture_stack: where another thread of this process is, for a log about a job that does not return.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>

#include "../../base/duration.hpp"

namespace ojs::detail {

// The return addresses on the stack of `thread`, which must live until this returns: "program+0x1234
// libc.so.6+0x5678 ...", innermost first and the frames of the signal handler before all; addr2line -e PROGRAM 0x1234
// names them. Sends
// the thread a SIGTTIN, which ends a sleep() or poll() early. Empty where the thread does not answer by the deadline,
// where the signals have no installer, where there is no unwinder, or while another request is under way. Thread-safe.
std::string capture_stack(pthread_t thread, time_point deadline);

}  // namespace ojs::detail
