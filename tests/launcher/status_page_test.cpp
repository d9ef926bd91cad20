#include <string>

#include "fake_fleet.hpp"
#include "test.hpp"
#include "text.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // the processes are fakes of an internal class

using namespace ojs;
using test::fake_fleet;
using test::holds;
using test::kv_group;

namespace {

launcher_options options_with(const std::string& page, const std::string& token = "") {
    launcher_options out;
    out.log.level = log_level::off;
    out.groups = {kv_group(1, 1, 1)};
    out.admin_address = "127.0.0.1:0";
    out.admin_token = token;
    out.status_page = page;
    return out;
}

struct paged {
    explicit paged(launcher_options options) : kept(fleet.launch(std::move(options))) {
        REQUIRE(kept.start());
        REQUIRE(fleet.notes().wait_for(1));
    }
    std::string address() const { return kept.admin_address(); }
    http_response ask(const std::string& method, const std::string& target, const http_headers& headers) {
        result<http_client> client = http_client::create("http://" + address());
        REQUIRE(client);
        http_call call;
        call.deadline = steady_clock::now() + test::hang_guard;
        result<http_response> answer = client->send({method, target, headers, ""}, call);
        REQUIRE_MESSAGE(answer, answer.error().text);
        return *answer;
    }
    int status(const http_headers& headers) { return ask("GET", "/events", headers).status; }

    fake_fleet fleet;
    launcher kept;
};

std::string header_of(const http_response& from, std::string_view name) {
    for (const http_header& each : from.headers) {
        if (each.name == name) return each.value;
    }
    return "not there";
}

// What the guard makes of a request with these headers.
bool passes(const detail::http_guard& guard, const http_headers& headers) {
    http_response refused;
    return detail::passes_guard(guard, {"GET", "/events", headers, ""}, refused);
}

}  // namespace

TEST_CASE("status page: it is at /, and no browser keeps it or lets it load anything") {
    paged of(options_with("<p>hello"));
    const http_response page = of.ask("GET", "/", {});
    CHECK(page.status == 200);
    CHECK(page.body == "<p>hello");
    CHECK(header_of(page, "Content-Type") == "text/html; charset=utf-8");
    CHECK(header_of(page, "Cache-Control") == "no-store");
    for (const char* rule : {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'",
                             "base-uri 'none'", "require-trusted-types-for 'script'"})
        CHECK(holds(header_of(page, "Content-Security-Policy"), rule));
    CHECK(of.ask("GET", "/", {{"Sec-Fetch-Site", "none"}}).status == 200);  // as typed into a browser
    CHECK(of.ask("POST", "/", {}).status == 405);
}

TEST_CASE("status page: without one nothing is at /, and its origin is as foreign as any") {
    paged of(options_with(""));
    CHECK(of.ask("GET", "/", {}).status == 404);
    CHECK(of.status({{"Origin", "http://" + of.address()}}) == 403);
    CHECK(of.status({{"Sec-Fetch-Site", "same-origin"}}) == 403);
}

TEST_CASE("status page: no other web page may send requests") {
    paged of(options_with("<p>"));
    const std::string own = "http://" + of.address();
    CHECK(of.status({}) == 200);
    CHECK(of.status({{"Origin", own}}) == 200);
    CHECK(of.status({{"Origin", own}, {"Sec-Fetch-Site", "same-origin"}}) == 200);
    CHECK(of.status({{"Sec-Fetch-Site", "same-origin"}}) == 200);
    for (const std::string& foreign : {std::string("http://evil.example"), std::string("null"), std::string(),
                                       std::string("http://127.0.0.1:1"), own + ".evil.example", own + "/"})
        CHECK_MESSAGE(of.status({{"Origin", foreign}}) == 403, foreign);
    for (const char* site : {"cross-site", "same-site", "none", ""})
        CHECK_MESSAGE(of.status({{"Origin", own}, {"Sec-Fetch-Site", site}}) == 403, site);
}

TEST_CASE("status page: a foreign host name needs a token") {
    const http_headers pointed = {{"Host", "evil.example:80"}, {"Origin", "http://evil.example:80"}};
    detail::http_guard guard;  // of a Unix socket that somebody forwards to a port: its Host is not looked at
    guard.has_web_page = true;
    CHECK(passes(guard, {{"Host", "localhost:80"}, {"Origin", "http://localhost:80"}}));
    CHECK(passes(guard, {{"Host", "localhost"}, {"Origin", "https://localhost"}}));  // behind TLS of another
    CHECK_FALSE(passes(guard, pointed));
    CHECK_FALSE(passes(guard, {{"Origin", "http://"}}));
    guard.token = "s3cret";
    CHECK_FALSE(passes(guard, pointed));
    http_headers known = pointed;
    known.push_back({"Authorization", "Bearer s3cret"});
    CHECK(passes(guard, known));
    known[1].value = "http://other.example";
    CHECK_FALSE(passes(guard, known));
}

TEST_CASE("status page: with a token it is shown to all, and what it asks is not") {
    paged of(options_with("<p>", "s3cret"));
    CHECK(of.ask("GET", "/", {}).status == 200);
    const http_header own = {"Origin", "http://" + of.address()};
    CHECK(of.status({own}) == 401);
    CHECK(of.status({own, {"Authorization", "Bearer s3cret"}}) == 200);
}

#endif
