// launcher status, stop, roll, cancel, dry-run and watch.
#include "client.hpp"

#include <cstdio>

namespace launcher_program {
namespace {

constexpr std::chrono::seconds follow_time{1};  // of one question for events; asked again and again

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

int status(admin_peer& peer, const settings& how) {
    if (how.operands.empty()) {
        const auto groups = ask_groups(peer);
        if (!groups) return report(groups.error());
        for (const ojs::group_status& each : *groups) print(draw(each, true, false));
        return 0;
    }
    const std::string& name = how.operands.front();
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

// Prints what changes, until `done` says what has become of it.
template <class Wanted, class Done>
int follow(admin_peer& peer, Wanted wanted, Done done) {
    for (;;) {
        const ojs::result<std::vector<event>> more = peer.events(follow_time);
        if (!more) return report(more.error());
        for (const event& each : *more) {
            if (wanted(each)) print(line_of(each));
        }
        const ojs::result<int> end = done(*more);
        if (!end) return report(end.error());
        if (*end >= 0) return *end;
    }
}

constexpr int not_yet = -1;

// How a process is to end that is stopped: one that ends well before it is forced did no worse.
ojs::instance_state end_wanted(const settings& how) {
    return how.force ? ojs::instance_state::forced : ojs::instance_state::complete;
}
bool is_well(ojs::instance_state end, ojs::instance_state wanted) {
    return end == ojs::instance_state::complete || end == wanted;
}

// The way of one process to its end: what it has in hand, whenever that changes.
class progress {
  public:
    progress(admin_peer& peer, std::string id, ojs::instance_state wanted)
        : peer_(peer), id_(std::move(id)), wanted_(wanted) {}
    ojs::result<int> end() {
        const auto now = ask_process(peer_, id_);
        if (!now) return now.error();
        const bool is_over = ojs::is_final(now->state);
        const std::string left = in_flight(now->shutdown.metrics);
        if (is_over || (left != said_ && ojs::is_stopping(now->state))) print(draw(*now, false));
        said_ = left;
        if (!is_over) return not_yet;
        return is_well(now->state, wanted_) ? 0 : failed;
    }

  private:
    admin_peer& peer_;
    const std::string id_;
    const ojs::instance_state wanted_;
    std::string said_;
};

int stop_process(admin_peer& peer, const settings& how, const std::string& id) {
    ojs::shutdown_process_request request;
    request.process_id = id;
    request.reason = how.reason;
    request.force = how.force;
    const auto asked = peer.call<ojs::shutdown_process_response>("ShutdownProcess", request);
    if (!asked) return report(asked.error());
    print(id + " " + shown(asked->message) + "\n");
    if (!asked->acknowledged) return failed;
    if (!how.wait) return 0;
    progress its(peer, id, end_wanted(how));
    return follow(
        peer, [&](const event& each) { return each.process_id == id; },
        [&](const auto&) { return its.end(); });
}

// Whether all that were there have ended, and how.
ojs::result<int> end_of_all(admin_peer& peer, const ojs::group_status& before, ojs::instance_state wanted) {
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
        if (!is_well(ended->state, wanted)) out = failed;
    }
    return out;
}

int stop_group(admin_peer& peer, const settings& how, const std::string& name) {
    const auto before = ask_group(peer, name);
    if (!before) return report(before.error());
    ojs::shutdown_group_request request;
    request.group = name;
    request.reason = how.reason;
    request.force = how.force;
    const auto asked = peer.call<ojs::shutdown_group_response>("ShutdownGroup", request);
    if (!asked) return report(asked.error());
    print(name + " " + shown(asked->message) + "\n");
    if (!how.wait) return 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto&) { return end_of_all(peer, *before, end_wanted(how)); });
}

int stop(admin_peer& peer, const settings& how) {
    const ojs::result<bool> group = is_group(peer, how.operands.front());
    if (!group) return report(group.error());
    const ojs::result<std::vector<event>> begun = peer.events(follow_time);  // from here on
    if (!begun) return report(begun.error());
    return *group ? stop_group(peer, how, how.operands.front())
                  : stop_process(peer, how, how.operands.front());
}

// The group says how the last replacement ended, so that no missed event leaves this here for ever.
ojs::result<int> end_of_roll(admin_peer& peer, const std::string& name, const std::vector<event>& heard,
                             const std::string& wanted) {
    for (const event& each : heard) {
        if (each.group != name || each.result.empty()) continue;
        return each.result == wanted ? 0 : failed;
    }
    const auto now = ask_group(peer, name);
    if (!now) return now.error();
    bool missed = false;
    for (const event& each : heard) missed = missed || each.missed;
    if (now->replacing || !missed) return not_yet;
    print(name + ": " + shown(now->message) + "\n");
    const ojs::replacement_phase end =
        wanted == "done" ? ojs::replacement_phase::done : ojs::replacement_phase::cancelled;
    return now->replacement.phase == end ? 0 : failed;
}

int roll(admin_peer& peer, const settings& how) {
    const std::string& name = how.operands.front();
    const ojs::result<std::vector<event>> begun = peer.events(follow_time);  // from here on
    if (!begun) return report(begun.error());
    ojs::rolling_replace_request request;
    request.group = name;
    request.reason = how.reason;
    request.canary = how.canary;
    request.retry = how.retry;
    request.retries = how.retries;
    request.canary_seconds = static_cast<std::int32_t>((how.canary_time.count() + 999) / 1000);
    const auto asked = peer.call<ojs::rolling_replace_response>("RollingReplace", request);
    if (!asked) return report(asked.error());
    if (!how.wait) return print(name + ": the replacement " + shown(asked->message) + "\n"), 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto& heard) { return end_of_roll(peer, name, heard, "done"); });
}

int cancel(admin_peer& peer, const settings& how) {
    const std::string& name = how.operands.front();
    const ojs::result<std::vector<event>> begun = peer.events(follow_time);  // from here on
    if (!begun) return report(begun.error());
    const auto asked = peer.call<ojs::cancel_replace_response>("CancelReplace",
                                                               ojs::cancel_replace_request{name, how.reason});
    if (!asked) return report(asked.error());
    print(name + ": the replacement " + shown(asked->message) + "\n");
    if (!how.wait) return 0;
    return follow(
        peer, [&](const event& each) { return each.group == name; },
        [&](const auto& heard) { return end_of_roll(peer, name, heard, "cancelled"); });
}

int dry_run(admin_peer& peer, const settings& how) {
    const std::string& name = how.operands.front();
    const ojs::result<bool> group = is_group(peer, name);
    if (!group) return report(group.error());
    if (*group) {
        ojs::rolling_replace_request request;
        request.group = name;
        request.dry_run = true;
        const auto seen = peer.call<ojs::rolling_replace_response>("RollingReplace", request);
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

int run_client(const settings& how) {
    ojs::result<admin_peer> peer = admin_peer::create(how);
    if (!peer) return report(peer.error());
    if (how.command == "status") return status(*peer, how);
    if (how.command == "stop") return stop(*peer, how);
    if (how.command == "roll") return roll(*peer, how);
    if (how.command == "cancel") return cancel(*peer, how);
    if (how.command == "dry-run") return dry_run(*peer, how);
    return watch(*peer);
}

}  // namespace launcher_program
