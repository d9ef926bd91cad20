// Cases: deadlines, what stands still, answers that are lost, workers that die, and news of work.
#pragma once

#include "settling.hpp"

namespace transport_contract {

// A call on a thread of its own, so that one which hangs ends the case and not the program.
template <class Call>
auto in_time(trial& t, const char* what, Call call) -> decltype(call()) {
    struct shared {
        std::vector<decltype(call())> answer;
        event ended;
    };
    const auto state = std::make_shared<shared>();
    std::thread calls([state, call] {
        state->answer.push_back(call());
        state->ended.set();
    });
    const bool ended = state->ended.wait();
    if (ended) {
        calls.join();
    } else {
        calls.detach();
    }
    t.require(ended, std::string(what) + " does not return by its deadline");
    return std::move(state->answer.front());
}

// An answer, or an error that says what may be true of one that came too late.
template <class T>
void check_late(trial& t, const char* what, const ojs::result<T>& answer) {
    const bool fits = answer || says_later(answer.error()) || answer.error().code == ojs::errc::unsupported;
    t.check(fits, std::string(what) + " with a short deadline fails: " + hands::error_text(answer));
}

inline void settles_late(trial& t, const hands& worker, const std::string& id, ojs::time_point deadline) {
    const auto wire = worker.wire;
    const auto save = [=] { return wire->save_checkpoint({id, "1"}, deadline); };
    const auto load = [=] { return wire->load_checkpoint(id, deadline); };
    const auto ack = [=] { return wire->ack({id, ""}, deadline); };
    check_late(t, "save_checkpoint", in_time(t, "save_checkpoint", save));
    check_late(t, "load_checkpoint", in_time(t, "load_checkpoint", load));
    check_late(t, "ACK", in_time(t, "ACK", ack));
}

inline void fails_late(trial& t, const hands& worker, const std::string& id, ojs::time_point deadline) {
    const auto wire = worker.wire;
    const auto fail = [=] {
        ojs::fail_request request;
        request.job_id = id;
        request.error = {"handler_error", "no", false, "{}"};
        return wire->fail(request, deadline);
    };
    check_late(t, "FAIL", in_time(t, "FAIL", fail));
}

inline void talks_late(trial& t, const hands& worker, ojs::time_point deadline) {
    const auto wire = worker.wire;
    const auto identity = std::make_shared<const ojs::worker_identity>(worker.identity);
    const auto beat = [=] {
        ojs::heartbeat_request request;
        request.worker = identity.get();
        request.state = "running";
        return wire->heartbeat(request, deadline);
    };
    const auto enlist = [=] { return wire->register_worker(*identity, deadline); };
    check_late(t, "the heartbeat", in_time(t, "the heartbeat", beat));
    check_late(t, "register_worker", in_time(t, "register_worker", enlist));
}

inline ojs::result<jobs> fetch_late(trial& t, const hands& worker, ojs::time_point deadline) {
    const auto wire = worker.wire;
    const auto identity = std::make_shared<const ojs::worker_identity>(worker.identity);
    const auto fetch = [=] {
        ojs::fetch_request request;
        request.worker = identity.get();
        request.count = 5;
        return wire->fetch(request, deadline);
    };
    ojs::result<jobs> got = in_time(t, "FETCH", fetch);
    check_late(t, "FETCH", got);
    return got;
}

// Says again what may not have been heard, as the worker does, and sees that it was heard once.
inline void settle_again(trial& t, hands& worker, const std::string& id, bool acks) {
    ojs::result<ojs::settled> again = ojs::error{};
    const bool answered = t.eventually([&] {
        again = acks ? worker.try_ack(id) : worker.try_fail(id, false);
        return again || !says_later(again.error());
    });
    t.check(answered && again, "what is said again is answered " + hands::text_of(again));
    t.state_is(id, acks ? job_state::completed : job_state::discarded);
}

inline void returns_by_deadline(trial& t) {
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    hands idle(t, {t.new_name()});
    for (const milliseconds ahead : {milliseconds(-1000), milliseconds(50)}) {
        const auto deadline = [&] { return ojs::steady_clock::now() + ahead; };
        const std::string id = t.push(queue);
        if (ahead.count() < 0) {
            const ojs::result<jobs> got = fetch_late(t, worker, deadline());
            if (got && !got->empty()) {
                t.equal(ids_of(*got), texts{id}, "what comes after the deadline");
                worker.hand_back(id);
            }
            t.state_is(id, job_state::waiting);  // an error before anything was sent claims nothing
        } else {
            static_cast<void>(fetch_late(t, idle, deadline()));
        }
        const ojs::job got = worker.claim_one();
        t.equal(got.id, id, "the id");
        talks_late(t, worker, deadline());
        settles_late(t, worker, id, deadline());
        settle_again(t, worker, id, true);
        const std::string failed = t.push(queue);
        t.equal(worker.claim_one().id, failed, "the id");
        fails_late(t, worker, failed, deadline());
        settle_again(t, worker, failed, false);
    }
    check_nothing_left(t, worker, queue);
}

class frozen {
  public:
    explicit frozen(subject& on) : on_(on), is_(on.freeze()) {}
    frozen(const frozen&) = delete;
    frozen& operator=(const frozen&) = delete;
    ~frozen() { thaw(); }
    explicit operator bool() const { return is_; }
    void thaw() {
        if (is_) on_.thaw();
        is_ = false;
    }

  private:
    subject& on_;
    bool is_;
};

inline void stands_still(trial& t) {
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    hands idle(t,
               {t.new_name()});  // a FETCH that was sent may be carried out later: there is nothing to claim
    hands patient(t, {t.new_name()});
    t.push_many(queue, 2);
    const texts ids = ids_of(worker.claim(2));
    idle.fetch();
    patient.fetch();
    event sends;
    std::unique_ptr<threads> waiting;
    {
        frozen still(t.on);
        if (!still) return t.leave_out("nothing can be made to stand still");
        // Nobody waits for a call of somebody else, as one with more time.
        waiting = std::make_unique<threads>(1, [&](int) {
            ojs::fetch_request request = patient.asking(1);
            request.still_wanted = [&sends] {
                sends.set();
                return true;
            };
            static_cast<void>(patient.wire->fetch(request, ojs::deadline_after(guard * 3)));
        });
        static_cast<void>(sends.wait());
        const auto deadline = [] { return ojs::deadline_after(milliseconds(100)); };
        t.check(!fetch_late(t, idle, deadline()), "FETCH is answered by what stands still");
        settles_late(t, worker, ids[0], deadline());
        fails_late(t, worker, ids[1], deadline());
        talks_late(t, worker, deadline());
        const auto wire = worker.wire;
        const std::string id = ids[0];
        const auto ack = [=] { return wire->ack({id, ""}, ojs::deadline_after(milliseconds(100))); };
        t.check(!in_time(t, "ACK", ack), "ACK is answered by what stands still");
    }
    waiting->join();
    settle_again(t, worker, ids[0], true);
    settle_again(t, worker, ids[1], false);
    check_nothing_left(t, worker, queue);
}

class lossy {
  public:
    lossy(subject& on, int answers) : on_(on), is_(on.lose_answers(answers)) {}
    lossy(const lossy&) = delete;
    lossy& operator=(const lossy&) = delete;
    ~lossy() {
        if (is_) on_.lose_answers(0);
    }
    explicit operator bool() const { return is_; }

  private:
    subject& on_;
    const bool is_;
};
inline constexpr int all_answers = 1000000;

inline void lost_settlement(trial& t) {
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    for (const int lost : {1, all_answers}) {
        for (const bool acks : {true, false}) {
            const std::string id = t.push(queue);
            t.equal(worker.claim_one().id, id, "the id");
            {
                const lossy wire(t.on, lost);
                if (!wire) {
                    worker.ack(id);
                    return t.leave_out("no answer can be lost");
                }
                const auto said = acks ? worker.try_ack(id) : worker.try_fail(id, false);
                t.check(said || says_later(said.error()),
                        "with its answer lost, it is answered " + hands::text_of(said));
                if (lost == all_answers)
                    t.check(!said, "nothing was heard, and it is answered " + hands::text_of(said));
            }
            settle_again(t, worker, id, acks);
        }
    }
    const std::string retried = t.push(queue);
    t.equal(worker.claim_one().id, retried, "the id");
    {
        const lossy wire(t.on, 1);
        const auto said = worker.try_fail(retried, true);
        t.check(said || says_later(said.error()), "FAIL is answered " + hands::text_of(said));
    }
    static_cast<void>(
        worker.try_fail(retried, true));  // heard by now, whatever was said: a repetition is gone
    t.equal(worker.claim_one().attempt, 2, "the attempt after one FAIL that was said twice");
    worker.ack(retried);
    check_nothing_left(t, worker, queue);
}

// Jobs that come back by themselves: by their lease, or because their worker is dead.
inline bool come_back(trial& t) {
    if (!t.can.jobs_outlive_worker) t.leave_out("jobs do not outlive their worker");
    return t.can.jobs_outlive_worker;
}

inline void lost_fetch(trial& t) {
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    worker.identity.visibility_timeout = t.can.lease.count() > 0 ? t.can.lease : milliseconds(long_lease);
    texts pushed = t.push_many(queue, 3);
    {
        const lossy wire(t.on, 1);
        if (!wire) return t.leave_out("no answer can be lost");
        const auto got = worker.wire->fetch(worker.asking(1), soon());
        t.check(!got, "a FETCH whose answer was lost is sent again, and brings " +
                          std::to_string(got ? got->size() : 0) + " jobs");
        if (!got) t.check(says_later(got.error()), "the FETCH fails: " + hands::error_text(got));
    }
    if (!come_back(t)) return;
    if (t.can.lease.count() == 0) worker.kill();
    hands later(t, {queue});
    texts claimed;
    int lost = 0;
    for (const ojs::job& each : later.claim(3)) {
        claimed.push_back(each.id);
        lost += each.attempt == 2 ? 1 : 0;
        t.check(each.attempt <= 2, "the attempt is " + std::to_string(each.attempt));
        later.ack(each.id);
    }
    t.equal(sorted(claimed), sorted(pushed), "what was claimed");
    if (t.can.counts_lost_runs)
        t.equal(lost, 1, "the number of jobs that had been claimed by the lost FETCH");
    check_nothing_left(t, later, queue);
}

// With a lease so short that the first may be over before the last begins.
inline void claim_each(trial& t, hands& worker, const texts& wanted) {
    std::set<std::string> claimed;
    const bool all = t.eventually([&] {
        for (const ojs::job& each : worker.fetch(wanted.size())) claimed.insert(each.id);
        return claimed.size() >= wanted.size();
    });
    t.require(all, "not all jobs come");
    t.equal(texts(claimed.begin(), claimed.end()), sorted(wanted), "what was claimed");
}

inline void dead_worker(trial& t) {
    if (!come_back(t)) return;
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    t.push_many(queue, 3);
    const texts settled = ids_of(worker.claim(3));
    worker.ack(settled[0]);
    worker.fail(settled[1], false);
    worker.hand_back(settled[2]);
    t.equal(worker.claim_one().id, settled[2], "the id");
    worker.ack(settled[2]);
    if (t.can.lease.count() > 0) worker.identity.visibility_timeout = t.can.lease;
    const texts unsettled = t.push_many(queue, 3);
    claim_each(t, worker, unsettled);
    worker.kill();
    hands later(t, {queue});
    const jobs back = later.claim(3);
    t.equal(sorted(ids_of(back)), sorted(unsettled), "what comes back");
    for (const ojs::job& each : back) {
        if (t.can.counts_lost_runs) t.check(each.attempt >= 2, "the run of the dead worker is not counted");
        later.ack(each.id);
    }
    check_nothing_left(t, later, queue);
    t.state_is(settled[0], job_state::completed);
    t.state_is(settled[1], job_state::discarded);
    t.state_is(settled[2], job_state::completed);
}

inline void lease_ran_out(trial& t) {
    if (t.can.lease.count() == 0) return t.leave_out("claims have no lease");
    const std::string queue = t.new_name();
    hands late(t, {queue});
    hands other(t, {queue});
    late.identity.visibility_timeout = t.can.lease;
    const texts pushed = t.push_many(queue, 2);
    claim_each(t, late, pushed);
    t.equal(sorted(ids_of(other.claim(2))), sorted(pushed), "what comes back");
    check_gone(t, late.try_ack(pushed[0]), "ACK after the lease");
    check_gone(t, late.try_fail(pushed[1], false), "FAIL after the lease");
    for (const std::string& each : pushed) {
        t.state_is(each, job_state::running);
        other.ack(each);
        t.state_is(each, job_state::completed);
    }
    check_nothing_left(t, other, queue);
}

inline void no_calls_after_the_end(trial& t) {
    struct listener {
        std::atomic<bool> ended{false};
        std::atomic<int> late{0};
    };
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    std::atomic<bool> over{false};
    std::mutex mutex;
    texts claimed;
    texts pushed;
    {
        threads fetching(4, [&](int) {
            while (!over && !t.has_broken()) {
                const ojs::result<jobs> got = worker.wire->fetch(worker.asking(1), soon());
                if (!t.check(got.has_value(), "FETCH fails: " + hands::error_text(got))) return;
                for (const ojs::job& each : *got) {
                    worker.ack(each.id);
                    const std::lock_guard<std::mutex> held(mutex);
                    claimed.push_back(each.id);
                }
                if (got->empty()) std::this_thread::sleep_for(milliseconds(1));
            }
        });
        for (int round = 0; round < 25; ++round) {
            const auto told = std::make_shared<listener>();
            worker.wire->on_work_available([told] { told->late += told->ended ? 1 : 0; });
            pushed.push_back(t.push(queue));
            worker.wire->on_work_available(nullptr);
            told->ended = true;
            pushed.push_back(t.push(queue));
            worker.wire->on_work_available(nullptr);  // and once more
            t.equal(told->late.load(), 0, "the number of calls after the end");
        }
        const auto is_done = [&] {
            const std::lock_guard<std::mutex> held(mutex);
            return claimed.size() >= pushed.size();
        };
        t.check(t.eventually(is_done), "not all jobs come");
        over = true;
    }
    t.equal(sorted(claimed), sorted(pushed), "what was claimed");
}

inline void announces_work(trial& t) {
    if (!t.can.announces_work) return t.leave_out("the worker polls");
    struct bell {
        std::mutex mutex;
        std::condition_variable rung;
        int times = 0;
    };
    const auto told = std::make_shared<bell>();
    const std::string queue = t.new_name();
    hands worker(t, {queue});
    worker.wire->on_work_available([told] {
        const std::lock_guard<std::mutex> held(told->mutex);
        ++told->times;
        told->rung.notify_all();
    });
    worker.fetch();
    int heard = 0;
    for (int round = 0; round < 4; ++round) {
        const std::string id = t.push(queue);
        // A worker's way: it asks when it is told to, and else not.
        for (jobs got; got.empty(); got = worker.fetch()) {
            std::unique_lock<std::mutex> held(told->mutex);
            t.require(told->rung.wait_for(held, guard, [&] { return told->times > heard; }),
                      "nobody tells of the work");
            heard = told->times;
        }
        worker.ack(id);
    }
    worker.wire->on_work_available(nullptr);
}

}  // namespace transport_contract
