// Cases: checkpoints, which a handler saves for the next run.
#pragma once

#include "claims.hpp"

namespace transport_contract {

// The checkpoint that a worker would pass to the handler.
inline std::string checkpoint_of(trial& t, test_worker& worker, const ojs::job& run) {
    const ojs::result<std::string> loaded = worker.wire->load_checkpoint(run.id, soon());
    if (loaded && !loaded->empty()) return *loaded;
    t.check(loaded || loaded.error().code == ojs::errc::unsupported,
            "the checkpoint cannot be loaded: " + test_worker::error_text(loaded));
    return json_member(run.meta_json, "checkpoint");
}

inline void check_checkpoint(trial& t, const std::string& got, const std::string& wanted) {
    t.check(wanted.empty() ? got.empty() : same_json(got, wanted),
            "the checkpoint is '" + got + "' and not '" + wanted + "'");
}

inline void keeps_checkpoints(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push();
    const ojs::job first = worker.claim_one();
    check_checkpoint(t, checkpoint_of(t, worker, first), "");
    const std::string last = "{\"at\":[2,\"\\u00e4\\u20ac\",12345678901234567890.125]}";
    for (const std::string& state : {std::string("1"), std::string("{\"at\":\"long\"}"), last}) {
        const auto saved = worker.wire->save_checkpoint({id, state}, soon());
        if (t.can.saves_checkpoints) {
            check_accepted(t, saved, "a checkpoint");
            check_checkpoint(t, checkpoint_of(t, worker, first), state);
        } else {
            t.check(!saved && saved.error().code == ojs::errc::unsupported,
                    "a checkpoint is answered " + test_worker::text_of(saved) + " and not unsupported");
            check_checkpoint(t, checkpoint_of(t, worker, first), "");
        }
    }
    worker.fail(id, true);
    const ojs::job second = other.claim_one(id);
    check_checkpoint(t, checkpoint_of(t, other, second), t.can.saves_checkpoints ? last : "");
    other.ack(id);
}

inline void checkpoint_travels(trial& t) {
    if (!t.can.passes_checkpoints) return t.leave_out("a FAIL carries no checkpoint");
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push("[]", 9);
    const ojs::job first = worker.claim_one();
    if (t.can.saves_checkpoints) {
        const auto saved = worker.wire->save_checkpoint({id, "\"older\""}, soon());
        check_accepted(t, saved, "a checkpoint");
    }
    const std::string state = "{\"page\":7}";
    worker.fail(id, true, state);
    const ojs::job second = other.claim_one();
    check_checkpoint(t, checkpoint_of(t, other, second), state);
    const std::string newer = "[\"requeued\"]";
    const auto requeued = other.try_fail(id, true, true, newer);
    check_accepted(t, requeued, "FAIL with requeue");
    const ojs::job third = worker.claim_one();
    check_checkpoint(t, checkpoint_of(t, worker, third), newer);
    worker.fail(id, true);  // without a checkpoint: the last one stays
    const ojs::job fourth = other.claim_one();
    check_checkpoint(t, checkpoint_of(t, other, fourth), newer);
    other.ack(id);
}

inline void no_checkpoint_of_others(trial& t) {
    test_worker worker(t);
    const std::string settled = worker.claim_new();
    worker.ack(settled);
    const std::string waits = t.push();
    for (const std::string& each : {settled, waits, std::string("contract-none")}) {
        const auto saved = worker.wire->save_checkpoint({each, "1"}, soon());
        const bool unsupported = !saved && saved.error().code == ojs::errc::unsupported;
        t.check(is_gone(saved) || unsupported || (!saved && saved.error().code == ojs::errc::rejected),
                "a checkpoint of a job that is not in flight is " + test_worker::text_of(saved));
    }
    const ojs::job got = worker.claim_one();
    check_checkpoint(t, checkpoint_of(t, worker, got), "");
    worker.ack(waits);
}

}  // namespace transport_contract
