#pragma once

#include "http.hpp"
#include "http/requests.ipp"
#include "http/responses.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Escapes a job's id as one segment of a path; dots too, because an id may be "..".
inline std::string path_segment(std::string_view text) {
    static const char digits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (is_alphanumeric(c) || c == '-' || c == '_') {
            out += c;
        } else {
            out += {'%', digits[byte >> 4U], digits[byte & 0xfU]};
        }
    }
    return out;
}

inline std::string job_route(const std::string& job_id, std::string_view suffix = {}) {
    return cat({"/jobs/", path_segment(job_id), suffix});
}
inline constexpr std::string_view fetch_route = "/workers/fetch";
inline constexpr std::string_view checkpoint_route_name = "/jobs/{id}/checkpoint";  // for error texts

inline error no_checkpoint_route() {
    return {errc::unsupported, 0, "the backend has no route for checkpoints"};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE http_transport::http_transport(http_client client, http_transport_options options)
    : client_(std::move(client)), options_(std::move(options)) {}
OJS_SHUTDOWN_INLINE http_transport::~http_transport() = default;

OJS_SHUTDOWN_INLINE result<http_client> http_transport::make_client(std::string_view url,
                                                                    http_client_options options) {
    options.headers.push_back({"Content-Type", "application/openjobspec+json"});
    options.headers.push_back({"Accept", "application/openjobspec+json"});
    options.headers.push_back({"OJS-Version", "1.0"});
    return http_client::create(url, std::move(options));
}

OJS_SHUTDOWN_INLINE result<http_response> http_transport::send(const char* method, std::string_view route,
                                                               std::string body, const http_call& call) {
    http_request request;
    request.method = method;
    request.target = detail::cat({"/ojs/v1", route});
    request.body = std::move(body);
    result<http_response> response = client_.send(request, call);
    // read_jobs() checks each job of a FETCH.
    if (!response || !detail::is_success(response->status) || route == detail::fetch_route ||
        response->body.empty() || detail::is_json(response->body))
        return response;
    return error{
        errc::unavailable, 0,
        detail::cat({method, " ", route, " answered ", response->status, " with a body that is not JSON"}),
        response->status};
}

// Turns a status other than 2xx into an error, which quotes the body unless that may repeat a secret.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::success(result<http_response> response,
                                                                  std::string_view route,
                                                                  const char* method) const {
    const bool is_quotable = response && !client_.may_repeat_secret(response->body);
    return detail::success(std::move(response), route,
                           is_quotable ? detail::quoting::yes : detail::quoting::no, method);
}

// Tries variants until the backend does not reject one. Begins with the one in use, or with the full one if that is due
// or the request must arrive.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::post_variant(body_variants& variants,
                                                                       bool must_arrive,
                                                                       const body_maker& body,
                                                                       const http_call& call) {
    const std::string route = detail::cat({"/workers/", variants.operation});
    const int in_use = variants.in_use;
    const time_point now = steady_clock::now();
    const bool due = now >= variants.retry_full_at.load();
    if (due) variants.retry_full_at = now + options_.full_body_retry_interval;
    result<http_response> first = error{};
    error rejection;
    for (int i = 0; i < variants.count; ++i) {
        const int variant = ((due || must_arrive ? 0 : in_use) + i) % variants.count;
        result<http_response> response = send("POST", route, body(variant), call);
        if (response && detail::rejects_body(*response)) {
            if (i == 0) first = *response;
            rejection = detail::status_error(route, *response, detail::quoting::no);
            continue;
        }
        // Only success proves that a fuller body is accepted again.
        const bool is_accepted = response && (detail::is_success(response->status) ||
                                              (variant > in_use && detail::ends_claim(*response)));
        int before = in_use;
        if (variant != in_use && is_accepted && variants.in_use.compare_exchange_strong(before, variant)) {
            variants.retry_full_at = deadline_after(options_.full_body_retry_interval);
            if (options_.on_body_variant_change)
                options_.on_body_variant_change(variants.operation, variants.dropped[variant], rejection);
        }
        return response;
    }
    return first;
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> http_transport::fetch(const fetch_request& request,
                                                                   time_point deadline) {
    std::string cut_body;
    const http_call call = {deadline, resend::if_unsent, request.should_send, -1, &cut_body};
    result<http_response> response = send("POST", detail::fetch_route, detail::fetch_body(request), call);
    if (!response && !cut_body.empty()) {
        std::vector<job> claimed =
            detail::read_cut_jobs(cut_body, response.error().code == errc::bad_response);
        if (!claimed.empty()) return claimed;
    }
    if (!response && response.error().code == errc::bad_response)
        return detail::refused_response(response.error().text);
    response = success(std::move(response), detail::fetch_route);
    if (!response) return response.error();
    return response->status == 204 ? std::vector<job>() : detail::read_jobs(response->body, request.count);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::ack(const ack_request& request, time_point deadline) {
    const http_call call = {deadline, resend::always, request.should_send};
    return detail::read_settlement("/workers/ack",
                                   send("POST", "/workers/ack", detail::ack_body(request), call));
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::fail(const fail_request& request, time_point deadline) {
    constexpr std::string_view route = "/workers/nack";
    // Not repeated here: once it has arrived, this worker may get the job again.
    const http_call call = {deadline, resend::if_unsent, request.should_send};
    const bool in_full = request.requeue || fail_variants_.in_use == 0;
    if (!request.checkpoint_json.empty() && in_full) {
        const result<http_response> full = send("POST", route, detail::fail_body(request, true), call);
        if (!full || !detail::rejects_body(*full)) return detail::read_fail(route, full);
        // Only this checkpoint may be rejected: other FAILs stay full.
    }
    const auto body = [&](int variant) {
        return variant == 0 ? detail::fail_body(request, false) : detail::schema_fail_body(request);
    };
    return detail::read_fail(route, post_variant(fail_variants_, request.requeue, body, call));
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> http_transport::heartbeat(const heartbeat_request& request,
                                                                         time_point deadline) {
    const auto body = [&, as_count = options_.active_jobs_as_count](int variant) {
        return detail::heartbeat_body(request, variant < 2, (variant == 0) == as_count);
    };
    const http_call call = {deadline, request.must_arrive ? resend::always : resend::if_unsent,
                            request.should_send};
    const result<http_response> response =
        success(post_variant(beat_variants_, request.must_arrive, body, call), "/workers/heartbeat");
    if (!response) return response.error();
    if (response->body.empty()) return heartbeat_response();
    return detail::read_heartbeat(response->body, request.active_jobs);
}

OJS_SHUTDOWN_INLINE result<bool> http_transport::confirm_claim(const claim_query& query,
                                                               time_point deadline) {
    const http_call call = {deadline, resend::if_unsent, query.should_send};
    const result<http_response> response = detail::success(
        send("GET", detail::job_route(query.job_id), "", call), "/jobs/{id}", detail::quoting::no, "GET");
    if (!response) return response.error();
    return detail::read_claim(response->body, query);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::register_worker(const worker_identity& worker,
                                                                 time_point deadline,
                                                                 const function<bool()>& should_send) {
    return call_registration("POST", "", detail::cat({"{", detail::identity_members(worker), "}"}), deadline,
                             should_send);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::deregister_worker(const worker_identity& worker,
                                                                   time_point deadline) {
    return call_registration("DELETE", "/" + detail::path_segment(worker.worker_id), "", deadline, nullptr);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::call_registration(const char* method,
                                                                   const std::string& below, std::string body,
                                                                   time_point deadline,
                                                                   const function<bool()>& should_send) {
    if (options_.registration_path.empty()) return {};
    const std::string path = options_.registration_path + below;
    result<http_response> response =
        send(method, path, std::move(body), {deadline, resend::always, should_send});
    if (response && (detail::is_api_error(*response, 404) || detail::is_api_error(*response, 405))) return {};
    response = success(std::move(response), path, method);
    return response ? result<void>() : response.error();
}

// Where the route was seen, a 404, 405 or 501 that is no API error is a proxy's.
OJS_SHUTDOWN_INLINE bool http_transport::may_lack_checkpoints(const http_response& response) const {
    const int status = response.status;
    return (status == 404 || status == 405 || status == 501) &&
           (!checkpoint_route_seen_ || !detail::api_error_code(response).empty());
}

// After a 404, finds out whether the route or the job is missing. The route is missing if the API answers INFO, and not
// that it does not know the job either; then the job is gone, but only where the route is known to exist.
OJS_SHUTDOWN_INLINE result<settled> http_transport::explain_missing(const std::string& job_id,
                                                                    const http_response& response,
                                                                    const http_call& call) {
    bool is_known = response.status != 404;
    if (!is_known) {
        const result<http_response> info = send("GET", detail::job_route(job_id), "", call);
        if (!info) return info.error();
        is_known = detail::is_success(info->status) || detail::errc_of(*info) == errc::rejected;
        if (detail::errc_of(*info) == errc::unavailable && info->status != 404 && info->status != 405)
            return detail::status_error("/jobs/{id}", *info, detail::quoting::no, "GET");
        const bool both_unknown = detail::is_api_error(*info, 404) && detail::is_api_error(response, 404);
        if (both_unknown && checkpoint_route_seen_) return settled::gone;
        is_known = is_known && !both_unknown;
    }
    if (is_known) no_checkpoints_until_ = deadline_after(std::chrono::minutes(1));  // it may be a proxy
    return detail::no_checkpoint_route();
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::save_checkpoint(const checkpoint_request& request,
                                                                    time_point deadline) {
    if (steady_clock::now() < no_checkpoints_until_.load()) return detail::no_checkpoint_route();
    const http_call call = {deadline, resend::if_unsent, nullptr};
    const auto send_by = [&](const char* method) {
        return send(method, detail::job_route(request.job_id, "/checkpoint"),
                    detail::cat({"{\"state\":", request.state_json, "}"}), call);
    };
    const bool puts = puts_checkpoints_;
    result<http_response> response = send_by(puts ? "PUT" : "POST");
    if (response && response->status == 405 && !puts) {
        response = send_by("PUT");
        if (response && detail::is_success(response->status)) puts_checkpoints_ = true;
    }
    if (response && may_lack_checkpoints(*response)) return explain_missing(request.job_id, *response, call);
    if (response && (detail::is_success(response->status) || detail::is_api_error(*response, 409)))
        checkpoint_route_seen_ = true;
    return detail::read_settlement(detail::checkpoint_route_name, response);
}

OJS_SHUTDOWN_INLINE result<std::string> http_transport::load_checkpoint(const std::string& job_id,
                                                                        time_point deadline) {
    if (steady_clock::now() < no_checkpoints_until_.load()) return std::string();
    result<http_response> response =
        send("GET", detail::job_route(job_id, "/checkpoint"), "", {deadline, resend::if_unsent, nullptr});
    if (response && (response->status == 204 || may_lack_checkpoints(*response))) return std::string();
    response =
        detail::success(std::move(response), detail::checkpoint_route_name, detail::quoting::no, "GET");
    if (!response) return response.error();
    checkpoint_route_seen_ = true;
    const auto nested = detail::raw_member(detail::raw_member(response->body, "checkpoint"), "state");
    return std::string(nested.empty() ? detail::raw_member(response->body, "state") : nested);
}

}  // namespace v0_1_0
}  // namespace ojs
