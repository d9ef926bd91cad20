// Clients and handlers for the tests of both servers.
#pragma once
#include "raw_peer.hpp"

namespace test {
inline ojs::http_response echo(const ojs::http_request& request) {
    return {200, {}, request.method + " " + request.target + " " + request.body};
}

template <class Server, class Options>
Server started_server(ojs::http_handler handler, Options options, const std::string& address) {
    ojs::result<Server> started = Server::start(address, std::move(handler), std::move(options));
    REQUIRE_MESSAGE(started, started.error().text);
    return std::move(*started);
}

inline std::string get(const std::string& target = "/", const std::string& headers = "") {
    return "GET " + target + " HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n";
}

inline std::string status_of(const std::string& answer) { return answer.size() > 12 ? answer.substr(9, 3) : answer; }

// A client that has sent `text`.
struct sent : peer::client {
    template <class Server>
    explicit sent(const Server& server, const std::string& text = get()) : client(server.port()) {
        send(text);
    }
    std::string status() { return status_of(answer()); }
};

// Its handlers of targets that begin with `held` count themselves, and wait.
struct gate {
    std::string held = "/held";
    counter entered;
    event may_go;
    ojs::http_handler handler() {
        return [this](const ojs::http_request& request) {
            if (request.target.compare(0, held.size(), held) == 0) {
                entered.add();
                may_go.wait();
                entered.add(-1);
            }
            return echo(request);
        };
    }
};

#ifdef __linux__
// Awaits that this process has so many threads of servers, all asleep. Returns how often they have gone to sleep.
inline std::size_t await_threads(std::size_t count) {
    std::size_t sleeps = 0;
    REQUIRE(eventually([&] {
        std::size_t asleep = 0;
        std::size_t awake = 0;
        sleeps = 0;
        for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
            const std::string status = read_file(each.path() / "status");
            if (!holds(status, "Name:\tojs-accept\n") && !holds(status, "Name:\tojs-serve\n")) continue;
            ++(holds(status, "State:\tS") ? asleep : awake);
            sleeps += std::stoul(status.substr(status.find("\nvoluntary_ctxt_switches:") + 25));
        }
        return awake == 0 && asleep == count;
    }));
    return sleeps;
}
#endif
}  // namespace test
