// A TCP relay in front of a server, which can lose its responses. Independent of the protocol.
#pragma once

#include <poll.h>

#include <list>
#include <mutex>

#include "../peer_server.hpp"

namespace transport_contract {
class relay {
  public:
    // Relays to that port on loopback. Loses only responses to requests for which `may_lose` returns true; it is called with
    // each chunk from the client.
    explicit relay(std::uint16_t to, std::function<bool(const std::string&)> may_lose = nullptr)
        : to_(to), may_lose_(std::move(may_lose)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in at = peer::loopback(0);
        socklen_t size = sizeof at;
        const bool listens = ::bind(listener_, reinterpret_cast<const sockaddr*>(&at), size) == 0 &&
                             ::listen(listener_, 64) == 0 &&
                             ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0;
        if (!listens) throw std::runtime_error("the relay cannot listen");
        port_ = ntohs(at.sin_port);
        accepts_ = std::thread([this] { accept_all(); });
    }
    relay(const relay&) = delete;
    relay& operator=(const relay&) = delete;
    ~relay() {
        ending_ = true;
        ::shutdown(listener_, SHUT_RDWR);
        accepts_.join();
        ::close(listener_);
        {
            const std::lock_guard<std::mutex> held(mutex_);
            for (const connection& each : connections_) {
                ::shutdown(each.near, SHUT_RDWR);
                ::shutdown(each.far, SHUT_RDWR);
            }
        }
        for (connection& each : connections_) each.passes.join();
    }

    std::uint16_t port() const { return port_; }
    // Loses the next `responses` and closes their connections. 0: none.
    void lose(int responses) { to_lose_ = responses; }

  private:
    struct connection {
        int near = -1;  // the client's side; -1: closed
        int far = -1;
        std::thread passes;
        bool may_lose = true;  // the response to its last request
    };

    void end(connection& of) {
        const std::lock_guard<std::mutex> held(mutex_);
        ::close(of.near);
        ::close(of.far);
        of.near = of.far = -1;
    }
    void accept_all() {
        while (!ending_) {
            const int near = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (near < 0) continue;
            const int far = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            const sockaddr_in at = peer::loopback(to_);
            if (::connect(far, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) ::shutdown(near, SHUT_RDWR);
            const std::lock_guard<std::mutex> held(mutex_);
            connections_.emplace_back();
            connection& added = connections_.back();
            added.near = near;
            added.far = far;
            added.passes = std::thread([this, &added] { pass(added); });
        }
    }

    void pass(connection& on) {
        pollfd sides[2] = {{on.near, POLLIN, 0}, {on.far, POLLIN, 0}};
        for (bool open = true; open;) {
            if (::poll(sides, 2, -1) <= 0) continue;
            if (sides[0].revents != 0) open = pass_some(on, on.near, on.far);
            if (open && sides[1].revents != 0) open = pass_some(on, on.far, on.near);
        }
        end(on);
    }
    bool pass_some(connection& on, int from, int to) {
        char buffer[65536];
        const ssize_t got = ::recv(from, buffer, sizeof buffer, 0);
        if (got <= 0) return false;
        const bool is_answer = from == on.far;
        if (is_answer && on.may_lose && is_lost()) return false;
        if (!is_answer && may_lose_) on.may_lose = may_lose_(std::string(buffer, static_cast<std::size_t>(got)));
        for (ssize_t sent = 0; sent < got;) {
            const ssize_t more = ::send(to, buffer + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
            if (more <= 0) return false;
            sent += more;
        }
        return true;
    }
    bool is_lost() { return to_lose_ > 0 && to_lose_-- > 0; }

    const std::uint16_t to_;
    const std::function<bool(const std::string&)> may_lose_;
    const int listener_;
    std::uint16_t port_ = 0;
    std::atomic<int> to_lose_{0};
    std::atomic<bool> ending_{false};
    std::mutex mutex_;
    std::list<connection> connections_;
    std::thread accepts_;
};
}  // namespace transport_contract
