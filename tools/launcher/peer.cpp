// Requests to a launcher.
#include <algorithm>

#include "client.hpp"

namespace launcher_program {
namespace {
constexpr std::chrono::seconds call_timeout{10};

std::string text_of(const picojson::value& of, const char* key) {
    if (!of.is<picojson::object>() || !of.contains(key)) return "";
    const picojson::value& found = of.get(key);
    return found.is<std::string>() ? found.get<std::string>() : found.to_str();
}

picojson::value parsed(const std::string& text) {
    return ojs::json_view(text).as<picojson::value>().value_or(picojson::value());
}

event event_of(const picojson::value& line) {
    event out;
    out.time = text_of(line, "time");
    out.group = text_of(line, "group");
    out.process_id = text_of(line, "processId");
    out.state = text_of(line, "state");
    out.before = text_of(line, "before");
    out.what = text_of(line, "event");
    out.result = text_of(line, "result");
    const std::string failed = text_of(line, "failedId");
    out.message = text_of(line, "message") + failed + (failed.empty() ? "" : " ") + text_of(line, "reason");
    out.missed = line.contains("missed");
    return out;
}
}  // namespace

ojs::result<admin_peer> admin_peer::create(const settings& given) {
    ojs::http_client_options options;
    const ojs::result<std::string> token = read_token(given.token_file);
    if (!token) return token.error();
    options.bearer_token = *token;
    const bool is_path = given.admin.compare(0, 5, "unix:") == 0;
    ojs::result<ojs::http_client> peer =
        ojs::http_client::create(is_path ? given.admin : "http://" + given.admin, std::move(options));
    if (!peer) {
        return ojs::error{ojs::errc::invalid_argument, 0,
                          "--admin " + given.admin + ": write unix:/PATH or HOST:PORT (" + peer.error().text + ")"};
    }
    return admin_peer(std::move(*peer), given.admin);
}

ojs::result<std::string> admin_peer::post(const std::string& target, std::string body) {
    return send({"POST", target, {{"Content-Type", "application/json"}}, std::move(body)}, call_timeout);
}

ojs::result<std::string> admin_peer::send(const ojs::http_request& request, std::chrono::seconds time) {
    ojs::http_call call;
    call.deadline = ojs::deadline_after(time);
    ojs::result<ojs::http_response> response = peer_->send(request, call);
    if (!response) {
        ojs::error failure = response.error();
        failure.text = "no launcher responds at " + address_ + ": " + failure.text +
                       "; check that it runs, and that --admin is its address";
        return failure;
    }
    if (response->status == 200) return std::move(response->body);
    const picojson::value body = parsed(response->body);
    std::string why = text_of(body, "message") + text_of(body, "error");
    if (response->status == 401) why += ": give --token-file with the token of the launcher";
    if (why.empty())
        why = peer_->describe(request.method, request.target) + " answered " + std::to_string(response->status) +
              ": not a launcher";
    return ojs::error{ojs::errc::rejected, 0, shown(why)};
}

ojs::result<std::vector<event>> admin_peer::events(std::chrono::seconds wait) {
    ojs::http_request request;
    request.target = "/events";
    if (!next_.empty()) request.target += "?after=" + next_ + "&wait=" + std::to_string(wait.count()) + "s";
    const ojs::result<std::string> body = send(request, wait + call_timeout);
    if (!body) return body.error();
    std::vector<event> out;
    for (std::size_t at = 0; at < body->size();) {
        const std::size_t end = std::min(body->find('\n', at), body->size());
        const picojson::value line = parsed(body->substr(at, end - at));
        at = end + 1;
        if (!line.is<picojson::object>())
            return ojs::error{ojs::errc::bad_response, 0, address_ + " sent an invalid response: not a launcher"};
        if (line.contains("next")) {
            next_ = text_of(line, "next");
        } else {
            out.push_back(event_of(line));
        }
    }
    return out;
}

ojs::result<std::vector<ojs::group_status>> ask_groups(admin_peer& peer) {
    const auto names = peer.call<ojs::list_groups_response>("ListGroups", ojs::list_groups_request{});
    if (!names) return names.error();
    std::vector<ojs::group_status> out;
    for (const std::string& name : names->groups) {
        auto group = peer.call<ojs::group_status>("GetGroupStatus", ojs::group_status_request{name});
        if (!group) return group.error();
        out.push_back(std::move(*group));
    }
    return out;
}
}  // namespace launcher_program
