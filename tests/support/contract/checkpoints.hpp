// Cases: checkpoints, which a handler saves for the next run.
#pragma once

#include "claims.hpp"

namespace transport_contract {
// What the worker would pass to the handler.
inline void check_checkpoint(trial& t, const ojs::job& run, const std::string& wanted) {
    const std::string got(ojs::json_view(run.meta_json).member("checkpoint").text());
    t.check(wanted.empty() ? got.empty() : same_json(got, wanted),
            "the checkpoint is '" + got + "' and not '" + wanted + "'");
}

inline void checkpoint_travels(trial& t) {
    if (!t.can.passes_checkpoints) return t.leave_out("a FAIL carries no checkpoint");
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push("[]", 9);
    check_checkpoint(t, worker.claim_one(), "");
    const std::string state = "{\"at\":[2,\"\\u00e4\\u20ac\",12345678901234567890.125]}";
    worker.fail(id, true, state);
    check_checkpoint(t, other.claim_one(), state);
    const std::string newer = "[\"requeued\"]";
    check_accepted(t, other.try_fail(id, true, true, newer), "FAIL with requeue");
    check_checkpoint(t, worker.claim_one(), newer);
    worker.fail(id, true);  // without a checkpoint: the last one stays
    check_checkpoint(t, other.claim_one(), newer);
    other.ack(id);
}
}  // namespace transport_contract
