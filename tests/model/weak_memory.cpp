// The ordering promises of src/ojs/core and of a stop's phase, tried in every order there is, also on processors that are
// not x86.
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include <chrono>
#include <new>
#include <string>
#include <string_view>

#include "checker.hpp"

// Within the library, atomic is the model's.
namespace ojs {
inline namespace v0_1_0 {
namespace detail {
using model::atomic;
}  // namespace detail
inline void nanosleep(const timespec*, std::nullptr_t) { model::the_checker().yield(); }
}  // namespace v0_1_0
}  // namespace ojs

namespace {
// A mutex of the library, of the model's atomics.
using model_mutex = model::atomic<bool>;
model_mutex& model_of(pthread_mutex_t* native) { return *reinterpret_cast<model_mutex*>(native); }
void lock_model(pthread_mutex_t* native) {
    bool locked = false;
    while (!model_of(native).compare_exchange_strong(locked, true, model::memory_order::acquire)) {
        model::the_checker().yield();
        locked = false;
    }
}
void unlock_model(pthread_mutex_t* native) { model_of(native).store(false, model::memory_order::release); }
}  // namespace

#define pthread_mutex_init(native, attributes) new (native) model_mutex(false)
#define pthread_mutex_destroy(native) static_cast<void>(native)
#define pthread_mutex_lock(native) lock_model(native)
#define pthread_mutex_unlock(native) unlock_model(native)
#include "ojs/base/detail/sync.hpp"
#undef pthread_mutex_init
#undef pthread_mutex_destroy
#undef pthread_mutex_lock
#undef pthread_mutex_unlock

namespace {
model::atomic<bool>* subscriber_has_left = nullptr;
bool wrote_to_nobody = false;
}  // namespace

// A notification of a subscriber.
inline ssize_t model_write(int, const void*, std::size_t size) {
    if (subscriber_has_left != nullptr && subscriber_has_left->load()) wrote_to_nobody = true;
    return static_cast<ssize_t>(size);
}

#define OJS_SHUTDOWN_INLINE inline
#include "ojs/base/error.ipp"
#define write model_write
#include "ojs/core/detail/wake.hpp"
#undef write
#include "ojs/base/detail/sync.ipp"
#include "ojs/base/detail/text.hpp"
#include "ojs/base/error.ipp"
#include "ojs/core/cancel_token.ipp"
#include "ojs/core/drain_barrier.hpp"
#include "ojs/core/lifecycle.ipp"
#include "ojs/ledger/offset_tracker.hpp"
#include "ojs/stop/detail/stop_phase.ipp"

// In place of log.ipp.
void ojs::detail::write_line(int, const std::string&, ojs::log_format) {}

namespace {
using ojs::event;
using ojs::phase;
using ojs::detail::take_change;

// Tests the checker: with acquire and release alone, two threads may both load before the other's store.
struct store_then_load {
    model::atomic<int> a{0}, b{0};
    int saw_a = 1, saw_b = 1;

    void add_to_a() {
        a.fetch_add(1, model::memory_order::acq_rel);
        saw_b = b.load(model::memory_order::acquire);
    }
    void add_to_b() {
        b.fetch_add(1, model::memory_order::acq_rel);
        saw_a = a.load(model::memory_order::acquire);
    }
    bool is_wrong() const { return saw_a == 0 && saw_b == 0; }
};

// A job thread as in fetcher::fetch(), and a drain as in health_service::drain(), or a signal that requests quiet and
// another thread that finds nothing in flight.
struct intake {
    ojs::lifecycle life;
    ojs::drain_barrier claims;
    ojs::drain_barrier::ticket ticket;
    bool sent = false;
    bool drained = false;

    void fetch() {
        ticket = claims.enter();
        sent = life.phase() == phase::running;
    }
    void quieten() { life.apply(event::quiet_request, {}); }
    void look() { drained = life.phase() != phase::running && claims.count() == 0; }
    void drain() {
        quieten();
        look();
    }
    bool is_wrong() const { return sent && drained; }
};

// Who takes changes while another thread makes one ends with the last; and a thread that applied a stop sees it, however
// slow other changes are.
struct last_change {
    ojs::lifecycle life;
    ojs::lifecycle_state seen;
    bool wrong = false;

    void quieten() { life.apply(event::quiet_request, {}); }
    void stop() {
        life.apply(event::stop_request, {});
        take_change(life, seen);
        wrong = seen.phase != phase::draining;
    }
    bool is_wrong() {
        take_change(life, seen);
        return wrong || seen.phase != phase::draining || take_change(life, seen);
    }
};

// A descriptor is not written to once unsubscribe() has returned.
struct unsubscribe_under_way {
    unsubscribe_under_way() {
        wrote_to_nobody = false;
        subscriber_has_left = &has_left;
        life.subscribe(7);
    }
    ~unsubscribe_under_way() { subscriber_has_left = nullptr; }
    ojs::lifecycle life;
    model::atomic<bool> has_left{false};

    void quieten() { life.apply(event::quiet_request, {}); }
    void leave() {
        life.unsubscribe(7);
        has_left = true;
    }
    bool is_wrong() const { return wrote_to_nobody; }
};

// A job's token, which a stop cancels with all others, and its backend alone: it keeps the reason that it has shown.
struct cancelled_twice {
    ojs::detail::split_source group;
    ojs::detail::split_source job = group.member();
    const ojs::cancel_token token = job.token();
    bool revoked = false;
    bool wrong = false;

    void stop() { group.cancel_members(ojs::cancel_reason::grace_period_expired); }
    void revoke() { revoked = job.request(ojs::cancel_reason::revoked); }
    void handle() {
        const ojs::cancel_reason first = token.reason();
        wrong = first != ojs::cancel_reason::none && (token.reason() != first || !token.seen());
    }
    bool is_wrong() {
        const ojs::cancel_reason last = token.reason();
        return wrong || (last == ojs::cancel_reason::revoked) != revoked;
    }
};

// The machine, which notices a drain, and a handler that has asked for its end before.
struct drain_that_is_noticed {
    static inline const ojs::loop_options options;
    ojs::detail::stop_phase phases{options, nullptr};
    ojs::time_point noticed, asked, asked_again;

    drain_that_is_noticed() { phases.own.apply(event::stop_request, {}); }
    void notice() { noticed = phases.begin_drain(ojs::time_point() + std::chrono::hours(1)); }
    void ask() {
        asked = phases.drain_deadline();
        asked_again = phases.drain_deadline();
    }
    bool is_wrong() const { return asked != noticed || asked_again != noticed || noticed == ojs::detail::never; }
};

// Handlers that finish in any order, and a consumer that commits what they did, or whose partition is revoked meanwhile.
struct out_of_order {
    ojs::offset_tracker ledger;
    ojs::offset_tracker::ticket tickets[2];
    model::atomic<int> effects[2];
    std::uint64_t expected = 2;
    bool wrong = false;

    out_of_order() {
        for (std::uint64_t i = 0; i < 2; ++i) tickets[i] = std::move(*ledger.begin(i));
    }
    void handle(int item) {
        effects[item].store(1, model::memory_order::relaxed);
        tickets[item].done();
    }
    void handle_first() { handle(0); }
    void handle_second() { handle(1); }
    void handle_both() {
        handle(1);
        handle(0);
    }
    void commit() {
        const std::uint64_t next = ledger.next_position();
        for (std::uint64_t i = 0; i < next; ++i) wrong = effects[i].load(model::memory_order::relaxed) == 0 || wrong;
    }
    void revoke() {
        ledger.reset();
        ojs::offset_tracker::ticket again = std::move(*ledger.begin(0));
        wrong = ledger.next_position() != 0;
        again.done();
        expected = 1;
    }
    bool is_wrong() { return wrong || ledger.next_position() != expected || ledger.in_flight() != 0; }
};

long wrong = 0;

template <class Scenario>
void explore(const char* name, std::initializer_list<void (Scenario::*)()> threads) {
    wrong += model::the_checker().explore<Scenario>(name, threads);
}
}  // namespace

int main() {
    using unordered = store_then_load;
    const bool finds_it = model::the_checker().explore<unordered>("(the checker: acquire and release do not do)",
                                                                  {&unordered::add_to_a, &unordered::add_to_b}) > 0;
    explore("no FETCH is sent after a drain was reported over", {&intake::fetch, &intake::drain});
    explore("the same where somebody else asked for quiet", {&intake::fetch, &intake::quieten, &intake::look});
    explore("the last change is found, and a stop at once", {&last_change::quieten, &last_change::stop});
    explore("nothing is written to a subscriber that has left",
            {&unsubscribe_under_way::quieten, &unsubscribe_under_way::leave});
    explore("a token keeps the reason that it has shown",
            {&cancelled_twice::stop, &cancelled_twice::revoke, &cancelled_twice::handle});
    explore("a drain has one end", {&drain_that_is_noticed::notice, &drain_that_is_noticed::ask});
    explore("what is committed has been done, by all handlers",
            {&out_of_order::handle_first, &out_of_order::handle_second, &out_of_order::commit});
    explore("a revoked partition begins again beside a handler", {&out_of_order::handle_both, &out_of_order::revoke});
    return finds_it && wrong == 0 ? 0 : 1;
}
