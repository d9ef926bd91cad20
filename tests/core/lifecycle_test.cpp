// The event table cell by cell, repeated signals, and subscribers.
#include "processes.hpp"

namespace {
constexpr phase all_phases[] = {phase::running, phase::quiet, phase::draining, phase::stopping, phase::terminated};
static_assert(sizeof all_phases / sizeof all_phases[0] == detail::phase_count);

constexpr cause by_api{cause_kind::api, 0};
constexpr cause by_nobody{};
constexpr cause by_term{cause_kind::signal, 15};
constexpr cause by_highest{cause_kind::signal, 64};
constexpr cause by_rpc{cause_kind::rpc, 0};

// Brings a new lifecycle to `target_phase` with the fewest side effects: graceful, nothing cancelled.
void bring_to(lifecycle& target, phase target_phase) {
    if (target_phase == phase::quiet) REQUIRE(target.apply(event::quiet_request, by_api));
    if (target_phase >= phase::draining) REQUIRE(target.apply(event::stop_request, by_api));
    if (target_phase >= phase::stopping) REQUIRE(target.apply(event::drained, by_nobody));
    if (target_phase >= phase::terminated) REQUIRE(target.apply(event::finished, by_nobody));
    REQUIRE(target.phase() == target_phase);
}

// What each event does in running, quiet, draining and stopping, by hand. "-": nothing, as all but signals at the end.
constexpr struct {
    event what;
    const char* in[4];
} table[] = {{event::stop_signal, {"draining", "draining", "stopping forced", "stopping forced"}},
             {event::stop_request, {"draining", "draining", "-", "-"}},
             {event::quiet_request, {"quiet", "-", "-", "-"}},
             {event::resume_request, {"-", "running", "-", "-"}},
             {event::reclaim, {"stopping reclaim", "stopping reclaim", "stopping reclaim", "-"}},
             {event::cancel_request, {"stopping cancels", "stopping cancels", "stopping cancels", "-"}},
             {event::grace_expired, {"-", "-", "stopping", "-"}},
             {event::drained, {"-", "-", "stopping", "-"}},
             {event::finished, {"-", "-", "-", "terminated"}},
             {event::report_request, {"-", "-", "-", "-"}},
             {event::mode_reclaim, {"-", "-", "stopping reclaim", "-"}}};
static_assert(sizeof table / sizeof table[0] == detail::event_count);

std::string shown(const lifecycle_state& state) {
    std::string out = to_string(state.phase);
    if (state.mode != stop_mode::graceful) out += std::string(" ") + to_string(state.mode);
    if (state.cancel_requested) out += " cancels";
    if (state.stop_signals > 1) out += " x" + std::to_string(state.stop_signals);
    return out + (state.stop_signals >= 3 ? " exits" : "");
}

bool same(const lifecycle_state& a, const lifecycle_state& b) {
    return a.phase == b.phase && a.mode == b.mode && a.last_event == b.last_event && a.cause.kind == b.cause.kind &&
           a.cause.signal == b.cause.signal && a.cancel_requested == b.cancel_requested &&
           a.stop_signals == b.stop_signals && a.changed_ms == b.changed_ms;
}

// What a subscriber was written since it was last asked: 8 bytes a change.
struct subscriber : test::pipe_ends {
    subscriber() : pipe_ends(O_NONBLOCK) {}
    int changes() const {
        char bytes[4096];
        int total = 0;
        for (ssize_t got = 0; (got = ::read(reader(), bytes, sizeof bytes)) > 0;) total += static_cast<int>(got);
        return total / 8;
    }
};

// What each of the events changes, one after the other. "-": nothing at all.
std::string walk(const std::vector<event>& events, bool first_signal_wins = false) {
    lifecycle tested(0ms);
    detail::lifecycle_access::set_first_signal_wins(tested, first_signal_wins);
    std::string out;
    cause kept;  // an event without a cause keeps the old one
    for (const event what : events) {
        const lifecycle_state before = tested.state();
        lifecycle_state seen = before;
        const bool internal = what == event::drained || what == event::finished;
        const cause why = internal ? by_nobody : what == event::stop_signal ? by_highest : by_rpc;
        const bool changed = tested.apply(what, why);
        out += (out.empty() ? "" : "; ") + (changed ? shown(tested.state()) : std::string("-"));
        CHECK(detail::take_change(tested, seen) == changed);
        CHECK(same(seen, tested.state()));
        if (!changed) {
            CHECK(same(tested.state(), before));
            continue;
        }
        if (!internal) kept = why;
        CHECK(tested.state().last_event == what);
        CHECK(tested.state().cause.kind == kept.kind);
        CHECK(tested.state().cause.signal == kept.signal);
    }
    return out;
}
}  // namespace

// [GS 4.2 (c)] [WP 2.1 (a)] [WP 2.3 (a)]
TEST_CASE("lifecycle: every event in every phase changes the state exactly as the event table says") {
    for (const bool first_signal_wins : {false, true}) {
        for (const phase now : all_phases) {
            for (std::size_t row = 0; row < detail::event_count; ++row) {
                const event what = table[row].what;
                CAPTURE(to_string(now));
                CAPTURE(to_string(what));
                CAPTURE(first_signal_wins);
                lifecycle tested(0ms);
                detail::lifecycle_access::set_first_signal_wins(tested, first_signal_wins);
                bring_to(tested, now);
                const lifecycle_state before = tested.state();
                const cause why = what == event::stop_signal ? by_term : cause{cause_kind::directive, 0};
                // In a stop without a signal the first one is recorded, and changes nothing else.
                const bool only_noted = first_signal_wins && what == event::stop_signal &&
                                        (now == phase::draining || now == phase::stopping);
                const bool only_counted = only_noted || (what == event::stop_signal && now == phase::terminated);
                const bool changed = tested.apply(what, why);
                const lifecycle_state after = tested.state();
                const char* const in = now == phase::terminated ? "-" : table[row].in[static_cast<int>(now)];
                CHECK((changed ? shown(after) : "-") == (only_counted ? to_string(now) : in));
                if (!changed) {
                    CHECK(same(after, before));
                    continue;
                }
                CHECK(after.last_event == what);
                CHECK(after.cause.kind == why.kind);
                CHECK(after.cause.signal == why.signal);
                CHECK(after.stop_signals == (what == event::stop_signal ? 1 : 0));
            }
        }
    }
}

// [GS 4.2 (d)] [WP 2.3 (b)]
TEST_CASE("lifecycle: each stop signal escalates, the third one exits, and a resume ends only a quiet") {
    using e = event;
    CHECK(walk({e::stop_signal, e::stop_signal, e::stop_signal, e::stop_signal, e::stop_signal}) ==
          "draining; stopping forced x2; stopping forced x3 exits; -; -");
    CHECK(walk({e::stop_request, e::drained, e::stop_signal, e::stop_signal, e::stop_signal}) ==
          "draining; stopping; stopping forced; stopping forced x2; stopping forced x3 exits");
    CHECK(walk({e::reclaim, e::stop_signal, e::stop_signal, e::stop_signal, e::finished}) ==
          "stopping reclaim; stopping reclaim; stopping reclaim x2; stopping reclaim x3 exits; "
          "terminated reclaim x3 exits");
    CHECK(walk({e::stop_signal, e::stop_signal, e::reclaim, e::finished}) ==
          "draining; stopping forced x2; -; terminated forced x2");
    CHECK(walk({e::stop_request, e::cancel_request, e::cancel_request, e::drained, e::finished}) ==
          "draining; stopping cancels; -; -; terminated cancels");
    CHECK(walk({e::quiet_request, e::resume_request, e::quiet_request, e::resume_request, e::quiet_request}) ==
          "quiet; running; quiet; running; quiet");
    CHECK(walk({e::quiet_request, e::stop_signal, e::resume_request, e::quiet_request, e::drained, e::resume_request,
                e::quiet_request, e::finished, e::resume_request}) ==
          "quiet; draining; -; -; stopping; -; -; terminated; -");
}

// [GS-R002]
TEST_CASE("lifecycle: stop signals within the debounce time count as one; other events are not delayed") {
    lifecycle tested(24h * 20);
    CHECK(tested.apply(event::stop_signal, by_term));  // the first always counts
    const lifecycle_state first = tested.state();
    for (int i = 0; i < 5; ++i) CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK(same(tested.state(), first));
    CHECK_FALSE(tested.apply(event::stop_request, by_api));
    lifecycle follower(0ms);  // gets the first signal as a request, and shows the same event
    CHECK(follower.apply(event::stop_request, by_term));
    CHECK(follower.state().last_event == event::stop_signal);
    CHECK(follower.state().stop_signals == 0);
    CHECK(tested.apply(event::grace_expired, by_nobody));
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 1);

    tested.set_signal_debounce(0ms);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 2);
    tested.set_signal_debounce(24h * 20);
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 2);
}

TEST_CASE("lifecycle: report_request (SIGTTIN) -> it is counted and wakes subscribers; the phase is unchanged") {
    lifecycle tested(0ms);
    const subscriber reader;
    REQUIRE(tested.subscribe(reader.writer()));
    for (std::uint32_t requests = 1; requests <= 2; ++requests) {
        CHECK_FALSE(tested.apply(event::report_request, by_api));
        CHECK(tested.report_requests() == requests);
        CHECK(reader.changes() == 1);
    }
    CHECK(detail::lifecycle_access::requests(tested, event::resume_request) == 0);
}

TEST_CASE("lifecycle: apply() keeps errno, also if notifying a subscriber fails") {
    lifecycle tested(0ms);
    REQUIRE(tested.subscribe(1000000));  // no such descriptor: the write fails
    for (const bool changes : {true, false}) {
        errno = EDOM;
        const bool changed = tested.apply(event::quiet_request, by_api);
        const int after = errno;
        CHECK(changed == changes);
        CHECK(after == EDOM);
    }
}

TEST_CASE("lifecycle: a debounce time beyond 32 bits does not wrap, and a negative one counts as zero") {
    using std::chrono::milliseconds;
    for (const milliseconds gap : {milliseconds(std::int64_t{1} << 32), milliseconds::max(), milliseconds(-1)}) {
        CAPTURE(gap.count());
        lifecycle tested(gap);
        CHECK(tested.apply(event::stop_request, by_api));
        CHECK(tested.apply(event::stop_signal, by_term));
        CHECK(shown(tested.state()) == "stopping forced");
        CHECK(tested.apply(event::stop_signal, by_term) == (gap < 0ms));
    }
}

TEST_CASE("lifecycle: 16 subscribers are notified once per change, and a 17th is refused") {
    lifecycle tested(0ms);
    const subscriber pipes[17];
    const int saved = ::dup(0);  // may be a subscriber's, in a process started without standard input
    REQUIRE(::dup2(pipes[0].writer(), 0) == 0);
    const auto writer = [&](int i) { return i == 0 ? 0 : pipes[i].writer(); };
    const auto check_all = [&](int changes, int but) {
        for (int i = 0; i < 17; ++i) CHECK(pipes[i].changes() == (i == but ? 0 : changes));
    };
    for (int i = 0; i < 16; ++i) CHECK(tested.subscribe(writer(i)));
    CHECK_FALSE(tested.subscribe(writer(16)));
    check_all(0, 16);
    detail::lifecycle_access::after_fork(tested);  // subscriptions stay
    CHECK(tested.apply(event::quiet_request, by_api));
    check_all(1, 16);
    CHECK_FALSE(tested.apply(event::quiet_request, by_api));
    check_all(0, 16);
    for (int i = 0; i < 2; ++i) tested.unsubscribe(writer(7));
    CHECK(tested.subscribe(writer(16)));
    CHECK_FALSE(tested.subscribe(writer(7)));
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.apply(event::drained, by_nobody));
    check_all(2, 7);
    ::dup2(saved, 0);
    ::close(saved);
}

TEST_CASE("lifecycle: changed_at() returns the time of a change up to 20 days ago") {
    lifecycle tested(0ms);
    const auto before = steady_clock::now();
    CHECK(tested.apply(event::quiet_request, by_api));
    lifecycle_state state = tested.state();
    // Now, and twenty days ago, also where the 32 bits of milliseconds wrapped since.
    for (const auto ago : {0h, 24h * 20}) {
        state.changed_ms -= static_cast<std::uint32_t>(std::chrono::milliseconds(ago).count());
        const time_point found = detail::changed_at(state);
        CHECK(found >= before - ago - 2ms);
        CHECK(found <= steady_clock::now() - ago + 2ms);
    }
}

TEST_CASE("lifecycle: to_string() returns the name of every event, phase, mode and cause") {
    std::string all;
    const auto add = [&all](auto value) { all += to_string(value) + std::string(" "); };
    for (const auto& row : table) add(row.what);
    for (const phase each : all_phases) add(each);
    for (int i = 0; i < 3; ++i) add(static_cast<stop_mode>(i));
    for (int i = 0; i < 5; ++i) add(static_cast<cause_kind>(i));
    CHECK(all ==
          "stop_signal stop_request quiet_request resume_request reclaim cancel_request grace_expired drained "
          "finished report_request mode_reclaim running quiet draining stopping terminated graceful forced "
          "reclaim none signal directive api rpc ");
}
