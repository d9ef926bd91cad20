// The client of the admin server, and what it prints.
#pragma once
#include <utility>

#include "launcher.hpp"

namespace launcher_program {
// A line of GET /events: a change of a process or of its group.
struct event {
    std::string time;
    std::string group;
    std::string process_id;
    std::string state;  // of the process; `before`: its previous state
    std::string before;
    std::string what;    // of the group
    std::string result;  // of a rollout
    std::string message;
    bool missed = false;  // older events are lost
};

class admin_peer {
  public:
    admin_peer() = default;  // an error holds one
    static ojs::result<admin_peer> create(const settings& given);

    // Calls a method of admin.proto.
    template <class Answer, class Request>
    ojs::result<Answer> call(const char* method, const Request& request) {
        const ojs::result<std::string> body =
            post(std::string("/") + ojs::manager_service + "/" + method, ojs::write_message(request));
        if (!body) return body.error();
        return ojs::read_message<Answer>(*body);
    }
    // Waits for events after the last call; the first call returns none.
    ojs::result<std::vector<event>> events(std::chrono::seconds wait);

  private:
    admin_peer(ojs::http_client peer, std::string address) : peer_(std::move(peer)), address_(std::move(address)) {}
    ojs::result<std::string> post(const std::string& target, std::string body);
    ojs::result<std::string> send(const ojs::http_request& request, std::chrono::seconds time);

    ojs::result<ojs::http_client> peer_ = ojs::error{};
    std::string address_;
    std::string next_;  // number for the next request
};

// The text without control characters.
std::string shown(std::string_view text);

// "3 in flight, waits: flush", or empty.
std::string in_flight(const ojs::shutdown_metrics& of);
// The status of all groups.
ojs::result<std::vector<ojs::group_status>> ask_groups(admin_peer& peer);
// One line for the group, then one per process. `all`: also exited ones.
std::string draw(const ojs::group_status& group, bool all, bool coloured);
std::string draw(const ojs::process_status& process, bool coloured);
std::string line_of(const event& of);

int watch(admin_peer& peer);
// Prints the error, and returns its exit status.
int report(const ojs::error& failure);
}  // namespace launcher_program
