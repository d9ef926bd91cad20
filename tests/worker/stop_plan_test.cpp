// What the supervisor does about each change, row by row.
#include <csignal>

#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using action = detail::stop_action;
using facts = detail::stop_facts;

namespace {

// A busy worker in this phase, after as many changes of its lifecycle, and with these edits.
template <class... Edits>
facts in(ojs::phase where, Edits... edits) {
    facts out;
    out.own.phase = where;
    out.own.sequence = static_cast<std::uint8_t>(where);
    out.registration_tried = true;
    out.idle = false;
    (static_cast<void>(edits(out)), ...);
    return out;
}
template <class Member, class Value>
auto set(Member member, Value value) {
    return [=](facts& now) { now.*member = value; };
}
template <class Member, class Value>
auto set_own(Member member, Value value) {
    return [=](facts& now) { now.own.*member = value; };
}
const auto idle = set(&facts::idle, true);
const auto cancel_due = set(&facts::cancel_due, true);
const auto has_mode_file = set(&facts::has_mode_file, true);
const auto reclaimed = set_own(&lifecycle_state::mode, stop_mode::reclaim);
const auto next_change = [](facts& now) { ++now.own.sequence; };
const auto signalled = [](facts& now) {
    has_mode_file(now);
    now.own.cause = {cause_kind::signal, SIGTERM};
};
// The lifecycle that the worker follows drains as well; it was not requested by a signal.
const auto shared_drains = [](facts& now) {
    has_mode_file(now);
    now.shared.phase = phase::draining;
    now.shared.sequence = 1;
};
auto shared_is_signalled(int signal) {
    return [signal](facts& now) {
        shared_drains(now);
        now.shared.sequence = 2;
        now.shared.cause = {cause_kind::signal, signal};
    };
}
const auto shared_exits = [](facts& now) {
    shared_drains(now);
    now.shared.exit_now = true;
};
const auto shared_is_quiet = [](facts& now) { now.shared.phase = phase::quiet; };

// What every change of the phase asks for, and these.
std::vector<action> changed(std::vector<action> more) {
    for (const action each :
         {action::notify_extensions, action::wake_pool, action::log_change, action::call_on_transition})
        more.insert(std::lower_bound(more.begin(), more.end(), each), each);  // in the order of the acts
    return more;
}

// What a change asks for that leaves the phase.
std::vector<action> only(std::vector<action> all) {
    return all;
}

struct row {
    const char* what;
    facts before;
    facts now;
    std::vector<action> actions;
};

const row rows[] = {
    {"nothing has changed", in(phase::running), in(phase::running), only({})},
    {"quiet", in(phase::running), in(phase::quiet), changed({action::send_heartbeat})},
    {"resumed", in(phase::quiet), in(phase::running), changed({action::send_heartbeat})},
    {"a drain", in(phase::running), in(phase::draining),
     changed({action::send_heartbeat, action::stop_fetching})},
    {"a drain after quiet: the beat has been sent", in(phase::quiet), in(phase::draining),
     changed({action::stop_fetching})},
    {"a drained worker stops", in(phase::draining), in(phase::stopping, idle),
     changed({action::divide_stop_timeout})},
    {"a stop cancels jobs, and logs afterwards", in(phase::draining), in(phase::stopping),
     changed({action::divide_stop_timeout, action::cancel, action::call_cancel_callbacks})},
    {"stop_and_cancel() of a running worker", in(phase::running),
     in(phase::stopping, set_own(&lifecycle_state::cancel_requested, true)),
     changed({action::send_heartbeat, action::stop_fetching, action::divide_stop_timeout, action::cancel,
              action::call_cancel_callbacks})},
    {"the end", in(phase::stopping), in(phase::terminated), changed({})},
    {"jobs of a reclaim hear of it after the lines of the controller guide", in(phase::draining),
     in(phase::stopping, reclaimed),
     changed(
         {action::divide_stop_timeout, action::cancel, action::log_reclaim, action::call_reclaim_callbacks})},
    {"a reclaim of an idle worker", in(phase::running), in(phase::stopping, reclaimed, idle),
     changed(
         {action::send_heartbeat, action::stop_fetching, action::divide_stop_timeout, action::log_reclaim})},
    {"cancel_lead begins", in(phase::draining), in(phase::draining, cancel_due),
     only({action::cancel, action::call_cancel_callbacks})},
    {"and the stop after it cancels nothing again", in(phase::draining, cancel_due),
     in(phase::stopping, cancel_due), changed({action::divide_stop_timeout})},
    {"the third signal", in(phase::stopping),
     in(phase::stopping, next_change, set_own(&lifecycle_state::exit_now, true)),
     only({action::log_change, action::give_up})},
    {"a drain by signal asks the termination-mode file before anybody hears of it", in(phase::quiet),
     in(phase::draining, signalled), changed({action::stop_fetching, action::decide_mode})},
    {"a drain by a call does not", in(phase::quiet), in(phase::draining, has_mode_file),
     changed({action::stop_fetching})},
    {"a drain that is signalled later asks it then", in(phase::draining),
     in(phase::draining, signalled, next_change), only({action::log_change, action::decide_mode})},
    {"and once only", in(phase::draining, signalled), in(phase::draining, signalled, next_change),
     only({action::log_change})},
    {"the shared lifecycle changes", in(phase::running),
     in(phase::running, [](facts& now) { now.shared.sequence = 1; }),
     only({action::apply_shared_lifecycle, action::wake_pool})},
    {"its drain is signalled", in(phase::draining, shared_drains),
     in(phase::draining, shared_is_signalled(SIGTERM)),
     only({action::apply_shared_lifecycle, action::wake_pool, action::decide_mode})},
    {"SIGUSR1 is a reclaim whatever the file says", in(phase::draining, shared_drains),
     in(phase::draining, shared_is_signalled(SIGUSR1)),
     only({action::apply_shared_lifecycle, action::wake_pool})},
    {"its third signal", in(phase::draining, shared_drains), in(phase::draining, shared_exits),
     only({action::give_up})},
    {"its third signal where the first one wins", in(phase::draining, shared_drains),
     in(phase::draining, shared_exits, set(&facts::first_signal_wins, true)), only({})},
    {"SIGCONT to a running one", in(phase::quiet), in(phase::quiet, set(&facts::resume_requests, 1)),
     only({action::resume})},
    {"SIGCONT to a quiet one: its change is yet to come", in(phase::quiet, shared_is_quiet),
     in(phase::quiet, shared_is_quiet, set(&facts::resume_requests, 1)), only({})},
    {"a queue is paused", in(phase::running), in(phase::running, set(&facts::queues_version, 1)),
     only({action::wake_pool})},
    {"the registration has been tried", in(phase::running, set(&facts::registration_tried, false)),
     in(phase::running), only({action::begin_fetching})},
    {"SIGTTIN", in(phase::draining), in(phase::draining, set(&facts::report_requests, 1)),
     only({action::log_jobs})},
};

std::vector<action> due(const facts& before, const facts& now) {
    std::vector<action> out;
    for (int i = 0; i < detail::stop_action_count; ++i) {
        if (detail::is_due(static_cast<action>(i), before, now)) out.push_back(static_cast<action>(i));
    }
    return out;
}

}  // namespace

TEST_CASE("stop plan: each change of state gives exactly the actions that the table lists for it, in order") {
    for (const row& each : rows) {
        CAPTURE(each.what);
        CHECK(due(each.before, each.now) == each.actions);
        CHECK(due(each.now, each.now).empty());  // so the supervisor comes to rest
    }
}

TEST_CASE(
    "stop plan: the worker's own signal is the cause of a drain that the shared lifecycle requests too") {
    CHECK(detail::drain_cause(in(phase::draining, shared_drains, signalled)).signal == SIGTERM);
}

#endif  // !OJS_SHUTDOWN_SEPARATE
