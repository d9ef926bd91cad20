// Cases: deadlines, frozen backends, lost responses, dead workers, and calls of on_work_available().
#pragma once

#include <future>

#include "settling.hpp"

namespace transport_contract {
// Makes a call on its own thread, so that a call that hangs ends the case and not the program. Its response may be a success,
// or an error that fits a late one.
template <class Call>
auto call_late(trial& t, const std::string& what, Call call) {
    std::packaged_task<decltype(call())()> task(call);
    auto response = task.get_future();
    std::thread calls(std::move(task));
    const bool ended = response.wait_for(guard) == std::future_status::ready;
    ended ? calls.join() : calls.detach();
    t.require(ended, what + " does not return by its deadline");
    auto got = response.get();
    const bool fits = got || is_retryable(got.error()) || got.error().code == ojs::errc::unsupported;
    t.check(fits, what + " with a short deadline fails: " + text_of(got));
    return got;
}

inline ojs::result<jobs> fetch_by(trial& t, const test_worker& worker, milliseconds timeout) {
    return call_late(t, "FETCH", [=, wire = worker.wire, identity = worker.identity] {
        return wire->fetch({{&identity, nullptr}, 5, {}}, ojs::steady_clock::now() + timeout);
    });
}

// Every other call of a worker that has two jobs. True: the ACK was answered.
inline bool send_others_by(trial& t, test_worker& worker, const std::string& acked, const std::string& failed,
                           milliseconds timeout) {
    const auto deadline = [timeout] { return ojs::steady_clock::now() + timeout; };
    const auto sends = [&t](const char* what, const auto& call) { static_cast<void>(call_late(t, what, call)); };
    const auto wire = worker.wire;
    const ojs::worker_identity identity = worker.identity;
    sends("the heartbeat", [=] {
        return wire->heartbeat({{&identity, nullptr}, "running", {}, {}, false}, deadline());
    });
    const ojs::job_error why = {"handler_error", "no", false, "{}"};
    sends("FAIL", [=, request = worker.failing(failed, why)] { return wire->fail(request, deadline()); });
    return call_late(t, "ACK", [=, request = worker.acking(acked, "")] { return wire->ack(request, deadline()); })
        .has_value();
}

// Repeats a report that may not have arrived, as the worker does, and checks that it counts once.
inline void repeat_settlement(trial& t, test_worker& worker, const std::string& id, bool acks) {
    ojs::result<ojs::settle_result> again = ojs::error{};
    const bool answered = t.eventually([&] {
        again = acks ? worker.try_ack(id) : worker.try_fail(id, false);
        return again || !is_retryable(again.error());
    });
    t.check(answered && again, "what is said again is answered " + text_of(again));
    t.state_is(id, acks ? job_state::completed : job_state::discarded);
}

inline void returns_by_deadline(trial& t) {
    test_worker worker(t);
    test_worker idle(t, {t.new_name()});
    for (const milliseconds timeout : {milliseconds(-1000), milliseconds(50)}) {
        const std::string id = t.push();
        if (timeout.count() < 0) {
            const ojs::result<jobs> got = fetch_by(t, worker, timeout);
            if (got && !got->empty()) {
                t.equal(ids_of(*got), texts{id}, "what comes after the deadline");
                worker.hand_back(id);
            }
            t.state_is(id, job_state::waiting);  // an error before anything was sent claims nothing
        } else {
            static_cast<void>(fetch_by(t, idle, timeout));
        }
        worker.claim_one(id);
        const std::string failed = worker.claim_new();
        send_others_by(t, worker, id, failed, timeout);
        repeat_settlement(t, worker, id, true);
        repeat_settlement(t, worker, failed, false);
    }
    check_nothing_left(t, worker);
}

// Until it is destroyed the backend is frozen, or loses its next responses; null: not possible.
using disturbed = std::unique_ptr<subject, void (*)(subject*)>;
inline disturbed frozen(subject& on) {
    return {on.freeze() ? &on : nullptr, [](subject* it) { it->thaw(); }};
}
inline disturbed losing_responses(subject& on, int responses) {
    return {on.lose_answers(responses) ? &on : nullptr, [](subject* it) { it->lose_answers(0); }};
}
inline constexpr int all_responses = 1000000;

inline void backend_freezes(trial& t) {
    test_worker worker(t);
    test_worker idle(t, {t.new_name()});  // a late FETCH finds nothing to claim
    test_worker patient(t, {t.new_name()});
    t.push_many(2);
    const texts ids = ids_of(worker.claim(2));
    idle.fetch();
    patient.fetch();
    test::event sends;
    std::future<void> waiting;
    {
        const disturbed still = frozen(t.on);
        if (!still) return t.leave_out("nothing can be made to stand still");
        // No call waits for a longer call of another thread.
        waiting = std::async(std::launch::async, [&] {
            ojs::fetch_request request = patient.asking(1);
            request.should_send = [&sends] {
                sends.set();
                return true;
            };
            static_cast<void>(patient.wire->fetch(request, ojs::deadline_after(guard * 3)));
        });
        static_cast<void>(sends.wait());
        const milliseconds timeout(100);
        t.check(!fetch_by(t, idle, timeout), "FETCH is answered by what stands still");
        t.check(!send_others_by(t, worker, ids[0], ids[1], timeout), "ACK is answered by what stands still");
    }
    waiting.get();
    repeat_settlement(t, worker, ids[0], true);
    repeat_settlement(t, worker, ids[1], false);
    check_nothing_left(t, worker);
}

inline void lost_settlement_responses(trial& t) {
    test_worker worker(t);
    for (const int lost : {1, all_responses}) {
        for (const bool acks : {true, false}) {
            const std::string id = worker.claim_new();
            {
                const disturbed wire = losing_responses(t.on, lost);
                if (!wire) {
                    worker.ack(id);
                    return t.leave_out("no answer can be lost");
                }
                const auto said = acks ? worker.try_ack(id) : worker.try_fail(id, false);
                t.check(said || is_retryable(said.error()), "with its answer lost, it is answered " + text_of(said));
                if (lost == all_responses) t.check(!said, "nothing was heard, and it is answered " + text_of(said));
            }
            repeat_settlement(t, worker, id, acks);
        }
    }
    const std::string retried = worker.claim_new();
    {
        const disturbed wire = losing_responses(t.on, 1);
        const auto said = worker.try_fail(retried, true);
        t.check(said || is_retryable(said.error()), "FAIL is answered " + text_of(said));
    }
    static_cast<void>(worker.try_fail(retried, true));  // received by now in any case: a repetition is gone
    t.equal(worker.claim_one().attempt, 2, "the attempt after one FAIL that was said twice");
    worker.ack(retried);
    check_nothing_left(t, worker);
}

inline void lost_fetch_response(trial& t) {
    test_worker worker(t);
    worker.identity.visibility_timeout = t.can.lease.count() > 0 ? t.can.lease : milliseconds(long_lease);
    texts pushed = t.push_many(3);
    {
        const disturbed wire = losing_responses(t.on, 1);
        if (!wire) return t.leave_out("no answer can be lost");
        const auto got = worker.wire->fetch(worker.asking(1), soon());
        t.check(!got, "a FETCH whose answer was lost is sent again, and brings " +
                          std::to_string(got ? got->size() : 0) + " jobs");
        if (!got) t.check(is_retryable(got.error()), "the FETCH fails: " + text_of(got));
    }
    if (!t.can.jobs_outlive_worker) return t.leave_out("jobs do not outlive their worker");
    if (t.can.lease.count() == 0) worker.kill();
    test_worker later(t);
    texts claimed;
    int lost = 0;
    for (const ojs::job& each : later.claim(3)) {
        claimed.push_back(each.id);
        lost += each.attempt == 2 ? 1 : 0;
        t.check(each.attempt <= 2, "the attempt is " + std::to_string(each.attempt));
        later.ack(each.id);
    }
    t.equal(sorted(claimed), sorted(pushed), "what was claimed");
    if (t.can.counts_lost_runs) t.equal(lost, 1, "the number of jobs that had been claimed by the lost FETCH");
    check_nothing_left(t, later);
}

// Claims with a lease so short that the first may end before the last begins.
inline void claim_each(trial& t, test_worker& worker, const texts& wanted) {
    std::set<std::string> claimed;
    const bool all = t.eventually([&] {
        for (const ojs::job& each : worker.fetch(wanted.size())) claimed.insert(each.id);
        return claimed.size() >= wanted.size();
    });
    t.require(all, "not all jobs come");
    t.equal(texts(claimed.begin(), claimed.end()), sorted(wanted), "what was claimed");
}

inline void dead_worker(trial& t) {
    if (!t.can.jobs_outlive_worker) return t.leave_out("jobs do not outlive their worker");
    test_worker worker(t);
    t.push_many(3);
    const texts settled = ids_of(worker.claim(3));
    worker.ack(settled[0]);
    worker.fail(settled[1], false);
    worker.hand_back(settled[2]);
    t.equal(worker.claim_one().id, settled[2], "the id");
    worker.ack(settled[2]);
    if (t.can.lease.count() > 0) worker.identity.visibility_timeout = t.can.lease;
    const texts unsettled = t.push_many(3);
    claim_each(t, worker, unsettled);
    worker.kill();
    test_worker later(t);
    const jobs back = later.claim(3);
    t.equal(sorted(ids_of(back)), sorted(unsettled), "what comes back");
    for (const ojs::job& each : back) {
        if (t.can.counts_lost_runs) t.check(each.attempt >= 2, "the run of the dead worker is not counted");
        later.ack(each.id);
    }
    check_nothing_left(t, later);
    t.state_is(settled[0], job_state::completed);
    t.state_is(settled[1], job_state::discarded);
    t.state_is(settled[2], job_state::completed);
}

inline void lease_expired(trial& t) {
    test_worker late(t);
    if (t.can.lease.count() == 0) {
        const ojs::job held = late.claim_one(t.push_many(1)[0]);
        late.ack(held.id);
        t.check(held.visibility_timeout == ojs::no_limit, "a claim has no lease, but the worker drops it after one");
        return;
    }
    test_worker other(t);
    late.identity.visibility_timeout = t.can.lease;
    const texts pushed = t.push_many(2);
    claim_each(t, late, pushed);
    t.equal(sorted(ids_of(other.claim(2))), sorted(pushed), "what comes back");
    check_gone(t, late.try_ack(pushed[0]), "ACK after the lease");
    check_gone(t, late.try_fail(pushed[1], false), "FAIL after the lease");
    for (const std::string& each : pushed) {
        t.state_is(each, job_state::running);
        other.ack(each);
        t.state_is(each, job_state::completed);
    }
    check_nothing_left(t, other);
}

inline void no_call_after_reset(trial& t) {
    test_worker worker(t);
    std::atomic<bool> over{false};
    const auto fetch = [&] {
        while (!over && !t.has_broken()) {
            const ojs::result<jobs> got = worker.wire->fetch(worker.asking(1), soon());
            if (!t.check(got.has_value(), "FETCH fails: " + text_of(got))) return;
            for (const ojs::job& each : *got) worker.ack(each);
            if (got->empty()) std::this_thread::sleep_for(milliseconds(1));
        }
    };
    std::future<void> fetching[4];
    for (std::future<void>& each : fetching) each = std::async(std::launch::async, fetch);
    for (int round = 0; round < 25; ++round) {
        const auto ended = std::make_shared<std::atomic<bool>>(false);
        const auto late = std::make_shared<std::atomic<int>>(0);
        worker.wire->on_work_available([=] { *late += *ended ? 1 : 0; });
        t.push();
        worker.wire->on_work_available(nullptr);
        *ended = true;
        t.push();
        worker.wire->on_work_available(nullptr);  // and once more
        t.equal(late->load(), 0, "the number of calls after the end");
    }
    over = true;
}

inline void calls_on_work_available(trial& t) {
    if (!t.can.tells_of_work) return t.leave_out("the worker polls");
    const auto calls = std::make_shared<test::counter>();
    test_worker worker(t);
    worker.wire->on_work_available([calls] { calls->add(); });
    worker.fetch();
    int seen = 0;
    for (int round = 0; round < 4; ++round) {
        const std::string id = t.push();
        // Like a worker: it fetches only after a call.
        for (jobs got; got.empty(); got = worker.fetch()) {
            t.require(calls->wait_for(seen + 1), "on_work_available is not called");
            seen = calls->count();
        }
        worker.ack(id);
    }
    worker.wire->on_work_available(nullptr);
}
}  // namespace transport_contract
