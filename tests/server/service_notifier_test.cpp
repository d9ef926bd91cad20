// The notify protocol, spoken to a socket of our own in the service manager's place.
#include "file_tree.hpp"
#include "notify_socket.hpp"

using manager = test::notify_socket;

namespace {
using test::variables;

ojs::result<service_notifier> notifier_of(const variables& set) {
    return service_notifier::from_environment(test::lookup(set));
}

service_notifier notifier_for(const std::string& name) {
    auto out = notifier_of({{"NOTIFY_SOCKET", name}});
    REQUIRE_MESSAGE(out, out.error().text);
    return std::move(*out);
}

std::string abstract_name(const char* what) { return "@ojs-notify-" + std::to_string(::getpid()) + "-" + what; }

std::string watchdog_of(const char* usec, const std::string& pid) {
    variables set = {{"NOTIFY_SOCKET", "/nowhere"}, {"WATCHDOG_USEC", usec}};
    if (!pid.empty()) set["WATCHDOG_PID"] = pid;
    const auto made = notifier_of(set);
    return made ? ojs::format_duration(made->watchdog_interval()) : ojs::to_string(made.error().code);
}
}  // namespace

TEST_CASE("service_notifier: without NOTIFY_SOCKET every call does nothing and succeeds") {
    for (const variables& set :
         {variables{}, variables{{"NOTIFY_SOCKET", ""}}, variables{{"WATCHDOG_USEC", "1000000"}}}) {
        const auto nobody = notifier_of(set);
        REQUIRE(nobody);
        CHECK_FALSE(nobody->active());
        CHECK(nobody->notify_ready("here"));
    }
    CHECK_FALSE(service_notifier().active());
    CHECK(service_notifier().notify_stopping());
}

TEST_CASE("service_notifier: every message is one datagram, to a path or an abstract name of any length") {
    const test::temporary_folder here;
    std::string names[] = {here.file("socket"), abstract_name("messages"), here.file(""), abstract_name("")};
    names[2].resize(sizeof(sockaddr_un::sun_path) - 1, 'x');
    names[3].resize(sizeof(sockaddr_un::sun_path), 'x');
    for (const std::string& name : names) {
        CAPTURE(name);
        const manager systemd(name);
        const service_notifier notifier = notifier_for(name);
        CHECK(notifier.active());
        struct {
            ojs::result<void> sent;
            const char* wanted;
        } const cases[] = {
            {notifier.notify_ready(), "READY=1"},
            {notifier.notify_ready("10 jobs at a time"), "READY=1\nSTATUS=10 jobs at a time"},
            {notifier.notify_status("draining: 3 jobs"), "STATUS=draining: 3 jobs"},
            {notifier.notify_status(""), "STATUS="},
            {notifier.notify_stopping("draining"), "STOPPING=1\nSTATUS=draining"},
            {notifier.notify_stopping(), "STOPPING=1"},
            {notifier.extend_timeout(1500ms), "EXTEND_TIMEOUT_USEC=1500000"},
            {notifier.extend_timeout(-1ms), "EXTEND_TIMEOUT_USEC=0"},
            {notifier.extend_timeout(std::chrono::milliseconds::max()), "EXTEND_TIMEOUT_USEC=31536000000000"},
            {notifier.notify_watchdog(), "WATCHDOG=1"},
            {notifier.send("MAINPID=7\nX_OURS=yes"), "MAINPID=7\nX_OURS=yes"}};
        for (const auto& each : cases) {
            CHECK(each.sent);
            CHECK(systemd.receive() == each.wanted);
        }
        CHECK(notifier.send(std::string(4096, 'x')));
        CHECK(systemd.receive().size() == 4096);
        // More than a manager reads is refused, not cut.
        CHECK(notifier.send(std::string(4097, 'x')).error().code == errc::invalid_argument);
        CHECK(systemd.receive() == "(nothing)");
    }
}

TEST_CASE("service_notifier: notify_reloading() sends RELOADING=1 with the time of CLOCK_MONOTONIC") {
    const manager systemd(abstract_name("reload"));
    const service_notifier notifier = notifier_for(systemd.name());
    const auto now = [] {
        timespec out{};
        ::clock_gettime(CLOCK_MONOTONIC, &out);
        return std::int64_t{out.tv_sec} * 1000000 + out.tv_nsec / 1000;
    };
    const std::int64_t before = now();
    REQUIRE(notifier.notify_reloading("replacing"));
    const std::string sent = systemd.receive();
    const std::string head = "RELOADING=1\nMONOTONIC_USEC=";
    REQUIRE(sent.rfind(head, 0) == 0);
    const std::int64_t at = std::stoll(sent.substr(head.size()));
    CHECK(at >= before);
    CHECK(at <= now());
    CHECK(sent == head + std::to_string(at) + "\nSTATUS=replacing");
}

TEST_CASE("service_notifier: a status is sent as one line of UTF-8, cut at a character boundary") {
    const manager systemd(abstract_name("status"));
    const service_notifier notifier = notifier_for(systemd.name());
    REQUIRE(notifier.notify_ready("one\nWATCHDOG=trigger\r\ttwo\x7f"));
    CHECK(systemd.receive() == "READY=1\nSTATUS=one WATCHDOG=trigger  two ");
    REQUIRE(notifier.notify_status("gr\xc3\xbcn \xff"));
    CHECK(systemd.receive() == "STATUS=gr\xc3\xbcn \xef\xbf\xbd");
    REQUIRE(notifier.notify_status(std::string(999, 'x') + "\xc3\xbc"));
    CHECK(systemd.receive() == "STATUS=" + std::string(999, 'x'));
}

TEST_CASE("service_notifier: an unusable socket name is refused with an error that names NOTIFY_SOCKET") {
    constexpr std::size_t room = sizeof(sockaddr_un::sun_path);
    struct {
        std::string name;
        errc wanted;
    } const cases[] = {{"run/notify", errc::unsupported},
                       {"vsock:2:1234", errc::unsupported},
                       {"/", errc::invalid_argument},
                       {"@", errc::invalid_argument},
                       {"/" + std::string(room - 1, 'x'), errc::invalid_argument},
                       {"@" + std::string(room, 'x'), errc::invalid_argument},
                       {"/" + std::string(100000, '\n'), errc::invalid_argument}};
    for (const auto& each : cases) {
        CAPTURE(each.name.substr(0, 200));
        const auto refused = notifier_of({{"NOTIFY_SOCKET", each.name}});
        REQUIRE(test::code_of(refused) == each.wanted);
        CHECK(refused.error().text.find("NOTIFY_SOCKET") != std::string::npos);
        CHECK(refused.error().text.find('\n') == std::string::npos);
        CHECK(refused.error().text.size() < 1000);
    }
}

TEST_CASE("service_notifier: a missing socket is an error until the manager creates it") {
    const test::temporary_folder here;
    const std::string path = here.file("socket");
    const service_notifier notifier = notifier_for(path);
    CHECK(notifier.notify_ready().error().code == errc::unreachable);
    {
        const manager first(path);
        CHECK(notifier.notify_ready());
        CHECK(first.receive() == "READY=1");
    }
    test::write_file(path, "");  // something else
    CHECK(notifier.notify_ready().error().code == errc::unreachable);
}

TEST_CASE("service_notifier: a manager that does not read causes an error and blocks no call") {
    const manager systemd(abstract_name("full"));
    const service_notifier notifier = notifier_for(systemd.name());
    int sent = 0;
    auto last = notifier.notify_watchdog();
    for (; last && sent < 100000; ++sent) last = notifier.notify_watchdog();
    REQUIRE(test::code_of(last) == errc::unavailable);
    // Room again, and all is well.
    CHECK(systemd.receive() == "WATCHDOG=1");
    CHECK(notifier.notify_watchdog());
}

TEST_CASE("service_notifier: the watchdog interval is half of WATCHDOG_USEC, and 0 for another process") {
    const std::string us = std::to_string(::getpid());
    const std::string other = std::to_string(::getppid());
    CHECK(watchdog_of("30000000", "") == "15s");
    CHECK(watchdog_of("30000000", us) == "15s");
    CHECK(watchdog_of("30000000", other) == "0s");
    CHECK(watchdog_of("1", us) == "1ms");
    for (const char* bad : {"", "0", "-1", "30s", "99999999999999999999"})
        CHECK(watchdog_of(bad, us) == "invalid_argument");
    CHECK(watchdog_of("30000000", "x") == "invalid_argument");
    CHECK(notifier_of({{"NOTIFY_SOCKET", "/nowhere"}})->watchdog_interval() == 0ms);
}
