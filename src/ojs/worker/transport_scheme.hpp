// transport_scheme: a URL scheme that an extension adds to a worker.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct worker_options;

// What transport_scheme::open gets.
struct transport_setup {
    const worker_options& options;  // of the worker
    std::string_view address;       // options.url after the colon
    const worker_identity& worker;  // that will use the transport
    log_hook log;                   // writes to the worker's log; thread-safe, valid as long as the transport
};

// A URL scheme of worker_options::url, and how its transport is opened.
struct transport_scheme {
    // The part before the colon, in any case: "spool". Overrides a built-in scheme of that name.
    std::string name;
    // Called once by run() and start(), before any thread of the worker starts. An error ends the start, with
    // exit status 64 from run(). Its text must not contain a password. The worker owns the transport.
    function<result<transport_ref>(const transport_setup& setup)> open;
    // Optional: returns findings about the address, for doctor(). Must change nothing.
    function<std::vector<finding>(std::string_view address)> inspect;
};

}  // namespace v0_1_0
}  // namespace ojs
