#include <string>

#include "test.hpp"
#include "text.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using detail::http_parser;
using detail::request_parser;
using status = detail::http_parser::status;

namespace {

status feed(http_parser& parser, const std::string& text, bool byte_by_byte) {
    parser.begin();
    if (!byte_by_byte) return parser.feed(text);
    status reached = status::need_more;
    for (const char& c : text) {
        if (reached != status::failed) reached = parser.feed({&c, 1});
    }
    return reached;
}

// What a server would answer with; 0: a complete request; -1: more is needed.
int verdict(const std::string& text, http_limits limits = {}) {
    int verdicts[2];
    for (const bool byte_by_byte : {false, true}) {
        request_parser parser(limits);
        const status reached = feed(parser, text, byte_by_byte);
        verdicts[byte_by_byte ? 1 : 0] = reached == status::failed     ? parser.failure_code()
                                         : reached == status::complete ? 0
                                                                       : -1;
    }
    CHECK(verdicts[0] == verdicts[1]);
    return verdicts[0];
}

const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";

}  // namespace

TEST_CASE("parser: a request, however its bytes arrive") {
    for (const bool byte_by_byte : {false, true}) {
        request_parser parser(http_limits{});
        REQUIRE(feed(parser,
                     "\r\nPOST /a?b HTTP/1.1\r\nhost:h\r\nX-Y: \t a b \t\r\nContent-Length: 3\r\n\r\nabc",
                     byte_by_byte) == status::complete);
        const auto& got = parser.message();
        CHECK(got.method + " " + got.target + " " + got.body == "POST /a?b abc");
        CHECK(find_header(got.headers, "x-y") == "a b");
        CHECK(find_header(got.headers, "none") == "");
        CHECK(parser.keeps_alive());
        CHECK_FALSE(parser.has_surplus());
    }
}

TEST_CASE("parser: pipelined requests stay apart") {
    request_parser parser(http_limits{});
    parser.begin();
    REQUIRE(parser.feed("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGE") ==
            status::complete);
    CHECK(parser.message().target == "/1");
    CHECK(parser.has_surplus());
    parser.begin();
    REQUIRE(parser.feed({}) == status::complete);
    CHECK(parser.message().target == "/2");
    parser.begin();
    CHECK(parser.feed({}) == status::need_more);
    CHECK_FALSE(parser.is_empty());
    REQUIRE(parser.feed("T /3 HTTP/1.0\r\n\r\n") == status::complete);
    CHECK(parser.message().target == "/3");
    CHECK_FALSE(parser.keeps_alive());
    parser.begin();
    CHECK(parser.feed({}) == status::need_more);
    CHECK(parser.is_empty());
}

TEST_CASE("parser: chunked bodies") {
    const std::string head = get + "Transfer-Encoding: chunked\r\n\r\n";
    request_parser parser(http_limits{});
    for (const bool byte_by_byte : {false, true}) {
        REQUIRE(feed(parser, head + "3;ext=\"x\"\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n",
                     byte_by_byte) == status::complete);
        CHECK(parser.message().body == "abc0123456789");
    }
    CHECK(verdict(head + "0\r\n\r\n") == 0);
    CHECK(verdict(head + "0\r\n") == -1);
    for (const char* body :
         {"x\r\n", "-1\r\n", "\r\n", "0x3\r\n", "3\r\nabcd\r\n", "3\nabc\r\n", ";\r\n", "+3\r\n"}) {
        CAPTURE(body);
        CHECK(verdict(head + body) == 400);
    }
    CHECK(verdict(head + "ffffffffffffffffffff\r\n") == 413);
    CHECK(verdict(head + "FFFFFFFFFFFFFFFF\r\n") == 413);
    CHECK(verdict(head + "3\r\nabc\r\n3\r\nabc\r\n", {1000, 5}) == 413);
    CHECK(verdict(head + "0\r\n" + std::string(2000, 'x'), {1000, 5}) == 400);
    CHECK(verdict(head + "1;" + std::string(2000, 'x'), {1000, 5}) == 400);
}

TEST_CASE("parser: a chunk size above what 64 bits hold does not become a small one") {
    const std::string head = get + "Transfer-Encoding: chunked\r\n\r\n";
    http_limits none;
    none.body = static_cast<std::size_t>(-1);
    for (const char* size :
         {"10000000000000005", "10000000000000000", "fffffffffffffffff", "100000000000000000000"}) {
        CAPTURE(size);
        CHECK(verdict(head + size + "\r\nhello\r\n0\r\n\r\n", none) == 413);
    }
    CHECK(verdict(head + "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", none) == -1);
    CHECK(verdict(head + "5\r\nhello\r\nfffffffffffffffb\r\n", none) == 413);  // what is there counts
    CHECK(verdict(get + "Content-Length: 18446744073709551621\r\n\r\nhello", none) == 413);
    CHECK(verdict(head + "0000000000000000000000005\r\nhello\r\n0\r\n\r\n") == 0);
}

TEST_CASE("parser: chunk extensions by the grammar, and nothing else beside a chunk size") {
    const auto size_line = [](const std::string& line) {
        return verdict(get + "Transfer-Encoding: chunked\r\n\r\n" + line + "\r\nhello\r\n0\r\n\r\n");
    };
    for (const char* line : {"5", "5;a", "5;a=b", "5;a=\"b\"", "5 ; a = b ;\tc", "5;a=\"\"",
                             "5;a=\"\\\"; \x80\";b", "5;a=\" \t!#[]~\"", "5;!#$%&'*+-.^_`|~=1"}) {
        CAPTURE(line);
        CHECK(size_line(line) == 0);
    }
    std::vector<std::string> bad =
        test::words(R"(5; 5;;a 5;a; 5;a= 5;=b 5;a=b=c 5;a="b 5;a="b\" 5;a="b"c 5;a(b) 5,a 0x5 +5 -5 5h)");
    for (const char* each :
         {"", " 5", "\t5", "5 ", "5\t", "5 \t ", "5; ", "5;a ", "5;a= ", "5;a=b c", "5;a=\"b\" ", "5;a\rb",
          "5;a=\"\r\"", "5;a=\x7f", "5;a=\"\x01\"", "5 5", "5\r", "\r5"})
        bad.emplace_back(each);
    for (const char* each : {"5;_", "5;a=\"_\"", "5_"}) {
        bad.emplace_back(each);
        bad.back()[bad.back().find('_')] = '\0';
    }
    for (const std::string& line : bad) {
        CAPTURE(line);
        CHECK(size_line(line) == 400);
    }
}

TEST_CASE("parser: trailers are checked as header lines and ignored") {
    const auto with = [](const std::string& trailers) {
        return verdict(get + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + trailers + "\r\n");
    };
    for (const char* fine : {"", "A: b\r\n", "A:\r\nB: \t c d \r\n", "Content-Length: 4\r\n"}) {
        CAPTURE(fine);
        CHECK(with(fine) == 0);
    }
    for (const char* bad : {"GET /admin HTTP/1.1\r\n", "A: b\rContent-Length: 4\r\n", "A: b\r\n folded\r\n",
                            " A: b\r\n", "A : b\r\n", ": b\r\n", "A: \x01\r\n", "A: b\n", "\r\r\n"}) {
        CAPTURE(bad);
        CHECK(with(bad) == 400);
    }
    CHECK(with(std::string("A: \0\r\n", 6)) == 400);
}

TEST_CASE("parser: the host of a target that is a whole URL goes before the Host header") {
    request_parser parser(http_limits{});
    const auto read = [&](const std::string& target, const std::string& version) {
        parser.begin();
        REQUIRE(parser.feed("GET " + target + " HTTP/" + version + "\r\nHost: h\r\n\r\n") ==
                status::complete);
        return parser.message().target + " of " + std::string(find_header(parser.message().headers, "Host"));
    };
    CHECK(read("http://other:80/x?y", "1.1") == "/x?y of other:80");
    CHECK(read("HTTP://other", "1.0") == "/ of other");
    CHECK(read("http://other?a=/", "1.1") == "/?a=/ of other");
    CHECK(read("/x", "1.1") == "/x of h");
    CHECK(verdict("GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n") == 400);
}

TEST_CASE("parser: many small chunks are fine") {
    std::string text = get + "Transfer-Encoding: chunked\r\n\r\n";
    for (int i = 0; i < 20000; ++i) text += "1\r\nx\r\n";
    request_parser parser(http_limits{});
    REQUIRE(feed(parser, text + "0\r\n\r\n", false) == status::complete);
    CHECK(parser.message().body.size() == 20000);
}

TEST_CASE("parser: bad requests") {
    for (const char* text :
         {"GET\r\n", "GET /\r\n", "GET  HTTP/1.1\r\n", "G T / HTTP/1.1\r\n", " GET / HTTP/1.1\r\n",
          "GET / HTTQ/1.1\r\n", "GET / HTTP/1.1x\r\n", "GET / HTTP/11\r\n", "GET / \r\n",
          "G(T / HTTP/1.1\r\n", "GET / HTTP/1.1\nHost: h\n\n", "\n", "GET /\x01 HTTP/1.1\r\n",
          "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
          "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "\x16\x03\x01\x02\n"}) {
        CAPTURE(text);
        CHECK(verdict(text) == 400);
    }
    CHECK(verdict("GET / HTTP/2.0\r\n") == 505);
    for (const char* header : {" folded: x\r\n", "No colon\r\n", "Bad name: x\r\n", "X : y\r\n", ": x\r\n",
                               "X: a\rb\r\n", "X: a\x7f\r\n"}) {
        CAPTURE(header);
        CHECK(verdict(get + header + "\r\n") == 400);
    }
    CHECK(verdict(get + "X: a\r\n b\r\n\r\n") == 400);  // folded
    CHECK(verdict(get + std::string("X: a\0b\r\n\r\n", 10)) == 400);
    CHECK(verdict("GET http://proxied:80/x HTTP/1.1\r\nHost: h\r\n\r\n") == 0);
}

TEST_CASE("parser: lengths that two readers could understand differently") {
    for (const char* header :
         {"Content-Length: -1\r\n", "Content-Length: +1\r\n", "Content-Length: 1x\r\n", "Content-Length:\r\n",
          "Content-Length: 1, 1\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n", "Content-Length: 0x1\r\n",
          "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"}) {
        CAPTURE(header);
        CHECK(verdict(get + header + "\r\n") == 400);
    }
    CHECK(verdict(get + "Content-Length: 99999999999999999999999\r\n\r\n") == 413);
    CHECK(verdict(get + "Content-Length: 18446744073709551617\r\n\r\n") == 413);
    CHECK(verdict(get + "Content-Length: 6\r\n\r\n", {1000, 5}) == 413);
    CHECK(verdict(get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx") == 0);
    CHECK(verdict(get + "Transfer-Encoding: gzip\r\n\r\n") == 501);
    CHECK(verdict(get + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n") == 501);
    CHECK(verdict("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400);
}

TEST_CASE("parser: a head has a limit, with and without line ends") {
    CHECK(verdict(get + "X: " + std::string(2000, 'x'), {1000, 5}) == 431);
    CHECK(verdict("GET /" + std::string(2000, 'x'), {1000, 5}) == 431);
    std::string many = get;
    for (int i = 0; i < 1000; ++i) many += "X: y\r\n";
    CHECK(verdict(many, {1000, 5}) == 431);
    std::string empty_lines;
    for (int i = 0; i < 1000; ++i) empty_lines += "\r\n";
    CHECK(verdict(empty_lines, {1000, 5}) == 431);
}

#endif
