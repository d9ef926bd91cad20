#include "test.hpp"

using detail::endpoint;
using detail::parse_listen_address;
using detail::parse_url;

namespace {
errc fault(std::string_view url) {
    CAPTURE(url);
    const result<endpoint> parsed = parse_url(url, false);
    REQUIRE_FALSE(parsed);
    CHECK_FALSE(parsed.error().text.empty());
    CHECK(parsed.error().text.find('\n') == std::string::npos);
    return parsed.error().code;
}

std::string shown(const result<endpoint>& url) {
    REQUIRE(url);
    return detail::cat({url->is_secure ? "secure " : "", url->host, " ", url->port, " ", url->base, " ", url->name, " ",
                        url->unix_path});
}
}  // namespace

TEST_CASE("url: a URL is split into host, port and base, or a unix socket path") {
    const std::pair<const char*, std::string> urls[] = {
        {"http://backend.example:8080/api/v2/", "backend.example 8080 /api/v2 backend.example:8080 "},
        {"HTTP://127.0.0.1", "127.0.0.1 80  127.0.0.1:80 "},
        {"http://[::1]:1/", "::1 1  [::1]:1 "},
        {"HTTPS://[::1]/b", "secure ::1 443 /b [::1]:443 "},
        {"unix:/run/ojs.sock", " 0  unix:/run/ojs.sock /run/ojs.sock"}};
    for (const auto& [url, parts] : urls) CHECK(shown(parse_url(url, true)) == parts);
}

TEST_CASE("url: an unusable URL is refused with the reason on one line") {
    std::vector<std::string> bad = test::words(
        "host:80 ftp://host http:// http:///x http://:80 http://h: http://h:0 http://h:65536 http://h:8a "
        "http://h:-1 http://h:99999999999999999999 http://::1 http://[::1 http://[] http://[zz] "
        "http://[::1]8 http://u@h http://u:p@h/ http://h/?q http://h#f unix: unix:relative",
        {"",
         "http://h\r\nX: y",
         "http://h/a b",
         "http://h/\r\n",
         "http://h o",
         {"http://h\0x", 10},
         {"unix:/a\0b", 9},
         {"http://[::1\0]", 13},
         {"http://[::1\0\r\nX-Injected: yes\r\nX-Rest: ]:80", 42}});
    bad.push_back("unix:/" + std::string(200, 'x'));
    for (const std::string& url : bad) CHECK(fault(url) == errc::invalid_argument);
    for (const char* path : {"unix:/a\nb", "unix:/a\rb", "unix:/a\tb", "unix:/a\x7f", "unix:/\x1b[2J"}) {
        CHECK(fault(path) == errc::invalid_argument);
        CHECK_FALSE(parse_listen_address(path));
    }
    CHECK(parse_url("unix:/a b/\xc3\xa9", false));
    CHECK(fault("https://h") == errc::unsupported);
    CHECK(parse_url("https://h", false).error().text.find("ojs_tls.hpp") != std::string::npos);
    for (const char* secret : {"https://u:hunter2@h", "http://u:hunter2@h"})
        CHECK_FALSE(test::holds(parse_url(secret, true).error().text, "hunter2"));
}

TEST_CASE("listen address: a port, host and port, or unix path is accepted, and other text is refused") {
    const std::pair<const char*, const char*> forms[] = {{"8080", "127.0.0.1:8080"},   {":0", "127.0.0.1:0"},
                                                         {"0.0.0.0:80", "0.0.0.0:80"}, {"localhost:80", "127.0.0.1:80"},
                                                         {"[::]:80", "[::]:80"},       {"unix:/tmp/x", "unix:/tmp/x"}};
    for (const auto& [address, name] : forms) CHECK(parse_listen_address(address)->name == name);
    for (const char* address :
         {"", ":", "x", "1.2.3.4", "1.2.3.4:", "name:80", "[::1]", "::1:80", "*:80", "1.2.3.4:65536", "unix:x"}) {
        CAPTURE(address);
        CHECK(test::code_of(parse_listen_address(address)) == errc::invalid_argument);
    }
    CHECK_FALSE(parse_listen_address(std::string_view("[::1\0junk]:0", 12)));
    CHECK_FALSE(parse_listen_address(std::string_view("127.0.0.1\0:0", 12)));
    CHECK_FALSE(parse_listen_address(std::string_view("80\0", 3)));
}

TEST_CASE("url: is_fixed_host() refuses every Host header that DNS could redirect, and wildcard addresses") {
    for (const std::string& host : test::words("127.0.0.1 127.0.0.1:80 10.1.2.3:65535 [::1] [::1]:8080 [fe80::1]:1 "
                                               "localhost LocalHost:8080 localhost:0")) {
        CAPTURE(host);
        CHECK(detail::is_fixed_host(host));
    }
    // The last ones are the wildcards, and IPv4 in IPv6.
    const std::vector<std::string> other = test::words(
        ":80 evil.example evil.example:80 localhost.evil.example localhost. 127.0.0.1. 127.1 2130706433 "
        "0x7f.0.0.1 127.0.0.1.nip.io ::1 [::1 [::1]x [evil] u@127.0.0.1 127.0.0.1: 127.0.0.1:x "
        "127.0.0.1:80:80 0.0.0.0:80 [::]:80 [::ffff:127.0.0.1] [::7f00:1]",
        {"", "127.0.0.1 ", "localhost, a", {"127.0.0.1\0.evil.example", 23}});
    for (const std::string& host : other) {
        CAPTURE(host);
        CHECK_FALSE(detail::is_fixed_host(host));
    }
}

TEST_CASE("connect: a socket that TCP connected to itself is refused, and a listener is accepted") {
    const time_point deadline = deadline_after(std::chrono::seconds(5));
    for (const char* host : {"127.0.0.1", "::1"}) {
        CAPTURE(host);
        endpoint target;
        target.host = host;
        target.port = 0;
        const detail::socket_address any_port = detail::known_addresses(target)[0];
        const detail::unique_fd caller = detail::open_socket(any_port.storage.ss_family);
        const bool is_bound = ::bind(caller.get(), any_port.get(), any_port.length) == 0;
        if (!is_bound && any_port.storage.ss_family == AF_INET6) continue;  // a machine without IPv6
        REQUIRE(is_bound);
        CHECK(detail::connect_to(caller.get(), detail::local_address(caller.get()), deadline) == ECONNREFUSED);

        const detail::unique_fd listener = detail::open_socket(any_port.storage.ss_family);
        REQUIRE(::bind(listener.get(), any_port.get(), any_port.length) == 0);
        REQUIRE(::listen(listener.get(), 1) == 0);
        const detail::unique_fd other = detail::open_socket(any_port.storage.ss_family);
        CHECK(detail::connect_to(other.get(), detail::local_address(listener.get()), deadline) == 0);
    }
}

TEST_CASE("connect: a silent address -> the next address is tried, even without a deadline; keep-alive is 20 s") {
    const detail::unique_fd silent = detail::open_socket(AF_INET), good = detail::open_socket(AF_INET);
    REQUIRE(::listen(silent.get(), 0) == 0);
    REQUIRE(::listen(good.get(), 1) == 0);
    detail::socket_addresses addresses = {detail::local_address(silent.get()), detail::local_address(good.get())};
    std::vector<detail::unique_fd> queue(6);  // full once a connection waits: the next SYN is dropped
    for (detail::unique_fd& each : queue) {
        each = detail::open_socket(AF_INET);
        detail::connect_to(each.get(), addresses[0], {});
    }
    const auto socket = detail::connect_socket(addresses, time_point::max(), "h");
    REQUIRE(socket);
    CHECK(detail::unique_fd(::accept(good.get(), nullptr, nullptr)));
    const auto option = [&](int level, int name) {
        int value = -1;
        socklen_t size = sizeof value;
        ::getsockopt(socket->get(), level, name, &value, &size);
        return value;
    };
    CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
#if defined(TCP_KEEPIDLE) && defined(TCP_USER_TIMEOUT)
    CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT) ==
          20);
    CHECK(option(IPPROTO_TCP, TCP_USER_TIMEOUT) == 20000);
#endif
}
