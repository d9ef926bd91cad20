// backend_url: which transport a worker's URL stands for, decided once for all who ask.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../net/detail/url.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

enum class backend_kind { http, spool, memory };

struct backend_url {
    backend_kind kind = backend_kind::http;
    std::string directory;  // spool
};

// http://..., unix:/..., spool:DIR or memory:; https://... where there is a stream for it.
inline result<backend_url> parse_backend_url(std::string_view url, bool has_https) {
    constexpr std::string_view spool = "spool:";
    if (url == "memory:") return backend_url{backend_kind::memory, {}};
    if (url.substr(0, spool.size()) == spool) {
        const std::string_view directory = url.substr(spool.size());
        if (directory.empty())
            return error{errc::invalid_argument, 0, "spool: names no directory (spool:/DIR)"};
        if (directory.find('\0') != std::string_view::npos)
            return error{errc::invalid_argument, 0, "the directory's name holds a NUL byte"};
        return backend_url{backend_kind::spool, std::string(directory)};
    }
    const result<endpoint> target = parse_url(url, has_https);
    if (!target) return target.error();
    return backend_url{};
}

// The URL for an error text; one that may hold a password is not repeated.
inline std::string shown_url(std::string_view url) {
    return url.find('@') == std::string_view::npos ? printable(url, 100) : "(not shown: it holds an @)";
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
