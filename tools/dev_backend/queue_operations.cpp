// Queues: the list, pause and resume, and the stream of their events.
#include <fcntl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"
#include "operations.hpp"

namespace dev_backend {

namespace {

std::string shown_queue(const backend& on, const std::string& name) {
    return json_object()
        .text("name", name)
        .text("status", on.jobs.is_paused(name) ? "paused" : "active")
        .str();
}

ojs::http_response queue_answer(const backend& on, const std::string& name) {
    return json_response(200, json_object().raw("queue", shown_queue(on, name)).str());
}

}  // namespace

ojs::http_response list_queues(backend& on, const incoming&) {
    const store::lock held(on.jobs.mutex());
    std::vector<std::string> names;
    for (const job* each : on.jobs.in_order_of_arrival()) names.push_back(each->queue);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::vector<std::string> queues;
    for (const std::string& name : names) queues.push_back(shown_queue(on, name));
    json_object pages;
    pages.number("total", static_cast<std::int64_t>(names.size())).flag("has_more", false);
    return json_response(200, json_object().raws("queues", queues).raw("pagination", pages.str()).str());
}

ojs::http_response pause_queue(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    on.jobs.pause(in.id);
    return queue_answer(on, in.id);
}

ojs::http_response resume_queue(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    on.jobs.resume(in.id);
    return queue_answer(on, in.id);
}

ojs::http_response stream_queue_events(backend& on, const incoming& in) {
    {
        const store::lock held(on.jobs.mutex());
        on.jobs.require_queue(in.id);
    }
    // A copy of the descriptor: the server closes its own, because the response is dropped.
    const int served = static_cast<const ojs::detail::served_request&>(in.request).socket;
    queue_events::subscription from;
    from.socket = ojs::detail::unique_fd(::fcntl(served, F_DUPFD_CLOEXEC, 0));
    if (!from.socket) throw refusal{503, "backend_error", "out of descriptors"};
    from.queue = in.id;
    from.types = in.texts_parameter("event_types");
    from.last_event_id = ojs::find_header(in.request.headers, "Last-Event-ID");
    from.head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
        "OJS-Version: 1.0\r\nX-Request-Id: " +
        in.request_id + "\r\nConnection: close\r\n\r\n";
    switch (on.streams.subscribe(std::move(from))) {
        case queue_events::admission::full: throw refusal{429, "rate_limited", "too many subscribers"};
        case queue_events::admission::stopped:
            throw refusal{503, "backend_error", "this server is shutting down"};
        case queue_events::admission::accepted: break;
    }
    ojs::http_response out;
    out.drop = true;
    return out;
}

}  // namespace dev_backend
