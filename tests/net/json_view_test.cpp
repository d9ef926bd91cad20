#include <cmath>

#include <picojson.h>

#include "comma_locale.hpp"
#include "test.hpp"

using namespace ojs::detail;

namespace {
std::string repeat(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

bool parses(const std::string& text) {
    const result<void> checked = check_json(text, true);
    if (!checked) {
        CHECK(checked.error().code == errc::bad_response);
        CHECK(checked.error().text.size() < 80);
    }
    CHECK((is_json(text) || !checked));
    return checked.has_value();
}

picojson::value parse(const std::string& text) {
    picojson::value value;
    REQUIRE(picojson::parse(value, text).empty());
    return value;
}

template <class T>
result<T> as(std::string_view text) {
    return json_view(text).as<T>();
}
}  // namespace

TEST_CASE("json: valid JSON parses, with white space inside and around it") {
    const std::vector<std::string> valid =
        test::words(R"({} [] [[],{}] {"":{"":[]}} [true,false,null] "\"\\\/\b\f\n\r\t" "\u00e9\ud83d\ude00" true null)"
                    " 0 -0 10 -1.50 1e5 1E-5 0.1e+09 {\"1.\":\"007\"} \"\x7f\"",
                    {"{ \"a\" : [ 1 , { } ] , \"b\" : \"\\n\" }", " [1, 2.5, -3e2] \r\n"});
    for (const std::string& text : valid) {
        CAPTURE(text);
        CHECK(parses(text));
    }
}

TEST_CASE("json: invalid JSON is refused with an error that does not echo the text") {
    const std::vector<std::string> invalid = test::words(
        R"({ [ ] , : - [1,] {"a":1,} nul tru truee nulll "a {}} 1e999 [-1e999] {"a":1e400} 'a' secret-token)"
        R"( [1 [1, [} {] {"a" {"a": {"a":} {"a":1 {"a":1] {1:2} {,} [,] [1,,2] "\" "\x" "\u12" "\u12g4")"
        R"( "a\ 1, 1] /**/1 NaN Infinity +1 .5 0x10 007 -007 00 1. 1.e5 1e 1e+ [01])"
        R"( {"a":1.} 1.2.3 --1)",
        {"", "  \n", "\"\n\"", "\"\t\"", "[1] 2", "{\"a\" 1}", "[1 2]", "{\"a\":1 \"b\":2}", "[true false]",
         "\xef\xbb\xbf{}", "\x0c{}"});
    for (const std::string& text : invalid) {
        CAPTURE(text);
        CHECK_FALSE(parses(text));
    }
    for (const std::string& text : test::words("007 -007 00 1. - 1.e5 1e 1e+ 1.2.3 --1"))
        CHECK_FALSE(is_json_number(text));
    CHECK_FALSE(is_json(std::string_view("\"a\"", 2)));  // a quote that is not part of it
    CHECK(check_json("secret-token").error().text.find("secret") == std::string::npos);
    CHECK(check_json("[1,\n2,\n x]").error().text == "invalid JSON in line 3");
    CHECK(check_json("1\n2").error().text == "invalid JSON in line 2");
}

TEST_CASE("json: nesting deeper than 100 arrays or objects is refused") {
    for (const int depth : {100, 101, 200000}) {
        CAPTURE(depth);
        CHECK(parses(repeat("[", depth) + repeat("]", depth)) == (depth == 100));
        CHECK(parses(repeat("{\"a\":", depth) + "1" + repeat("}", depth)) == (depth == 100));
        CHECK_FALSE(parses(repeat("[{\"a\":", depth)));
    }
    CHECK(parses("\"" + repeat("[", 1000) + "\""));
    CHECK(parses("[" + repeat("[],", 1000) + "[]]"));
}

TEST_CASE("json: is_json() accepts values that the library cannot represent, but no syntax error") {
    const std::string deep = repeat("[", 200000);
    const std::string objects = repeat("{\"a\":", 200000);
    for (const std::string& text :
         {std::string("1e400"), std::string("-1e999"), std::string(400, '9'), std::string("\"\\ud800\""),
          std::string("{\"\\udc00x\":[1e400,\"\\ud800\\u0041\"],\"a\":1,\"a\":2}"), deep + repeat("]", 200000),
          objects + "1" + repeat("}", 200000)}) {
        CAPTURE(text.substr(0, 40));
        CHECK(is_json(text));
        CHECK(check_json("[" + text + "]").has_value());
        for (const char* tail : {",", "}", "1", "\""}) CHECK_FALSE(is_json("[" + text + tail));
        CHECK_FALSE(is_json(text.substr(0, text.size() - 1) + "x"));
    }
    for (const char* none : {"\"\\ud80\"", "\"\\ud800\\u00g0\"", "[1e]", "[{\"a\":1,}]", "[{\"a\":[}]]"})
        CHECK_FALSE(is_json(none));
    CHECK_FALSE(is_json(deep));
    CHECK_FALSE(is_json(objects));
}

TEST_CASE("json: numbers use a decimal point in a locale with a decimal comma") {
    const test::comma_locale locale;
    if (!locale) MESSAGE("skipped: there is no locale with a decimal comma, and localedef cannot make one");
    CHECK(json_view("1.5").number().value_or(0) == 1.5);
    CHECK(parses("1.5e308"));
    CHECK_FALSE(parses("1.5e309"));
    CHECK(picojson::value(1.5).serialize() == "1.5");
    CHECK(as<picojson::value>("1.5")->get<double>() == 1.5);
}

TEST_CASE("json: json_quote() escapes control characters and repairs invalid UTF-8") {
    const std::pair<std::string, std::string> texts[] = {
        {"a\"b\\c\n\x01\x7f", "a\\\"b\\\\c\\u000a\\u0001\\u007f"},
        {"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"},
        {"\xff", "\xef\xbf\xbd"},
        {"a\xc3", "a\xef\xbf\xbd"},                                // cut off
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                  // overlong
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // a surrogate
        {std::string(1, '\0'), "\\u0000"}};
    for (const auto& [text, quoted] : texts) CHECK(json_quote(text) == "\"" + quoted + "\"");
    for (int byte = 0; byte < 256; ++byte) CHECK(parses(json_quote(std::string(3, static_cast<char>(byte)))));
}

TEST_CASE("json: number() reads only JSON numbers, and refuses those that strtod() finds too large") {
    for (const char* none : {"", "x", "\"1\"", "[1]", "1 2", "1e999", "-1e999", "01"}) {
        CAPTURE(none);
        CHECK_FALSE(json_view(none).number());
    }
    CHECK(json_view("-12.50e1").number().value_or(0) == -125.0);
    const std::string zeros(400, '0');
    std::vector<std::string> numbers = test::words(
        "1.7976931348623157e308 1.7976931348623159e308 -17976931348623157e292 -17976931348623159e292 "
        "0e99999999999999999999 1e-99999999999999999999 1e99999999999999999999 9e307 0.18e309");
    for (const int more : {307, 308, 309}) numbers.push_back("1" + std::string(more, '0'));
    for (const char* begin : {"17976931348623157", "17976931348623159"})
        numbers.push_back(begin + std::string(292, '0'));
    for (const char* end : {"1e709", "1e710"}) numbers.push_back("0." + zeros + end);
    for (const std::string& text : numbers) {
        CAPTURE(text);
        CHECK(parses(text) == std::isfinite(std::strtod(text.c_str(), nullptr)));
    }
}

TEST_CASE("json: read_json_string() reads a string as picojson does, and refuses any other text") {
    std::string text;
    for (const char* source :
         {R"("")", R"("plain")", R"("\"\\\/\b\f\n\r\t")", R"("\u0000\u007f\u0080\u07ff\u0800\uffff")",
          R"("\ud83d\ude00 \uD83D\uDE00")", "\"gr\xc3\xbc\xc3\x9f\""}) {
        CAPTURE(source);
        CHECK(read_json_string(source, text));
        CHECK(text == parse(source).get<std::string>());
    }
    text = "kept";
    for (const char* source : {"", "\"", "x", "7", "\"a", "\"\\\"", "\"a\"b\"", "\"\\q\"", "\"\\u12\"", "\"\\ud800\"",
                               "\"\\udc00\"", "\"a\nb\"", "[\"a\"]"}) {
        CAPTURE(source);
        CHECK_FALSE(read_json_string(source, text));
    }
    CHECK(text == "kept");
}

TEST_CASE("json: json_iterator visits values in order, and is_complete() shows whether the text was whole") {
    const auto walk = [](std::string_view text, bool object) {
        std::string all;
        json_iterator at(text, object ? '{' : '[');
        for (; at; ++at) all += std::string(at->value.text()) + ";";
        return at.is_complete() ? "whole: " + all : "cut";
    };
    const struct {
        bool is_object;
        const char* text;
        std::string values;
    } rows[] = {{true, " { } ", ""},
                {true, R"({"a":1})", "1;"},
                {true, R"( {"a":[{"b":"}"}] , "c":nonsense} )", R"([{"b":"}"}];nonsense;)"},
                {false, " [ ] ", ""},
                {false, "[1,[2],{}]", "1;[2];{};"},
                {false, R"( [ 1 , "a]\"" ,[2,[3]], {"k":[4]} ,null ] )", R"(1;"a]\"";[2,[3]];{"k":[4]};null;)"}};
    for (const auto& row : rows) CHECK(walk(row.text, row.is_object) == "whole: " + row.values);
    for (const char* text : {"", "{", "[]", R"({"a")", R"({"a":)", R"({"a":1)", R"({"a":1,})", R"({"a":1}})",
                             R"({"a":"})", R"({"a":[})", R"({"a":1 2})", R"({"a":1} x)", R"({"a":})", R"({a:1})",
                             R"({"a":")", R"({"a\)", R"({"a" 1})", "{,", R"({"a":[]{"b":1}})"}) {
        CAPTURE(text);
        CHECK(walk(text, true) == "cut");
        CHECK(raw_member(text, "b") == "");
    }
    for (const char* text : {"", "[", "{}", "[1", "[1,", "[1,]", "[1]]", "[1 2]", "[\"]", "[,]", "[[][2]]", ",1]"}) {
        CAPTURE(text);
        CHECK(walk(text, false) == "cut");
    }
    std::string seen;  // as a program iterates
    for (const char* text :
         {R"({"a\n":[1, 2],"b":"]}","a\n":3})", R"( [ "b" , {"c":[]} , null ] )", "", "7", "\"ab\"", "[,]", "{\"a\""}) {
        for (const auto& [key, value] : json_view(text))
            seen += key.string().value_or("-") + "=" + std::string(value.text()) + ";";
    }
    CHECK(seen == "a\n=[1, 2];b=\"]}\";a\n=3;-=\"b\";-={\"c\":[]};-=null;");
}

TEST_CASE("json_view: type() names the type of a value, and each accessor reads only its own type") {
    const json_view all(R"( {"n":null,"b":true,"i":-42,"d":2.5,"s":"a\u00e4","l":[1,"x"],"o":{}} )");
    CHECK(all.type() == json_type::object);
    const std::pair<const char*, json_type> types[] = {
        {"n", json_type::null},   {"b", json_type::boolean}, {"i", json_type::number}, {"d", json_type::number},
        {"s", json_type::string}, {"l", json_type::array},   {"o", json_type::object}, {"absent", json_type::none}};
    for (const auto& each : types) {
        CAPTURE(each.first);
        const auto& [name, type] = each;
        const json_view value = all.member(name);
        CHECK(value.type() == type);
        CHECK(static_cast<bool>(value) == (type != json_type::none));
        CHECK(value.string().has_value() == (type == json_type::string));
        CHECK(value.number().has_value() == (type == json_type::number));
        CHECK(value.boolean().has_value() == (type == json_type::boolean));
        if (!value.string()) CHECK(value.string().error().code == errc::invalid_argument);
    }
    CHECK(*all.member("b").boolean());
    CHECK(*all.member("i").integer() == -42);
    CHECK(*all.member("d").number() == 2.5);
    CHECK(*all.member("s").string() == "a\xc3\xa4");
    CHECK(all.member("l").text() == R"([1,"x"])");
    CHECK(all.member("l").element(1).text() == R"("x")");
    CHECK_FALSE(all.member("l").element(2));
    const json_view written(
        R"( { "id" : 12345678901234567890 , "a,b" : {"x":[1,{"y":"}]"}]} , "esc\u0061pe":-0.10,
                                  "q\"" : "s\\\"," , "id2":[ ] , "dup":1,"dup":2 } )");
    const std::pair<const char*, const char*> members[] = {{"id", "12345678901234567890"},
                                                           {"a,b", R"({"x":[1,{"y":"}]"}]})"},
                                                           {"escape", "-0.10"},
                                                           {"q\"", R"("s\\\",")"},
                                                           {"id2", "[ ]"},
                                                           {"dup", "2"},
                                                           {"x", ""}};
    for (const auto& [name, source] : members) CHECK(written.member(name).text() == source);
    CHECK_FALSE(all.element(0));
    CHECK_FALSE(all.member("i").member("x"));
    CHECK(json_view("nonsense").type() == json_type::null);
    for (const json_view none : {json_view("-x"), json_view()}) CHECK(none.type() == json_type::none);
}

TEST_CASE("json_view: integer() is exact over the whole range of 64 bits and refuses other text") {
    CHECK(*json_view("9223372036854775807").integer() == INT64_MAX);
    CHECK(*json_view("-9223372036854775808").integer() == INT64_MIN);
    CHECK(*json_view("9007199254740993").integer() == 9007199254740993);
    CHECK(*json_view("-0").integer() == 0);
    for (const char* none : {"9223372036854775808", "-9223372036854775809", "1.0", "1e3", "01", "\"1\"", "-", ""}) {
        CAPTURE(none);
        CHECK_FALSE(json_view(none).integer());
    }
}

TEST_CASE("json_view: parse() accepts UTF-8 JSON within its limits, and its errors do not quote the text") {
    const std::string deepest = repeat("[", 100) + repeat("]", 100);
    const result<json_view> good = json_view::parse(" " + deepest + "\n");
    REQUIRE(good);
    CHECK(json_view::parse("\"1234\"", 6));
    const struct {
        std::string text;
        const char* why;
    } cases[] = {{"[" + deepest + "]", "invalid JSON in line 1, or beyond a limit"},
                 {"\"12345\"", "JSON larger than 6 bytes"},
                 {"[1,", "invalid JSON in line 1, or beyond a limit"},
                 {"\"\xff\"", "invalid JSON: not UTF-8"},
                 {"1e999", "invalid JSON in line 1, or beyond a limit"},
                 {"", "invalid JSON in line 1, or beyond a limit"}};
    for (const auto& each : cases) {
        CAPTURE(each.why);
        const result<json_view> bad = json_view::parse(each.text, each.why[0] == 'J' ? 6 : 16 * 1024 * 1024);
        REQUIRE(test::code_of(bad) == errc::bad_response);
        CHECK(bad.error().text == each.why);
    }
    const std::string longest = "\"" + std::string(16 * 1024 * 1024 - 2, 'x') + "\"";
    CHECK(json_view::parse(longest));
    CHECK_FALSE(json_view::parse(longest + " "));
}

TEST_CASE("json_view: conversion to picojson refuses deep, malformed or mistyped text without a throw") {
    const result<picojson::object> object = as<picojson::object>(R"({"a":[1.5,"x",null]})");
    REQUIRE(object);
    CHECK(object->at("a").get(1).get<std::string>() == "x");
    CHECK(as<picojson::array>("[[]]")->size() == 1);
    CHECK(as<picojson::value>("null")->is<picojson::null>());
    CHECK(as<picojson::object>("[]").error().code == errc::invalid_argument);
    CHECK(as<picojson::array>("{}").error().code == errc::invalid_argument);
    const std::vector<std::string> bad = {repeat("{\"a\":", 200000), repeat("[", 200000), "[1e999]", "007", "1 2", ""};
    for (const std::string& text : bad) CHECK(test::code_of(as<picojson::value>(text)) == errc::bad_response);
}
