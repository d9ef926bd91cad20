// Name servers that fail, hang and change their minds: getaddrinfo() is the test's own.
#include <dlfcn.h>
#include <netdb.h>

#include "processes.hpp"
#include "raw_peer.hpp"

#ifdef __GLIBC__  // elsewhere the tests are static, and there is no other getaddrinfo() to call
using namespace ojs;

namespace {

constexpr const char* backend_name = "backend.name-server-test";

// What the name server does with the next lookup of the backend.
std::atomic<const char*> answered_with{nullptr};  // the address; null: it fails
std::atomic<test::event*> hangs_until{nullptr};
std::atomic<int> lookups{0};
// Whose result the client has. A lookup may end after main() has returned.
test::counter& ended_lookups = *new test::counter;
struct lookup_thread {
    ~lookup_thread() { ended_lookups.add(); }
};

void answer_and_close(int fd, int /*connection*/) {
    if (peer::read_message(fd).empty()) return;
    peer::send_text(fd, peer::ok("ok", "Connection: close\r\n"));
    peer::read_to_end(fd);  // the client closes first
}

// A backend that is reached by name, at 127.0.0.1 and 127.0.0.2; a client has talked to the first.
struct backend_by_name {
    backend_by_name() {
        hangs_until = nullptr;
        answered_with = "127.0.0.1";
        open_first();
        client = std::make_unique<http_client>(
            peer::make_client(std::string("http://") + backend_name + ":" + port.text()));
        REQUIRE(answers());
    }
    void open_first() { first = std::make_unique<peer::server>(answer_and_close, port.number()); }
    void open_second() {
        second = std::make_unique<peer::server>(answer_and_close, port.number(), 0x7f000002);
    }
    // The client finds nobody at the address it knows, so that its next request needs a lookup.
    void restart_first() {
        first.reset();
        REQUIRE_FALSE(answers());
        open_first();
    }
    bool answers() const { return bool(client->send(peer::get(), peer::call())); }

    const peer::reserved_port port;
    std::unique_ptr<peer::server> first;
    std::unique_ptr<peer::server> second;
    std::unique_ptr<http_client> client;
};

}  // namespace

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
    using signature = int(const char*, const char*, const addrinfo*, addrinfo**);
    static auto* const real = reinterpret_cast<signature*>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    if (host == nullptr || std::strcmp(host, backend_name) != 0) return real(host, service, hints, found);
    ++lookups;
    thread_local const lookup_thread ends_after_its_report;
    const char* address = answered_with;
    test::event* const hang = hangs_until;
    if (hang != nullptr) hang->wait();
    return address != nullptr ? real(address, service, hints, found) : EAI_AGAIN;
}

TEST_CASE("name server: when a lookup fails, the last good addresses are used") {
    backend_by_name backend;
    backend.restart_first();
    answered_with = nullptr;
    CHECK(backend.answers());
    CHECK(backend.answers());
    CHECK(backend.first->connections() == 2);
    http_client other = peer::make_client(std::string("http://") + backend_name + ":1");  // which knows none
    const result<http_response> got = other.send(peer::get(), peer::call());
    REQUIRE(test::code_of(got) == errc::unreachable);
    CHECK(got.error().text.find(backend_name) != std::string::npos);
}

TEST_CASE("name server: the last good addresses are used only 200 ms after a lookup began, or if it failed") {
    backend_by_name backend;
    backend.restart_first();
    backend.open_second();
    answered_with = "127.0.0.2";
    const time_point began = steady_clock::now();
    CHECK(backend.answers());
    const bool has_waited = steady_clock::now() - began >= std::chrono::milliseconds(200);
    CHECK((has_waited || backend.first->connections() == 0));
    CHECK(backend.first->connections() + backend.second->connections() == 1);
}

TEST_CASE(
    "name server: the last good addresses are used while a lookup hangs, and its late result afterwards") {
    backend_by_name backend;
    backend.restart_first();
    test::event answers_at_last;
    answered_with = "127.0.0.2";
    hangs_until = &answers_at_last;
    CHECK(backend.answers());
    CHECK(backend.answers());
    CHECK(ended_lookups.count() < lookups);  // one still hangs
    CHECK(backend.first->connections() == 2);
    backend.open_second();
    hangs_until = nullptr;
    answers_at_last.set();
    REQUIRE(ended_lookups.wait_for(lookups));
    CHECK(backend.answers());
    CHECK(backend.second->connections() == 1);
}

TEST_CASE("name server: if the last good addresses fail, the end of a slow lookup is awaited") {
    backend_by_name backend;
    backend.first.reset();
    REQUIRE_FALSE(backend.answers());
    backend.open_second();
    test::event answers_at_last;
    answered_with = "127.0.0.2";
    hangs_until = &answers_at_last;
    std::thread name_server([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));  // longer than a lookup may take
        answers_at_last.set();
    });
    CHECK(backend.answers());
    name_server.join();
    CHECK(backend.second->connections() == 1);
}

TEST_CASE("name server: a child forked during a lookup makes its own lookup") {
    backend_by_name backend;
    test::event answers_at_last;
    hangs_until = &answers_at_last;
    http_client client = peer::make_client(std::string("http://") + backend_name + ":" + backend.port.text());
    std::thread caller([&] { CHECK(client.send(peer::get(), peer::call())); });
    // The lookup is in progress once a second call waits for it in vain.
    http_call in_vain = peer::call();
    peer::expire_after_should_send(in_vain, 1);
    CHECK(test::code_of(client.send(peer::get(), in_vain)) == errc::unreachable);
    const pid_t child = test::forked([&] {
        hangs_until = nullptr;
        return client.send(peer::get(), peer::call()) ? 0 : 1;
    });
    CHECK(test::status_of(child) == 0);
    CHECK(ended_lookups.count() < lookups);
    hangs_until = nullptr;
    answers_at_last.set();
    caller.join();
}

#endif
