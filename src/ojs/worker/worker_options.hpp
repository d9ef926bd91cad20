// worker_options: settings of a worker, by code or environment.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../net/byte_stream.hpp"
#include "../net/http_message.hpp"
#include "../stop/loop_options.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// A job of a type without a handler is requeued after 100 ms to 5 s, or its attempt fails, retried or not.
enum class unknown_type_action { requeue, fail, discard };

struct http_client_options;
struct worker_options;

namespace detail {
struct transport_setup {
    const worker_options& options;
    std::string_view address;
    const worker_identity& worker;
    log_hook log;
};
// Opens the transport of http:, https: and unix: URLs.
using http_opener = function<result<transport_ref>(const transport_setup&, http_client_options)>;
}  // namespace detail

/// A URL scheme of worker_options::url, and how its transport is opened.
struct transport_scheme {
    /// The part before the colon, in any case: "spool". Overrides a built-in scheme of that name.
    std::string name;
    /// Called once by run() and start(), before any thread of the worker starts. An error, whose text must not contain a
    /// password, ends the start. `setup` has the worker's `options`, the `address` (options.url after the colon), the
    /// `worker` that will use the transport, and `log`, a thread-safe log_hook, valid as long as the transport.
    function<result<transport_ref>(const detail::transport_setup& setup)> open;
    /// Optional, for doctor(): why the address cannot be used; empty: it can. Must change nothing.
    function<std::string(std::string_view address)> inspect;
};

/// The settings of a worker.
struct worker_options : loop_options {
    std::string url = "http://127.0.0.1:8080";            ///< http://, unix:/, or a scheme of `transports`
    detail::extension_list<transport_scheme> transports;  ///< transports.add(ojs::spool()) adds a scheme
    std::vector<std::string> queues = {"default"};        ///< to fetch from
    std::chrono::milliseconds heartbeat_interval{5000};   ///< at most half of the shortest lease
    std::chrono::milliseconds poll_interval{1000};        ///< after a FETCH that found nothing, at most
    std::chrono::milliseconds visibility_timeout{30000};  ///< how long a claim holds without a heartbeat
    std::chrono::milliseconds request_timeout{5000};      ///< for one request, from connect to the last byte
    std::vector<std::string> labels;                      ///< sent to the backend
    std::string auth_token;                               ///< sent as a bearer token; never logged
    std::string auth_token_file;                          ///< with a token that is replaced; over auth_token
    http_headers headers;                                 ///< sent with every request
    stream_factory https_stream;                          ///< connects https:// URLs; empty: they are refused
    detail::http_opener http_events;  ///< queue_events(): the backend announces new jobs; empty: it is polled
    unknown_type_action on_unknown_type = unknown_type_action::requeue;  ///< for jobs without a handler
    /// The worker drains once it has had no job, and its FETCHes found none, for this long; 0: never.
    std::chrono::milliseconds exit_when_idle{0};
    std::int64_t max_jobs = 0;  ///< jobs to run, then it drains, and takes no more meanwhile; 0: no limit

    /// Like that of loop_options. The URL is checked at the start, when `transports` is complete.
    static result<worker_options> from_environment(const environment_lookup& lookup = nullptr,
                                                   const std::string& root = "");
};

/// Checks the options, as run() and start() do. errc::invalid_argument or unsupported.
result<void> validate(const worker_options& options);
}  // namespace v0_1_0
}  // namespace ojs
