// Name servers that fail, hang and change their minds: getaddrinfo() is the test's own.
#include <dlfcn.h>
#include <netdb.h>

#include "processes.hpp"
#include "raw_peer.hpp"

#ifdef __GLIBC__  // elsewhere the tests are static, and there is no other getaddrinfo() to call

namespace {
constexpr const char* backend_name = "backend.name-server-test";

// What the name server does with the next lookup of the backend.
std::atomic<const char*> answered_with{nullptr};  // the address; null: it fails
std::atomic<const char*> and_with{nullptr};       // another one
std::atomic<test::event*> hangs_until{nullptr};
std::atomic<int> lookups{0};

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
        client =
            std::make_unique<http_client>(peer::make_client(std::string("http://") + backend_name + ":" + port.text()));
        REQUIRE(answers());
    }
    void open_first() { first = std::make_unique<peer::server>(answer_and_close, port.number()); }
    void open_second() { second = std::make_unique<peer::server>(answer_and_close, port.number(), 0x7f000002); }
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
    const bool is_numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (is_numeric || host == nullptr || std::strcmp(host, backend_name) != 0) return real(host, service, hints, found);
    ++lookups;
    const char* address = answered_with;
    test::event* const hang = hangs_until;
    if (hang != nullptr) hang->wait();
    const int status = address != nullptr ? real(address, service, hints, found) : EAI_AGAIN;
    const char* const other = and_with.exchange(nullptr);
    return status == 0 && other != nullptr ? real(other, service, hints, &(*found)->ai_next) : status;
}

TEST_CASE("name server: known addresses that accept a connection are used without a lookup") {
    backend_by_name backend;
    const int before = lookups;
    answered_with = nullptr;
    CHECK(backend.answers());
    CHECK(lookups == before);
    backend.first.reset();
    REQUIRE_FALSE(backend.answers());
    CHECK(lookups == before + 1);
    backend.open_first();
    CHECK(backend.answers());  // the failed lookup has left the address known
    http_client other = peer::make_client(std::string("http://") + backend_name + ":1");  // which knows none
    const result<http_response> got = other.send(peer::get(), peer::call());
    REQUIRE(test::code_of(got) == errc::unreachable);
    CHECK(got.error().text.find(backend_name) != std::string::npos);
}

TEST_CASE("name server: the address that has accepted the latest connection is tried first") {
    and_with = "127.0.0.2";
    backend_by_name backend;
    backend.first.reset();
    backend.open_second();
    CHECK(backend.answers());
    backend.open_first();
    CHECK(backend.answers());
    CHECK(backend.second->connections() == 2);
}

TEST_CASE("name server: no known address accepts a connection -> the backend is looked up, and found") {
    backend_by_name backend;
    backend.first.reset();
    backend.open_second();
    answered_with = "127.0.0.2";
    CHECK(backend.answers());
    CHECK(backend.answers());
    CHECK(backend.second->connections() == 2);
}

TEST_CASE("name server: a request fails at its deadline, and later requests wait for the same slow lookup") {
    backend_by_name backend;
    backend.first.reset();
    backend.open_second();
    test::event answers_at_last;
    answered_with = "127.0.0.2";
    hangs_until = &answers_at_last;
    const int before = lookups;
    for (int i = 0; i < 2; ++i) {
        http_call in_vain = peer::call();
        peer::expire_after_should_send(in_vain, 1);
        CHECK(test::code_of(backend.client->send(peer::get(), in_vain)) == errc::unreachable);
    }
    CHECK(lookups == before + 1);
    test::event asks;
    http_call next = peer::call();
    next.should_send = [&] { return asks.set(), true; };
    std::thread name_server([&] {
        asks.wait();
        answers_at_last.set();
    });
    CHECK(backend.client->send(peer::get(), next));
    name_server.join();
    CHECK(backend.second->connections() == 1);
}

#endif
