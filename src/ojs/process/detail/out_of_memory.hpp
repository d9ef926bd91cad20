// out_of_memory: what a launcher does if an allocation fails: it goes on, and tries again.
#pragma once

#include <errno.h>

#include <new>

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {
template <class Make>
auto unless_out_of_memory(Make make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::bad_alloc&) {
        return error{errc::unavailable, ENOMEM, "out of memory"};  // short enough to need no heap
    }
}

// Calls `body`; false: out of memory.
template <class Body>
bool attempt(Body body) {
    try {
        body();
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Retries `body` for up to a second, in which other threads may free memory.
template <class Body>
bool retry_allocation(Body body) {
    for (int left = 100; !attempt(body); --left) {
        if (left == 0) return false;
        pause_for(std::chrono::milliseconds(10));
    }
    return true;
}
}  // namespace ojs::detail
