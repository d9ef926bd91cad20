// address: a URL or listen address that is accepted is read the same from the name it is given, and holds nothing that
// does not belong into a header.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
inline void address(input in) {
    const std::string text(in.rest());
    if (const auto url = ojs::detail::parse_url(text, false)) {
        expect(url->unix_path.empty() != url->host.empty(), "an endpoint is a host or a path", text);
        expect(ojs::detail::is_field_value(url->name), "no control character in a Host header", text);
        expect(url->base.empty() || ojs::detail::is_target(url->base), "a base is a path", text);
        if (url->unix_path.empty()) {
            const auto again = ojs::detail::parse_url("http://" + url->name + url->base, false);
            expect(again && again->host == url->host && again->port == url->port && again->base == url->base &&
                       again->name == url->name,
                   "a URL is read again from its name", text + " -> " + url->name + url->base);
        }
    } else {
        expect(url.error().text.size() <= 1000, "an error's text is short", url.error().text);
    }
    if (const auto listen = ojs::detail::parse_listen_address(text)) {
        expect(ojs::detail::is_field_value(listen->name), "no control character in an address", text);
        const auto again = ojs::detail::parse_listen_address(listen->name);
        expect(again && again->host == listen->host && again->port == listen->port &&
                   again->unix_path == listen->unix_path,
               "an address is read again from its name", text + " -> " + listen->name);
    }
}
}  // namespace fuzz
