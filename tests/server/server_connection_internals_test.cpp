// server_connection: what becomes of a connection whose deadline has passed, as after a freeze of the process.
#include "server_clients.hpp"

using namespace test;
using detail::server_connection;

namespace {
// A connection whose events the test hands out. From the first response on, every deadline passes at once.
class overdue_connection {
  public:
    explicit overdue_connection(const std::string& body = "ok") {
        context_.options.request_timeout = 1h;
        context_.handler = [this, body](const http_request&) {
            context_.options.request_timeout = 0ms;
            return http_response{200, {}, body};
        };
        context_.on_count_zero = context_.on_earlier_sweep = [] {};
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        peer_ = detail::unique_fd(ends[0]);
        detail::set_nonblocking(ends[0]);
        served_ = detail::make_ref<server_connection>(detail::unique_fd(ends[1]), context_);
    }

    server_connection::next send(const std::string& text) {
        send_unread(text);
        return next_ = served_->on_ready(lent_);
    }
    // The deadline passes, then its thread receives the event, which there must be.
    server_connection::next overdue() {
        served_->end_if_overdue(steady_clock::now());
        pollfd event{served_->fd(), static_cast<short>(next_), 0};
        CHECK(::poll(&event, 1, 0) == 1);
        return next_ = served_->on_ready(lent_);
    }
    void send_unread(const std::string& text) { CHECK(peer::send_text(peer_.get(), text)); }
    std::string receive() {
        std::string out;
        char buffer[64 * 1024];
        for (ssize_t got; (got = ::recv(peer_.get(), buffer, sizeof buffer, 0)) > 0;)
            out.append(buffer, static_cast<std::size_t>(got));
        return out;
    }

  private:
    detail::draining_context context_;
    detail::lent_memory lent_;
    detail::unique_fd peer_;
    detail::ref<server_connection> served_;
    server_connection::next next_ = server_connection::next::read;
};
}  // namespace

TEST_CASE("server connection: an overdue request that has arrived is answered, and the connection is kept") {
    overdue_connection connection;
    CHECK(connection.send(get() + "GET /second HTTP/1.1\r\n") == server_connection::next::yield);
    CHECK(status_of(connection.receive()) == "200");
    connection.send_unread("Host: h\r\n\r\n");
    CHECK(connection.overdue() == server_connection::next::read);
    CHECK(status_of(connection.receive()) == "200");
    CHECK(connection.send(get()) == server_connection::next::read);
    CHECK(status_of(connection.receive()) == "200");
}

TEST_CASE("server connection: an overdue response is completed if the rest can be sent at once") {
    overdue_connection probe(std::string(3000000, 'x'));
    CHECK(probe.send(get()) == server_connection::next::write);
    const std::size_t buffered = probe.receive().size();
    const std::size_t size = buffered + buffered / 2;
    overdue_connection connection(std::string(size, 'x'));
    CHECK(connection.send(get()) == server_connection::next::write);
    std::string response = connection.receive();
    CHECK(response.size() < size);
    CHECK(connection.overdue() == server_connection::next::read);
    response += connection.receive();
    CHECK(response.size() > size);
    CHECK(connection.send(get()) == server_connection::next::write);
    CHECK(status_of(connection.receive()) == "200");
}
