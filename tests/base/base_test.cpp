// Durations, results, text helpers, shared callables.
#include <stdint.h>

#include "standard_error.hpp"

namespace {
using std::chrono::milliseconds;

// [GS 6.1]
TEST_CASE("parse_duration: units h, m, s and ms in descending order, or a plain number of seconds, are accepted") {
    for (const std::string& form :
         test::words("500ms=500 30s=30000 1m30s=90000 1h=3600000 1m5ms=60005 0=0 1h2m3s4ms=3723004 1h1ms=3600001 "
                     "0s=0 0ms=0 5=5000 005=5000 90m=5400000 1500ms=1500 3600=3600000 3601s=3601000 "
                     "2147483s=2147483000 2147483647ms=2147483647 2147483s647ms=2147483647 "
                     "596h31m23s647ms=2147483647")) {
        CAPTURE(form);
        const std::size_t at = form.find('=');
        CHECK(parse_duration(form.substr(0, at)).value_or(milliseconds(-1)).count() == std::stoll(form.substr(at + 1)));
    }
}

TEST_CASE("parse_duration: an invalid duration is refused with an error that quotes it, escaped and truncated") {
    std::vector<std::string> bad = test::words(
        "-1s -0 +5s +5 1e9s 1.5s 0x10 1s1m 1m1m 1ms1s 1ms1ms ms s h 1d 1us 1S 1min 1sec 1hh 1m30 30s5 1,5s \xd9\xa3s "
        "2147483648ms 2147483648 2147484s 597h 596h31m23s648ms 18446744073709551616 18446744073709551617ms "
        "99999999999999999999999999h 9223372036854775807h");
    for (const std::string_view each : {"", " ", "30 s", " 30s", "30s ", "30s\n", "5 5"}) bad.emplace_back(each);
    for (const char* each : {"30s_", "3_s", "_"}) {
        bad.emplace_back(each);
        bad.back()[bad.back().find('_')] = '\0';
    }
    for (const std::string& text : bad) {
        CAPTURE(text);
        const auto parsed = parse_duration(text);
        REQUIRE(test::code_of(parsed) == errc::invalid_argument);
        CHECK(parsed.error().text.find("30s, 1m30s") != std::string::npos);
        for (const char control : {'\0', '\n'}) CHECK(parsed.error().text.find(control) == std::string::npos);
    }
    CHECK(parse_duration("30 s").error().text.find("'30 s'") == 0);
    CHECK(parse_duration(std::string(100000, '9')).error().text.size() < 200);
}

TEST_CASE("parse_duration: a plain number that is too large -> the error shows it as seconds and as milliseconds") {
    const std::pair<const char*, std::string> cases[] = {
        {"30000", "'30000' has no unit: 30000s (8h20m) or 30000ms (30s)?"},
        {"0086400", "'86400' has no unit: 86400s (24h) or 86400ms (1m26s400ms)?"},
        {"2147483647", "'2147483647' has no unit: 2147483647s (596523h14m7s) or 2147483647ms (596h31m23s647ms)?"}};
    for (const auto& [text, message] : cases) {
        const auto parsed = parse_duration(text);
        REQUIRE(test::code_of(parsed) == errc::invalid_argument);
        CHECK(parsed.error().text == message + " write the unit");
    }
}

TEST_CASE("format_duration: the shortest form is written, and parse_duration() reads it back") {
    const std::pair<int, std::string> forms[] = {{0, "0s"},        {-5, "0s"},      {250, "250ms"},
                                                 {90000, "1m30s"}, {3600000, "1h"}, {3600001, "1h1ms"}};
    for (const auto& [ms, text] : forms) {
        CHECK(format_duration(milliseconds(ms)) == text);
        CHECK(parse_duration(text).value_or(milliseconds(-1)).count() == std::max(ms, 0));
    }
}

TEST_CASE("deadline_after: a duration that exceeds the clock's range never ends, in any unit") {
    for (const time_point each : {deadline_after(std::chrono::nanoseconds::max()), deadline_after(no_limit),
                                  deadline_after(std::chrono::hours::max()),
                                  deadline_after(std::chrono::duration<int, std::ratio<86400 * 365>>::max()),
                                  deadline_after(std::chrono::duration<double>(1e300))})
        CHECK(each == time_point::max());
    const time_point past = deadline_after(std::chrono::hours::min());
    CHECK(past <= steady_clock::now());
    CHECK(detail::any_duration<>(no_limit) == std::chrono::nanoseconds::max());
}

error some_error(const char* text = "a text that is longer than any small string buffer") {
    return {errc::rejected, 7, text, 409, milliseconds(3)};
}

void check_is_that_error(const error& found) {
    CHECK(found.code == errc::rejected);
    CHECK(found.sys_errno == 7);
    CHECK(found.text == "a text that is longer than any small string buffer");
    CHECK(found.http_status == 409);
    CHECK(found.retry_after == milliseconds(3));
}

TEST_CASE("result: copies, moves and assignments of values and errors destroy each stored value exactly once") {
    const auto held = std::make_shared<int>(7);
    {
        using counted = result<std::shared_ptr<int>>;
        counted value = held;
        counted failure = some_error();
        REQUIRE(value.has_value());
        REQUIRE_FALSE(failure.has_value());
        CHECK(held.use_count() == 2);
        counted value_copy = value;
        counted failure_copy = failure;
        CHECK(**value_copy == 7);
        check_is_that_error(failure_copy.error());
        CHECK(held.use_count() == 3);
        counted value_moved = std::move(value_copy);
        counted failure_moved = std::move(failure_copy);
        CHECK(**value_moved == 7);
        CHECK(held.use_count() == 3);
        check_is_that_error(failure_moved.error());
        failure_copy = value;  // error to value
        REQUIRE(failure_copy);
        CHECK(**failure_copy == 7);
        value_copy = failure;  // value to error
        REQUIRE_FALSE(value_copy);
        check_is_that_error(value_copy.error());
        value_moved = std::make_shared<int>(8);  // value to value
        CHECK(held.use_count() == 3);
        failure_moved = some_error("short");  // error to error
        CHECK(failure_moved.error().text == "short");
        const counted& same = value_moved;
        value_moved = same;  // itself
        CHECK(**value_moved == 8);
    }
    CHECK(held.use_count() == 1);
}

TEST_CASE("result: move-only types and void are supported, and value_or() falls back only on an error") {
    result<std::unique_ptr<int>> made = std::make_unique<int>(5);
    REQUIRE(made);
    result<std::unique_ptr<int>> moved = std::move(made);
    CHECK(**moved == 5);
    moved = std::make_unique<int>(6);
    const std::unique_ptr<int> out = *std::move(moved);
    CHECK(*out == 6);
    moved = some_error();
    REQUIRE_FALSE(moved);
    check_is_that_error(moved.error());
    CHECK(result<int>(3).value_or(9) == 3);
    CHECK(result<int>(some_error()).value_or(9) == 9);
    result<void> done;
    CHECK(done.has_value());
    done = some_error();
    REQUIRE_FALSE(done);
    check_is_that_error(done.error());
    done = result<void>();
    CHECK(done);
}

TEST_CASE("result: reading the value of a failed result prints its error and aborts") {
    const std::string output = test::standard_error_of([] {
        const pid_t child = test::forked([] {
            const rlimit no_core{0, 0};
            ::setrlimit(RLIMIT_CORE, &no_core);
            const result<std::string> failed(error{errc::rejected, 0, "no such argument"});
            return static_cast<int>(failed->size());
        });
        CHECK(test::status_of(child) == -SIGABRT);
    });
    CHECK(output == "error: the value of a failed result was read: no such argument\n");
}

TEST_CASE("thread: destroying the object of a running thread in a child of fork() does not block") {
    test::event end;
    result<detail::thread> running = detail::thread::start([&] { end.wait(); });
    REQUIRE(running);
    const pid_t child = test::forked([&] {
        *running = detail::thread();
        return 0;
    });
    CHECK(test::status_of(child) == 0);
    end.set();
}

TEST_CASE("errc: to_string() returns the name of the enumerator for every code") {
    std::string all;
    for (int i = 0; i < 11; ++i) all += to_string(static_cast<errc>(i)) + std::string(" ");
    CHECK(all ==
          "invalid_argument unsupported busy system timed_out unreachable disconnected bad_response "
          "unavailable rejected cancelled ");
}

TEST_CASE("cat: texts and integers of any width are concatenated, with NUL bytes and extreme values intact") {
    using detail::cat;
    CHECK(cat({}) == "");
    CHECK(cat({"job ", 7, " lost"}) == "job 7 lost");
    CHECK(cat({0, "|", -1, "|", 2147483647, "|", -2147483647 - 1}) == "0|-1|2147483647|-2147483648");
    CHECK(cat({INT64_MIN}) == "-9223372036854775808");
    CHECK(cat({INT64_MAX}) == "9223372036854775807");
    CHECK(cat({UINT64_MAX}) == "18446744073709551615");
    CHECK(cat({std::string("a"), std::string_view("b\0c", 3)}) == std::string("ab\0c", 4));
    std::string out = "x";
    detail::append(out, {1, "y"});
    CHECK(out == "x1y");
}

TEST_CASE("parse_number: only decimal digits up to the limit are accepted; else the output stays unchanged") {
    using detail::parse_number;
    const std::pair<const char*, std::uint64_t> good[] = {
        {"0", 0}, {"10000", 10000}, {"18446744073709551615", UINT64_MAX}};
    for (const auto& [text, value] : good) {
        std::uint64_t out = 77;
        CHECK(parse_number(text, value, out));
        CHECK(out == value);
    }
    std::vector<std::pair<std::string, std::uint64_t>> bad = {{"", 9},          {" 1", 9}, {"1 ", 9},
                                                              {"10001", 10000}, {"9", 8},  {"18446744073709551615", 3}};
    for (const std::string& each : test::words("-1 +1 1.0 1e3 0x1 a 18446744073709551616"))
        bad.emplace_back(each, UINT64_MAX);
    for (const auto& each : bad) {
        CAPTURE(each.first);
        std::uint64_t out = 77;
        CHECK_FALSE(parse_number(each.first, each.second, out));
        CHECK(out == 77);
    }
}

TEST_CASE("printable: control characters are escaped, and long text is truncated") {
    using detail::printable;
    CHECK(printable(std::string_view("a\0b\x1b[31m\n\x7f", 10), 100) == "a\\x00b\\x1b[31m\\x0a\\x7f");
    CHECK(printable("a\xc2\x9b\x32Jb\xe2\x80\xae\x63\xd8\x9c") == "a\\xc2\\x9b2Jb\\xe2\\x80\\xaec\\xd8\\x9c");
    CHECK(printable("\x9b\xc2\xa0\xe2\x80\xaf") == "\\x9b\xc2\xa0\xe2\x80\xaf");  // no character; no controls
    CHECK(printable("gr\xc3\xbc\xc3\x9f") == "gr\xc3\xbc\xc3\x9f");
    CHECK(printable("abcdef", 3) == "abc...");
    CHECK(printable("abc", 3) == "abc");
    CHECK(printable(std::string(1000, 'x')).size() == 203);
    CHECK(detail::errno_text(ECONNREFUSED) == "Connection refused (errno 111)");
}

int free_function(int x) { return x + 1; }

TEST_CASE("function: any callable can be stored, also a move-only lambda, and a void signature drops its result") {
    using whole = function<int(int)>;
    CHECK_FALSE(whole());
    CHECK_FALSE(whole(nullptr));
    CHECK(whole(free_function)(1) == 2);
    auto owned = std::make_unique<int>(40);
    CHECK(whole([owned = std::move(owned)](int x) { return *owned + x; })(2) == 42);
    int calls = 0;
    const function<void(int)> dropping = [&calls](int x) { return calls += x; };
    dropping(3);
    CHECK(calls == 3);
    const function<std::unique_ptr<int>(std::unique_ptr<int>)> passing = [](std::unique_ptr<int> in) {
        ++*in;
        return in;
    };
    CHECK(*passing(std::make_unique<int>(1)) == 2);
}

// A callable whose own answer to "are you true?" has nothing to do with being empty.
struct disabled {
    explicit operator bool() const { return false; }
    int operator()(int x) const { return x; }
};

TEST_CASE("function: construction or assignment from an empty callable makes an empty function") {
    using whole = function<int(int)>;
    int (*const none)(int) = nullptr;
    CHECK_FALSE(whole(none));
    CHECK_FALSE(whole(std::function<int(int)>()));
    CHECK_FALSE(whole(std::function<long(short)>()));
    CHECK_FALSE(whole(function<long(long)>()));
    whole assigned = free_function;
    CHECK(assigned != nullptr);
    assigned = std::function<int(int)>();
    CHECK_FALSE(assigned);
    CHECK(assigned == nullptr);
    function<void(std::string)>(std::function<void(std::string)>())("calls nothing");

    CHECK(whole(std::function<int(int)>(free_function))(1) == 2);
    CHECK(whole(function<long(long)>([](long x) { return x + 2; }))(1) == 3);
    CHECK(whole(&free_function)(1) == 2);
    CHECK(whole([](int x) { return x + 4; })(1) == 5);  // which is no pointer, but converts to one
    CHECK(whole(disabled())(6) == 6);
}

TEST_CASE("function: copies share one callable, and the last copy destroys it") {
    const auto witness = std::make_shared<int>(0);
    {
        function<int()> first = [witness, n = 0]() mutable { return ++n; };
        function<int()> second = first;
        const function<int()>& same = second;
        second = same;
        const function<int()> third = std::move(first);
        CHECK_FALSE(first);
        CHECK(witness.use_count() == 2);
        CHECK(second() == 1);
        CHECK(third() == 2);
        second = nullptr;
        CHECK(third() == 3);
        test::at_once(4, [&third](int) {
            for (int i = 0; i < 2000; ++i) static_cast<void>(function<int()>(third));
        });
        CHECK(witness.use_count() == 2);
    }
    CHECK(witness.use_count() == 1);
}

TEST_CASE("thread: the body has a copy of the name, 256 KiB or 1 MiB of stack, and signals only if it takes_signals") {
    const auto is_blocked = [] {
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        return sigismember(&mask, SIGTERM) == 1;
    };
    for (const bool takes_signals : {false, true}) {
        CAPTURE(takes_signals);
        bool term_blocked = !takes_signals;
        char name[] = "a-name-of-more-than-15";
        char seen[16] = "";
        detail::thread_options options;
        options.name = name;
        options.takes_signals = takes_signals;
        options.stack_size = takes_signals ? 1 : 0;  // below the minimum, which is taken; the default
        auto started = detail::thread::start(
            [&] {
                term_blocked = is_blocked();
#ifdef __linux__
                pthread_getname_np(pthread_self(), seen, sizeof seen);
                std::size_t stack = 0;
                pthread_attr_t own;
                pthread_getattr_np(pthread_self(), &own);
                pthread_attr_getstacksize(&own, &stack);
                pthread_attr_destroy(&own);
                CHECK(stack >= (takes_signals ? 256 : 1024) * 1024);
#endif
            },
            options);
        name[0] = 'X';
        REQUIRE(started);
        CHECK(started->joinable());
        started->join();
        CHECK_FALSE(started->joinable());
        CHECK(term_blocked == !takes_signals);
#ifdef __linux__
        CHECK(std::string(seen) == "a-name-of-more-");  // the kernel's maximum
#endif
    }
    CHECK_FALSE(is_blocked());
}

TEST_CASE("thread: a thread that cannot be started -> start() returns errc::system and drops the body") {
    detail::thread_options options;
    options.stack_size = ~std::size_t{0} / 2;
    const auto witness = std::make_shared<int>(0);
    const auto started = detail::thread::start([witness] {}, options);
    REQUIRE(test::code_of(started) == errc::system);
    CHECK(started.error().sys_errno != 0);
    CHECK(witness.use_count() == 1);
}
}  // namespace
