// queue_events: the backend announces new jobs, by server-sent events over HTTP. [OJS realtime 2.2]
//
// One thread ("ojs-events", 256 KiB of stack) keeps a connection for each queue, GET /ojs/v1/queues/NAME/events, with
// the worker's token, headers and TLS. An event only causes a FETCH: jobs whose event is lost are found by polling, at
// the poll interval, or once a heartbeat interval a minute after its last job, while every connection is open. A
// connection without a byte for 45 s is replaced. After a lost one the pause is 1 to 30 s, or what the backend names
// (`retry:`, Retry-After); a backend without the route is asked again after 10 s, later every 5 min. A stop waits at
// most 100 ms for all that.
#pragma once

#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Makes the worker listen to the events of its queues: the value of worker_options::http_events.
detail::http_opener queue_events();
}  // namespace v0_1_0
}  // namespace ojs
