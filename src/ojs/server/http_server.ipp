#pragma once

#include "draining_server.ipp"
#include "http_server.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE result<http_server> http_server::start(std::string_view address, http_handler handler,
                                                           const http_server_options& options) {
    draining_server_options all;
    all.limits = options.limits;
    all.max_connections = options.max_connections;
    all.max_buffered = ~std::size_t{0};  // the limits of that many connections
    all.idle_timeout = options.idle_timeout;
    all.request_timeout = options.request_timeout;
    all.crowded_timeout = options.crowded_timeout;
    all.thread_stack_size = options.thread_stack_size;
    result<draining_server> started =
        draining_server::start(address, std::move(handler), std::move(all), true);
    if (!started) return started.error();
    return http_server(std::move(*started));
}

OJS_SHUTDOWN_INLINE std::size_t http_server::stop(time_point deadline) {
    drain_options how;
    how.deadline = deadline;
    const std::size_t cut = server_.drain(how).cut;
    server_.impl_->join();
    return cut;
}

}  // namespace v0_1_0
}  // namespace ojs
