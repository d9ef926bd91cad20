// Cases: the jobs of a FETCH.
#pragma once

#include "trial.hpp"

namespace transport_contract {
inline void check_args(trial& t, const ojs::job& got, const std::string& wanted) {
    const bool same = t.can.keeps_args_text ? got.args_json == wanted : same_json(got.args_json, wanted);
    t.check(same, "args arrive as " + got.args_json.substr(0, 200) + " and not as " + wanted.substr(0, 200));
}

inline void arrives_complete(trial& t) {
    test_worker worker(t);
    test_worker other(t);
    const new_job what = {"contract.whole", "[1,{\"a\":[true,null,\"b\"]},-2.5]", t.queue, 7, ""};
    const std::string id = t.on.push(what);
    t.state_is(id, job_state::waiting);
    const ojs::job got = worker.claim_one(id);
    t.equal(got.type, what.type, "the type");
    t.equal(got.queue, t.queue, "the queue");
    t.equal(got.attempt, 1, "the attempt");
    t.equal(got.max_attempts, 7, "max_attempts");
    check_args(t, got, what.args_json);
    t.state_is(id, job_state::running);
    t.equal(worker.fetch(10).size(), 0U, "the number of jobs for the same worker");
    t.equal(other.fetch(10).size(), 0U, "the number of jobs for another worker");
    worker.ack(id);
    t.state_is(id, job_state::completed);
    check_nothing_left(t, other);
}

inline void keeps_to_queues(trial& t) {
    const std::string first = t.new_name();
    const std::string others = t.new_name();
    const std::string third = t.new_name();
    test_worker worker(t, {first, third});
    test_worker other(t, {others});
    const std::string not_ours = t.push("[]", 3, others);
    const texts ours = {t.push("[]", 3, first), t.push("[]", 3, third)};
    const jobs got = worker.claim(2);
    t.equal(sorted(ids_of(got)), sorted(ours), "what was claimed of two queues");
    for (const ojs::job& each : got) t.equal(each.queue, each.id == ours.front() ? first : third, "the queue of a job");
    t.equal(worker.fetch(10).size(), 0U, "the number of jobs of a queue that was not asked for");
    t.state_is(not_ours, job_state::waiting);
    t.equal(other.claim_one().id, not_ours, "what the other worker claims");
    for (const std::string& each : ours) worker.ack(each);
    other.ack(not_ours);
}

inline void unwanted_claims_nothing(trial& t) {
    test_worker worker(t);
    const std::string id = t.push();
    for (int i = 0; i < 3; ++i) {
        ojs::fetch_request request = worker.asking(5);
        bool asked = false;
        request.should_send = [&asked] {
            asked = true;
            return false;
        };
        const ojs::result<jobs> got = worker.wire->fetch(request, soon());
        t.check(asked, "FETCH does not call should_send");
        t.check(!got && got.error().code == ojs::errc::cancelled,
                "FETCH continues although it is not wanted: " + text_of(got));
    }
    t.state_is(id, job_state::waiting);
    t.equal(worker.claim_one(id).attempt, 1, "the attempt");
    worker.ack(id);
}

inline void claimed_once_among_many(trial& t) {
    test_worker one(t);
    test_worker two(t);
    constexpr int count = 200;
    const texts pushed = t.push_many(count);
    std::mutex mutex;
    texts claimed;
    ojs::time_point end = soon();  // after the last job that came
    const auto is_over = [&] {
        const std::lock_guard<std::mutex> held(mutex);
        return claimed.size() >= count || ojs::steady_clock::now() >= end || t.has_broken();
    };
    test::at_once(8, [&](int number) {
        test_worker& worker = number % 2 == 0 ? one : two;
        while (!is_over()) {
            const ojs::result<jobs> got = worker.wire->fetch(worker.asking(3), soon());
            if (!t.check(got && got->size() <= 3, "FETCH among many: " + text_of(got))) return;
            {
                const std::lock_guard<std::mutex> held(mutex);
                for (const ojs::job& each : *got) claimed.push_back(each.id);
                if (!got->empty()) end = soon();
            }
            for (const ojs::job& each : *got) worker.ack(each);
        }
    });
    t.equal(sorted(claimed), sorted(pushed), "what was claimed");
    for (const std::string& each : pushed) t.state_is(each, job_state::completed);
    check_nothing_left(t, one);
}

inline void first_in_first_out(trial& t) {
    if (!t.can.first_in_first_out) return t.leave_out("the queue has another order");
    test_worker worker(t);
    const texts pushed = t.push_many(12);
    texts claimed;
    for (const std::size_t count : {1U, 3U, 2U, 6U}) {
        for (const ojs::job& each : worker.claim(count)) {
            claimed.push_back(each.id);
            worker.ack(each.id);
        }
    }
    t.equal(claimed, pushed, "the order");
}
}  // namespace transport_contract
