// offset_tracker: the prefix that may be committed, whichever items finish first.
#include <random>

#include "test.hpp"

namespace {
using ticket = offset_tracker::ticket;

// What the ledger promises, in the simplest words: all items since reset(), in the order they began.
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

TEST_CASE("offset_tracker: a ticket is movable, and only its last holder ends the item") {
    offset_tracker ledger;
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

TEST_CASE("offset_tracker: random sequences of calls agree with a naive model") {
    for (unsigned seed = 0; seed < 10000; ++seed) {
        INFO("seed " << seed);
        std::mt19937 random(seed);
        const auto below = [&](std::size_t limit) { return random() % limit; };
        offset_tracker ledger;
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
                ledger.reset();
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
            equal = equal && ledger.next_position() == model.next_position() && ledger.in_flight() == tickets.size();
        }
        CHECK(equal);
    }
}

TEST_CASE("offset_tracker: once in_flight() is 0 the tracker may be destroyed while done() still runs") {
    for (int round = 0; round < 1000; ++round) {
        auto ledger = std::make_unique<offset_tracker>();
        ticket tickets[3];
        for (std::uint64_t i = 0; i < 3; ++i) tickets[i] = std::move(*ledger->begin(i));
        test::at_once(4, [&](int thread) {
            if (thread < 3) return tickets[thread].done();
            while (ledger->in_flight() > 0) std::this_thread::yield();
            ledger.reset();
        });
    }
}
