// launcher status, stop, roll, cancel, dry-run and watch.
#include "client.hpp"

#include <cstdio>

namespace launcher_program {
namespace {
constexpr std::chrono::seconds event_wait{1};  // per request for events

void print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

ojs::result<bool> is_group(admin_peer& peer, const std::string& name) {
    const auto names = peer.call<ojs::list_groups_response>("ListGroups", ojs::list_groups_request{});
    if (!names) return names.error();
    for (const std::string& each : names->groups) {
        if (each == name) return true;
    }
    return false;
}

ojs::result<ojs::process_status> ask_process(admin_peer& peer, const std::string& id) {
    return peer.call<ojs::process_status>("GetProcessStatus", ojs::process_status_request{id});
}
ojs::result<ojs::group_status> ask_group(admin_peer& peer, const std::string& name) {
    return peer.call<ojs::group_status>("GetGroupStatus", ojs::group_status_request{name});
}

int status(admin_peer& peer, const settings& given) {
    if (given.operands.empty()) {
        const auto groups = ask_groups(peer);
        if (!groups) return report(groups.error());
        for (const ojs::group_status& each : *groups) print(draw(each, true, false));
        return 0;
    }
    const std::string& name = given.operands.front();
    const ojs::result<bool> group = is_group(peer, name);
    if (!group) return report(group.error());
    if (*group) {
        const auto found = ask_group(peer, name);
        if (!found) return report(found.error());
        print(draw(*found, true, false));
        return 0;
    }
    const auto found = ask_process(peer, name);
    if (!found) return report(found.error());
    print(draw(*found, false));
    return 0;
}

// Prints the events that `filter` selects, until `done` returns an exit status.
template <class Filter, class Done>
int follow(admin_peer& peer, Filter filter, Done done) {
    for (;;) {
        const ojs::result<std::vector<event>> more = peer.events(event_wait);
        if (!more) return report(more.error());
        for (const event& each : *more) {
            if (filter(each)) print(line_of(each));
        }
        const ojs::result<int> end = done(*more);
        if (!end) return report(end.error());
        if (*end >= 0) return *end;
    }
}

constexpr int not_yet = -1;

// The expected final state of a stopped process; complete is as good as forced.
ojs::instance_state expected_end(const settings& given) {
    return given.force ? ojs::instance_state::forced : ojs::instance_state::complete;
}
bool is_expected(ojs::instance_state end, ojs::instance_state expected) {
    return end == ojs::instance_state::complete || end == expected;
}

// Prints the work in flight of a stopping process whenever it changes.
class progress {
  public:
    progress(admin_peer& peer, std::string id, ojs::instance_state expected)
        : peer_(peer), id_(std::move(id)), expected_(expected) {}
    ojs::result<int> end() {
        const auto now = ask_process(peer_, id_);
        if (!now) return now.error();
        const bool is_over = ojs::is_final(now->state);
        const std::string in_flight_now = in_flight(now->shutdown.metrics);
        if (is_over || (in_flight_now != printed_ && ojs::is_stopping_or_ended(now->state))) print(draw(*now, false));
        printed_ = in_flight_now;
        if (!is_over) return not_yet;
        return is_expected(now->state, expected_) ? 0 : failed;
    }

  private:
    admin_peer& peer_;
    const std::string id_;
    const ojs::instance_state expected_;
    std::string printed_;
};

// Rounded up.
std::int32_t seconds_of(std::chrono::milliseconds time) {
    return static_cast<std::int32_t>((time.count() + 999) / 1000);
}

int stop_process(admin_peer& peer, const settings& given, const std::string& id) {
    ojs::shutdown_process_request request;
    request.process_id = id;
    request.reason = given.reason;
    request.force = given.force;
    request.grace_period_seconds = seconds_of(given.grace);
    request.max_shutdown_seconds = seconds_of(given.max);
    const auto response = peer.call<ojs::shutdown_process_response>("ShutdownProcess", request);
    if (!response) return report(response.error());
    print(id + " " + shown(response->message) + "\n");
    if (!response->acknowledged) return failed;
    if (!given.wait) return 0;
    progress its(peer, id, expected_end(given));
    return follow(
        peer, [&](const event& each) { return each.process_id == id; }, [&](const auto&) { return its.end(); });
}

// not_yet until all processes of `before` have exited.
ojs::result<int> end_of_all(admin_peer& peer, const ojs::group_status& before, ojs::instance_state expected) {
    const auto now = ask_group(peer, before.group);
    if (!now) return now.error();
    for (const ojs::process_status& each : now->processes) {
        if (!ojs::is_final(each.state)) return not_yet;
    }
    int out = 0;
    for (const ojs::process_status& each : before.processes) {
        if (ojs::is_final(each.state)) continue;
        const auto ended = ask_process(peer, each.process_id);
        if (!ended) return ended.error();
        print(draw(*ended, false));
        if (!is_expected(ended->state, expected)) out = failed;
    }
    return out;
}

int stop_group(admin_peer& peer, const settings& given, const std::string& name) {
    const auto before = ask_group(peer, name);
    if (!before) return report(before.error());
    ojs::shutdown_group_request request;
    request.group = name;
    request.reason = given.reason;
    request.force = given.force;
    request.grace_period_seconds = seconds_of(given.grace);
    request.max_shutdown_seconds = seconds_of(given.max);
    const auto response = peer.call<ojs::shutdown_group_response>("ShutdownGroup", request);
    if (!response) return report(response.error());
    print(name + " " + shown(response->message) + "\n");
    if (!given.wait) return 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto&) { return end_of_all(peer, *before, expected_end(given)); });
}

int stop(admin_peer& peer, const settings& given) {
    const ojs::result<bool> group = is_group(peer, given.operands.front());
    if (!group) return report(group.error());
    const ojs::result<std::vector<event>> begun = peer.events(event_wait);  // from here on
    if (!begun) return report(begun.error());
    return *group ? stop_group(peer, given, given.operands.front()) : stop_process(peer, given, given.operands.front());
}

// After lost events the group's status has the result.
ojs::result<int> end_of_roll(admin_peer& peer, const std::string& name, const std::vector<event>& received,
                             const std::string& expected) {
    for (const event& each : received) {
        if (each.group != name || each.result.empty()) continue;
        return each.result == expected ? 0 : failed;
    }
    const auto now = ask_group(peer, name);
    if (!now) return now.error();
    bool missed = false;
    for (const event& each : received) missed = missed || each.missed;
    if (now->replacing || !missed) return not_yet;
    print(name + ": " + shown(now->message) + "\n");
    const ojs::rollout_phase end = expected == "done" ? ojs::rollout_phase::done : ojs::rollout_phase::cancelled;
    return now->rollout.phase == end ? 0 : failed;
}

int roll(admin_peer& peer, const settings& given) {
    const std::string& name = given.operands.front();
    const ojs::result<std::vector<event>> begun = peer.events(event_wait);  // from here on
    if (!begun) return report(begun.error());
    ojs::rollout_request request;
    request.group = name;
    request.reason = given.reason;
    request.canary = given.canary;
    request.retry = given.retry;
    request.retries = given.retries;
    request.canary_seconds = seconds_of(given.canary_time);
    const auto response = peer.call<ojs::rollout_response>("RollingReplace", request);
    if (!response) return report(response.error());
    if (!given.wait) return print(name + ": " + shown(response->message) + "\n"), 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto& received) { return end_of_roll(peer, name, received, "done"); });
}

int cancel(admin_peer& peer, const settings& given) {
    const std::string& name = given.operands.front();
    const ojs::result<std::vector<event>> begun = peer.events(event_wait);  // from here on
    if (!begun) return report(begun.error());
    const auto response =
        peer.call<ojs::cancel_rollout_response>("CancelReplace", ojs::cancel_rollout_request{name, given.reason});
    if (!response) return report(response.error());
    print(name + ": " + shown(response->message) + "\n");
    if (!given.wait) return 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto& received) { return end_of_roll(peer, name, received, "cancelled"); });
}

int dry_run(admin_peer& peer, const settings& given) {
    const std::string& name = given.operands.front();
    const ojs::result<bool> group = is_group(peer, name);
    if (!group) return report(group.error());
    if (*group) {
        ojs::rollout_request request;
        request.group = name;
        request.dry_run = true;
        const auto seen = peer.call<ojs::rollout_response>("RollingReplace", request);
        if (!seen) return report(seen.error());
        print(name + ": " + shown(seen->message) + "\n");
        for (const ojs::process_status& each : seen->processes) print(draw(each, false));
        return 0;
    }
    ojs::shutdown_process_request request;
    request.process_id = name;
    request.dry_run = true;
    const auto seen = peer.call<ojs::shutdown_process_response>("ShutdownProcess", request);
    if (!seen) return report(seen.error());
    print(name + ": " + shown(seen->message) + "\n");
    auto found = ask_process(peer, name);
    if (!found) return report(found.error());
    found->shutdown = seen->status;
    print(draw(*found, false));
    return 0;
}
}  // namespace

int report(const ojs::error& failure) {
    std::fprintf(stderr, "launcher: %s\n", failure.text.c_str());
    if (failure.code == ojs::errc::invalid_argument) return ojs::exit_status::usage;
    return failure.code == ojs::errc::rejected ? failed : unavailable;
}

int run_client(const settings& given) {
    ojs::result<admin_peer> peer = admin_peer::create(given);
    if (!peer) return report(peer.error());
    if (given.command == "status") return status(*peer, given);
    if (given.command == "stop") return stop(*peer, given);
    if (given.command == "roll") return roll(*peer, given);
    if (given.command == "cancel") return cancel(*peer, given);
    if (given.command == "dry-run") return dry_run(*peer, given);
    return watch(*peer);
}
}  // namespace launcher_program
