// The event table cell by cell, repeated signals, the history, and writers, readers and subscribers at once.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "test.hpp"

using namespace std::chrono_literals;
using ojs::cause;
using ojs::cause_kind;
using ojs::event;
using ojs::lifecycle;
using ojs::lifecycle_state;
using ojs::stop_mode;

namespace {

using ojs::phase;

constexpr event all_events[] = {event::stop_signal,    event::stop_request, event::quiet_request,
                                event::resume_request, event::reclaim,      event::cancel_request,
                                event::grace_expired,  event::drained,      event::finished,
                                event::report_request, event::mode_reclaim};
constexpr phase all_phases[] = {phase::running, phase::quiet, phase::draining, phase::stopping,
                                phase::terminated};
static_assert(sizeof all_events / sizeof all_events[0] == ojs::event_count);
static_assert(sizeof all_phases / sizeof all_phases[0] == ojs::phase_count);

constexpr cause by_api{cause_kind::api, 0};
constexpr cause by_nobody{};
constexpr cause by_term{cause_kind::signal, 15};
constexpr cause by_int{cause_kind::signal, 2};

// Brings a new lifecycle to `target_phase` with the fewest side effects: graceful, nothing cancelled.
void bring_to(lifecycle& target, phase target_phase) {
    if (target_phase == phase::quiet) REQUIRE(target.apply(event::quiet_request, by_api));
    if (target_phase >= phase::draining) REQUIRE(target.apply(event::stop_request, by_api));
    if (target_phase >= phase::stopping) REQUIRE(target.apply(event::drained, by_nobody));
    if (target_phase >= phase::terminated) REQUIRE(target.apply(event::finished, by_nobody));
    REQUIRE(target.phase() == target_phase);
}

// What one event does to a lifecycle that was brought to a phase as above.
struct outcome {
    bool changes;
    phase next;
    stop_mode mode;
    bool cancels;
};

constexpr outcome nothing(phase now) {
    return {false, now, stop_mode::graceful, false};
}
constexpr outcome to(phase next, stop_mode mode = stop_mode::graceful, bool cancels = false) {
    return {true, next, mode, cancels};
}

// The event table, by hand and one phase at a time.
outcome expected_in_running(event what) {
    switch (what) {
        case event::stop_signal: return to(phase::draining);
        case event::stop_request: return to(phase::draining);
        case event::quiet_request: return to(phase::quiet);
        case event::resume_request: return nothing(phase::running);
        case event::reclaim: return to(phase::stopping, stop_mode::reclaim);
        case event::cancel_request: return to(phase::stopping, stop_mode::graceful, true);
        case event::grace_expired: return nothing(phase::running);
        case event::drained: return nothing(phase::running);
        case event::finished: return nothing(phase::running);
        case event::report_request: return nothing(phase::running);
        case event::mode_reclaim: return nothing(phase::running);
    }
    return nothing(phase::running);
}
outcome expected_in_quiet(event what) {
    switch (what) {
        case event::stop_signal: return to(phase::draining);
        case event::stop_request: return to(phase::draining);
        case event::quiet_request: return nothing(phase::quiet);
        case event::resume_request: return to(phase::running);
        case event::reclaim: return to(phase::stopping, stop_mode::reclaim);
        case event::cancel_request: return to(phase::stopping, stop_mode::graceful, true);
        case event::grace_expired: return nothing(phase::quiet);
        case event::drained: return nothing(phase::quiet);
        case event::finished: return nothing(phase::quiet);
        case event::report_request: return nothing(phase::quiet);
        case event::mode_reclaim: return nothing(phase::quiet);
    }
    return nothing(phase::quiet);
}
outcome expected_in_draining(event what) {
    switch (what) {
        case event::stop_signal: return to(phase::stopping, stop_mode::forced);
        case event::stop_request: return nothing(phase::draining);
        case event::quiet_request: return nothing(phase::draining);
        case event::resume_request: return nothing(phase::draining);
        case event::reclaim: return to(phase::stopping, stop_mode::reclaim);
        case event::cancel_request: return to(phase::stopping, stop_mode::graceful, true);
        case event::grace_expired: return to(phase::stopping);
        case event::drained: return to(phase::stopping);
        case event::finished: return nothing(phase::draining);
        case event::report_request: return nothing(phase::draining);
        case event::mode_reclaim: return to(phase::stopping, stop_mode::reclaim);
    }
    return nothing(phase::draining);
}
outcome expected_in_stopping(event what) {
    switch (what) {
        case event::stop_signal: return to(phase::stopping, stop_mode::forced);
        case event::stop_request: return nothing(phase::stopping);
        case event::quiet_request: return nothing(phase::stopping);
        case event::resume_request: return nothing(phase::stopping);
        case event::reclaim: return nothing(phase::stopping);
        case event::cancel_request: return nothing(phase::stopping);
        case event::grace_expired: return nothing(phase::stopping);
        case event::drained: return nothing(phase::stopping);
        case event::finished: return to(phase::terminated);
        case event::report_request: return nothing(phase::stopping);
        case event::mode_reclaim: return nothing(phase::stopping);
    }
    return nothing(phase::stopping);
}
outcome expected(event what, phase now) {
    switch (now) {
        case phase::running: return expected_in_running(what);
        case phase::quiet: return expected_in_quiet(what);
        case phase::draining: return expected_in_draining(what);
        case phase::stopping: return expected_in_stopping(what);
        case phase::terminated: return nothing(phase::terminated);
    }
    return nothing(now);
}

bool same(const lifecycle_state& a, const lifecycle_state& b) {
    return a.phase == b.phase && a.mode == b.mode && a.last_event == b.last_event &&
           a.cause.kind == b.cause.kind && a.cause.signal == b.cause.signal &&
           a.cancel_requested == b.cancel_requested && a.exit_now == b.exit_now &&
           a.stop_signals == b.stop_signals && a.sequence == b.sequence && a.changed_ms == b.changed_ms;
}

struct pipe_ends {
    pipe_ends() {
        REQUIRE(::pipe(fds) == 0);
        for (const int fd : fds) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    ~pipe_ends() {
        ::close(fds[0]);
        ::close(fds[1]);
    }
    int reader() const { return fds[0]; }
    int writer() const { return fds[1]; }
    // Bytes there are to read now, taken.
    std::size_t take() const {
        std::size_t total = 0;
        char bytes[4096];
        for (ssize_t got = 0; (got = ::read(fds[0], bytes, sizeof bytes)) > 0;)
            total += static_cast<std::size_t>(got);
        return total;
    }
    int fds[2] = {-1, -1};
};

}  // namespace

TEST_CASE("lifecycle: every event in every phase does what the event table says, and nothing else") {
    for (const phase now : all_phases) {
        for (const event what : all_events) {
            CAPTURE(ojs::to_string(now));
            CAPTURE(ojs::to_string(what));
            const outcome want = expected(what, now);
            lifecycle tested(0ms);
            bring_to(tested, now);
            const lifecycle_state before = tested.state();
            const cause why = what == event::stop_signal ? by_term : cause{cause_kind::directive, 0};
            CHECK(tested.apply(what, why) == want.changes);
            const lifecycle_state after = tested.state();
            CHECK(after.phase == want.next);
            CHECK(after.mode == want.mode);
            CHECK(after.cancel_requested == want.cancels);
            CHECK_FALSE(after.exit_now);
            if (!want.changes) {
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

TEST_CASE("lifecycle: if the first signal wins, a drain without a signal records only the first one") {
    for (const phase now : all_phases) {
        for (const event what : all_events) {
            CAPTURE(ojs::to_string(now));
            CAPTURE(ojs::to_string(what));
            const bool only_noted = what == event::stop_signal && now >= phase::draining;
            const outcome want = only_noted ? to(now) : expected(what, now);
            lifecycle tested(0ms);
            tested.set_first_signal_wins(true);
            bring_to(tested, now);
            CHECK(tested.apply(what, by_term) == (want.changes && now != phase::terminated));
            CHECK(tested.phase() == want.next);
            CHECK(tested.state().mode == want.mode);
        }
    }
}

TEST_CASE(
    "lifecycle: if the first signal wins, later ones change nothing, whatever else happens in between") {
    for (const event first : {event::stop_signal, event::reclaim}) {
        lifecycle tested(0ms);
        tested.set_first_signal_wins(true);
        CHECK(tested.apply(first, by_term));
        tested.apply(event::cancel_request, by_api);
        const lifecycle_state before = tested.state();
        for (int times = 0; times < 4; ++times) {
            CHECK_FALSE(tested.apply(event::stop_signal, by_int));
            CHECK_FALSE(tested.apply(event::reclaim, by_term));
        }
        CHECK(same(tested.state(), before));
        CHECK_FALSE(tested.state().exit_now);
    }
}

TEST_CASE("lifecycle: a new one is running, with no request") {
    const lifecycle tested;
    const lifecycle_state state = tested.state();
    CHECK(tested.phase() == phase::running);
    CHECK(state.phase == phase::running);
    CHECK(state.mode == stop_mode::graceful);
    CHECK(state.cause.kind == cause_kind::none);
    CHECK_FALSE(state.cancel_requested);
    CHECK_FALSE(state.exit_now);
    CHECK(state.stop_signals == 0);
    CHECK(state.sequence == 0);
    lifecycle_state seen;
    CHECK_FALSE(tested.next_change(seen));
    seen = state;
    CHECK_FALSE(tested.next_change(seen));
    CHECK(same(seen, state));
}

TEST_CASE("lifecycle: the first signal drains, the second forces, the third exits, more change nothing") {
    lifecycle tested(0ms);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.phase() == phase::draining);
    CHECK(tested.state().mode == stop_mode::graceful);
    CHECK(tested.state().stop_signals == 1);

    CHECK(tested.apply(event::stop_signal, by_int));
    CHECK(tested.phase() == phase::stopping);
    CHECK(tested.state().mode == stop_mode::forced);
    CHECK(tested.state().stop_signals == 2);
    CHECK_FALSE(tested.state().exit_now);
    CHECK(tested.state().cause.signal == by_int.signal);

    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.phase() == phase::stopping);
    CHECK(tested.state().stop_signals == 3);
    CHECK(tested.state().exit_now);
    CHECK(tested.state().cause.signal == by_term.signal);

    const lifecycle_state third = tested.state();
    CHECK_FALSE(tested.apply(event::stop_signal, by_int));
    CHECK_FALSE(tested.apply(event::stop_signal, by_int));
    CHECK(same(tested.state(), third));
}

TEST_CASE("lifecycle: in a stop without a signal, signals escalate; only the third exits") {
    lifecycle tested(0ms);
    bring_to(tested, phase::stopping);
    CHECK(tested.state().mode == stop_mode::graceful);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().mode == stop_mode::forced);
    CHECK(tested.state().stop_signals == 1);
    CHECK_FALSE(tested.state().exit_now);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 2);
    CHECK_FALSE(tested.state().exit_now);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 3);
    CHECK(tested.state().exit_now);
    CHECK(tested.phase() == phase::stopping);
}

TEST_CASE("lifecycle: signals within the repeat gap are one stop event; other events are not held up by it") {
    lifecycle tested(24h * 20);
    CHECK(tested.apply(event::stop_signal, by_term));  // the first always counts
    const lifecycle_state first = tested.state();
    for (int i = 0; i < 5; ++i) CHECK_FALSE(tested.apply(event::stop_signal, by_int));
    CHECK(same(tested.state(), first));
    CHECK_FALSE(tested.apply(event::stop_request, by_api));
    CHECK(tested.apply(event::grace_expired, by_nobody));
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 1);

    tested.set_repeat_signal_gap(0ms);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.state().stop_signals == 2);
    tested.set_repeat_signal_gap(24h * 20);
    CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    CHECK_FALSE(tested.state().exit_now);
}

TEST_CASE("lifecycle: the gap counts from stop signals, so a stop asked for otherwise is forced at once") {
    lifecycle tested(24h * 20);
    CHECK(tested.apply(event::stop_request, by_api));
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.phase() == phase::stopping);
    CHECK(tested.state().mode == stop_mode::forced);
    CHECK(tested.state().stop_signals == 1);
}

TEST_CASE("lifecycle: the mode only rises") {
    lifecycle reclaimed(0ms);
    CHECK(reclaimed.apply(event::reclaim, by_api));
    CHECK(reclaimed.state().mode == stop_mode::reclaim);
    for (int i = 0; i < 3; ++i) {
        CHECK(reclaimed.apply(event::stop_signal, by_term));
        CHECK(reclaimed.state().mode == stop_mode::reclaim);
    }
    CHECK(reclaimed.state().exit_now);
    CHECK(reclaimed.apply(event::finished, by_nobody));
    CHECK(reclaimed.state().mode == stop_mode::reclaim);

    lifecycle forced(0ms);
    CHECK(forced.apply(event::stop_signal, by_term));
    CHECK(forced.apply(event::stop_signal, by_term));
    CHECK_FALSE(forced.apply(event::reclaim, by_api));
    CHECK(forced.state().mode == stop_mode::forced);
    CHECK(forced.apply(event::finished, by_nobody));
    CHECK(forced.state().mode == stop_mode::forced);
}

TEST_CASE("lifecycle: a request to cancel is kept, and the same one again changes nothing") {
    lifecycle tested(0ms);
    CHECK(tested.apply(event::stop_request, by_api));
    CHECK(tested.apply(event::cancel_request, by_api));
    CHECK(tested.phase() == phase::stopping);
    CHECK(tested.state().cancel_requested);
    CHECK_FALSE(tested.apply(event::cancel_request, by_api));
    CHECK_FALSE(tested.apply(event::drained, by_nobody));
    CHECK(tested.state().cancel_requested);
    CHECK(tested.apply(event::finished, by_nobody));
    CHECK(tested.state().cancel_requested);
}

TEST_CASE("lifecycle: SIGCONT undoes every quiet, and never a drain") {
    constexpr cause by_cont{cause_kind::signal, 18};
    lifecycle tested(0ms);
    for (int i = 0; i < 3; ++i) {
        CHECK(tested.apply(event::quiet_request, by_api));
        CHECK(tested.phase() == phase::quiet);
        CHECK(tested.apply(event::resume_request, by_cont));
        CHECK(tested.phase() == phase::running);
    }
    CHECK(tested.resume_requests() == 3);
    CHECK(tested.report_requests() == 0);
    CHECK(tested.apply(event::quiet_request, by_api));
    CHECK(tested.apply(event::stop_signal, by_term));
    const event ways[] = {event::drained, event::finished};
    for (const event next : ways) {
        const lifecycle_state before = tested.state();
        CHECK_FALSE(tested.apply(event::resume_request, by_cont));
        CHECK_FALSE(tested.apply(event::quiet_request, by_cont));
        CHECK(same(tested.state(), before));
        CHECK(tested.apply(next, by_nobody));
    }
    CHECK_FALSE(tested.apply(event::resume_request, by_cont));
    CHECK(tested.phase() == phase::terminated);
}

TEST_CASE("lifecycle: a request for a report changes nothing, is counted, and wakes subscribers") {
    lifecycle tested(0ms);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(tested.subscribe(ends[1]));
    for (const event next : {event::stop_request, event::drained, event::finished}) {
        const lifecycle_state before = tested.state();
        const std::uint32_t requests = tested.report_requests();
        CHECK_FALSE(tested.apply(event::report_request, by_api));
        CHECK(same(tested.state(), before));
        CHECK(tested.report_requests() == requests + 1);
        char taken[8];
        CHECK(::read(ends[0], taken, sizeof taken) == 8);
        CHECK(tested.apply(next, by_nobody));
        CHECK(::read(ends[0], taken, sizeof taken) == 8);
    }
    CHECK(tested.resume_requests() == 0);
    tested.unsubscribe(ends[1]);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("lifecycle: an event of no cause keeps the old one, any other replaces it") {
    lifecycle tested(0ms);
    CHECK(tested.apply(event::quiet_request, {cause_kind::rpc, 0}));
    CHECK(tested.state().cause.kind == cause_kind::rpc);
    CHECK(tested.apply(event::stop_signal, {cause_kind::signal, 64}));
    CHECK(tested.apply(event::drained, by_nobody));
    CHECK(tested.state().cause.kind == cause_kind::signal);
    CHECK(tested.state().cause.signal == 64);
    CHECK(tested.state().last_event == event::drained);
    CHECK(tested.apply(event::finished, by_nobody));
    CHECK(tested.state().cause.kind == cause_kind::signal);
    CHECK(tested.state().cause.signal == 64);

    lifecycle by_directive(0ms);
    CHECK(by_directive.apply(event::stop_signal, by_term));
    CHECK(by_directive.apply(event::cancel_request, {cause_kind::directive, 0}));
    CHECK(by_directive.state().cause.kind == cause_kind::directive);
    CHECK(by_directive.state().cause.signal == 0);
}

TEST_CASE("lifecycle: apply keeps errno, whether it changes something or not") {
    lifecycle tested(0ms);
    REQUIRE(tested.subscribe(1000000));  // no such descriptor: the write fails
    errno = EDOM;
    const bool first = tested.apply(event::quiet_request, by_api);
    const int after_change = errno;
    errno = ERANGE;
    const bool second = tested.apply(event::quiet_request, by_api);
    const int after_nothing = errno;
    CHECK(first);
    CHECK_FALSE(second);
    CHECK(after_change == EDOM);
    CHECK(after_nothing == ERANGE);
}

TEST_CASE("lifecycle: next_change gives every change, in order, each as it was") {
    lifecycle tested(0ms);
    const event sequence[] = {event::quiet_request, event::resume_request, event::quiet_request,
                              event::stop_signal,   event::cancel_request, event::stop_signal,
                              event::stop_signal,   event::finished};
    std::vector<lifecycle_state> states;
    for (const event what : sequence) {
        CHECK(tested.apply(what, what == event::stop_signal ? by_term : by_api));
        states.push_back(tested.state());
    }
    lifecycle_state seen;
    for (const lifecycle_state& each : states) {
        REQUIRE(tested.next_change(seen));
        CHECK(same(seen, each));
    }
    CHECK_FALSE(tested.next_change(seen));
    CHECK(same(seen, states.back()));
}

// One change, back and forth.
void flap(lifecycle& target) {
    const bool to_quiet = target.phase() == phase::running;
    REQUIRE(target.apply(to_quiet ? event::quiet_request : event::resume_request, by_api));
}

TEST_CASE("lifecycle: a reader too far behind misses the oldest, and gets the newest 15 and more in order") {
    // 15 behind is kept whole, from 16 on the oldest go; around 256 the sequence number itself wraps.
    for (const int behind : {1, 14, 15, 16, 17, 31, 32, 100, 254, 255, 256, 257, 271, 300, 512, 515}) {
        CAPTURE(behind);
        lifecycle tested;
        for (int i = 0; i < behind; ++i) flap(tested);
        lifecycle_state seen;
        std::vector<int> got;
        while (tested.next_change(seen)) {
            CHECK(seen.phase == (seen.sequence % 2 == 1 ? phase::quiet : phase::running));
            got.push_back(seen.sequence);
            REQUIRE(got.size() <= 16);
        }
        REQUIRE_FALSE(got.empty());
        CHECK(same(seen, tested.state()));
        for (std::size_t i = 1; i < got.size(); ++i) CHECK(got[i] == (got[i - 1] + 1) % 256);
        if (behind <= 256) CHECK(got.size() >= static_cast<std::size_t>(behind < 15 ? behind : 15));
    }
}

TEST_CASE("lifecycle: no number of changes between two reads hides a stop, or the end of a quiet") {
    for (int changes = 1; changes <= 600; ++changes) {
        CAPTURE(changes);
        lifecycle tested;
        flap(tested);
        lifecycle_state seen;
        while (tested.next_change(seen)) {
        }
        REQUIRE(seen.phase == phase::quiet);
        for (int i = 1; i < changes; ++i) flap(tested);
        CHECK(tested.apply(event::stop_request, by_api));
        while (tested.next_change(seen)) {
        }
        CHECK(seen.phase == phase::draining);
        CHECK(same(seen, tested.state()));
    }
}

TEST_CASE(
    "lifecycle: four writers flapping and a reader: no step back, nothing torn, the newest at the end") {
    for (int round = 0; round < 20; ++round) {
        lifecycle tested;
        std::atomic<int> writing{4};
        std::atomic<unsigned> changes{0};
        std::vector<std::thread> writers;
        for (int w = 0; w < 4; ++w) {
            writers.emplace_back([&tested, &writing, &changes] {
                unsigned mine = 0;
                for (int i = 0; i < 1000; ++i) {
                    mine += tested.apply(event::quiet_request, by_api) ? 1U : 0U;
                    mine += tested.apply(event::resume_request, by_term) ? 1U : 0U;
                }
                changes += mine;
                --writing;
            });
        }
        lifecycle_state seen;
        unsigned wrong = 0;
        const auto read_all = [&] {
            for (lifecycle_state before = seen; tested.next_change(seen); before = seen) {
                const bool quiet = seen.sequence % 2 == 1;
                if (same(seen, before)) ++wrong;
                if (seen.phase != (quiet ? phase::quiet : phase::running)) ++wrong;
                if (seen.last_event != (quiet ? event::quiet_request : event::resume_request)) ++wrong;
                if (seen.cause.kind != (quiet ? cause_kind::api : cause_kind::signal)) ++wrong;
            }
        };
        while (writing > 0) read_all();
        for (std::thread& each : writers) each.join();
        read_all();
        CHECK(wrong == 0);
        CHECK(static_cast<std::uint8_t>(changes) == tested.state().sequence);
        REQUIRE(same(seen, tested.state()));
    }
}

lifecycle* interrupted_target = nullptr;
std::atomic<unsigned> interruptions{0};

int changes_in_handler = 0;

void flap_in_handler(int) {
    for (int i = 0; i < changes_in_handler; i += 2) {
        interrupted_target->apply(event::quiet_request, by_api);
        interrupted_target->apply(event::resume_request, by_api);
    }
    ++interruptions;
}

TEST_CASE(
    "lifecycle: a change interrupted by a handler that makes many more hides none of them from a reader") {
    // The last of them has the place of the interrupted one in the history; 144 are more than half of what the sequence can
    // count, 256 are all of it, and mostly within one millisecond.
    SUBCASE("16") {
        changes_in_handler = 16;
    }
    SUBCASE("18") {
        changes_in_handler = 18;
    }
    SUBCASE("144") {
        changes_in_handler = 144;
    }
    SUBCASE("256") {
        changes_in_handler = 256;
    }
    lifecycle tested;
    interrupted_target = &tested;
    interruptions = 0;
    struct sigaction ours {};
    struct sigaction previous {};
    ours.sa_handler = flap_in_handler;
    REQUIRE(::sigaction(SIGUSR1, &ours, &previous) == 0);
    const pthread_t interrupted = pthread_self();
    std::atomic<bool> stop{false};
    std::thread storm([&] {
        for (int i = 0; i < 1000 && !stop; ++i) {
            const unsigned before = interruptions;
            pthread_kill(interrupted, SIGUSR1);
            while (interruptions == before && !stop) std::this_thread::yield();
        }
        stop = true;
    });
    lifecycle_state seen;
    unsigned stuck = 0;
    while (!stop) {
        const unsigned before = interruptions;
        tested.apply(event::quiet_request, by_api);
        tested.apply(event::resume_request, by_api);
        if (interruptions == before) continue;
        sigset_t usr1;
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &usr1, nullptr);  // nobody changes anything while we read
        while (tested.next_change(seen)) {
        }
        if (!same(seen, tested.state())) ++stuck;
        if (stuck != 0) stop = true;
        pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
    }
    storm.join();
    ::sigaction(SIGUSR1, &previous, nullptr);
    CHECK(interruptions > 0);
    CHECK(stuck == 0);
}

TEST_CASE("lifecycle: of many threads that request the same, apply() is true for one") {
    for (int round = 0; round < 100; ++round) {
        lifecycle tested(24h);
        std::atomic<int> ready{0};
        std::atomic<int> first{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&tested, &ready, &first, t] {
                ++ready;
                while (ready < 4) std::this_thread::yield();
                const bool signalled = t % 2 == 0;
                if (tested.apply(signalled ? event::stop_signal : event::stop_request, by_api)) ++first;
            });
        }
        for (std::thread& each : threads) each.join();
        // A signal after a request is one more (it forces); two signals, or a request after anything, are one.
        const lifecycle_state state = tested.state();
        CHECK(first == state.sequence);
        CHECK(state.stop_signals == 1);
        CHECK((state.phase == phase::draining ? first == 1 : first == 2));
    }
}

TEST_CASE("lifecycle: the repeat gap runs from the last stop signal, whatever else happens in between") {
    constexpr auto gap = 300ms;
    lifecycle tested(gap);
    const auto start = ojs::steady_clock::now();
    CHECK(tested.apply(event::stop_signal, by_term));
    // The gap itself is what is waited for here.
    std::this_thread::sleep_until(start + gap + 50ms);
    CHECK(tested.apply(event::cancel_request, by_api));
    CHECK(tested.apply(event::stop_signal, by_term));  // a second one, long after the first
    CHECK(tested.state().stop_signals == 2);
    CHECK(tested.state().mode == stop_mode::forced);
}

TEST_CASE("lifecycle: repeat gaps beyond 32 bits are long, negative ones are none") {
    for (const auto gap :
         {std::chrono::milliseconds(std::int64_t{1} << 32), std::chrono::milliseconds::max()}) {
        CAPTURE(gap.count());
        lifecycle tested(gap);
        CHECK(tested.apply(event::stop_signal, by_term));
        CHECK_FALSE(tested.apply(event::stop_signal, by_term));
    }
    lifecycle tested(-1ms);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.apply(event::stop_signal, by_term));
}

TEST_CASE("lifecycle: a subscriber is written to after every change, and only then") {
    lifecycle tested(0ms);
    const pipe_ends pipe;
    const pipe_ends other;
    REQUIRE(tested.subscribe(pipe.writer()));
    REQUIRE(tested.subscribe(other.writer()));
    CHECK(pipe.take() == 0);
    CHECK(tested.apply(event::quiet_request, by_api));
    CHECK(pipe.take() == 8);
    CHECK(other.take() == 8);
    CHECK_FALSE(tested.apply(event::quiet_request, by_api));
    CHECK(pipe.take() == 0);
    CHECK(tested.apply(event::stop_signal, by_term));
    CHECK(tested.apply(event::drained, by_nobody));
    CHECK(pipe.take() == 16);
    tested.unsubscribe(pipe.writer());
    CHECK(tested.apply(event::finished, by_nobody));
    CHECK(pipe.take() == 0);
    CHECK(other.take() == 24);
    tested.unsubscribe(pipe.writer());  // once more does nothing
}

TEST_CASE("lifecycle: descriptor 0 may subscribe, as that of a process started without standard input") {
    lifecycle tested(0ms);
    const pipe_ends pipe;
    const int saved = ::dup(0);
    REQUIRE(::dup2(pipe.writer(), 0) == 0);
    REQUIRE(tested.subscribe(0));
    CHECK(tested.apply(event::quiet_request, by_api));
    CHECK(pipe.take() == 8);
    tested.unsubscribe(0);
    ::dup2(saved, 0);
    ::close(saved);
}

TEST_CASE("lifecycle: sixteen subscribers, the seventeenth is rejected until one unsubscribes") {
    lifecycle tested(0ms);
    const pipe_ends pipes[17];
    for (int i = 0; i < 16; ++i) CHECK(tested.subscribe(pipes[i].writer()));
    CHECK_FALSE(tested.subscribe(pipes[16].writer()));
    CHECK(tested.apply(event::quiet_request, by_api));
    for (int i = 0; i < 16; ++i) CHECK(pipes[i].take() == 8);
    CHECK(pipes[16].take() == 0);
    tested.unsubscribe(pipes[7].writer());
    CHECK(tested.subscribe(pipes[16].writer()));
    CHECK_FALSE(tested.subscribe(pipes[7].writer()));
    CHECK(tested.apply(event::resume_request, by_api));
    for (int i = 0; i < 17; ++i) CHECK(pipes[i].take() == (i == 7 ? 0 : 8));
}

TEST_CASE(
    "lifecycle: nothing is written to a subscriber after unsubscribe() returned, however busy the writers") {
    lifecycle tested(0ms);
    std::atomic<bool> stop{false};
    std::atomic<unsigned> rounds{0};
    std::vector<std::thread> writers;
    for (int w = 0; w < 2; ++w) {
        writers.emplace_back([&] {
            while (!stop) {
                tested.apply(event::quiet_request, by_api);
                tested.apply(event::resume_request, by_api);
                ++rounds;
            }
        });
    }
    for (int i = 0; i < 60; ++i) {
        const pipe_ends pipe;
        REQUIRE(tested.subscribe(pipe.writer()));
        pollfd readable{pipe.reader(), POLLIN, 0};
        CHECK(::poll(&readable, 1, 20000) == 1);
        tested.unsubscribe(pipe.writer());
        pipe.take();
        const unsigned then = rounds;
        while (rounds - then < 4) std::this_thread::yield();  // all that was in progress is through
        CHECK(pipe.take() == 0);
    }
    stop = true;
    for (std::thread& each : writers) each.join();
}

TEST_CASE("lifecycle: changed_at is the moment of the change") {
    lifecycle tested(0ms);
    const auto before = ojs::steady_clock::now();
    CHECK(tested.apply(event::quiet_request, by_api));
    lifecycle_state state = tested.state();
    const auto found = lifecycle::changed_at(state);
    const auto after = ojs::steady_clock::now();
    CHECK(found >= before - 2ms);
    CHECK(found <= after + 2ms);
    // Twenty days ago, also where the 32 bits of milliseconds wrapped since.
    state.changed_ms -= 20U * 24 * 3600 * 1000;
    const auto long_ago = lifecycle::changed_at(state);
    CHECK(long_ago >= before - 24h * 20 - 2ms);
    CHECK(long_ago <= ojs::steady_clock::now() - 24h * 20 + 2ms);
}

TEST_CASE("lifecycle: every value has its own name") {
    const std::vector<std::string> phases = {"running", "quiet", "draining", "stopping", "terminated"};
    const std::vector<std::string> events = {"stop_signal",    "stop_request", "quiet_request",
                                             "resume_request", "reclaim",      "cancel_request",
                                             "grace_expired",  "drained",      "finished"};
    for (std::size_t i = 0; i < phases.size(); ++i) CHECK(ojs::to_string(all_phases[i]) == phases[i]);
    for (std::size_t i = 0; i < events.size(); ++i) CHECK(ojs::to_string(all_events[i]) == events[i]);
    CHECK(ojs::to_string(stop_mode::graceful) == std::string("graceful"));
    CHECK(ojs::to_string(stop_mode::forced) == std::string("forced"));
    CHECK(ojs::to_string(stop_mode::reclaim) == std::string("reclaim"));
    CHECK(ojs::to_string(cause_kind::none) == std::string("none"));
    CHECK(ojs::to_string(cause_kind::signal) == std::string("signal"));
    CHECK(ojs::to_string(cause_kind::directive) == std::string("directive"));
    CHECK(ojs::to_string(cause_kind::api) == std::string("api"));
    CHECK(ojs::to_string(cause_kind::rpc) == std::string("rpc"));
}
