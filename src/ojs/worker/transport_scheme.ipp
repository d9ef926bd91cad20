#pragma once

#include "../base/detail/text.hpp"
#include "../net/detail/url.ipp"
#include "transport_scheme.hpp"
#include "transports/http.hpp"
#include "transports/memory.hpp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What stands before the colon; empty: no scheme. [RFC 3986 3.1]
inline std::string_view url_scheme(std::string_view url) noexcept {
    const std::string_view scheme = url.substr(0, url.find(':'));
    const bool has_letter =
        !scheme.empty() && lower_ascii(scheme.front()) >= 'a' && lower_ascii(scheme.front()) <= 'z';
    const auto is_valid = [](char c) { return is_alphanumeric(c) || c == '+' || c == '-' || c == '.'; };
    return has_letter && scheme.size() < url.size() && all_of(scheme, is_valid) ? scheme : std::string_view();
}
inline std::string_view url_address(std::string_view url) noexcept {
    const std::size_t colon = url.find(':');
    return colon == std::string_view::npos ? std::string_view() : url.substr(colon + 1);
}

// The URL for an error text; one that may hold a password is not repeated.
inline std::string shown_url(std::string_view url) {
    return url.find('@') == std::string_view::npos ? printable(url, 100) : "(not shown: it holds an @)";
}
inline error bad_url(std::string_view url, error why) {
    why.text = cat({"url (OJS_URL) '", shown_url(url), "': ", why.text});
    return why;
}

// ---- the transports of this header ----

inline http_client_options client_options(const worker_options& options, const std::string& worker_id) {
    http_client_options out;
    out.bearer_token = options.auth_token;
    out.headers = options.headers;
    out.https_stream = options.https_stream;
    out.limits = worker_answer_limits;
    // ACK and FAIL name no worker; with this a backend can tell whose a late repetition of one is.
    out.headers.push_back({"X-OJS-Worker-ID", worker_id});
    // One for each job thread, and some for heartbeats and reports; more than that are not worth keeping.
    const auto wanted = static_cast<std::size_t>(options.concurrency) + 4;
    out.max_idle_connections = wanted < 160 ? wanted : 160;
    return out;
}

inline result<transport_ref> open_http(const transport_setup& setup) {
    const worker_options& options = setup.options;
    result<http_client> client =
        http_transport::make_client(options.url, client_options(options, setup.worker.worker_id));
    if (!client) return client.error();
    http_transport_options wire;
    wire.registration_path = options.registration_path;
    wire.active_jobs_as_count = options.dialect.active_jobs_as_count;
    wire.on_form_change = [log = setup.log](std::string_view operation, std::string_view dropped,
                                            const error& why) {
        log_record out;
        out.message = "the backend takes a request in its full form again";
        out.fields = {{"operation", std::string(operation)}};
        if (!dropped.empty()) {
            out.level = log_level::warn;
            out.message =
                "the backend takes a request only in another form, which is used for now; the full one is "
                "tried again";
            out.fields.push_back({"dropped", std::string(dropped)});
            out.fields.push_back({"error", why.text});
        }
        log(out);
    };
    return make_transport<http_transport>(std::move(*client), std::move(wire));
}
inline result<void> check_memory(std::string_view url) {
    if (url_address(url).empty()) return {};
    return error{errc::invalid_argument, 0, "nothing may follow memory:"};
}
inline result<transport_ref> open_memory(const transport_setup& setup) {
    const result<void> usable = check_memory(setup.options.url);
    return usable ? make_transport<memory_transport>() : result<transport_ref>(usable.error());
}

struct builtin_scheme {
    const char* name;
    result<transport_ref> (*open)(const transport_setup& setup);  // checks the URL itself
};
inline constexpr builtin_scheme builtin_schemes[] = {
    {"http", open_http}, {"https", open_http}, {"unix", open_http}, {"memory", open_memory}};

inline const builtin_scheme* find_builtin(std::string_view url) noexcept {
    for (const builtin_scheme& each : builtin_schemes) {
        if (same_word(url_scheme(url), each.name)) return &each;
    }
    return nullptr;
}

// ---- any ----

inline bool is_of_extension(std::string_view url) noexcept {
    return !url_scheme(url).empty() && find_builtin(url) == nullptr;
}

inline error no_such_scheme(std::string_view url, const transport_schemes& added) {
    if (same_word(url_scheme(url), "spool"))
        return {errc::unsupported, 0,
                "spool: needs ojs_spool.hpp: include it, and call options->transports.add(ojs::spool())"};
    return {errc::invalid_argument, 0,
            cat({"no transport has this scheme; write http://HOST:PORT, or one of ", added.names()})};
}

inline result<void> check_url(std::string_view url, const transport_schemes& added, bool has_https) {
    if (added.find(url) != nullptr) return {};
    const builtin_scheme* const builtin = find_builtin(url);
    if (builtin == nullptr) return no_such_scheme(url, added);
    if (builtin->open == &open_memory) return check_memory(url);
    const result<endpoint> target = parse_url(url, has_https);
    return target ? result<void>() : target.error();
}

inline result<transport_ref> call_open(const transport_scheme& scheme, const transport_setup& setup) {
    const error none{errc::invalid_argument, 0, "the scheme opens no transport"};
    if (!scheme.open) return none;
    try {
        const result<transport_ref> opened = scheme.open(setup);
        return opened && !*opened ? none : opened;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (...) {
        pass_on_thread_end();
        return error{errc::invalid_argument, 0, "the scheme threw an exception"};
    }
}

// By the URL's scheme.
inline result<transport_ref> open_transport(const worker_options& options, const worker_identity& worker,
                                            log_hook log) {
    const transport_setup setup{options, url_address(options.url), worker, std::move(log)};
    const transport_scheme* const added = options.transports.find(options.url);
    const builtin_scheme* const builtin = find_builtin(options.url);
    const result<transport_ref> opened = added != nullptr ? call_open(*added, setup)
                                         : builtin != nullptr
                                             ? builtin->open(setup)
                                             : no_such_scheme(options.url, options.transports);
    return opened ? opened : bad_url(options.url, opened.error());
}

}  // namespace detail

OJS_SHUTDOWN_INLINE const transport_scheme* transport_schemes::find(std::string_view url) const noexcept {
    const std::string_view scheme = detail::url_scheme(url);
    for (std::size_t i = added_.size(); i > 0 && !scheme.empty(); --i) {
        if (detail::same_word(scheme, added_[i - 1].name)) return &added_[i - 1];
    }
    return nullptr;
}

OJS_SHUTDOWN_INLINE std::string transport_schemes::names() const {
    std::string out;
    const auto add = [&out](std::string_view name) {
        detail::append(out, {out.empty() ? "" : ", ", name, ":"});
    };
    for (const detail::builtin_scheme& each : detail::builtin_schemes) add(each.name);
    for (const transport_scheme& each : added_) add(each.name);
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
