// A child of a launcher whose coordinator answers one method badly: bad_coordinator METHOD FAULT [TIMES]
//
// All other methods are answered well: it is ready, takes a Shutdown, and drains for ever. After TIMES bad answers that one
// is answered well too, and to GetShutdownStatus by an exit with status 0. FAULT:
//   garbage    bytes that are no HTTP       never    nothing, and the connection stays
//   odd_state  a state that there is none   error    status 500
//   requested  SHUTDOWN_REQUESTED           running  RUNNING, as if nothing was asked
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

namespace {

int listen_at(const std::string& address) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string path = address.substr(address.find(':') + 1);
    if (path.size() >= sizeof name.sun_path) return -1;
    path.copy(name.sun_path, path.size());
    const int out = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool listens = out >= 0 && ::bind(out, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0 &&
                         ::listen(out, 16) == 0;
    return listens ? out : -1;
}

void send_text(int to, const std::string& text) {
    static_cast<void>(::send(to, text.data(), text.size(), MSG_NOSIGNAL));
}

std::string ok(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string good(const std::string& method) {
    if (method == "GetReadinessStatus") return ok(R"({"state":"READY"})");
    if (method == "Shutdown") return ok(R"({"acknowledged":true})");
    return ok(R"({"state":"SHUTDOWN_DRAINING"})");
}

void answer_badly(int to, const std::string& fault) {
    if (fault == "garbage") send_text(to, "\x16\x03\x01 no HTTP\r\n\r\n");
    if (fault == "odd_state") send_text(to, ok(R"({"state":"ASLEEP","acknowledged":"perhaps"})"));
    if (fault == "requested") send_text(to, ok(R"({"state":"SHUTDOWN_REQUESTED"})"));
    if (fault == "running") send_text(to, ok("{}"));
    if (fault == "error") send_text(to, "HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    char byte[256];
    while (fault == "never" && ::read(to, byte, sizeof byte) > 0) {
    }
}

// The whole request, of which the method is told.
std::string read_request(int from) {
    std::string text;
    char some[4096];
    for (;;) {
        const std::size_t head = text.find("\r\n\r\n");
        const std::size_t at = text.find("Content-Length: ");
        if (head != std::string::npos &&
            text.size() >= head + 4 + (at < head ? std::stoul(text.substr(at + 16)) : 0))
            break;
        const ssize_t got = ::read(from, some, sizeof some);
        if (got <= 0) return "";
        text.append(some, static_cast<std::size_t>(got));
    }
    const std::string target = text.substr(0, text.find(" HTTP/"));
    return target.substr(target.rfind('/') + 1);
}

}  // namespace

int main(int argc, char** argv) {
    const char* address = ::getenv("OJS_LIFECYCLE_ADDR");
    if (argc < 3 || address == nullptr) return 64;
    const int listener = listen_at(address);
    if (listener < 0) return 1;
    long left = argc > 3 ? std::strtol(argv[3], nullptr, 10) : -1;
    for (;;) {
        const int connection = ::accept(listener, nullptr, nullptr);
        if (connection < 0) return 1;
        const std::string method = read_request(connection);
        if (method == argv[1] && left != 0) {
            if (left > 0) --left;
            answer_badly(connection, argv[2]);
        } else if (method == argv[1] && method == "GetShutdownStatus") {
            return 0;
        } else {
            send_text(connection, good(method));
        }
        ::close(connection);
    }
}
