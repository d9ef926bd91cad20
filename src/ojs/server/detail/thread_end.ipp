// thread_end: request handlers that end their thread.
#pragma once

#include <pthread.h>

#include <exception>

#include "../../base/config.hpp"

namespace ojs::detail {
// In a catch (...): rethrows the unwinding of pthread_exit(), which is no exception. The C library aborts a process that
// swallows it.
inline void rethrow_thread_exit() {
    if (!std::current_exception()) throw;  // null for a forced unwind
}

template <class Call>
void invoke_target(void* target) {
    (*static_cast<Call*>(target))();
}

// Calls `body`, and `on_thread_exit` if `body` ends its thread. Not every C library unwinds then.
template <class Body, class OnThreadExit>
void call_guarded(Body body, OnThreadExit on_thread_exit) {
    pthread_cleanup_push(invoke_target<OnThreadExit>, &on_thread_exit);
    body();
    pthread_cleanup_pop(0);
}
}  // namespace ojs::detail
