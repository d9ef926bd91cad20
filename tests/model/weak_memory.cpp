// The ordering promises of src/ojs/core and of a job's state, tried in every order there is, also
// on processors that are not x86.
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
inline void nanosleep(const timespec*, std::nullptr_t) {
    model::the_checker().yield();
}
}  // namespace v0_1_0
}  // namespace ojs

namespace {

// A mutex of the library, of the model's atomics.
using model_mutex = model::atomic<bool>;
model_mutex& model_of(pthread_mutex_t* native) {
    return *reinterpret_cast<model_mutex*>(native);
}
void lock_model(pthread_mutex_t* native) {
    bool locked = false;
    while (!model_of(native).compare_exchange_strong(locked, true, model::memory_order::acquire)) {
        model::the_checker().yield();
        locked = false;
    }
}
void unlock_model(pthread_mutex_t* native) {
    model_of(native).store(false, model::memory_order::release);
}

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

#define OJS_SHUTDOWN_INLINE inline
#include "ojs/base/detail/sync.ipp"
#include "ojs/base/detail/text.hpp"
#include "ojs/base/error.ipp"
#include "ojs/core/completion_ledger.hpp"
#include "ojs/core/drain_barrier.hpp"
#include "ojs/core/lifecycle.ipp"
#include "ojs/worker/state/job_flags.ipp"

namespace {

model::atomic<bool>* subscriber_has_left = nullptr;
bool wrote_to_nobody = false;

}  // namespace

// In place of log.ipp, and of wake.ipp.
void ojs::detail::write_line(int, std::string, ojs::log_format) {}
void ojs::detail::flush_log() noexcept {}
void ojs::detail::wake::notify(int) noexcept {
    if (subscriber_has_left != nullptr && subscriber_has_left->load()) wrote_to_nobody = true;
}

namespace {

using ojs::event;
using ojs::phase;
using ojs::detail::job_flags;

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

// A reader finds each change once, in order, also while another thread is making one; and a thread that applied a stop
// sees it, however slow other changes are.
struct every_change {
    ojs::lifecycle life;
    ojs::lifecycle_state seen;
    unsigned read = 0;
    bool wrong = false;

    void look() {
        while (life.next_change(seen)) wrong = ++read != seen.sequence || wrong;
    }
    void quieten() { life.apply(event::quiet_request, {}); }
    void stop() {
        life.apply(event::stop_request, {});
        look();
        wrong = seen.phase != phase::draining || wrong;
    }
    bool is_wrong() {
        look();
        return wrong || read != life.state().sequence;
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

// A job as its thread, the stop or the end of its timeout, and the backend's answers see it: run_job(), call_threads and
// active_job::lose().
struct claimed_job {
    job_flags word;
    int uses = 0;  // of the job, which is freed when it is removed
    int settlements = 0;
    int removals = 0;
    bool handler_ran = false;
    bool requeued = false;  // as a job that was never begun
    bool removed_in_use = false;

    void remove() {
        ++removals;
        removed_in_use = removed_in_use || uses > 0;
    }
    void report() {
        ++uses;
        ++settlements;
        --uses;
        if (word.end_report()) remove();
    }
    void handle() {
        if (!word.begin()) return;
        ++uses;
        handler_ran = true;
        word.add(job_flags::returned);
        if (word.take()) report();
        --uses;
        if (word.leave()) remove();
    }
    void stop() {
        if (!word.take()) return;
        requeued = !word.has(job_flags::began);
        report();
    }
    void lose() {
        word.add(job_flags::reassigned);
        if (word.add(job_flags::revoked)) word.remove(job_flags::revoked);
    }
    bool is_wrong() {
        const bool again = word.take();
        return settlements != 1 || removals != 1 || removed_in_use || again || (requeued && handler_ran);
    }
};

// job_context::save_checkpoint() on two threads of a handler, and the FAIL.
struct save_and_report {
    job_flags word;
    int saving = 0;
    bool reported = false;
    bool wrong = false;

    void save() {
        if (!word.add(job_flags::checkpoint_locked, job_flags::taken)) return;
        wrong = wrong || ++saving > 1 || reported;
        word.remove(job_flags::checkpoint_locked);
        --saving;
    }
    void report() {
        if (!word.take() || word.has(job_flags::checkpoint_locked)) return;  // or it waits
        wrong = wrong || saving > 0;
        reported = true;
    }
    bool is_wrong() const { return wrong; }
};

// active_job::claim_again() while a report gets `gone` for the earlier claim.
struct claimed_anew {
    job_flags word;
    bool claiming = false;
    bool joined = false;
    bool reported_new = false;

    void report() {
        do {
            word.remove(job_flags::claimed_again);
            reported_new = claiming;
        } while (!word.add_unless(job_flags::superseded, job_flags::claimed_again));
    }
    void claim() {
        claiming = true;
        joined = word.add_unless(job_flags::claimed_again, job_flags::superseded);
    }
    bool is_wrong() const { return joined && !reported_new; }
};

// active_job::with_thread() and end_handler().
struct pinned_thread {
    job_flags word;
    bool has_thread = false;
    bool in_use = false;
    bool wrong = false;

    void handle() {
        has_thread = true;
        word.begin();
        word.add(job_flags::returned);
        while (word.has(job_flags::pinned)) ojs::detail::pause_for(std::chrono::milliseconds(1));
        has_thread = false;
        wrong = wrong || in_use;
    }
    void use() {
        if (!word.in_handler() || !word.add(job_flags::pinned, job_flags::returned)) return;
        in_use = true;
        wrong = wrong || !has_thread;
        word.remove(job_flags::pinned);
        in_use = false;
    }
    bool is_wrong() const { return wrong; }
};

// Handlers that finish in any order, and a consumer that commits what they did, or whose partition is revoked meanwhile.
struct out_of_order {
    ojs::completion_ledger ledger;
    ojs::completion_ledger::ticket tickets[2];
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
        for (std::uint64_t i = 0; i < next; ++i)
            wrong = effects[i].load(model::memory_order::relaxed) == 0 || wrong;
    }
    void revoke() {
        ledger.forget();
        ojs::completion_ledger::ticket again = std::move(*ledger.begin(0));
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
    const bool finds_it =
        model::the_checker().explore<unordered>("(the checker: acquire and release do not do)",
                                                {&unordered::add_to_a, &unordered::add_to_b}) > 0;
    explore("no FETCH is sent after a drain was reported over", {&intake::fetch, &intake::drain});
    explore("the same where somebody else asked for quiet",
            {&intake::fetch, &intake::quieten, &intake::look});
    explore("each change is found once, in order, and a stop at once",
            {&every_change::quieten, &every_change::stop});
    explore("nothing is written to a subscriber that has left",
            {&unsubscribe_under_way::quieten, &unsubscribe_under_way::leave});
    explore("a job is settled once and removed once, after its last use",
            {&claimed_job::handle, &claimed_job::stop, &claimed_job::stop});
    explore("the same while the backend takes it back",
            {&claimed_job::handle, &claimed_job::stop, &claimed_job::lose});
    explore("no checkpoint is sent beside another one or the FAIL",
            {&save_and_report::save, &save_and_report::save, &save_and_report::report});
    explore("a new claim that joins a report is reported", {&claimed_anew::report, &claimed_anew::claim});
    explore("a pinned thread stays in its job", {&pinned_thread::handle, &pinned_thread::use});
    explore("what is committed has been done, by all handlers",
            {&out_of_order::handle_first, &out_of_order::handle_second, &out_of_order::commit});
    explore("a revoked partition begins again beside a handler",
            {&out_of_order::handle_both, &out_of_order::revoke});
    return finds_it && wrong == 0 ? 0 : 1;
}
