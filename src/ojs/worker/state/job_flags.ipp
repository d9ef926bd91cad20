// job_flags: the state of a claimed job in one atomic.
#pragma once

#include "../../base/detail/light.hpp"

namespace ojs::detail {

// A set of flags. Of those that exclude each other, only one is added. tests/model/weak_memory.cpp tries every order.
class job_flags {
  public:
    using flag_set = std::uint32_t;
    // Those that remove() names are the only ones removed. A handler goes from `began` to `returned` to `left`.
    static constexpr flag_set taken = 1U << 0;          // one thread reports the job, and no other ever will
    static constexpr flag_set began = 1U << 1;          // a thread calls its handler
    static constexpr flag_set returned = 1U << 2;       // the handler has returned
    static constexpr flag_set left = 1U << 3;           // the thread no longer uses the job
    static constexpr flag_set reported = 1U << 4;       // the backend has responded, or gets no more requests
    static constexpr flag_set reassigned = 1U << 5;     // another worker may have it: nothing is reported
    static constexpr flag_set stuck = 1U << 6;          // has ignored its cancellation, and is logged as such
    static constexpr flag_set counted = 1U << 7;        // in the account, as what came first
    static constexpr flag_set slot_kept = 1U << 8;      // the slot stays taken although the job is reported
    static constexpr flag_set slot_replaced = 1U << 9;  // another thread has the slot
    static constexpr flag_set checkpoint_loaded = 1U
                                                  << 10;  // the backend has returned its checkpoint, or none
    static constexpr flag_set checkpoint_saved = 1U << 11;  // the handler saved one, which goes with a FAIL
    static constexpr flag_set revoked = 1U << 12;  // by the backend; the supervisor has not yet handled it
    static constexpr flag_set checkpoint_locked = 1U << 13;  // a thread saves or loads a checkpoint
    static constexpr flag_set pinned = 1U << 14;             // the handler's thread must not leave the job
    static constexpr flag_set claimed_again = 1U << 15;      // since the latest try to report it
    static constexpr flag_set fail_sent = 1U << 16;          // a FAIL may have arrived, which ends the claim
    static constexpr flag_set superseded = 1U << 17;         // a next claim is another job: no more requests

    bool has(flag_set any) const noexcept { return (load() & any) != 0; }
    bool in_handler() const noexcept { return (load() & (began | returned)) == began; }
    // A thread has called the handler and still uses the job.
    bool has_thread() const noexcept { return (load() & (began | left)) == began; }

    // True for one caller, which then reports the job.
    bool take() noexcept { return add(taken); }
    // False: the job is being reported, and its handler must not be called.
    bool begin() noexcept { return add(began, taken); }
    // False: it was already there.
    bool add(flag_set one) noexcept { return (word_.fetch_or(one, memory_order::acq_rel) & one) == 0; }
    // False: one of these was already there, and nothing has changed.
    bool add(flag_set added, flag_set unless) noexcept { return add_unless(added, added | unless); }
    // False: one of `unless` was there, and nothing has changed.
    bool add_unless(flag_set added, flag_set unless) noexcept {
        flag_set expected = load();
        while ((expected & unless) == 0) {
            if (word_.compare_exchange_weak(expected, expected | added, memory_order::acq_rel)) return true;
        }
        return false;
    }
    void remove(flag_set one) noexcept { word_.fetch_and(~one, memory_order::acq_rel); }

    // Each ends one use of the job and is called at most once. True: it was the last use.
    bool end_report() noexcept {
        const flag_set known = word_.fetch_or(reported, memory_order::acq_rel);
        return (known & (began | left)) != began;
    }
    bool leave() noexcept { return (word_.fetch_or(left, memory_order::acq_rel) & reported) != 0; }

  private:
    flag_set load() const noexcept { return word_.load(memory_order::acquire); }

    atomic<flag_set> word_{0};
};

}  // namespace ojs::detail
