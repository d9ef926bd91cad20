// An HTTP server on Boost.Beast that stops without failing a request: ojs::loop under Asio, in one thread.
//
//     build/asio_drain [PORT]        GET /200ms responds after 200 ms; GET /stuck never
//
// SIGTERM: new connections are refused, idle ones closed, and requests that have arrived get their response.
// Again, or when the grace period ends: requests in progress get a 503. SIGTSTP: connections wait in the
// listener's queue until SIGCONT. Exit status 0; 75: a request had no response in time.
#include <unistd.h>

#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "ojs_shutdown.hpp"

namespace {
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

class session : public std::enable_shared_from_this<session> {
    // Continues unless it failed. The session lives as long as it waits.
    template <class Next>
    auto then(Next next) {
        return [self = shared_from_this(), next](error_code failed, auto...) { failed ? void() : next(); };
    }

  public:
    static inline std::set<session*> all;
    session(tcp::socket socket, ojs::loop& loop)
        : loop_(loop), stream_(std::move(socket)), timer_(stream_.get_executor()) {
        all.insert(this);
    }
    ~session() { all.erase(this); }

    void wait_for_request() {
        if (buffer_.size() > 0) return read();
        stream_.socket().async_wait(tcp::socket::wait_read, then([this] { read(); }));
    }
    // A request of which a byte has arrived is not idle. A new connection may still get its first one.
    void close_if_idle(bool is_new_too) {
        error_code ignored;
        if (stream_.socket().available(ignored) > 0) begin();
        if (!is_busy_ && (is_new_too || !is_new_)) stream_.socket().close(ignored);
    }
    void cancel_if_interrupted() {
        if (item_.token().cancelled() && request_.target() != "/stuck") timer_.cancel();
    }

  private:
    void begin() {  // from now on the stop waits for the response
        if (!is_busy_) item_ = loop_.begin("request");
        is_busy_ = true;
        is_new_ = false;
    }
    void read() {
        begin();
        request_ = {};
        stream_.expires_after(4s);  // less than OJS_STOP_TIMEOUT
        http::async_read(stream_, buffer_, request_, then([this] { work(); }));
    }
    void work() {
        const auto time = ojs::parse_duration(std::string(request_.target().substr(1)));
        if (!time && request_.target() != "/stuck") return respond(http::status::bad_request);
        if (item_.token().cancelled()) return respond(http::status::service_unavailable);
        timer_.expires_after(time ? *time : 24h);
        timer_.async_wait([self = shared_from_this()](error_code interrupted) {
            self->respond(interrupted ? http::status::service_unavailable : http::status::ok);
        });
    }
    void respond(http::status status) {
        response_ = {status, request_.version(), std::string(http::obsolete_reason(status)) + "\n"};
        response_.keep_alive(request_.keep_alive() && loop_.accepting());
        response_.prepare_payload();
        stream_.expires_after(4s);
        http::async_write(stream_, response_, then([this] { finish(); }));
    }
    void finish() {
        item_.end();
        is_busy_ = false;
        if (response_.keep_alive() && loop_.phase() < ojs::phase::draining) wait_for_request();
    }

    ojs::loop& loop_;
    boost::beast::tcp_stream stream_;
    asio::steady_timer timer_;
    boost::beast::flat_buffer buffer_;
    http::request<http::string_body> request_;
    http::response<http::string_body> response_;
    ojs::item item_;
    bool is_new_ = true, is_busy_ = false;
};

class server {
  public:
    server(asio::io_context& io, ojs::loop& loop, unsigned short port)
        : io_(io), loop_(loop), listener_(io, {asio::ip::address_v4::loopback(), port}) {
        listener_.non_blocking(true);
        std::fprintf(stderr, "listening on 127.0.0.1:%d\n", listener_.local_endpoint().port());
        advance({});
    }

  private:
    void advance(error_code replaced) {
        if (replaced) return;
        if (!loop_.advance()) return io_.stop();
        if (!loop_.accepting() && listener_.is_open()) listener_.cancel();
        if (loop_.accepting() && !is_accepting_) accept();
        if (loop_.phase() >= ojs::phase::draining && listener_.is_open()) stop_listening();
        for (session* each : session::all) each->cancel_if_interrupted();
        wake_.cancel();
        wake_.async_wait(wake_.wait_read, [this](error_code error) { advance(error); });
        advance_at(loop_.deadline());
    }
    void advance_at(ojs::time_point time) {
        due_.expires_at(time);
        due_.async_wait([this](error_code replaced) { advance(replaced); });
    }
    void accept() {
        is_accepting_ = true;
        listener_.async_accept([this](error_code failed, tcp::socket socket) {
            is_accepting_ = false;
            if (!failed) add(std::move(socket));
            if (loop_.accepting()) failed ? advance_at(ojs::deadline_after(100ms)) : accept();
        });
    }
    void add(tcp::socket socket) { std::make_shared<session>(std::move(socket), loop_)->wait_for_request(); }
    void stop_listening() {
        error_code failed;
        for (;;) {  // closing a queue that is not empty resets its connections
            tcp::socket socket = listener_.accept(failed);
            if (failed) break;
            add(std::move(socket));
        }
        listener_.close(failed);
        close_idle(false);
        new_.expires_after(100ms);
        new_.async_wait([this](error_code) { close_idle(true), listening_.end(); });
    }
    static void close_idle(bool new_too) {
        for (session* each : std::set<session*>(session::all)) each->close_if_idle(new_too);
    }

    asio::io_context& io_;
    ojs::loop& loop_;
    tcp::acceptor listener_;
    asio::posix::stream_descriptor wake_{io_, dup(loop_.fd())};
    asio::steady_timer due_{io_}, new_{io_};
    bool is_accepting_ = false;
    ojs::item listening_ = loop_.begin("listener");  // the stop waits until it is closed
};
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    unsigned short port = 0;
    if (argc > 2 || (argc == 2 && std::sscanf(argv[1], "%5hu", &port) != 1))
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: asio_drain [PORT]"});
    asio::io_context io(1);
    const server serving(io, loop, port);
    io.run();
    return loop.exit_code();
}
