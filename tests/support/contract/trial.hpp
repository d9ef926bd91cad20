// Used by the cases: collected checks, and a worker as its transport sees it.
#pragma once

#include <functional>
#include <set>

#include "../events.hpp"
#include "canonical_json.hpp"
#include "subject.hpp"

namespace transport_contract {
using std::chrono::milliseconds;
using jobs = std::vector<ojs::job>;
using texts = std::vector<std::string>;

inline constexpr std::chrono::seconds guard = test::hang_guard;
inline constexpr std::chrono::minutes long_lease{60};

inline ojs::time_point soon() { return ojs::deadline_after(guard); }

struct case_aborted {};

// The case that runs. Thread-safe.
class trial {
  public:
    explicit trial(subject& of) : on(of), can(of.can()) {}

    bool check(bool holds, const std::string& what) {
        const std::lock_guard<std::mutex> held(mutex_);
        ++checks_;
        if (holds) return true;
        if (broken_.size() < max_listed) broken_.push_back(what);
        return false;
    }
    void require(bool holds, const std::string& what) {
        if (!check(holds, what)) throw case_aborted();
    }
    template <class Got, class Wanted>
    void equal(const Got& got, const Wanted& wanted, const std::string& what) {
        check(got == wanted, what + " is " + text_of(got) + " and not " + text_of(wanted));
    }
    void leave_out(const std::string& why) { left_out_ = why; }  // by the thread of the case
    bool has_broken() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return !broken_.empty();
    }
    texts broken() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return broken_;
    }
    std::string left_out() const { return left_out_; }
    int checks() const { return checks_; }

    // A name unique among cases and runs.
    std::string new_name() const {
        static std::atomic<int> number{0};
        static const std::int64_t run = std::chrono::system_clock::now().time_since_epoch().count();
        return "contract-" + std::to_string(run) + "-" + std::to_string(++number);
    }
    // Into the queue of the case, unless one is given.
    std::string push(const std::string& args_json = "[]", std::int64_t max_attempts = 3, const std::string& to = "") {
        return on.push({"contract.work", args_json, to.empty() ? queue : to, max_attempts, ""});
    }
    texts push_many(int count) {
        texts ids;
        for (int i = 0; i < count; ++i) ids.push_back(push("[" + std::to_string(i) + "]"));
        return ids;
    }
    // Where the queue can be looked into.
    void state_is(const std::string& id, job_state wanted) {
        const job_state got = on.state_of(id);
        if (got == job_state::unknown) return;
        check(got == wanted, "job " + id + " is " + to_string(got) + " and not " + to_string(wanted));
    }
    // Waits for an effect of other threads; after a failed check only briefly. False: not within the guard.
    bool eventually(const std::function<bool()>& holds, bool ends_delays = true) {
        const ojs::time_point begun = ojs::steady_clock::now();
        while (!holds()) {
            const milliseconds limit = has_broken() ? milliseconds(500) : milliseconds(guard);
            if (ojs::steady_clock::now() - begun >= limit) return holds();
            if (ends_delays) on.end_retry_delays();
            std::this_thread::sleep_for(milliseconds(2));
        }
        return true;
    }

    subject& on;
    const traits can;
    const std::string queue = new_name();

  private:
    static std::string text_of(const std::string& text) {
        return text.size() <= 200 ? text : text.substr(0, 200) + "...";
    }
    static std::string text_of(const texts& all) {
        std::string out = "{";
        for (const std::string& each : all) out += (out.size() > 1 ? ", " : "") + each;
        return text_of(out + "}");
    }
    template <class Number>
    static std::string text_of(Number number) {
        return std::to_string(number);
    }

    mutable std::mutex mutex_;
    static constexpr std::size_t max_listed = 10;
    texts broken_;
    std::string left_out_;
    int checks_ = 0;
};

inline texts ids_of(const jobs& all) {
    texts out;
    for (const ojs::job& each : all) out.push_back(each.id);
    return out;
}

inline texts sorted(texts all) {
    std::sort(all.begin(), all.end());
    return all;
}

// The worker may repeat the request after this error.
inline bool is_retryable(const ojs::error& why) {
    return why.code == ojs::errc::timed_out || why.code == ojs::errc::unreachable ||
           why.code == ojs::errc::disconnected || why.code == ojs::errc::unavailable;
}

template <class T>
std::string text_of(const ojs::result<T>& of) {
    return of ? "no error" : std::string(ojs::to_string(of.error().code)) + ": " + of.error().text;
}
inline std::string text_of(const ojs::result<ojs::settle_result>& answer) {
    if (!answer) return text_of<ojs::settle_result>(answer);
    return *answer == ojs::settle_result::gone ? "gone" : "accepted";
}

// A worker as its transport sees it: claims and reports jobs. Thread-safe except for kill().
class test_worker {
  public:
    explicit test_worker(trial& of) : test_worker(of, {of.queue}) {}
    test_worker(trial& of, texts queues) : trial_(of) {
        identity.worker_id = of.new_name();
        identity.hostname = "contract";
        identity.pid = 1;
        identity.queues = std::move(queues);
        identity.concurrency = 10;
        identity.started_at = "2026-01-01T00:00:00Z";
        identity.visibility_timeout = long_lease;
        wire = of.on.connect(identity);
    }

    ojs::fetch_request asking(std::size_t count) const { return {{&identity, nullptr}, count, {}}; }
    jobs fetch(std::size_t count = 1) {
        const ojs::result<jobs> got = wire->fetch(asking(count), soon());
        trial_.require(got.has_value(), "FETCH fails: " + text_of(got));
        trial_.check(got->size() <= count,
                     "FETCH for " + std::to_string(count) + " jobs brings " + std::to_string(got->size()));
        const std::lock_guard<std::mutex> held(mutex_);
        for (const ojs::job& each : *got) {
            trial_.check(each.malformed.empty(), "job " + each.id + " is malformed: " + each.malformed);
            held_.insert(each.id);
            claimed_[each.id] = each;
        }
        return *got;
    }
    // Fetches until it has `count` jobs, as a worker does, at most until the guard.
    jobs claim(std::size_t count, bool ends_delays = true) {
        jobs out;
        const auto has_all = [&] {
            const jobs more = fetch(count - out.size());
            if (more.empty()) beat();
            out.insert(out.end(), more.begin(), more.end());
            return out.size() >= count;
        };
        const bool all = trial_.eventually(has_all, ends_delays);
        trial_.require(all, std::to_string(out.size()) + " jobs come, and not " + std::to_string(count));
        return out;
    }
    // That one, unless `id` is empty. Without `ends_delays` only one that waits for no retry.
    ojs::job claim_one(const std::string& id = "", bool ends_delays = true) {
        const ojs::job got = claim(1, ends_delays).front();
        if (!id.empty()) trial_.equal(got.id, id, "the id");
        return got;
    }
    std::string claim_new(const std::string& args_json = "[]", std::int64_t max_attempts = 3) {
        const std::string id = trial_.push(args_json, max_attempts);
        claim_one(id);
        return id;
    }

    // Requests with what a worker sends: the claim and the job that the last FETCH brought, if any did.
    ojs::job_request about(const std::string& id) {
        const ojs::job& of = known(id);
        return {{&identity, nullptr}, id, of.claim, of.attempt, &of};
    }
    ojs::ack_request acking(const std::string& id, const std::string& result_json = "{\"n\":1}") {
        return {about(id), result_json};
    }
    ojs::fail_request failing(const std::string& id, const ojs::job_error& why, bool requeue = false,
                              const std::string& checkpoint_json = "") {
        return {about(id), why, requeue, checkpoint_json};
    }
    ojs::heartbeat_request beating(const texts& ids) {
        texts claims;
        for (const std::string& id : ids) claims.push_back(known(id).claim);
        return {{&identity, nullptr}, "running", ids, claims, false};
    }

    ojs::result<ojs::settle_result> try_ack(const std::string& id, const std::string& result_json = "{\"n\":1}") {
        return wire->ack(acking(id, result_json), soon());
    }
    ojs::result<ojs::settle_result> try_fail(const std::string& id, bool retryable, bool requeue = false,
                                             const std::string& checkpoint_json = "") {
        const ojs::job_error why = {"handler_error", "no", retryable, "{\"n\":1}"};
        return wire->fail(failing(id, why, requeue, checkpoint_json), soon());
    }
    void ack(const std::string& id) { accept(id, "ACK", try_ack(id)); }
    // Of a FETCH of its own.
    void ack(const ojs::job& job) {
        {
            const std::lock_guard<std::mutex> held(mutex_);
            claimed_[job.id] = job;
        }
        ack(job.id);
    }
    void fail(const std::string& id, bool retryable, const std::string& checkpoint_json = "") {
        accept(id, "FAIL", try_fail(id, retryable, false, checkpoint_json));
    }
    void hand_back(const std::string& id) { accept(id, "FAIL with requeue", try_fail(id, true, true)); }

    void beat() {
        std::unique_lock<std::mutex> held(mutex_);
        const texts ids(held_.begin(), held_.end());
        held.unlock();
        const ojs::result<ojs::heartbeat_response> got = wire->heartbeat(beating(ids), soon());
        trial_.check(got.has_value(), "the heartbeat fails: " + text_of(got));
    }
    void kill() { trial_.on.kill(wire); }

    ojs::worker_identity identity;
    std::shared_ptr<ojs::transport> wire;

  private:
    void accept(const std::string& id, const char* what, const ojs::result<ojs::settle_result>& answer) {
        trial_.check(answer && *answer != ojs::settle_result::gone,
                     std::string(what) + " of job " + id + " is answered " + text_of(answer));
        const std::lock_guard<std::mutex> held(mutex_);
        held_.erase(id);
    }

    // Stays where it is.
    const ojs::job& known(const std::string& id) {
        const std::lock_guard<std::mutex> held(mutex_);
        ojs::job& out = claimed_[id];
        out.id = id;
        return out;
    }

    trial& trial_;
    std::mutex mutex_;
    std::set<std::string> held_;
    std::map<std::string, ojs::job> claimed_;  // as the last FETCH with that id brought it
};

inline bool is_gone(const ojs::result<ojs::settle_result>& answer) {
    return answer && *answer == ojs::settle_result::gone;
}
inline bool is_accepted(const ojs::result<ojs::settle_result>& answer) {
    return answer && *answer != ojs::settle_result::gone;
}
inline bool is_refused(const ojs::result<ojs::settle_result>& answer) {
    return is_gone(answer) || (!answer && answer.error().code == ojs::errc::rejected);
}
inline void check_gone(trial& t, const ojs::result<ojs::settle_result>& answer, const std::string& what) {
    t.check(is_gone(answer), what + " is answered " + text_of(answer) + " and not gone");
}
inline void check_accepted(trial& t, const ojs::result<ojs::settle_result>& answer, const std::string& what) {
    t.check(is_accepted(answer), what + " is answered " + text_of(answer));
}

// Checks that a new job is the only one that can be claimed.
inline void check_nothing_left(trial& t, test_worker& worker) {
    const std::string last = t.push();
    t.on.end_retry_delays();
    t.equal(ids_of(worker.claim(1)), texts{last}, "all there was to claim");
    worker.ack(last);
    t.equal(worker.fetch(10).size(), 0U, "the number of jobs after the last");
}
}  // namespace transport_contract
