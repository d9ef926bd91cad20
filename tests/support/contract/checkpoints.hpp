// Cases: checkpoints, which a handler saves for the next run.
#pragma once

#include "claims.hpp"

namespace transport_contract {

inline bool is_unsupported(const ojs::result<ojs::settle_result>& answer) {
    return !answer && answer.error().code == ojs::errc::unsupported;
}

// What the worker would pass to the handler.
inline void check_checkpoint(trial& t, test_worker& worker, const ojs::job& run, const std::string& wanted) {
    const ojs::result<std::string> loaded = worker.wire->load_checkpoint(run.id, soon());
    t.check(loaded || loaded.error().code == ojs::errc::unsupported,
            "the checkpoint cannot be loaded: " + text_of(loaded));
    std::string got = loaded.value_or("");
    if (got.empty()) got = ojs::json_view(run.meta_json).member("checkpoint").text();
    t.check(wanted.empty() ? got.empty() : same_json(got, wanted),
            "the checkpoint is '" + got + "' and not '" + wanted + "'");
}

inline void keeps_checkpoints(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push();
    const ojs::job first = worker.claim_one();
    check_checkpoint(t, worker, first, "");
    const std::string last = "{\"at\":[2,\"\\u00e4\\u20ac\",12345678901234567890.125]}";
    for (const std::string& state : {std::string("1"), last}) {
        const auto saved = worker.wire->save_checkpoint({id, state}, soon());
        t.check(t.can.saves_checkpoints ? is_accepted(saved) : is_unsupported(saved),
                "a checkpoint is answered " + text_of(saved));
    }
    worker.fail(id, true);
    check_checkpoint(t, other, other.claim_one(id), t.can.saves_checkpoints ? last : "");
    other.ack(id);
    const auto late = other.wire->save_checkpoint({id, "1"}, soon());
    t.check(is_refused(late) || is_unsupported(late),
            "a checkpoint of a job that is not in flight is " + text_of(late));
}

inline void checkpoint_travels(trial& t) {
    if (!t.can.passes_checkpoints) return t.leave_out("a FAIL carries no checkpoint");
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push("[]", 9);
    worker.claim_one();
    if (t.can.saves_checkpoints)
        check_accepted(t, worker.wire->save_checkpoint({id, "\"older\""}, soon()), "a checkpoint");
    const std::string state = "{\"page\":7}";
    worker.fail(id, true, state);
    check_checkpoint(t, other, other.claim_one(), state);
    const std::string newer = "[\"requeued\"]";
    check_accepted(t, other.try_fail(id, true, true, newer), "FAIL with requeue");
    check_checkpoint(t, worker, worker.claim_one(), newer);
    worker.fail(id, true);  // without a checkpoint: the last one stays
    check_checkpoint(t, other, other.claim_one(), newer);
    other.ack(id);
}

}  // namespace transport_contract
