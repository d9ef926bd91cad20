// Cases: ACK and FAIL, their effect on the job, and heartbeats.
#pragma once

#include "claims.hpp"

namespace transport_contract {
inline void settled_once(trial& t) {
    test_worker worker(t);
    for (const bool first_acks : {true, false}) {
        const std::string id = worker.claim_new();
        first_acks ? worker.ack(id) : worker.fail(id, false);
        const std::string after = first_acks ? " after the ACK" : " after the FAIL";
        for (int i = 0; i < 2; ++i) {
            check_gone(t, worker.try_ack(id), "ACK" + after);
            check_gone(t, worker.try_fail(id, true), "FAIL" + after);
            check_gone(t, worker.try_fail(id, true, true), "FAIL with requeue" + after);
        }
        t.state_is(id, first_acks ? job_state::completed : job_state::discarded);
    }
    check_nothing_left(t, worker);
}

inline void settled_once_in_a_race(trial& t) {
    test_worker worker(t);
    constexpr int rounds = 20;
    t.push_many(rounds);
    for (int i = 0; i < rounds; ++i) {
        const std::string id = worker.claim_one().id;
        ojs::result<ojs::settle_result> acked = ojs::error{};
        ojs::result<ojs::settle_result> failed = ojs::error{};
        test::at_once(2, [&](int number) {
            (number == 0 ? acked : failed) = number == 0 ? worker.try_ack(id) : worker.try_fail(id, false);
        });
        t.check(acked && failed && is_accepted(acked) != is_accepted(failed),
                "ACK is " + text_of(acked) + ", FAIL is " + text_of(failed));
        t.state_is(id, is_accepted(acked) ? job_state::completed : job_state::discarded);
    }
    check_nothing_left(t, worker);
}

inline void settles_only_claimed(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push();
    for (const std::string& each : {id, std::string("contract-none"), std::string("0")}) {
        const auto acked = worker.try_ack(each);
        const auto failed = worker.try_fail(each, false);
        t.check(is_refused(acked), "ACK of a job that was not claimed is " + text_of(acked));
        t.check(is_refused(failed), "FAIL of a job that was not claimed is " + text_of(failed));
    }
    t.state_is(id, job_state::waiting);
    const ojs::job got = worker.claim_one(id);
    t.equal(got.attempt, 1, "the attempt");
    if (t.can.knows_holder) {
        check_gone(t, other.try_ack(id), "ACK by a worker that has not claimed it");
        check_gone(t, other.try_fail(id, false), "FAIL by a worker that has not claimed it");
        t.state_is(id, job_state::running);
    }
    worker.ack(id);
    t.state_is(id, job_state::completed);
}

inline void retried_until_used_up(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const std::string once = worker.claim_new("[1]", 1);
    worker.fail(once, true);
    t.state_is(once, job_state::discarded);
    const std::string thrice = t.push("[3]", 3);
    for (const int attempt : {1, 2, 3}) {
        test_worker& runs_it = attempt == 2 ? other : worker;
        const ojs::job got = runs_it.claim_one(thrice);
        t.equal(got.attempt, attempt, "the attempt");
        t.equal(got.max_attempts, 3, "max_attempts");
        check_args(t, got, "[3]");
        runs_it.fail(got.id, true);
        t.state_is(got.id, attempt < 3 ? job_state::waiting : job_state::discarded);
    }
    const std::string in_the_end = worker.claim_new("[2]", 2);
    worker.fail(in_the_end, true);
    t.equal(worker.claim_one().attempt, 2, "the attempt");
    worker.ack(in_the_end);
    t.state_is(in_the_end, job_state::completed);
    check_nothing_left(t, worker);
}

inline void requeued_at_once(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const std::string id = t.push("[]", t.can.requeue_spares_attempt ? 1 : 9);
    for (const int times : {1, 2, 3}) {
        test_worker& runs_it = times == 2 ? other : worker;
        const ojs::job got = runs_it.claim_one(id, false);
        if (t.can.requeue_spares_attempt) t.equal(got.attempt, 1, "the attempt of a requeued job");
        runs_it.hand_back(id);
        t.state_is(id, job_state::waiting);
    }
    const ojs::job got = worker.claim_one("", false);
    if (t.can.requeue_spares_attempt) t.equal(got.attempt, 1, "the attempt of a requeued job");
    worker.fail(id, true);
    t.state_is(id, t.can.requeue_spares_attempt ? job_state::discarded : job_state::waiting);
}

inline void late_report_is_gone(trial& t) {
    if (!t.can.knows_holder) return t.leave_out("the queue does not know which worker has claimed a job");
    test_worker early(t);
    test_worker later(t);
    const std::string id = early.claim_new();
    early.fail(id, true);
    t.equal(later.claim_one().id, id, "the id");
    check_gone(t, early.try_ack(id), "ACK of a run that is over");
    check_gone(t, early.try_fail(id, false), "FAIL of a run that is over");
    t.state_is(id, job_state::running);
    later.ack(id);
    t.state_is(id, job_state::completed);
}

inline void heartbeat_renews_held(trial& t) {
    test_worker worker(t);
    t.push_many(2);
    const texts claimed = ids_of(worker.claim(2));
    worker.ack(claimed[0]);
    const std::string waits = t.push();
    ojs::heartbeat_request request = worker.beating({claimed[0], claimed[1], waits, "contract-none"});
    const auto got = worker.wire->heartbeat(request, soon());
    t.require(got.has_value(), "the heartbeat fails: " + text_of(got));
    t.equal(got->jobs_extended, texts{claimed[1]}, "what the heartbeat renews");
    t.check(got->directive == ojs::directive::none, "the heartbeat asks the worker to stop");
    request.should_send = [] { return false; };
    const auto unwanted = worker.wire->heartbeat(request, soon());
    t.check(unwanted || unwanted.error().code == ojs::errc::cancelled,
            "a heartbeat that is no longer wanted: " + text_of(unwanted));
    worker.ack(claimed[1]);
    request = worker.beating({});
    request.is_last = true;
    const auto last = worker.wire->heartbeat(request, soon());
    t.check(last.has_value(), "the last heartbeat fails: " + text_of(last));
}
}  // namespace transport_contract
