// The event table cell by cell, repeated signals, the history, and writers, readers and subscribers at once.
#include <sys/time.h>

#include "processes.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

constexpr phase all_phases[] = {phase::running, phase::quiet, phase::draining, phase::stopping,
                                phase::terminated};
static_assert(sizeof all_phases / sizeof all_phases[0] == phase_count);

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

// What each event does in running, quiet, draining and stopping, by hand. "-": nothing, as every event in terminated.
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
static_assert(sizeof table / sizeof table[0] == event_count);

std::string shown(const lifecycle_state& state) {
    std::string out = to_string(state.phase);
    if (state.mode != stop_mode::graceful) out += std::string(" ") + to_string(state.mode);
    if (state.cancel_requested) out += " cancels";
    if (state.stop_signals > 1) out += " x" + std::to_string(state.stop_signals);
    return out + (state.exit_now ? " exits" : "");
}

bool same(const lifecycle_state& a, const lifecycle_state& b) {
    return a.phase == b.phase && a.mode == b.mode && a.last_event == b.last_event &&
           a.cause.kind == b.cause.kind && a.cause.signal == b.cause.signal &&
           a.cancel_requested == b.cancel_requested && a.exit_now == b.exit_now &&
           a.stop_signals == b.stop_signals && a.sequence == b.sequence && a.changed_ms == b.changed_ms;
}

// What a subscriber was written since it was last asked: 8 bytes a change.
struct subscriber : test::pipe_ends {
    subscriber() : pipe_ends(O_NONBLOCK) {}
    int changes() const {
        char bytes[4096];
        int total = 0;
        for (ssize_t got = 0; (got = ::read(reader(), bytes, sizeof bytes)) > 0;)
            total += static_cast<int>(got);
        return total / 8;
    }
};

// What each of the events changes, one after the other. "-": nothing at all. next_change() gives every change, as it was.
std::string walk(const std::vector<event>& events, bool first_signal_wins = false) {
    lifecycle tested(0ms);
    tested.set_first_signal_wins(first_signal_wins);
    std::string out;
    std::vector<lifecycle_state> changes;
    cause kept;  // an event without a cause keeps the old one
    for (const event what : events) {
        const lifecycle_state before = tested.state();
        const bool internal = what == event::drained || what == event::finished;
        const cause why = internal ? by_nobody : what == event::stop_signal ? by_highest : by_rpc;
        const bool changed = tested.apply(what, why);
        out += (out.empty() ? "" : "; ") + (changed ? shown(tested.state()) : std::string("-"));
        if (!changed) {
            CHECK(same(tested.state(), before));
            continue;
        }
        changes.push_back(tested.state());
        if (!internal) kept = why;
        CHECK(tested.state().last_event == what);
        CHECK(tested.state().cause.kind == kept.kind);
        CHECK(tested.state().cause.signal == kept.signal);
    }
    lifecycle_state seen;
    for (const lifecycle_state& each : changes) {
        REQUIRE(tested.next_change(seen));
        CHECK(same(seen, each));
    }
    CHECK_FALSE(tested.next_change(seen));
    CHECK(same(seen, tested.state()));
    return out;
}

}  // namespace

// [GS 4.2 (c)] [WP 2.1 (a)] [WP 2.3 (a)]
TEST_CASE("lifecycle: every event in every phase changes the state exactly as the event table says") {
    for (const bool first_signal_wins : {false, true}) {
        for (const phase now : all_phases) {
            for (std::size_t row = 0; row < event_count; ++row) {
                const event what = table[row].what;
                CAPTURE(to_string(now));
                CAPTURE(to_string(what));
                CAPTURE(first_signal_wins);
                lifecycle tested(0ms);
                tested.set_first_signal_wins(first_signal_wins);
                bring_to(tested, now);
                const lifecycle_state before = tested.state();
                const cause why = what == event::stop_signal ? by_term : cause{cause_kind::directive, 0};
                // In a stop without a signal the first one is recorded, and changes nothing else.
                const bool only_noted = first_signal_wins && what == event::stop_signal &&
                                        (now == phase::draining || now == phase::stopping);
                const bool changed = tested.apply(what, why);
                const lifecycle_state after = tested.state();
                const char* const in = now == phase::terminated ? "-" : table[row].in[static_cast<int>(now)];
                CHECK((changed ? shown(after) : "-") == (only_noted ? to_string(now) : in));
                if (!changed) {
                    CHECK(same(after, before));
                    continue;
                }
                CHECK(after.sequence == static_cast<std::uint8_t>(before.sequence + 1));
                CHECK(after.last_event == what);
                CHECK(after.cause.kind == why.kind);
                CHECK(after.cause.signal == why.signal);
                CHECK(after.stop_signals == (what == event::stop_signal ? 1 : 0));
            }
        }
    }
}

// [GS 4.2 (d)] [WP 2.3 (b)]
TEST_CASE(
    "lifecycle: a stop only escalates, up to exit at the third signal, and a resume ends only a quiet") {
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
    CHECK(walk({e::quiet_request, e::resume_request, e::quiet_request, e::resume_request,
                e::quiet_request}) == "quiet; running; quiet; running; quiet");
    CHECK(walk({e::quiet_request, e::stop_signal, e::resume_request, e::quiet_request, e::drained,
                e::resume_request, e::quiet_request, e::finished, e::resume_request}) ==
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
    CHECK(tested.apply(event::grace_expired, by_nobody));
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 1);

    tested.set_signal_debounce(0ms);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 2);
    tested.set_signal_debounce(24h * 20);
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK_FALSE(tested.state().exit_now);
}

TEST_CASE(
    "lifecycle: report_request (SIGTTIN) -> it is counted and wakes subscribers; the phase is unchanged") {
    lifecycle tested(0ms);
    const subscriber reader;
    REQUIRE(tested.subscribe(reader.writer()));
    for (std::uint32_t requests = 1; requests <= 2; ++requests) {
        CHECK_FALSE(tested.apply(event::report_request, by_api));
        CHECK(tested.report_requests() == requests);
        CHECK(reader.changes() == 1);
    }
    CHECK(tested.resume_requests() == 0);
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

// One change, back and forth.
void flap(lifecycle& target) {
    const bool to_quiet = target.phase() == phase::running;
    REQUIRE(target.apply(to_quiet ? event::quiet_request : event::resume_request, by_api));
}

TEST_CASE("lifecycle: a slow reader misses only the oldest changes, and gets the newest ones in order") {
    // Up to 15 behind all are kept, from 16 on the oldest go; at 256 the sequence number wraps. No stop is hidden.
    for (int behind = 1; behind <= 600; ++behind) {
        CAPTURE(behind);
        lifecycle tested;
        lifecycle_state seen;
        flap(tested);
        REQUIRE(tested.next_change(seen));
        for (int i = 1; i < behind; ++i) flap(tested);
        CHECK(tested.apply(event::stop_request, by_api));
        std::vector<int> got;
        while (tested.next_change(seen)) {
            const bool quiet = seen.sequence % 2 == 1;
            if (seen.phase != phase::draining) CHECK(seen.phase == (quiet ? phase::quiet : phase::running));
            got.push_back(seen.sequence);
            REQUIRE(got.size() <= 16);
        }
        CHECK(same(seen, tested.state()));
        CHECK(seen.phase == phase::draining);
        for (std::size_t i = 1; i < got.size(); ++i) CHECK(got[i] == (got[i - 1] + 1) % 256);
        if (behind <= 256) CHECK(got.size() >= static_cast<std::size_t>(behind < 15 ? behind : 15));
    }
}

std::atomic<unsigned> interruptions{0};
lifecycle* interrupted_target = nullptr;
int changes_in_handler = 0;

void flap_in_handler(int) {
    for (int i = 0; i < changes_in_handler; i += 2) {
        interrupted_target->apply(event::quiet_request, by_api);
        interrupted_target->apply(event::resume_request, by_api);
    }
    ++interruptions;
}

TEST_CASE(
    "lifecycle: apply() is interrupted by a handler with many changes -> a reader reaches the newest state") {
    struct sigaction ours {};
    struct sigaction previous {};
    ours.sa_handler = flap_in_handler;
    REQUIRE(::sigaction(SIGALRM, &ours, &previous) == 0);
    itimerval soon{};
    soon.it_value.tv_usec = 20;
    // The last of them has the place of the interrupted one in the history; 144 are more than half of what the sequence can
    // count, 256 are all of it, and mostly within one millisecond.
    for (const int changes : {16, 18, 144, 256}) {
        CAPTURE(changes);
        lifecycle tested;
        interrupted_target = &tested;
        changes_in_handler = changes;
        lifecycle_state seen;
        for (int i = 0; i < 1000; ++i) {
            const unsigned before = interruptions;
            REQUIRE(::setitimer(ITIMER_REAL, &soon, nullptr) == 0);
            while (interruptions == before) {
                tested.apply(event::quiet_request, by_api);
                tested.apply(event::resume_request, by_api);
            }
            while (tested.next_change(seen)) {
            }
            REQUIRE(same(seen, tested.state()));
        }
    }
    ::sigaction(SIGALRM, &previous, nullptr);
}

TEST_CASE("lifecycle: a debounce time beyond 32 bits does not wrap, and a negative debounce time is none") {
    using std::chrono::milliseconds;
    for (const milliseconds gap :
         {milliseconds(std::int64_t{1} << 32), milliseconds::max(), milliseconds(-1)}) {
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
    tested.after_fork();  // subscriptions stay
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
        const time_point found = lifecycle::changed_at(state);
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
    CHECK(
        all ==
        "stop_signal stop_request quiet_request resume_request reclaim cancel_request grace_expired drained "
        "finished report_request mode_reclaim running quiet draining stopping terminated graceful forced "
        "reclaim none signal directive api rpc ");
}
