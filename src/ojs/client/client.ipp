#pragma once

#include "../core/cancel_token.ipp"
#include "../stop/detail/machine_state.ipp"
#include "../worker/http_transport.ipp"
#include "../worker/transport_scheme.ipp"
#include "client.hpp"
#include "detail/enqueue_json.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class client_connection final : public ref_counted {
  public:
    client_connection(http_client http, milliseconds timeout) : http_(std::move(http)), request_timeout_(timeout) {}
    // Returns a 2xx response with JSON.
    result<http_response> send(std::string method, const std::string& path, std::string body, bool is_repeatable,
                               const client_call& call) {
        const http_request request{std::move(method), "/ojs/v1" + path, {}, std::move(body)};
        const result<wake> interrupt = wake::create();
        if (!interrupt) return interrupt.error();
        // For this call only: with a descriptor of its own, the token would count a later cancellation as seen.
        const cancel_registration cancelled = call.until.on_cancel([&] { interrupt->notify(); });
        const auto should_send = [&] { return !call.until.cancelled(); };
        for (backoff pauses(milliseconds(200), milliseconds(3000));;) {
            result<http_response> response = http_.send(request, {min(call.deadline, deadline_after(request_timeout_)),
                                                                  should_send, is_repeatable, interrupt->fd()});
            if (response && is_success(response->status) && is_json(response->body)) return response;
            const error failure = response ? response_error(request, *response) : response.error();
            const bool is_final = is_listed(to_string(failure.code), "rejected cancelled invalid_argument system");
            const bool is_safe = is_repeatable || failure.code == errc::unreachable || failure.http_status == 429;
            const milliseconds pause = pauses.next(failure.retry_after);
            if (is_final || !is_safe || steady_clock::now() + pause >= call.deadline) return failure;
            if (!call.until.sleep_for(pause)) return error{errc::cancelled, 0, "cancelled after: " + failure.text};
        }
    }

  private:
    // With the server's message. 401 is not temporary, unlike for a worker.
    error response_error(const http_request& request, const http_response& response) const {
        error out = status_error(http_.describe(request.method, request.target), response);
        const bool is_temporary = response.status >= 500 || is_listed(std::to_string(response.status), "408 425 429");
        if (response.status >= 300 && !is_temporary) out.code = errc::rejected;
        const json_view message = json_view(response.body).member("error").member("message");
        if (is_json(response.body)) append(out.text, {" (", printable(message.string().value_or("no message")), ")"});
        return out;
    }
    http_client http_;
    const milliseconds request_timeout_;
};
}  // namespace detail

OJS_SHUTDOWN_INLINE client_options::client_options(const worker_options& worker)
    : url(worker.url), http(detail::client_options(worker)), request_timeout(worker.request_timeout) {}

OJS_SHUTDOWN_INLINE std::string new_job_id() { return detail::make_worker_id().substr(7); }

OJS_SHUTDOWN_INLINE std::string follow_up_id(std::string_view job_id, std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : detail::cat({job_id, "\n", name}))
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    // With the time of the other, beside which it then is in the server's order.
    std::string out = detail::is_uuid7(job_id) ? std::string(job_id.substr(0, 15)) : "00000000-0000-7";
    for (const char shape : std::string_view("xxx-8xxx-xxxxxxxxxxxx")) {
        hash = (hash ^ hash >> 33U) * 0xff51afd7ed558ccd;
        out += shape == 'x' ? "0123456789abcdef"[hash >> 60U] : shape;
    }
    return out;
}

OJS_SHUTDOWN_INLINE result<client> client::create(const client_options& options) {
    if (options.request_timeout.count() < 10) return detail::invalid("request_timeout must be at least 10ms");
    worker_options server;
    server.url = options.url;
    server.https_stream = options.http.https_stream;
    if (!detail::split_url(server).is_http())
        return detail::bad_url(server, detail::invalid("a client uses http:, https: or unix:; write http://HOST:PORT"));
    if (const auto url = detail::read_url(server); !url) return url.error();
    result<http_client> http = make_backend_client(options.url, options.http);
    if (!http) return http.error();
    return client(detail::make_ref<detail::client_connection>(std::move(*http), options.request_timeout));
}

OJS_SHUTDOWN_INLINE result<job_info> client::enqueue(const enqueue_request& job, const client_call& call) const {
    const auto sent = enqueue_all({job}, false, call);
    return sent ? result<job_info>(sent->front()) : sent.error();
}

OJS_SHUTDOWN_INLINE result<std::vector<job_info>> client::enqueue_batch(const std::vector<enqueue_request>& jobs,
                                                                        const client_call& call) const {
    if (jobs.empty() || jobs.size() > 10000)
        return detail::invalid(detail::cat({"a batch of ", jobs.size(), " jobs: 1 to 10000 are allowed"}));
    return enqueue_all(jobs, true, call);
}

OJS_SHUTDOWN_INLINE result<std::vector<job_info>> client::enqueue_all(const std::vector<enqueue_request>& jobs,
                                                                      bool is_batch, const client_call& call) const {
    std::string body;
    bool has_ids = true;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        const std::string fault = detail::enqueue_fault(jobs[i]);
        if (!fault.empty()) return detail::invalid(is_batch ? detail::cat({"jobs[", i, "].", fault}) : fault);
        detail::append(body, {i > 0 ? "," : "", detail::enqueue_body(jobs[i])});
        has_ids = has_ids && !jobs[i].id.empty();
    }
    if (is_batch) body = detail::cat({"{\"jobs\":[", body, "]}"});
    const auto response = server_->send("POST", is_batch ? "/jobs/batch" : "/jobs", std::move(body), has_ids, call);
    if (!response && (response.error().http_status != 409 || !has_ids)) return response.error();
    const json_view all(response ? std::string_view(response->body) : std::string_view());
    detail::json_iterator entry = all.member("jobs").begin();
    std::vector<job_info> out;
    for (const enqueue_request& each : jobs) {
        const json_view shown = is_batch ? entry->value : all;
        const bool is_new = response && response->status == 201;
        const std::string_view id = is_new && each.unique.keys.empty() ? each.id : std::string_view();
        result<job_info> read = response ? detail::read_job_info(shown, id, is_new) : get(each.id, call);
        const bool is_other = read ? !detail::is_same_job(each, read->job) : read.error().http_status == 404;
        if (!response && is_other) return response.error();
        if (!read) return read.error();
        out.push_back(std::move(*read));
        ++entry;
    }
    return out;
}

OJS_SHUTDOWN_INLINE result<job_info> client::get(std::string_view job_id, const client_call& call) const {
    if (job_id.empty()) return detail::invalid("job_id is empty");
    const auto response = server_->send("GET", "/jobs/" + detail::path_segment(job_id), "", true, call);
    return response ? detail::read_job_info(json_view(response->body), job_id) : response.error();
}

OJS_SHUTDOWN_INLINE result<job_info> client::cancel(std::string_view job_id, const client_call& call) const {
    if (job_id.empty()) return detail::invalid("job_id is empty");
    const auto response = server_->send("DELETE", "/jobs/" + detail::path_segment(job_id), "", true, call);
    if (response || response.error().http_status != 409)
        return response ? detail::read_job_info(json_view(response->body), job_id) : response.error();
    result<job_info> ended = get(job_id, call);
    return ended && ended->state == "cancelled" ? ended : response.error();
}

OJS_SHUTDOWN_INLINE result<std::vector<queue_info>> client::queues(const client_call& call) const {
    const auto listed = server_->send("GET", "/queues", "", true, call);
    if (!listed) return listed.error();
    const json_view list = json_view(listed->body).member("queues");
    if (list.type() != json_type::array && list.text() != "null") return error{errc::bad_response, 0, "no `queues`"};
    std::vector<queue_info> out;
    for (const auto& [key, value] : list) {
        const std::string name = value.member("name").string().value_or("");
        if (name.empty()) return error{errc::bad_response, 0, "the response has a queue without a name"};
        const auto shown = server_->send("GET", "/queues/" + detail::path_segment(name) + "/stats", "", true, call);
        if (!shown) return shown.error();
        const json_view all(shown->body), counts = all.member(all.member("stats") ? "stats" : "queue");
        const auto count = [&](const char* state) { return counts.member(state).integer().value_or(0); };
        out.push_back({name, value.member("status").string().value_or(""), count("available"), count("active"),
                       count("scheduled"), count("retryable")});
    }
    return out;
}
}  // namespace v0_1_0
}  // namespace ojs
