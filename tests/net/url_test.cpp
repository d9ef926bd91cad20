#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using detail::endpoint;
using detail::parse_listen_address;
using detail::parse_url;

namespace {

errc fault(std::string_view url) {
    const result<endpoint> parsed = parse_url(url, false);
    REQUIRE_FALSE(parsed);
    CHECK_FALSE(parsed.error().text.empty());
    CHECK(parsed.error().text.find('\n') == std::string::npos);
    return parsed.error().code;
}

}  // namespace

TEST_CASE("url: host, port and base") {
    result<endpoint> url = parse_url("http://backend.example:8080/api/v2/", false);
    REQUIRE(url);
    CHECK(url->host == "backend.example");
    CHECK(url->port == 8080);
    CHECK(url->base == "/api/v2");
    CHECK(url->name == "backend.example:8080");
    url = parse_url("HTTP://127.0.0.1", false);
    REQUIRE(url);
    CHECK(url->port == 80);
    CHECK(url->base.empty());
    url = parse_url("http://[::1]:1/", false);
    REQUIRE(url);
    CHECK(url->host == "::1");
    CHECK(url->name == "[::1]:1");
    CHECK(url->base.empty());
    url = parse_url("HTTPS://[::1]/b", true);
    REQUIRE(url);
    CHECK(url->is_secure);
    CHECK(url->name == "[::1]:443");
    CHECK(url->base == "/b");
    url = parse_url("unix:/run/ojs.sock", false);
    REQUIRE(url);
    CHECK(url->unix_path == "/run/ojs.sock");
    CHECK(url->name == "unix:/run/ojs.sock");
}

TEST_CASE("url: an unusable one is an error with the reason") {
    for (const char* url : {"",
                            "host:80",
                            "ftp://host",
                            "http://",
                            "http:///x",
                            "http://:80",
                            "http://h:",
                            "http://h:0",
                            "http://h:65536",
                            "http://h:8a",
                            "http://h:-1",
                            "http://h:99999999999999999999",
                            "http://::1",
                            "http://[::1",
                            "http://[]",
                            "http://[zz]",
                            "http://[::1]8",
                            "http://u@h",
                            "http://u:p@h/",
                            "http://h\r\nX: y",
                            "http://h/a b",
                            "http://h/\r\n",
                            "http://h/?q",
                            "http://h#f",
                            "http://h o",
                            "unix:",
                            "unix:relative"}) {
        CAPTURE(url);
        CHECK(fault(url) == errc::invalid_argument);
    }
    CHECK(fault(std::string_view("http://h\0x", 10)) == errc::invalid_argument);
    CHECK(fault(std::string_view("unix:/a\0b", 9)) == errc::invalid_argument);
    CHECK(fault(std::string_view("http://[::1\0\r\nX-Injected: yes\r\nX-Rest: ]:80", 42)) ==
          errc::invalid_argument);
    CHECK(fault(std::string_view("http://[::1\0]", 13)) == errc::invalid_argument);
    for (const char* path : {"unix:/a\nb", "unix:/a\rb", "unix:/a\tb", "unix:/a\x7f", "unix:/\x1b[2J"}) {
        CAPTURE(path);
        CHECK(fault(path) == errc::invalid_argument);
        CHECK_FALSE(parse_listen_address(path));
    }
    CHECK(parse_url("unix:/a b/\xc3\xa9", false));
    CHECK(fault("unix:/" + std::string(200, 'x')) == errc::invalid_argument);
    CHECK(fault("https://h") == errc::unsupported);
    CHECK(parse_url("https://h", false).error().text.find("ojs_tls.hpp") != std::string::npos);
    CHECK(parse_url("https://u:hunter2@h", true).error().text.find("hunter2") == std::string::npos);
    CHECK(parse_url("http://u:hunter2@h", false).error().text.find("hunter2") == std::string::npos);
}

TEST_CASE("listen address: every form") {
    CHECK(parse_listen_address("8080")->name == "127.0.0.1:8080");
    CHECK(parse_listen_address(":0")->name == "127.0.0.1:0");
    CHECK(parse_listen_address("0.0.0.0:80")->name == "0.0.0.0:80");
    CHECK(parse_listen_address("localhost:80")->name == "127.0.0.1:80");
    CHECK(parse_listen_address("[::]:80")->name == "[::]:80");
    CHECK(parse_listen_address("unix:/tmp/x")->name == "unix:/tmp/x");
    for (const char* address : {"", ":", "x", "1.2.3.4", "1.2.3.4:", "name:80", "[::1]", "::1:80", "*:80",
                                "1.2.3.4:65536", "unix:x"}) {
        CAPTURE(address);
        const result<endpoint> parsed = parse_listen_address(address);
        CHECK_FALSE(parsed);
        if (!parsed) CHECK(parsed.error().code == errc::invalid_argument);
    }
    CHECK_FALSE(parse_listen_address(std::string_view("[::1\0junk]:0", 12)));
    CHECK_FALSE(parse_listen_address(std::string_view("127.0.0.1\0:0", 12)));
    CHECK_FALSE(parse_listen_address(std::string_view("80\0", 3)));
}

TEST_CASE("url: a Host header that no DNS can point elsewhere") {
    for (const char* host : {"127.0.0.1", "127.0.0.1:80", "10.1.2.3:65535", "[::1]", "[::1]:8080",
                             "[fe80::1]:1", "localhost", "LocalHost:8080", "localhost:0"}) {
        CAPTURE(host);
        CHECK(detail::is_fixed_host(host));
    }
    for (const char* host :
         {"", ":80", "evil.example", "evil.example:80", "localhost.evil.example", "localhost.", "127.0.0.1.",
          "127.1", "2130706433", "0x7f.0.0.1", "127.0.0.1.nip.io", "::1", "[::1", "[::1]x", "[evil]",
          "u@127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:80:80", "127.0.0.1 ", "localhost, a",
          // the wildcards, and IPv4 in IPv6
          "0.0.0.0:80", "[::]:80", "[::ffff:127.0.0.1]", "[::7f00:1]"}) {
        CAPTURE(host);
        CHECK_FALSE(detail::is_fixed_host(host));
    }
    CHECK_FALSE(detail::is_fixed_host(std::string_view("127.0.0.1\0.evil.example", 23)));
}

TEST_CASE("connect: a socket that TCP connected to itself is refused, a listener is not") {
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
        CHECK(detail::connect_tcp(caller.get(), detail::local_address(caller.get()), deadline) ==
              ECONNREFUSED);

        const detail::unique_fd listener = detail::open_socket(any_port.storage.ss_family);
        REQUIRE(::bind(listener.get(), any_port.get(), any_port.length) == 0);
        REQUIRE(::listen(listener.get(), 1) == 0);
        const detail::unique_fd other = detail::open_socket(any_port.storage.ss_family);
        CHECK(detail::connect_tcp(other.get(), detail::local_address(listener.get()), deadline) == 0);
    }
}

#endif
