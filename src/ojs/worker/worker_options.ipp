#pragma once

#include "../net/http_message.ipp"
#include "../stop/loop_options.ipp"
#include "transport_scheme.ipp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// As visit_loop_options().
template <class Options, class Visit>
void visit_options(Options& o, Visit& visit) {
    using namespace std::chrono_literals;
    visit_loop_options(o, visit);  // first, as a profile sets other options
    visit("url", "OJS_URL OJS_BACKEND_URL", o.url, text_kind::name);
    visit("queues", "OJS_QUEUES OJS_QUEUE", o.queues, text_kind::word);
    visit("heartbeat_interval", "OJS_HEARTBEAT_INTERVAL", o.heartbeat_interval, 10ms);
    visit("poll_interval", "OJS_POLL_INTERVAL", o.poll_interval, 1ms);
    visit("visibility_timeout", "OJS_VISIBILITY_TIMEOUT", o.visibility_timeout, 1000ms);
    visit("request_timeout", "OJS_REQUEST_TIMEOUT", o.request_timeout, 10ms);
    visit("on_unknown_type", "OJS_ON_UNKNOWN_TYPE", o.on_unknown_type, "requeue fail discard");
    visit("exit_when_idle", "OJS_EXIT_WHEN_IDLE", o.exit_when_idle, 0ms);
    visit("max_jobs", "OJS_MAX_JOBS", o.max_jobs, 0, 1000000000);
    visit("labels", "OJS_LABELS", o.labels, text_kind::name);
    visit("auth_token", "OJS_AUTH_TOKEN", o.auth_token, text_kind::secret);
    visit("auth_token_file", "OJS_AUTH_TOKEN_FILE", o.auth_token_file, text_kind::path);
}

// All but the URL.
inline result<void> check_options(const worker_options& options) {
    option_visitor check;
    visit_options(options, check);
    if (!check.status) return check.status;
    if (options.heartbeat_interval >= options.visibility_timeout)
        return invalid(cat({"heartbeat_interval (", format_duration(options.heartbeat_interval),
                            ") must be shorter than visibility_timeout (", format_duration(options.visibility_timeout),
                            "), or claims expire between heartbeats"}));
    if (options.queues.empty() || contains(options.queues, ""))
        return invalid("queues (OJS_QUEUES) must name at least one queue, and each must have a name");
    return check_stop(options);
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<worker_options> worker_options::from_environment(const environment_lookup& lookup,
                                                                            const std::string& root) {
    worker_options out;
    detail::option_visitor read(lookup);
    detail::visit_options(out, read);
    detail::fit_default_grace(out, read, root);
    const result<void> valid = read.status ? detail::check_options(out) : read.status;
    return valid ? result<worker_options>(std::move(out)) : valid.error();
}

OJS_SHUTDOWN_INLINE result<void> validate(const worker_options& options) {
    const result<detail::backend_url> url = detail::read_url(options);
    if (!url) return url.error();
    return detail::check_options(options);
}
}  // namespace v0_1_0
}  // namespace ojs
