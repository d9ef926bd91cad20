#include "processes.hpp"
#include "raw_peer.hpp"

namespace {
std::string masked(std::string text) {
    for (char& each : text) each = static_cast<char>(each ^ 0x55);
    return text;
}

// What the streams of a test did, and what they are to do.
struct record {
    std::atomic<int> made{0};
    std::atomic<int> ended{0};
    std::atomic<bool> fails_to_write{false};
    std::string host;
};

// Sends 'H', awaits 'K', then masks every byte, and writes a few at a time. A 0xff from the peer, which is no text, is a failure.
class masking_stream : public byte_stream {
  public:
    masking_stream(int socket, record& of) : socket_(socket), of_(of) { ++of_.made; }

    stream_status handshake() override {
        if (!greeted_) greeted_ = ::send(socket_, "H", 1, MSG_NOSIGNAL) == 1;
        char answer = 0;
        std::size_t size = 1;
        const stream_status got = receive(&answer, size);
        if (got != stream_status::ok || answer == 'K') return got;
        return fail("the peer did not say K");
    }
    stream_status read_some(char* buffer, std::size_t& size) override {
        const stream_status got = receive(buffer, size);
        for (std::size_t i = 0; got == stream_status::ok && i < size; ++i) {
            if (buffer[i] == '\xff') return fail("alert");
            buffer[i] = static_cast<char>(buffer[i] ^ 0x55);
        }
        return got;
    }
    stream_status write_some(std::string_view& bytes) override {
        if (of_.fails_to_write) return fail("broken pen");
        const std::string some = masked(std::string(bytes.substr(0, 7)));
        const ssize_t sent = ::send(socket_, some.data(), some.size(), MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? stream_status::wants_write : stream_status::failed;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
        return stream_status::ok;
    }
    void end() noexcept override { ++of_.ended; }
    std::string failure() const override { return failure_; }

  private:
    stream_status receive(char* buffer, std::size_t& size) {
        const ssize_t got = ::recv(socket_, buffer, size, 0);  // non-blocking, as it was promised
        if (got < 0) return errno == EAGAIN ? stream_status::wants_read : stream_status::failed;
        size = static_cast<std::size_t>(got);
        return got == 0 ? stream_status::closed : stream_status::ok;
    }
    stream_status fail(const char* why) {
        failure_ = why;
        return stream_status::failed;
    }

    const int socket_;
    record& of_;
    bool greeted_ = false;
    std::string failure_;
};

http_client_options streamed(record& of) {
    http_client_options out;
    out.https_stream = [&of](int socket, const std::string& host, const std::string&) -> result<byte_stream_ref> {
        of.host = host;
        return byte_stream_ref(new masking_stream(socket, of));
    };
    return out;
}

std::string https(const peer::server& server) { return "https" + server.url().substr(4); }

bool shakes(int fd) {
    char hello = 0;
    return ::recv(fd, &hello, 1, MSG_WAITALL) == 1 && hello == 'H' && peer::send_text(fd, "K");
}

// The next request, as it was before it was masked; empty at the end.
std::string read_masked(int fd) {
    std::string seen;
    while (masked(seen).find("\r\n\r\n") == std::string::npos) {
        if (!peer::read_some(fd, seen)) return std::string();
    }
    return masked(seen);
}

void serve(int fd, std::string* seen = nullptr) {
    if (!shakes(fd)) return;
    for (std::string next = read_masked(fd); !next.empty(); next = read_masked(fd)) {
        if (seen != nullptr) *seen = next;
        if (!peer::send_text(fd, masked(peer::ok("hello")))) return;
    }
}

// The deadline of the call passes once its request is written. Then come the parts of the response, each at once.
class late_stream : public byte_stream {
  public:
    late_stream(http_call& call, std::vector<std::string> parts) : call_(call), parts_(std::move(parts)) {}

    stream_status handshake() override { return stream_status::ok; }
    stream_status read_some(char* buffer, std::size_t& size) override {
        if (next_ == parts_.size()) return stream_status::wants_read;
        const std::string& part = parts_[next_++];
        size = part.copy(buffer, size);
        return part.empty() ? stream_status::closed : stream_status::ok;
    }
    stream_status write_some(std::string_view& bytes) override {
        call_.deadline = time_point();
        bytes = {};
        return stream_status::ok;
    }
    void end() noexcept override {}
    std::string failure() const override { return {}; }

  private:
    http_call& call_;
    const std::vector<std::string> parts_;
    std::size_t next_ = 0;
};

// Of a request whose deadline passed before its response, in these parts, was read.
result<http_response> receive_late(std::vector<std::string> parts) {
    peer::server server([](int fd, int) { peer::read_to_end(fd); });
    http_call call = peer::call();
    http_client_options options;
    options.https_stream = [&](int, const std::string&, const std::string&) {
        return byte_stream_ref(new late_stream(call, parts));
    };
    return peer::make_client(https(server), options).send(peer::get(), call);
}

error failed(http_client& client, const http_call& call = peer::call()) {
    const result<http_response> got = client.send(peer::get(), call);
    REQUIRE_FALSE(got);
    return got.error();
}
}  // namespace

TEST_CASE("byte stream: three requests and their responses go through one stream on one connection") {
    record of;
    std::string seen;
    peer::server server([&](int fd, int) { serve(fd, &seen); });
    {
        const std::string url = "https://localhost.:" + std::to_string(server.port()) + "/base";
        http_client client = peer::make_client(url, streamed(of));
        for (int i = 0; i < 3; ++i) {
            const result<http_response> got = client.send(peer::get("/x"), peer::call());
            REQUIRE(got);
            CHECK(got->body == "hello");
        }
        CHECK(of.ended == 0);
    }
    CHECK(of.made == 1);
    CHECK(of.ended == 1);
    CHECK(of.host == "localhost");  // a certificate has no final dot
    CHECK(seen.find("GET /base/x HTTP/1.1\r\nHost: localhost.:") == 0);
}

TEST_CASE("byte stream: http ignores the stream factory; https fails if the factory is missing or fails") {
    CHECK(http_client::create("https://h").error().code == errc::unsupported);
    record of;
    peer::server server([](int fd, int) {
        if (!peer::read_message(fd).empty()) peer::send_text(fd, peer::ok());
    });
    http_client client = peer::make_client(server.url(), streamed(of));
    CHECK(client.send(peer::get(), peer::call()));
    CHECK(of.made == 0);
    http_client_options options;
    options.https_stream = [](int, const std::string&, const std::string&) -> result<byte_stream_ref> {
        return error{errc::invalid_argument, 0, "no such certificate"};
    };
    peer::server silent([](int fd, int) { peer::read_to_end(fd); });
    client = peer::make_client(https(silent), options);
    const error why = failed(client);
    CHECK(why.code == errc::invalid_argument);
    CHECK(why.text == "GET " + https(silent) + "/: no such certificate");
}

TEST_CASE("byte stream: a handshake that fails, times out or is interrupted sends no request") {
    record of;
    peer::server refusing([](int fd, int) {
        char hello = 0;
        if (::recv(fd, &hello, 1, MSG_WAITALL) == 1) peer::send_text(fd, "N");
    });
    http_client client = peer::make_client(https(refusing), streamed(of));
    error why = failed(client);
    CHECK(why.code == errc::unreachable);
    CHECK(why.text == "GET " + https(refusing) + "/: handshake failed: the peer did not say K");

    std::string heard;
    {
        peer::server silent([&](int fd, int) { heard += peer::read_to_end(fd); });
        client = peer::make_client(https(silent), streamed(of));
        http_call call = peer::call();
        peer::expire_after_should_send(call, 1);
        why = failed(client, call);
        CHECK(why.code == errc::unreachable);
        CHECK(why.sys_errno == ETIMEDOUT);
        const test::pipe_ends interruption;
        REQUIRE(::write(interruption.writer(), "x", 1) == 1);
        call = peer::call();
        call.interrupt_fd = interruption.reader();
        CHECK(failed(client, call).code == errc::cancelled);
    }
    CHECK(heard.find_first_not_of('H') == std::string::npos);
}

TEST_CASE("byte stream: the error of a broken stream is returned, and only a repeatable request is sent again") {
    record of;
    peer::server server([](int fd, int connection) {
        if (connection > 1) return serve(fd);
        if (shakes(fd) && !read_masked(fd).empty()) peer::send_text(fd, "\xff");
    });
    http_client client = peer::make_client(https(server), streamed(of));
    error why = failed(client);
    CHECK(why.code == errc::disconnected);
    CHECK(why.text.find(": alert") != std::string::npos);
    CHECK(client.send(peer::get(), peer::call(peer::soon(), true)));
    CHECK(server.connections() == 3);
    CHECK(of.ended == 2);
    of.fails_to_write = true;
    why = failed(client);
    CHECK(why.code == errc::unreachable);
    CHECK(why.text.find(": broken pen") != std::string::npos);
}

TEST_CASE("http_client: a response that has arrived when the deadline passes is not lost") {
    const std::string whole = peer::ok("hello");
    for (const std::vector<std::string>& parts : {std::vector<std::string>{whole},
                                                  {whole.substr(0, 20), whole.substr(20)},
                                                  {"HTTP/1.1 200 OK\r\n\r\nhel", "lo", ""}}) {
        const result<http_response> got = receive_late(parts);
        REQUIRE_MESSAGE(got, got.error().text);
        CHECK(got->body == "hello");
    }
}

TEST_CASE("http_client: a response that is incomplete when the deadline passes fails") {
    CHECK(test::code_of(receive_late({})) == errc::timed_out);
    CHECK(test::code_of(receive_late({peer::ok("hello").substr(0, 42)})) == errc::timed_out);
    CHECK(test::code_of(receive_late({"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", ""})) == errc::disconnected);
}

TEST_CASE("http_client: a peer that sends byte after byte cannot delay the deadline") {
    std::vector<std::string> parts{"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"};
    parts.resize(2001, "x");
    CHECK(test::code_of(receive_late(parts)) == errc::timed_out);
}
