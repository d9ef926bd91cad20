#pragma once

#include "../base/detail/text.hpp"
#include "../net/detail/url.ipp"
#include "../stop/detail/environment.ipp"
#include "http_transport.hpp"
#include "worker_options.hpp"

namespace ojs::detail {

inline http_client_options client_options(const worker_options& options) {
    return {options.auth_token, options.headers, {}, options.https_stream};
}

inline result<transport_ref> open_http(const transport_setup& setup) {
    const worker_options& options = setup.options;
    http_client_options connection = client_options(options);
    connection.limits = worker_response_limits;
    // ACK and FAIL name no worker; by this header a backend identifies the sender of a late repetition.
    connection.headers.push_back({"X-OJS-Worker-ID", setup.worker.worker_id});
    // One for each job thread, and some for heartbeats and reports.
    connection.max_idle_connections =
        static_cast<std::size_t>(detail::min<std::int64_t>(options.concurrency + 4, 160));
    if (options.http_events) return options.http_events(setup, std::move(connection));
    result<http_client> client = http_transport::make_client(options.url, std::move(connection));
    if (!client) return client.error();
    return make_transport<http_transport>(std::move(*client), options.dialect.active_jobs_as_count);
}

using scheme_list = extension_list<transport_scheme>;

// A URL as SCHEME:ADDRESS. [RFC 3986 3.1]
struct backend_url {
    std::string_view scheme;  // empty: none
    std::string_view address;
    const transport_scheme* added = nullptr;  // of the options; overrides a built-in one
    bool is_http = false;                     // http, https or unix
};

inline backend_url split_url(std::string_view url, const scheme_list& schemes) noexcept {
    const auto is_valid = [](char c) { return is_alphanumeric(c) || c == '+' || c == '-' || c == '.'; };
    const std::string_view scheme = url.substr(0, url.find(':'));
    const auto is = [scheme](std::string_view name) { return equals_ignore_case(scheme, name); };
    if (scheme.empty() || scheme.size() == url.size() || lower_ascii(url[0]) < 'a' ||
        !all_of(scheme, is_valid))
        return {};
    backend_url out{scheme, url.substr(scheme.size() + 1), nullptr, is("http") || is("https") || is("unix")};
    for (const transport_scheme& added : schemes) {
        if (is(added.name)) out.added = &added;  // the last one counts
    }
    return out;
}

inline error bad_scheme(const backend_url& url, const scheme_list& added, bool has_https) {
    std::string names = cat({"http:, unix:", has_https ? ", https:" : ""});
    for (const transport_scheme& each : added) append(names, {", ", each.name, ":"});
    const char* const problem = url.is_http          ? "// is missing"
                                : url.scheme.empty() ? "the scheme is missing"
                                                     : "unknown scheme";
    return error{errc::invalid_argument, 0,
                 cat({problem, "; write http://HOST:PORT (schemes: ", names, ")"})};
}

inline result<backend_url> read_url(std::string_view text, const scheme_list& schemes, bool has_https) {
    const backend_url url = split_url(text, schemes);
    if (url.added != nullptr) return url;
    for (const char* name : {"spool", "memory"}) {
        if (equals_ignore_case(url.scheme, name))
            return error{errc::unsupported, 0,
                         cat({name, ": needs ojs_", name,
                              ".hpp: include it, and call options->transports.add(ojs::", name, "())"})};
    }
    const bool is_unix = equals_ignore_case(url.scheme, "unix");
    if (!is_unix && (!url.is_http || url.address.substr(0, 2) != "//"))
        return bad_scheme(url, schemes, has_https);
    const result<endpoint> target = parse_url(text, has_https);
    if (!target) return target.error();
    constexpr std::string_view api_path = "/ojs/v1";
    const std::string& base = target->base;
    if (base.size() < api_path.size() || base.substr(base.size() - api_path.size()) != api_path) return url;
    return error{errc::invalid_argument, 0, "leave out /ojs/v1, which is appended to the URL"};
}

inline error bad_url(std::string_view url, error failure) {
    failure.text = cat({"url (OJS_URL) '", redacted(url), "': ", failure.text});
    return failure;
}

inline result<backend_url> read_url(const worker_options& options) {
    const result<backend_url> out = read_url(options.url, options.transports, bool(options.https_stream));
    return out ? out : bad_url(options.url, out.error());
}

inline result<transport_ref> call_open(const transport_scheme& scheme, const transport_setup& setup) {
    try {
        result<transport_ref> opened = scheme.open ? scheme.open(setup) : transport_ref();
        if (!opened || *opened) return opened;
        return error{errc::invalid_argument, 0, "the scheme's open function returned no transport"};
    } catch (...) {
        return error{errc::invalid_argument, 0,
                     cat({"the scheme's open function threw an exception: ", thrown_text()})};
    }
}

inline result<transport_ref> open_transport(const worker_options& options, const worker_identity& worker,
                                            log_hook log) {
    const result<backend_url> url = read_url(options);
    if (!url) return url.error();
    const transport_setup setup{options, url->address, worker, std::move(log)};
    const auto opened = url->added != nullptr ? call_open(*url->added, setup) : open_http(setup);
    return opened ? opened : bad_url(options.url, opened.error());
}

}  // namespace ojs::detail
