// transport_contract: what every ojs::transport must do, as cases that any of them is put through. See docs/transports.md.
// Needs no test framework: run() returns what was broken. With doctest, contract/doctest.hpp has a short form.
#pragma once

#include <string>
#include <vector>

#include "contract/checkpoints.hpp"
#include "contract/claims.hpp"
#include "contract/content.hpp"
#include "contract/settling.hpp"
#include "contract/subject.hpp"
#include "contract/trial.hpp"
#include "contract/trouble.hpp"
#include "contract/whole_worker.hpp"

namespace transport_contract {

struct contract_case {
    const char* name;
    void (*body)(trial&);
};

inline const std::vector<contract_case>& cases() {
    static const std::vector<contract_case> all = {
        {"a job arrives whole, once, and is settled", arrives_whole},
        {"no work is an empty answer", no_work},
        {"no more jobs than were asked for", keeps_to_count},
        {"only the queues of the worker", keeps_to_queues},
        {"queues that change from one FETCH to the next", queues_change},
        {"a cancelled FETCH claims nothing", unwanted_claims_nothing},
        {"eight threads of two workers, and each job once", claimed_once_among_many},
        {"first in, first out", first_in_first_out},
        {"a job is settled once", settled_once},
        {"ACK and FAIL at the same time: one is accepted", settled_once_in_a_race},
        {"only the claimer settles a job", settles_only_claimed},
        {"a failed job comes back until its attempts are used up", retried_until_used_up},
        {"a job that must not be retried does not come back", not_retried},
        {"a job handed back is there at once", requeued_at_once},
        {"a late report of an earlier run is gone", late_report_is_gone},
        {"a heartbeat renews what is held, and nothing else", heartbeat_renews_held},
        {"checkpoints are kept, replaced and there in the next run", keeps_checkpoints},
        {"a checkpoint travels with the FAIL", checkpoint_travels},
        {"no checkpoint of a job that is not in flight", no_checkpoint_of_others},
        {"every call returns by its deadline", returns_by_deadline},
        {"a call that stands still and then continues", stands_still},
        {"a lost answer to ACK or FAIL counts once", lost_settlement},
        {"a lost answer to FETCH costs no job", lost_fetch},
        {"on_work_available: no call after the end", no_calls_after_the_end},
        {"on_work_available: a call after a push", announces_work},
        {"the jobs of a dead worker come back, those it settled do not", dead_worker},
        {"a lease that ran out: the late worker learns that the job is gone", lease_ran_out},
        {"args of every kind", odd_args},
        {"types and ids of every kind", odd_names},
        {"errors and results of every kind", odd_reports},
        {"a worker stops in the middle, another continues: each job as its handler decided", whole_worker},
    };
    return all;
}

struct verdict {
    std::vector<std::string> broken;  // what did not hold; empty: all did
    std::string left_out;             // why there was nothing to check, or not all of it
    int checks = 0;
};

inline verdict run(const contract_case& which, subject& on) {
    trial running(on);
    try {
        which.body(running);
    } catch (const given_up&) {  // it is noted
    } catch (const std::exception& why) {
        running.check(false, std::string("an exception: ") + why.what());
    }
    return {running.broken(), running.left_out(), running.checks()};
}

}  // namespace transport_contract
