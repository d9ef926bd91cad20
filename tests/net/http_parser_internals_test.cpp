#include "test.hpp"

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
        request_parser parser(limits.head, limits.body);
        const status reached = feed(parser, text, byte_by_byte);
        const int unfailed = reached == status::complete ? 0 : -1;
        verdicts[byte_by_byte ? 1 : 0] = reached == status::failed ? parser.failure_code() : unfailed;
    }
    CHECK(verdicts[0] == verdicts[1]);
    return verdicts[0];
}

// Each of these texts, between the others, has this verdict.
void check_all(int expected, const std::string& before, const std::vector<std::string>& texts,
               const std::string& after = "", http_limits limits = {}) {
    for (const std::string& text : texts) {
        CAPTURE(text);
        CHECK(verdict(before + text + after, limits) == expected);
    }
}

std::string zeros(std::string text) {
    std::replace(text.begin(), text.end(), '_', '\0');
    return text;
}

const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";
const std::string chunked = get + "Transfer-Encoding: chunked\r\n\r\n";
const http_limits small{1000, 5};
}  // namespace

TEST_CASE("http_parser: a request is parsed alike whole and byte by byte") {
    for (const bool byte_by_byte : {false, true}) {
        request_parser parser(65536, 8 << 20);
        REQUIRE(feed(parser, "\r\nPOST /a?b HTTP/1.1\r\nhost:h\r\nX-Y: \t a b \t\r\nContent-Length: 3\r\n\r\nabc",
                     byte_by_byte) == status::complete);
        const auto& got = parser.message();
        CHECK(got.method + " " + got.target + " " + got.body == "POST /a?b abc");
        CHECK(find_header(got.headers, "x-y") == "a b");
        CHECK(find_header(got.headers, "none") == "");
        CHECK(parser.keeps_alive());
        CHECK_FALSE(parser.has_surplus());
    }
}

TEST_CASE("http_parser: pipelined requests are parsed one at a time") {
    request_parser parser(65536, 8 << 20);
    parser.begin();
    REQUIRE(parser.feed("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGE") == status::complete);
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

TEST_CASE("http_parser: chunks are joined to a body, and malformed or oversized chunks are refused") {
    request_parser parser(65536, 8 << 20);
    for (const bool byte_by_byte : {false, true}) {
        REQUIRE(feed(parser, chunked + "3;ext=\"x\"\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n",
                     byte_by_byte) == status::complete);
        CHECK(parser.message().body == "abc0123456789");
    }
    std::string many;
    for (int i = 0; i < 20000; ++i) many += "1\r\nx\r\n";
    REQUIRE(feed(parser, chunked + many + "0\r\n\r\n", false) == status::complete);
    CHECK(parser.message().body.size() == 20000);
    CHECK(verdict(chunked + "0\r\n\r\n") == 0);
    CHECK(verdict(chunked + "0\r\n") == -1);
    check_all(400, chunked, {"x\r\n", "-1\r\n", "\r\n", "0x3\r\n", "3\r\nabcd\r\n", "3\nabc\r\n", ";\r\n", "+3\r\n"});
    check_all(413, chunked, {"ffffffffffffffffffff\r\n", "FFFFFFFFFFFFFFFF\r\n"});
    CHECK(verdict(chunked + "3\r\nabc\r\n3\r\nabc\r\n", small) == 413);
    check_all(400, chunked, {"0\r\n", "1;"}, std::string(2000, 'x'), small);
}

TEST_CASE("http_parser: a chunk size or length above 64 bits is refused instead of wrapping") {
    http_limits none;
    none.body = static_cast<std::size_t>(-1);
    check_all(413, chunked, test::words("10000000000000005 10000000000000000 fffffffffffffffff 100000000000000000000"),
              "\r\nhello\r\n0\r\n\r\n", none);
    CHECK(verdict(chunked + "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", none) == -1);
    CHECK(verdict(chunked + "5\r\nhello\r\nfffffffffffffffb\r\n", none) == 413);  // what is there counts
    CHECK(verdict(get + "Content-Length: 18446744073709551621\r\n\r\nhello", none) == 400);
    CHECK(verdict(chunked + "0000000000000000000000005\r\nhello\r\n0\r\n\r\n") == 0);
}

TEST_CASE("http_parser: after a chunk size an extension is ignored, and other text is refused") {
    const std::string after = "\r\nhello\r\n0\r\n\r\n";
    check_all(0, chunked, {"5", "5;a", "5;a=b", "5 ; a = b ;\tc", "5;a=\"\\\"; \x80\";b", "5 "}, after);
    check_all(400, chunked,
              {"", " 5", "\t5", "5;a\rb", "5;a=\x7f", "5 5", "5\r", "\r5", zeros("5;_"), zeros("5_"), "5(b)", "5,a",
               "0x5", "+5", "-5", "5h"},
              after);
}

TEST_CASE("http_parser: trailers are checked as header lines and ignored") {
    const std::string before = chunked + "5\r\nhello\r\n0\r\n";
    check_all(0, before, {"", "A: b\r\n", "A:\r\nB: \t c d \r\n", "Content-Length: 4\r\n"}, "\r\n");
    check_all(400, before,
              {"GET /admin HTTP/1.1\r\n", "A: b\rContent-Length: 4\r\n", "A: b\r\n folded\r\n", " A: b\r\n",
               "A : b\r\n", ": b\r\n", "A: \x01\r\n", "A: b\n", "\r\r\n", zeros("A: _\r\n")},
              "\r\n");
}

TEST_CASE("http_parser: the host in an absolute target replaces the Host header") {
    request_parser parser(65536, 8 << 20);
    const auto read = [&](const std::string& target, const std::string& version) {
        parser.begin();
        REQUIRE(parser.feed("GET " + target + " HTTP/" + version + "\r\nHost: h\r\n\r\n") == status::complete);
        return parser.message().target + " of " + std::string(find_header(parser.message().headers, "Host"));
    };
    CHECK(read("http://other:80/x?y", "1.1") == "/x?y of other:80");
    CHECK(read("HTTP://other", "1.0") == "/ of other");
    CHECK(read("http://other?a=/", "1.1") == "/?a=/ of other");
    CHECK(read("/x", "1.1") == "/x of h");
    CHECK(verdict("GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n") == 400);
}

TEST_CASE("http_parser: malformed request lines and headers are refused with 400, other versions with 505") {
    check_all(
        400, "",
        {"GET\r\n", "GET /\r\n", "GET  HTTP/1.1\r\n", "G T / HTTP/1.1\r\n", " GET / HTTP/1.1\r\n", "GET / HTTQ/1.1\r\n",
         "GET / HTTP/1.1x\r\n", "GET / HTTP/11\r\n", "GET / \r\n", "G(T / HTTP/1.1\r\n", "GET / HTTP/1.1\nHost: h\n\n",
         "\n", "GET /\x01 HTTP/1.1\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
         "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "\x16\x03\x01\x02\n"});
    CHECK(verdict("GET / HTTP/2.0\r\n") == 505);
    check_all(400, get,
              {" folded: x\r\n", "No colon\r\n", "Bad name: x\r\n", "X : y\r\n", ": x\r\n", "X: a\rb\r\n",
               "X: a\x7f\r\n", "X: a\r\n b\r\n", zeros("X: a_b\r\n")},
              "\r\n");
    CHECK(verdict("GET http://proxied:80/x HTTP/1.1\r\nHost: h\r\n\r\n") == 0);
}

TEST_CASE("http_parser: ambiguous, unsupported or too large lengths are refused") {
    check_all(400, get + "Content-Length:",
              {" -1", " +1", " 1x", "", " 1, 1", " 1\r\nContent-Length: 2", " 0x1", " 1\r\nTransfer-Encoding: chunked"},
              "\r\n\r\n");
    check_all(400, get + "Content-Length: ", {"99999999999999999999999", "18446744073709551617"}, "\r\n\r\n");
    CHECK(verdict(get + "Content-Length: 6\r\n\r\n", small) == 413);
    CHECK(verdict(get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx") == 0);
    check_all(501, get + "Transfer-Encoding: ", {"gzip", "chunked\r\nTransfer-Encoding: chunked"}, "\r\n\r\n");
    CHECK(verdict("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 501);
}

TEST_CASE("http_parser: a head above its size limit is refused with 431, with or without line ends") {
    std::string many = get;
    std::string empty_lines;
    for (int i = 0; i < 1000; ++i) many += "X: y\r\n", empty_lines += "\r\n";
    check_all(431, "", {get + "X: " + std::string(2000, 'x'), "GET /" + std::string(2000, 'x'), many, empty_lines}, "",
              small);
}
