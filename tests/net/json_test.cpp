#include <clocale>
#include <string>

#include <picojson.h>

#include "test.hpp"

using namespace ojs;
using namespace ojs::detail;

namespace {

std::string repeat(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

bool parses(const std::string& text) {
    picojson::value value;
    const result<void> parsed = parse_json(text, value);
    if (!parsed) {
        CHECK(parsed.error().code == errc::bad_answer);
        CHECK(parsed.error().text.size() < 80);
        CHECK(value.is<picojson::null>());
    }
    return parsed.has_value();
}

picojson::value parse(const std::string& text) {
    picojson::value value;
    REQUIRE(parse_json(text, value));
    return value;
}

}  // namespace

TEST_CASE("json: what is valid parses, whatever surrounds it") {
    for (const char* text :
         {"{}", " [1, 2.5, -3e2] \r\n", "\"\\u00e9\\ud83d\\ude00\"", "true", "null", "0"}) {
        CAPTURE(text);
        CHECK(parses(text));
    }
}

TEST_CASE("json: what is not valid is an error without an echo") {
    for (const char* text :
         {"", "  \n", "{", "[1,]", "{\"a\":1,}", "nul", "\"a", "\"\n\"", "\"\\ud800\"", "[1] 2", "{}}",
          "1e999", "[-1e999]", "{\"a\":1e400}", "-", "'a'", "]", "secret-token"}) {
        CAPTURE(text);
        CHECK_FALSE(parses(text));
    }
    picojson::value value;
    CHECK(parse_json("secret-token", value).error().text.find("secret") == std::string::npos);
}

TEST_CASE("json: nesting is limited to 100, of arrays and of objects") {
    CHECK(parses(repeat("[", 100) + repeat("]", 100)));
    CHECK_FALSE(parses(repeat("[", 101) + repeat("]", 101)));
    CHECK(parses(repeat("{\"a\":", 100) + "1" + repeat("}", 100)));
    CHECK_FALSE(parses(repeat("{\"a\":", 101) + "1" + repeat("}", 101)));
    CHECK_FALSE(parses(repeat("[", 200000)));
    CHECK_FALSE(parses(repeat("{\"a\":", 200000)));
    CHECK_FALSE(parses(repeat("[{\"a\":", 200000)));
    CHECK(parses("\"" + repeat("[", 1000) + "\""));
    CHECK(parses("[" + repeat("[],", 1000) + "[]]"));
}

TEST_CASE("json: numbers keep their point in a locale that has a comma") {
    const char* found = nullptr;
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"}) {
        if (found == nullptr) found = std::setlocale(LC_NUMERIC, name);
    }
    if (found == nullptr) MESSAGE("skipped: no locale with a decimal comma is installed");
    CHECK(parse("1.5").get<double>() == 1.5);
    CHECK(to_json(picojson::value(1.5)) == "1.5");
    std::setlocale(LC_NUMERIC, "C");
}

TEST_CASE("json: quoting escapes and repairs") {
    CHECK(json_quote("a\"b\\c\n\x01\x7f") == "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\"");
    CHECK(json_quote("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80") == "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"");
    CHECK(json_quote("\xff") == "\"\xef\xbf\xbd\"");
    CHECK(json_quote("a\xc3") == "\"a\xef\xbf\xbd\"");                                // cut off
    CHECK(json_quote("\xc0\xaf") == "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // overlong
    CHECK(json_quote("\xed\xa0\x80") == "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
    CHECK(json_quote(std::string_view("\0", 1)) == "\"\\u0000\"");
    for (int byte = 0; byte < 256; ++byte) {
        const std::string text(3, static_cast<char>(byte));
        CHECK(parses(json_quote(text)));
    }
}

TEST_CASE("json: writing repairs bytes that are not UTF-8") {
    CHECK(to_json(picojson::value(std::string("a\xff"))) == "\"a\xef\xbf\xbd\"");
    CHECK(to_json(parse("{\"b\":[1,true,null],\"a\":\"x\"}")) == "{\"a\":\"x\",\"b\":[1,true,null]}");
}

TEST_CASE("json: members of the wrong type are absent") {
    const picojson::value object =
        parse(R"({"s":"x","n":7,"f":1.5,"big":1e300,"neg":-3,"edge":9223372036854775808})");
    std::string text = "kept";
    CHECK(json_string(object, "s", text));
    CHECK(text == "x");
    CHECK_FALSE(json_string(object, "n", text));
    CHECK_FALSE(json_string(object, "none", text));
    CHECK_FALSE(json_string(parse("[]"), "s", text));
    CHECK(json_member(object, "none") == nullptr);
    std::int64_t number = 42;
    for (const char* key : {"s", "f", "big", "edge", "none"}) {
        CAPTURE(key);
        CHECK_FALSE(json_integer(object, key, INT64_MIN, INT64_MAX, number));
    }
    CHECK_FALSE(json_integer(object, "n", 0, 6, number));
    CHECK_FALSE(json_integer(object, "neg", 0, 6, number));
    CHECK(number == 42);
    CHECK(json_integer(object, "n", 0, 7, number));
    CHECK(number == 7);
    CHECK(json_integer(object, "neg", -3, 0, number));
    CHECK(number == -3);
}

TEST_CASE("json: the source text of a member is found as written") {
    const std::string text =
        R"( { "id" : 12345678901234567890 , "a,b" : {"x":[1,{"y":"}]"}]} , "esc\u0061pe":-0.10,
                                   "q\"" : "s\\\"," , "id2":[ ] , "dup":1,"dup":2 } )";
    REQUIRE(parses(text));
    CHECK(raw_member(text, "id") == "12345678901234567890");
    CHECK(raw_member(text, "a,b") == R"({"x":[1,{"y":"}]"}]})");
    CHECK(raw_member(text, "escape") == "-0.10");
    CHECK(raw_member(text, "q\"") == R"("s\\\",")");
    CHECK(raw_member(text, "id2") == "[ ]");
    CHECK(raw_member(text, "dup") == "2");
    CHECK(raw_member(text, "x") == "");
    CHECK(raw_member("[1]", "x") == "");
    CHECK(raw_member("", "x") == "");
    CHECK(raw_member("{}", "x") == "");
}

TEST_CASE("json: the elements of an array come one by one") {
    std::string_view rest = " [ 1 , \"a]\\\"\" ,[2,[3]], {\"k\":[4]} ,null ] ";
    std::string_view element;
    std::string all;
    while (next_raw_element(rest, element)) all += std::string(element) + ";";
    CHECK(all == "1;\"a]\\\"\";[2,[3]];{\"k\":[4]};null;");
    rest = "[ ]";
    CHECK_FALSE(next_raw_element(rest, element));
    rest = "{}";
    CHECK_FALSE(next_raw_element(rest, element));
    rest = "";
    CHECK_FALSE(next_raw_element(rest, element));
}

TEST_CASE("json: walking over text that is not JSON ends") {
    for (const char* text :
         {"{\"a\"", "{\"a\":", "{\"a\":\"", "{\"a\":[", "{\"a\\", "{a:1}", "{\"a\" 1}", "{,", "{\"a\":}"}) {
        CAPTURE(text);
        CHECK(raw_member(text, "b") == "");
        std::string_view rest = text;
        std::string_view element;
        while (next_raw_element(rest, element)) {
        }
    }
}

TEST_CASE("json: a member is put in place of any of its name, the others keep their text") {
    using ojs::detail::with_raw_member;
    CHECK(with_raw_member("{}", "k", "1") == R"({"k":1})");
    CHECK(with_raw_member(R"( { "a" : 1.00 , "k":{"k":2}, "b":[ ] } )", "k", "3") ==
          R"({"a":1.00,"b":[ ],"k":3})");
    CHECK(with_raw_member(R"({"k":1,"\u006b":2,"k":3})", "k", "null") == R"({"k":null})");
    CHECK(with_raw_member(R"({"a":1,"k":2})", "k", "") == R"({"a":1})");
    CHECK(with_raw_member(R"({"k":2})", "k", "") == "{}");
    CHECK(with_raw_member("", "a\"b", "1") == R"({"a\"b":1})");
    CHECK(with_raw_member("no object", "k", "1") == R"({"k":1})");
}

TEST_CASE("json: numbers are written as JSON has them, or they are none") {
    picojson::value out;
    for (const char* good :
         {"0", "-0", "10", "-1.50", "1e5", "1E-5", "0.1e+09", "[1,2.5,-3e2]", R"({"1.":"007"})"}) {
        CAPTURE(good);
        CHECK(ojs::detail::parse_json(good, out));
    }
    for (const char* bad :
         {"007", "-007", "00", "1.", "-", "1.e5", "1e", "1e+", "[01]", "{\"a\":1.}", "1.2.3", "--1"}) {
        CAPTURE(bad);
        CHECK_FALSE(ojs::detail::parse_json(bad, out));
    }
}
