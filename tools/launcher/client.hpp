// How the tool speaks with a launcher.
#pragma once
#include <utility>

#include "launcher.hpp"

namespace launcher_program {

// An event as GET /events has it: of a process, or of its group.
struct event {
    std::string time;
    std::string group;
    std::string process_id;
    std::string state;  // of the process, and what it was before
    std::string before;
    std::string what;    // of the group
    std::string result;  // how a replacement ended
    std::string message;
    bool missed = false;  // others were, that came before
};

class admin_peer {
  public:
    static ojs::result<admin_peer> create(const settings& how);

    // A method of the manager's service, by its name in admin.proto.
    template <class Answer, class Request>
    ojs::result<Answer> call(const char* method, const Request& request) {
        const ojs::result<std::string> body =
            post(std::string("/") + ojs::manager_service + "/" + method, ojs::write_message(request));
        if (!body) return body.error();
        return ojs::read_message<Answer>(*body);
    }
    // Those from the last call on, for at most so long; the first call only marks the place.
    ojs::result<std::vector<event>> events(std::chrono::seconds wait);

  private:
    admin_peer(ojs::http_client peer, std::string address)
        : peer_(std::move(peer)), address_(std::move(address)) {}
    ojs::result<std::string> post(const std::string& target, std::string body);
    ojs::result<std::string> send(const ojs::http_request& request, std::chrono::seconds time);

    ojs::http_client peer_;
    std::string address_;
    std::string next_;  // number to go on with
};

// What a launcher says, without anything that moves a terminal's cursor.
std::string shown(std::string_view text);

// "3 in flight, waits: flush"; empty: nothing.
std::string in_flight(const ojs::shutdown_metrics& of);
// All groups as they are.
ojs::result<std::vector<ojs::group_status>> ask_groups(admin_peer& peer);
// The text of one group: a line for itself, then one for each process. `all`: also those that have ended.
std::string draw(const ojs::group_status& group, bool all, bool coloured);
std::string draw(const ojs::process_status& process, bool coloured);
std::string line_of(const event& of);

int watch(admin_peer& peer);
// Prints it, and returns the exit status that says so.
int report(const ojs::error& failure);

}  // namespace launcher_program
