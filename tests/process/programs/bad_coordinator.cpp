// A child of a launcher whose coordinator answers one method badly: bad_coordinator METHOD FAULT [TIMES]
//
// All other methods are answered well: it is ready, takes a Shutdown, and drains for ever. After TIMES bad answers that one
// is answered well too, and to GetShutdownStatus by an exit with status 0. FAULT:
//   garbage       bytes that are no HTTP        hangs_up      closes the connection
//   half          a body that breaks off        stalls        the same, and the connection stays
//   slow          a good answer, a byte a time  never         nothing, and the connection stays
//   oversized     a body without end            endless_head  a head without end
//   not_json      a body that is no JSON        odd_state     a state that there is none
//   error         status 500                    requested     SHUTDOWN_REQUESTED
//   running       RUNNING, as if nothing was asked
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

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

bool send_text(int to, const std::string& text) {
    return ::send(to, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::string ok(const std::string& body, std::size_t size) {
    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
           std::to_string(size) + "\r\n\r\n" + body;
}
std::string ok(const std::string& body) {
    return ok(body, body.size());
}

std::string good(const std::string& method) {
    if (method == "GetReadinessStatus") return ok(R"({"state":"READY"})");
    if (method == "Shutdown") return ok(R"({"acknowledged":true})");
    return ok(R"({"state":"SHUTDOWN_DRAINING"})");
}

void until_closed(int connection) {
    char byte[256];
    while (::read(connection, byte, sizeof byte) > 0) {
    }
}

void answer_badly(int to, const std::string& fault, const std::string& method) {
    if (fault == "garbage") send_text(to, "\x16\x03\x01 no HTTP\r\n\r\n");
    if (fault == "half" || fault == "stalls") send_text(to, ok(R"({"state":)", 100));
    if (fault == "not_json") send_text(to, ok("[[["));
    if (fault == "odd_state") send_text(to, ok(R"({"state":"ASLEEP","acknowledged":"perhaps"})"));
    if (fault == "requested") send_text(to, ok(R"({"state":"SHUTDOWN_REQUESTED"})"));
    if (fault == "running") send_text(to, ok("{}"));
    if (fault == "error") send_text(to, "HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    if (fault == "stalls" || fault == "never") until_closed(to);
    if (fault == "slow") {
        for (const char each : good(method)) {
            if (!send_text(to, std::string(1, each))) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
        }
    }
    const std::string much(65536, 'x');
    if (fault == "oversized" && send_text(to, ok("", std::size_t{1} << 40))) {
        while (send_text(to, much)) {
        }
    }
    if (fault == "endless_head" && send_text(to, "HTTP/1.1 200 OK\r\n")) {
        while (send_text(to, "X-More: and more\r\n")) {
        }
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
            answer_badly(connection, argv[2], method);
        } else if (method == argv[1] && method == "GetShutdownStatus") {
            return 0;
        } else {
            send_text(connection, good(method));
        }
        ::close(connection);
    }
}
