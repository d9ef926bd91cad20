// Clients and handlers for the tests of both servers.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>

#include "events.hpp"
#include "raw_peer.hpp"

namespace test {

inline ojs::http_response echo(const ojs::http_request& request) {
    return {200, {}, request.method + " " + request.target + " " + request.body, false};
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

inline std::string status_of(const std::string& answer) {
    return answer.size() > 12 ? answer.substr(9, 3) : answer;
}

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
// The threads of servers in this process, and how often each has gone to sleep.
struct server_threads {
    server_threads() {
        for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
            std::string name;
            std::getline(std::ifstream(each.path() / "comm"), name);
            if (name != "ojs-accept" && name != "ojs-serve") continue;
            std::ifstream status(each.path() / "status");
            std::size_t& slept = sleeps[each.path().filename()];
            for (std::string line; std::getline(status, line);) {
                if (line.rfind("voluntary_ctxt_switches:", 0) == 0) slept = std::stoul(line.substr(24));
                if (line.rfind("State:", 0) == 0 && line.find('S', 6) == std::string::npos) ++awake;
            }
        }
    }
    std::map<std::string, std::size_t> sleeps;  // by thread id
    std::size_t awake = 0;
};

inline void await_threads(std::size_t count) {
    const ojs::time_point give_up = peer::soon();
    server_threads found;
    for (; found.sleeps.size() != count || found.awake > 0; found = {}) {
        REQUIRE(ojs::steady_clock::now() < give_up);
        std::this_thread::yield();
    }
}
#endif

}  // namespace test
