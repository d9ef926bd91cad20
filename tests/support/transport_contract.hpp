// transport_contract: the requirements of every ojs::transport as test cases. See docs/transports.md. Needs no test
// framework: run() returns the failures. With doctest, contract/doctest.hpp has a short form.
#pragma once

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
        {"a job arrives complete, once, and is settled", arrives_complete},
        {"only the queues of the worker", keeps_to_queues},
        {"a FETCH that is no longer wanted claims nothing", unwanted_claims_nothing},
        {"eight threads of two workers, and each job once", claimed_once_among_many},
        {"first in, first out", first_in_first_out},
        {"a job is settled once", settled_once},
        {"ACK and FAIL at the same time: one is accepted", settled_once_in_a_race},
        {"a worker settles only what it has claimed", settles_only_claimed},
        {"a failed job comes back until its attempts are used up", retried_until_used_up},
        {"a requeued job is available at once", requeued_at_once},
        {"a late report of an earlier run is gone", late_report_is_gone},
        {"a heartbeat renews claimed jobs, and no others", heartbeat_renews_held},
        {"a checkpoint travels with the FAIL", checkpoint_travels},
        {"every call returns by its deadline", returns_by_deadline},
        {"a backend that freezes and continues", backend_freezes},
        {"an ACK or FAIL whose response is lost counts once", lost_settlement_responses},
        {"a FETCH whose response is lost loses no job", lost_fetch_response},
        {"on_work_available is not called after it is reset", no_call_after_reset},
        {"on_work_available is called after a push", calls_on_work_available},
        {"the unsettled jobs of a dead worker come back", dead_worker},
        {"after its lease a worker's reports are gone; a claim without one says so", lease_expired},
        {"args of every kind", odd_args},
        {"types and ids of every kind", odd_names},
        {"errors and results of every kind", odd_reports},
        {"one worker stops, another continues: each job ends as its handler decided", whole_worker},
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
    } catch (const case_aborted&) {  // it is noted
    } catch (const std::exception& why) {
        running.check(false, std::string("an exception: ") + why.what());
    }
    return {running.broken(), running.left_out(), running.checks()};
}
}  // namespace transport_contract
