// completion_ledger: the prefix that may be committed, whichever items finish first.
#include <random>

#include "events.hpp"
#include "test.hpp"

using namespace ojs;

namespace {

using ticket = completion_ledger::ticket;

// What the ledger promises, in the simplest words: all items since forget(), in the order they began.
struct naive_ledger {
    enum state { in_flight, finished, dropped };
    struct item {
        std::uint64_t position;
        state now;
    };
    std::vector<item> items;

    std::uint64_t next_position() const {
        std::uint64_t next = 0;
        for (const item& each : items) {
            if (each.now != finished) break;
            next = each.position + 1;
        }
        return next;
    }
};

}  // namespace

TEST_CASE("completion_ledger: next_position() is 1 above the last item of the finished prefix") {
    struct row {
        std::vector<std::uint64_t> positions;
        std::vector<int> finish;           // the order, by index
        std::vector<std::uint64_t> after;  // next_position() after each
    };
    const row rows[] = {
        {{7}, {0}, {8}},
        {{0}, {0}, {1}},
        {{5, 6, 7}, {0, 1, 2}, {6, 7, 8}},
        {{5, 6, 7}, {2, 1, 0}, {0, 0, 8}},
        {{5, 6, 7}, {1, 0, 2}, {0, 7, 8}},
        {{5, 9, 100, 101}, {0, 2, 1, 3}, {6, 6, 101, 102}},  // gaps: never above what has finished
        {{0, UINT64_MAX - 1}, {1, 0}, {0, UINT64_MAX}},
    };
    for (const row& each : rows) {
        completion_ledger ledger;
        CHECK(ledger.next_position() == 0);
        std::vector<ticket> tickets;
        for (const std::uint64_t position : each.positions)
            tickets.push_back(std::move(*ledger.begin(position)));
        CHECK(ledger.next_position() == 0);
        for (std::size_t i = 0; i < each.finish.size(); ++i) {
            CHECK(ledger.in_flight() == each.positions.size() - i);
            ticket& now = tickets[static_cast<std::size_t>(each.finish[i])];
            CHECK(static_cast<bool>(now));
            now.done();
            CHECK_FALSE(static_cast<bool>(now));
            now.done();  // once more does nothing
            CHECK(ledger.next_position() == each.after[i]);
        }
        CHECK(ledger.in_flight() == 0);
    }
}

TEST_CASE("completion_ledger: begin() at a position not above the latest is refused and changes nothing") {
    completion_ledger ledger;
    CHECK(test::code_of(ledger.begin(UINT64_MAX)) == errc::invalid_argument);
    result<ticket> first = ledger.begin(10);
    for (const std::uint64_t position : {10U, 9U, 0U}) {
        CHECK(test::code_of(ledger.begin(position)) == errc::invalid_argument);
        CHECK(ledger.in_flight() == 1);
    }
    first->done();
    CHECK(test::code_of(ledger.begin(10)) == errc::invalid_argument);
    CHECK(ledger.next_position() == 11);
    ledger.begin(11)->done();
    CHECK(ledger.next_position() == 12);
}

TEST_CASE("completion_ledger: next_position() stops before a dropped item until forget()") {
    completion_ledger ledger;
    ticket first = std::move(*ledger.begin(1));
    static_cast<void>(ledger.begin(2));  // dropped
    ticket third = std::move(*ledger.begin(3));
    static_cast<void>(ledger.begin(4));
    third.done();
    CHECK(ledger.next_position() == 0);
    first.done();
    CHECK(ledger.next_position() == 2);
    ledger.begin(5)->done();
    CHECK(ledger.next_position() == 2);
    CHECK(ledger.in_flight() == 0);
    ledger.forget();
    CHECK(ledger.next_position() == 0);
    ledger.begin(2)->done();  // delivered again
    CHECK(ledger.next_position() == 3);
}

TEST_CASE(
    "completion_ledger: forget() with tickets out -> they stay in flight, but no longer move "
    "next_position()") {
    completion_ledger ledger;
    ticket finished = std::move(*ledger.begin(100));
    ticket dropped = std::move(*ledger.begin(101));
    ledger.forget();
    CHECK(ledger.next_position() == 0);
    ticket current = std::move(*ledger.begin(50));
    CHECK(ledger.in_flight() == 3);
    finished.done();
    CHECK(ledger.next_position() == 0);
    current.done();
    CHECK(ledger.next_position() == 51);
    dropped = ticket();
    CHECK(ledger.in_flight() == 0);
    ledger.begin(51)->done();
    CHECK(ledger.next_position() == 52);
}

TEST_CASE("completion_ledger: a ticket is movable, and only its last holder ends the item") {
    completion_ledger ledger;
    ticket().done();
    ticket first = std::move(*ledger.begin(1));
    ticket moved = std::move(first);
    CHECK_FALSE(static_cast<bool>(first));
    first.done();
    CHECK(ledger.in_flight() == 1);
    {
        ticket other = std::move(*ledger.begin(2));
        std::swap(moved, other);
        other.done();  // the first
    }
    CHECK(ledger.next_position() == 2);
    CHECK(ledger.in_flight() == 1);
    moved.done();
    CHECK(ledger.next_position() == 3);
}

TEST_CASE("completion_ledger: random sequences of calls agree with a naive model") {
    for (unsigned seed = 0; seed < 10000; ++seed) {
        INFO("seed " << seed);
        std::mt19937 random(seed);
        const auto below = [&](std::size_t limit) { return random() % limit; };
        completion_ledger ledger;
        naive_ledger model;
        struct held {
            ticket own;
            std::size_t item;
            bool current = true;
        };
        std::vector<held> tickets;
        std::uint64_t next = below(3);
        bool equal = true;
        for (int step = 0; step < 40; ++step) {
            const std::size_t kind = below(40);
            if (kind == 0) {
                ledger.forget();
                model.items.clear();
                for (held& each : tickets) each.current = false;
                next = below(100);
            } else if (kind < 20 || tickets.empty()) {
                next += below(3);
                tickets.push_back({std::move(*ledger.begin(next)), model.items.size()});
                model.items.push_back({next++, naive_ledger::in_flight});
            } else {
                const std::size_t index = below(tickets.size());
                held& ended = tickets[index];
                const bool finished = kind > 20;
                if (finished) ended.own.done();
                if (ended.current)
                    model.items[ended.item].now = finished ? naive_ledger::finished : naive_ledger::dropped;
                std::swap(ended, tickets.back());
                tickets.pop_back();
            }
            equal = equal && ledger.next_position() == model.next_position() &&
                    ledger.in_flight() == tickets.size();
        }
        CHECK(equal);
    }
}

TEST_CASE("completion_ledger: next_position() covers only finished items while threads finish out of order") {
    constexpr int handlers = 4, each = 500;
    for (int round = 0; round < 10; ++round) {
        const auto ledger = std::make_unique<completion_ledger>();
        std::vector<ticket> tickets;
        std::vector<int> done(handlers * each);  // plain: a race detector reports what is seen too early
        for (int i = 0; i < handlers * each; ++i)
            tickets.push_back(std::move(*ledger->begin(static_cast<std::uint64_t>(i))));
        std::atomic<int> wrong{0};
        test::at_once(handlers + 2, [&](int thread) {
            for (int i = each; thread < handlers && i-- > 0;) {  // the latest first
                const int item = i * handlers + thread;
                done[static_cast<std::size_t>(item)] = 1;
                tickets[static_cast<std::size_t>(item)].done();
            }
            std::uint64_t committed = 0;
            while (thread == handlers && committed < handlers * each) {
                const std::uint64_t next = ledger->next_position();
                if (next < committed) ++wrong;
                for (; committed < next; ++committed)
                    if (done[committed] == 0) ++wrong;
            }
            while (thread == handlers + 1 && ledger->in_flight() > 0) std::this_thread::yield();
        });
        CHECK(wrong == 0);
    }
}

TEST_CASE("completion_ledger: once in_flight() is 0 the ledger may be destroyed while done() still runs") {
    for (int round = 0; round < 1000; ++round) {
        auto ledger = std::make_unique<completion_ledger>();
        ticket tickets[3];
        for (std::uint64_t i = 0; i < 3; ++i) tickets[i] = std::move(*ledger->begin(i));
        test::at_once(4, [&](int thread) {
            if (thread < 3) return tickets[thread].done();
            while (ledger->in_flight() > 0) std::this_thread::yield();
            ledger.reset();
        });
    }
}

TEST_CASE(
    "completion_ledger: forget() while older tickets end -> only items begun afterwards change "
    "next_position()") {
    for (int round = 0; round < 200; ++round) {
        completion_ledger ledger;
        ticket tickets[3];
        for (std::uint64_t i = 0; i < 3; ++i) tickets[i] = std::move(*ledger.begin(100 + i));
        test::at_once(4, [&](int thread) {
            if (thread < 2) return tickets[thread].done();
            if (thread == 2) return static_cast<void>(ticket(std::move(tickets[2])));
            ledger.forget();
            CHECK(ledger.next_position() == 0);
            ticket fresh = std::move(*ledger.begin(5));
            CHECK(ledger.next_position() == 0);
            fresh.done();
            CHECK(ledger.next_position() == 6);
        });
        CHECK(ledger.next_position() == 6);
        CHECK(ledger.in_flight() == 0);
    }
}
