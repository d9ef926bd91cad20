// The ordering promises of src/ojs/core and of a job's state, tried in every order there is, also
// on processors that are not x86.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
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
inline void sched_yield() {
    model::the_checker().yield();
}
}  // namespace v0_1_0
}  // namespace ojs

#define OJS_SHUTDOWN_INLINE inline
#include "ojs/base/detail/sync.ipp"
#include "ojs/base/detail/text.ipp"
#include "ojs/core/drain_barrier.hpp"
#include "ojs/core/lifecycle.ipp"
#include "ojs/worker/jobs/job_flags.ipp"

namespace {

model::atomic<bool>* subscriber_has_left = nullptr;
bool wrote_to_nobody = false;

}  // namespace

// In place of wake.ipp.
void ojs::detail::wake::notify(int) noexcept {
    if (subscriber_has_left != nullptr && subscriber_has_left->load()) wrote_to_nobody = true;
}

namespace {

using ojs::event;
using ojs::phase;
using bodies = std::vector<std::function<void()>>;

// Tests the checker: two threads store, then load the other's value.
template <bool Consistent>
struct store_then_load {
    static constexpr model::memory_order stored =
        Consistent ? model::memory_order::seq_cst : model::memory_order::acq_rel;
    static constexpr model::memory_order loaded =
        Consistent ? model::memory_order::seq_cst : model::memory_order::acquire;
    model::atomic<int> a{0}, b{0};
    int saw_a = 1, saw_b = 1;

    bodies threads() {
        return {[this] {
                    a.fetch_add(1, stored);
                    saw_b = b.load(loaded);
                },
                [this] {
                    b.fetch_add(1, stored);
                    saw_a = a.load(loaded);
                }};
    }
    bool is_wrong() const { return saw_a == 0 && saw_b == 0; }
};

// A job thread as in fetcher::fetch(), and a drain as in health_service::drain().
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
    bool is_wrong() const { return sent && drained; }
};

struct fetch_and_drain : intake {
    bodies threads() {
        return {[this] { fetch(); },
                [this] {
                    quieten();
                    look();
                }};
    }
};

// A signal requests quiet; another thread finds nothing in flight.
struct fetch_quiet_and_look : intake {
    bodies threads() {
        return {[this] { fetch(); }, [this] { quieten(); }, [this] { look(); }};
    }
};

// A thread that applied a stop, or was woken by it, sees the stop, however slow other changes are.
struct stop_behind_a_change {
    ojs::lifecycle life;
    ojs::lifecycle_state seen;

    bodies threads() {
        return {[this] { life.apply(event::quiet_request, {}); },
                [this] {
                    life.apply(event::stop_request, {});
                    while (life.next_change(seen)) {
                    }
                }};
    }
    bool is_wrong() const { return seen.phase != phase::draining; }
};

// A reader finds each change once, in order, also while another thread is making one.
struct every_change {
    ojs::lifecycle life;
    ojs::lifecycle_state seen;
    unsigned read = 0;
    bool skipped = false;

    void look() {
        while (life.next_change(seen)) skipped = ++read != seen.sequence || skipped;
    }
    bodies threads() {
        return {[this] { life.apply(event::quiet_request, {}); },
                [this] {
                    life.apply(event::stop_request, {});
                    look();
                }};
    }
    bool is_wrong() {
        look();
        return skipped || read != life.state().sequence;
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

    bodies threads() {
        return {[this] { life.apply(event::quiet_request, {}); },
                [this] {
                    life.unsubscribe(7);
                    has_left = true;
                }};
    }
    bool is_wrong() const { return wrote_to_nobody; }
};

// A job as its thread, the stop and the backend's answers see it: run_job(), report_queue and
// active_job::lose().
struct claimed_job {
    using job_flags = ojs::detail::job_flags;
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

// The job may be taken when its timeout is over, by a stop, and by its handler's thread.
struct three_settle : claimed_job {
    bodies threads() {
        return {[this] { handle(); }, [this] { stop(); }, [this] { stop(); }};
    }
};

struct settled_while_lost : claimed_job {
    bodies threads() {
        return {[this] { handle(); }, [this] { stop(); }, [this] { lose(); }};
    }
};

// job_context::save_checkpoint() on two threads of a handler, and the FAIL.
struct save_and_report {
    using job_flags = ojs::detail::job_flags;
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
    bodies threads() {
        return {[this] { save(); }, [this] { save(); }, [this] { report(); }};
    }
    bool is_wrong() const { return wrong; }
};

// active_job::set_checkpoint() and saved_checkpoint(), which takes the lock only where one was saved.
struct keep_and_report {
    using job_flags = ojs::detail::job_flags;
    job_flags word;
    bool kept = false;
    bool looked = false;

    bodies threads() {
        return {[this] {
                    word.add(job_flags::checkpoint_saved);
                    kept = !word.has(job_flags::taken);
                },
                [this] {
                    word.take();
                    looked = word.has(job_flags::checkpoint_saved);
                }};
    }
    bool is_wrong() const { return kept && !looked; }
};

// active_job::with_thread() and end_handler().
struct pinned_thread {
    using job_flags = ojs::detail::job_flags;
    job_flags word;
    bool has_thread = false;
    bool in_use = false;
    bool wrong = false;

    void handle() {
        has_thread = true;
        word.begin();
        word.add(job_flags::returned);
        while (word.has(job_flags::pinned)) ojs::sched_yield();
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
    bodies threads() {
        return {[this] { handle(); }, [this] { use(); }};
    }
    bool is_wrong() const { return wrong; }
};

}  // namespace

int main() {
    model::checker& checker = model::the_checker();
    const bool finds_it =
        checker.explore<store_then_load<false>>("(the checker: acquire and release do not do)") > 0;
    long wrong = checker.explore<store_then_load<true>>("(the checker: sequential consistency does)");
    wrong += checker.explore<fetch_and_drain>("no FETCH is sent after a drain was reported over");
    wrong += checker.explore<fetch_quiet_and_look>("the same where somebody else asked for quiet");
    wrong += checker.explore<stop_behind_a_change>("a stop is seen, whatever holds up other changes");
    wrong += checker.explore<every_change>("each change is found once, in order");
    wrong += checker.explore<unsubscribe_under_way>("nothing is written to a subscriber that has left");
    wrong += checker.explore<three_settle>("a job is settled once and removed once, after its last use");
    wrong += checker.explore<settled_while_lost>("the same while the backend takes it back");
    wrong += checker.explore<save_and_report>("no checkpoint is sent beside another one or the FAIL");
    wrong += checker.explore<keep_and_report>("a checkpoint that was kept goes with the FAIL");
    wrong += checker.explore<pinned_thread>("a pinned thread stays in its job");
    return finds_it && wrong == 0 ? 0 : 1;
}
