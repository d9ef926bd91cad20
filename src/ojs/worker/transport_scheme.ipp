#pragma once

#include "../base/detail/text.hpp"
#include "../net/detail/url.ipp"
#include "../stop/detail/environment.ipp"
#include "http_transport.hpp"
#include "worker_options.hpp"

namespace ojs::detail {
inline http_client_options client_options(const worker_options& options) {
    return {options.auth_token, absolute_path(options.auth_token_file), options.headers, options.https_stream};
}

// In bytes. Jobs of a larger response to FETCH come back after their visibility timeout.
inline constexpr std::size_t max_worker_response = 4 * 1024 * 1024;

inline result<transport_ref> open_http(const transport_setup& setup) {
    const worker_options& options = setup.options;
    http_client_options connection = client_options(options);
    connection.max_body = max_worker_response;
    // ACK and FAIL name no worker; by this header a backend identifies the sender of a late repetition.
    add_header(connection.headers, "X-OJS-Worker-ID", setup.worker.worker_id);
    if (options.http_events) return options.http_events(setup, std::move(connection));
    result<http_client> client = make_backend_client(options.url, std::move(connection));
    if (!client) return client.error();
    return make_http_transport(std::move(*client), options.profile.active_jobs_as_count);
}

// A URL as SCHEME:ADDRESS. [RFC 3986 3.1]
struct backend_url {
    std::string_view scheme;  // empty: none
    std::string_view address;
    const transport_scheme* added = nullptr;  // overrides a built-in one

    bool is(std::string_view name) const noexcept { return equals_ignore_case(scheme, name); }
    bool is_http() const noexcept { return is("unix") || is("http") || is("https"); }
};

inline backend_url split_url(const worker_options& options) noexcept {
    const std::string_view url = options.url;
    const auto is_valid = [](char c) { return is_alphanumeric(c) || c == '+' || c == '-' || c == '.'; };
    const std::size_t end = url.find(':');
    if (end == url.npos || end == 0 || lower_ascii(url[0]) < 'a' || !all_of(url.substr(0, end), is_valid)) return {};
    backend_url out{url.substr(0, end), url.substr(end + 1)};
    for (const transport_scheme& added : options.transports) {
        if (out.is(added.name)) out.added = &added;  // the last one counts
    }
    return out;
}

inline error bad_url(const worker_options& options, error failure) {
    failure.text = cat({"url (OJS_URL) '", redacted(options.url), "': ", failure.text});
    return failure;
}

inline result<backend_url> read_url(const worker_options& options) {
    const backend_url url = split_url(options);
    const bool has_https = bool(options.https_stream);
    if (url.added != nullptr) return url;
    for (const char* scheme : {"spool", "memory", "amqp", "redis", "postgres", "postgresql"}) {
        const char* const name = *scheme == 'p' ? "river" : *scheme == 'r' ? "redis_streams" : scheme;
        const std::string use = cat({"options->transports.add(ojs::", name, "())"});
        if (url.is(scheme))
            return bad_url(options, {errc::unsupported, 0,
                                     cat({scheme, ": needs ojs_", name, ".hpp: include it, and call ",
                                          *scheme == 'p' ? "ojs::river_transport::create()" : use})});
    }
    if (!url.is("unix") && !(url.is_http() && starts_with(url.address, "//"))) {
        std::string names = has_https ? "http:, unix:, https:" : "http:, unix:";
        for (const transport_scheme& each : options.transports) append(names, {", ", each.name, ":"});
        return bad_url(options, invalid(cat({"no valid scheme; write http://HOST:PORT (schemes: ", names, ")"})));
    }
    const result<endpoint> target = parse_url(options.url, has_https);
    if (!target) return bad_url(options, target.error());
    const std::string_view base = target->base;
    if (base.substr(base.size() - min<std::size_t>(base.size(), 7)) != "/ojs/v1") return url;
    return bad_url(options, invalid("leave out /ojs/v1, which is appended to the URL"));
}

inline result<transport_ref> open_transport(const worker_options& options, const worker_identity& worker,
                                            log_hook log) {
    const result<backend_url> url = read_url(options);
    if (!url) return url.error();
    const transport_setup setup{options, url->address, worker, std::move(log)};
    error failure = invalid("the scheme's open function returned no transport");
    try {
        result<transport_ref> opened = url->added == nullptr ? open_http(setup)
                                       : url->added->open    ? url->added->open(setup)
                                                             : transport_ref();
        if (opened && *opened) return opened;
        if (!opened) failure = opened.error();
    } catch (...) {
        failure.text = cat({"the scheme's open function threw an exception: ", thrown_text()});
    }
    return bad_url(options, std::move(failure));
}
}  // namespace ojs::detail
