// What became of every job, over hundreds of workers signalled at random moments, with a backend that delays, resets,
// answers 500 and loses answers. Settings from the environment:
//
//   OJS_TEST_SEED       repeats a run's random choices (it is printed)
//   OJS_TEST_WORKERS    how many workers; default 120
#include <random>

#include "harness.hpp"

using namespace test;

namespace {

constexpr int max_slots = 8;

struct choices {
    int below(int end) { return static_cast<int>(random() % static_cast<std::uint64_t>(end)); }
    std::mt19937_64 random;
};

const std::vector<std::vector<int>> scenarios = {{SIGTERM},          {SIGINT},
                                                 {SIGTERM, SIGTERM}, {SIGTSTP, SIGTERM},
                                                 {SIGTERM, SIGCONT}, {SIGTSTP, SIGCONT, SIGTERM}};

// One worker on its way from its start, through its signals, to its end.
struct patient {
    std::string id;
    process worker;
    std::vector<int> signals;
    std::vector<milliseconds> gaps;  // before each of the signals
    std::string trigger;             // the first gap begins when this is printed
    std::size_t sent = 0;
    clock::time_point due = clock::time_point::max();
    clock::time_point last_sent = clock::time_point::max();
};

patient admit(const std::string& url, int number, choices& pick) {
    patient out;
    out.id = "w" + std::to_string(number);
    out.signals = scenarios[static_cast<std::size_t>(pick.below(static_cast<int>(scenarios.size())))];
    for (std::size_t i = 0; i < out.signals.size(); ++i) out.gaps.emplace_back(pick.below(61));
    // Half of them claim the signals in the first line of main, and may get one while they start.
    const bool claims = pick.below(2) == 0;
    out.trigger = pick.below(3) == 0 ? "start " : claims ? "claimed" : "worker started";
    out.worker =
        start_worker(url, out.id,
                     {{"TEST_MODE", claims ? "claimed" : ""},
                      // A signal in the middle of LeakSanitizer's search, at the exit, would hang it.
                      {"ASAN_OPTIONS", "detect_leaks=0"},
                      {"OJS_CONCURRENCY", std::to_string(1 + pick.below(max_slots))},
                      {"OJS_HEARTBEAT_INTERVAL", "50ms"},
                      {"OJS_POLL_INTERVAL", "5ms"},
                      {"OJS_VISIBILITY_TIMEOUT", std::to_string(number_from("OJS_TEST_LEASE", 1)) + "s"},
                      {"OJS_SIGNAL_DEBOUNCE", "20ms"},
                      {"OJS_STOP_TIMEOUT", "4s"},
                      {"OJS_CANCEL_WAIT", pick.below(2) == 0 ? "0" : "20ms"},
                      {"OJS_SHUTDOWN_GRACE_PERIOD", std::to_string(5 + pick.below(60)) + "ms"}});
    return out;
}

// Sends what is due. False once everything is sent.
void treat(patient& one) {
    const auto now = clock::now();
    if (one.due == clock::time_point::max() && one.sent == 0 &&
        one.worker.prints(one.trigger, milliseconds(0))) {
        one.due = now + one.gaps.front();
    }
    if (one.sent == one.signals.size() || now < one.due) return;
    one.worker.signal(one.signals[one.sent]);
    one.last_sent = now;
    if (++one.sent < one.signals.size()) one.due = now + one.gaps[one.sent];
}

// How the workers ended.
struct outcomes {
    std::map<std::string, std::int64_t> draining_since;
    std::set<std::string> ended_by_signal;  // between run() giving the signals back and the end of main
    double slowest_ms = 0;
};

void discharge(patient& one, outcomes& out) {
    const int status = one.worker.wait(milliseconds(0));
    const int last = one.signals.back() == SIGCONT ? SIGTERM : one.signals.back();
    const bool by_signal = status == -last && one.worker.prints("worker stopped", milliseconds(0));
    if (by_signal) out.ended_by_signal.insert(one.id);
    const bool good = status == 0 || by_signal;
    CHECK_MESSAGE(good, one.id << " ended with " << status << "\n" << one.worker.output());
    out.draining_since[one.id] = phase_moment(one.worker, "draining");
    const double took = std::chrono::duration<double, std::milli>(clock::now() - one.last_sent).count();
    out.slowest_ms = std::max(out.slowest_ms, took);
}

void push_random_jobs(backend& jobs, choices& pick, int count) {
    // More than the lost answers to FETCH can use up, as each ends with a lease.
    constexpr const char* attempts = R"(,"options":{"retry":{"max_attempts":100}})";
    for (int i = 0; i < count; i += 10) {
        const char* type = pick.below(3) == 0 ? "test.stubborn" : "test.sleep";
        jobs.push(type, "[" + std::to_string(pick.below(51)) + "]", 10, attempts);
    }
}

outcomes run_workers(backend& jobs, choices& pick, int total) {
    constexpr std::size_t at_a_time = 12;
    outcomes out;
    std::vector<patient> ward;
    int admitted = 0;
    auto next_look = clock::now();
    while (admitted < total || !ward.empty()) {
        if (clock::now() >= next_look) {  // there is always something to do
            if (jobs.summary()["available"].number < 60) push_random_jobs(jobs, pick, 60);
            next_look = clock::now() + milliseconds(20);
        }
        while (admitted < total && ward.size() < at_a_time)
            ward.push_back(admit(jobs.url(), ++admitted, pick));
        for (std::size_t i = 0; i < ward.size();) {
            treat(ward[i]);
            if (ward[i].worker.ended()) {
                discharge(ward[i], out);
                std::swap(ward[i], ward.back());
                ward.pop_back();
                continue;
            }
            const bool stuck =
                ward[i].last_sent != clock::time_point::max() && clock::now() - ward[i].last_sent > guard;
            REQUIRE_MESSAGE(!stuck, ward[i].id << " does not end\n" << ward[i].worker.output());
            ++i;
        }
        std::this_thread::sleep_for(milliseconds(1));  // from one look at all of them to the next
    }
    return out;
}

// ---- the audit ----

// From a FETCH to whatever took the job from that worker.
struct claim {
    claim(std::string by, bool lost) : worker(std::move(by)), answer_lost(lost) {}

    std::string worker;
    bool answer_lost;
    bool open = true;
    std::string reported_as;  // "ack" or "nack", by the worker itself
    bool may_repeat = true;   // nothing was reported yet, or the answer to it was lost
};

class audit {
  public:
    audit(const outcomes& ends, backend& jobs) : ends_(ends), jobs_(jobs) {
        for (const json& event : jobs.events()) {
            look_at(event);
            note_try(event);
        }
        for (const lapse& each : lapses_) {
            const bool tried = tries_.count(each.job + each.worker) != 0 || tries_.count(each.job) != 0;
            hold(tried, each.job, each.what + ", and " + each.worker + " had not reported it");
        }
    }

    void look_at(const json& event) {
        const std::string& what = event["event"].text;
        if (what == "push") ++pushed_;
        if (what == "fetch" || what == "refused_fetch") on_fetch(event);
        if (what == "beat") on_request(event["worker_id"].text, event);
        if (what == "beat" && event["state"].is("terminate")) said_goodbye_.insert(event["worker_id"].text);
        if (what == "ack" || what == "nack") on_report(what, event);
        if (what == "expired" || what == "requeued_from_dead" || what == "requeued_at_deregistration") {
            on_expired(what, event);
        }
    }

    int pushed() const { return pushed_; }
    int completed() const { return static_cast<int>(completed_.size()); }
    int claims = 0;
    int repeats = 0;
    int recovered = 0;

  private:
    void hold(bool good, const std::string& id, const std::string& text) const {
        CHECK_MESSAGE(good, id << ": " << text << "\n" << jobs_.history(id));
    }

    // The last heartbeat itself is sent again where its connection broke. It waits a moment for one that is on its way,
    // which a busy machine may still hold up for longer.
    void on_request(const std::string& worker, const json& event) {
        if (worker.empty() || event["state"].is("terminate") || said_goodbye_.count(worker) == 0) return;
        const bool was_on_its_way = event["event"].is("beat") && overtaken_.insert(worker).second;
        CHECK_MESSAGE(was_on_its_way,
                      worker << " sent " << event["event"].text << " after its last heartbeat");
    }

    void on_fetch(const json& event) {
        const std::string& worker = event["worker_id"].text;
        on_request(worker, event);
        const auto draining = ends_.draining_since.find(worker);
        if (draining != ends_.draining_since.end() && draining->second > 0) {
            const bool after = event["recv_mono_ns"].number > draining->second;
            const int fetches = after ? ++fetches_after_stop_[worker] : 0;
            CHECK_MESSAGE(fetches <= max_slots, worker << " went on with FETCHes after its stop");
        }
        for (const json& id : event["jobs"].items) {
            std::vector<claim>& history = claims_[id.text];
            hold(history.empty() || !history.back().open, id.text, "claimed while active");
            hold(completed_.count(id.text) == 0, id.text, "claimed after it was completed");
            history.emplace_back(worker, event["lost"].flag);
            ++claims;
        }
    }

    void on_report(const std::string& what, const json& event) {
        const std::string& id = event["job_id"].text;
        std::vector<claim>& history = claims_[id];
        const bool accepted = event["status"].number == 200;
        CHECK((accepted || event["status"].number == 409));
        REQUIRE_MESSAGE(!history.empty(), id << " was reported but never claimed");
        const std::string& sender = event["from"].text;
        CHECK_MESSAGE(!sender.empty(), what << " names no worker");
        on_request(sender, event);
        claim* own = reported_claim(history, sender, what);
        if (own != nullptr) note_report(*own, what, event);
        if (accepted) {
            claim& now = history.back();
            hold(now.open, id, "settled while not active");
            hold(now.worker == sender, id, "of " + now.worker + ", settled by " + sender);
            now.open = false;
            if (what == "ack") hold(completed_.insert(id).second, id, "completed twice");
            if (what == "nack") CHECK(event["requeue"].flag);
        }
    }

    // Which of its claims a worker reports, if it claimed the job again while the response to its report was lost: the
    // first that it may still report, else the last.
    static claim* reported_claim(std::vector<claim>& history, const std::string& worker,
                                 const std::string& what) {
        claim* last = nullptr;
        for (claim& each : history) {
            if (each.worker != worker) continue;
            last = &each;
            if (each.may_repeat && (each.reported_as.empty() || each.reported_as == what)) break;
        }
        return last;
    }

    // One worker settles its claim in one way, and again only where it cannot know that it was heard.
    void note_report(claim& own, const std::string& what, const json& event) {
        const std::string& id = event["job_id"].text;
        const bool same = own.reported_as.empty() || own.reported_as == what;
        hold(same, id, "reported by " + own.worker + " as " + own.reported_as + " and as " + what);
        hold(own.may_repeat, id, own.worker + " repeated the " + what + " that was answered");
        repeats += own.reported_as.empty() ? 0 : 1;
        own.reported_as = what;
        own.may_repeat = event["lost"].flag;
    }

    void on_expired(const std::string& what, const json& event) {
        const std::string& id = event["job_id"].text;
        claim& now = claims_[id].back();
        now.open = false;
        ++recovered;
        if (!now.answer_lost && ends_.ended_by_signal.count(now.worker) == 0)
            lapses_.push_back({id, now.worker, what});
    }

    // Only what a lost answer to FETCH claimed, or a worker that was ended in its last moment, needs the backend's
    // help. On a machine that stands still for a second a lease may also end before a report gets through; then there
    // are traces of the report.
    void note_try(const json& event) {
        const std::string& job = event["job_id"].text;
        const bool tried =
            event["event"].is("ack") || event["event"].is("nack") || event["event"].is("fault");
        if (tried) tries_.insert(job + event["from"].text);
        if (tried && event["event"].is("fault")) tries_.insert(job);
    }

    struct lapse {
        std::string job;
        std::string worker;
        std::string what;
    };
    std::vector<lapse> lapses_;
    std::set<std::string> tries_;  // job, or job and worker
    const outcomes& ends_;
    const backend& jobs_;
    std::map<std::string, std::vector<claim>> claims_;
    std::set<std::string> completed_;
    std::set<std::string> said_goodbye_;
    std::set<std::string> overtaken_;                // by their own last heartbeat
    std::map<std::string, int> fetches_after_stop_;  // those on the wire: at most one for each slot
    int pushed_ = 0;
};

}  // namespace

// [GS 1] [River no jobs lost]
TEST_CASE("worker: random stop signals and backend faults -> every job is completed exactly once") {
    const std::uint64_t seed = number_from("OJS_TEST_SEED", std::random_device{}());
    const auto total = static_cast<int>(number_from("OJS_TEST_WORKERS", 120));
    MESSAGE("OJS_TEST_SEED=" << seed << " OJS_TEST_WORKERS=" << total);
    choices pick{std::mt19937_64(seed)};
    backend jobs({"--faults", "delay:100,reset:40,e500:40,lose:40", "--seed", std::to_string(seed),
                  "--retry-delay", "50ms", "--dead-after", "30s", "--quiet"});
    const outcomes ends = run_workers(jobs, pick, total);

    // What lost answers to FETCH claimed comes back when its lease ends; nothing else is active now.
    jobs.post("/dev/faults", "{\"faults\":\"\"}");
    CHECK(eventually([&] { return jobs.summary()["active"].number == 0; }));
    const json before = jobs.summary();
    CHECK(ends.ended_by_signal.size() * 50 <= static_cast<std::size_t>(total));
    CHECK(before["completed"].number + before["available"].number == before["pushed"].number);
    CHECK(before["discarded"].number == 0);
    CHECK(before["cancelled"].number == 0);

    // And one worker without trouble completes the rest.
    process last = start_worker(jobs.url(), "last", {{"OJS_CONCURRENCY", "50"}});
    CHECK(eventually([&] { return jobs.summary()["completed"].number == before["pushed"].number; }));
    last.signal(SIGTERM);
    CHECK(last.wait() == 0);
    const audit books(ends, jobs);
    MESSAGE(total << " workers, " << ends.ended_by_signal.size()
                  << " ended by a signal after run(), slowest end " << ends.slowest_ms
                  << " ms after the last signal; " << books.pushed() << " jobs, " << books.claims
                  << " claims, " << books.repeats << " reports repeated, " << books.recovered
                  << " jobs recovered by the backend");
    CHECK(books.pushed() == before["pushed"].number);
    CHECK(books.completed() == books.pushed());
    CHECK(jobs.summary()["active"].number == 0);
}
