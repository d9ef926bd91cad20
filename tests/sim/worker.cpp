// A worker, or two that share a lifecycle, with handlers of every kind, signals and calls at any moment.
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <shared_mutex>
#include <stdexcept>

#include "network.hpp"

namespace sim {
using namespace std::chrono_literals;

namespace {
// What a run has, drawn from its seed.
struct scenario {
    std::uint64_t jobs = 6;
    int slots = 3, workers = 1;
    bool by_run = true;     // run() and signals, else start() and calls
    bool destroys = false;  // without a stop; only by start()
    std::uint64_t calls = 0;
    bool installs_first = true;  // the signals of two
    int threads_start = -1;      // so many, and one does not
    bool lacks_threads = false;  // nor any after it
    int late_threads = 0;        // that begin to run late
    int slow_threads = 0;
    std::uint64_t stop_on_event = 0;  // not at a time
    int descriptors = -1;
    bool blocks = false;  // on_transition, and a callback of stopped_token()
    nanoseconds stop_at = 0, clock_jumps_at = 0, freezes_at = 0, freezes_for = 0;
    faults wrong;
};

scenario draw(std::uint64_t seed, const limits& most) {
    random from(seed ^ 0xabcdef);
    const auto moment = [&](std::uint64_t below) { return static_cast<nanoseconds>(1 + from.below(below)); };
    scenario out;
    out.jobs = std::min(1 + from.below(8), most.items);
    out.slots = 1 + static_cast<int>(from.below(4));
    out.workers = from.one_in(5) ? 2 : 1;
    out.by_run = !from.one_in(3);
    out.destroys = !out.by_run && from.one_in(4);
    out.calls = std::min(from.one_in(2) ? 0 : from.below(6), most.calls);
    out.stop_at = moment(3 * second);
    out.wrong.one_in = from.one_in(3) ? 0 : 2 + from.below(12);
    out.wrong.left = most.faults;
    if (from.one_in(2)) out.stop_on_event = 1 + from.below(30);
    if (from.one_in(8)) out.threads_start = static_cast<int>(from.below(12));
    if (out.threads_start >= 0) out.lacks_threads = from.one_in(2);
    if (from.one_in(4)) out.slow_threads = 1 + static_cast<int>(from.below(4));
    if (from.one_in(8)) out.late_threads = 1 + static_cast<int>(from.below(4));
    out.installs_first = from.one_in(2);
    if (from.one_in(16)) out.descriptors = static_cast<int>(from.below(4));
    if (from.one_in(8)) out.clock_jumps_at = moment(3 * second);
    if (from.one_in(6)) {
        out.freezes_at = moment(3 * second);
        out.freezes_for = moment(5 * second);
    }
    if (from.one_in(8)) {
        out.wrong.down_from = moment(3 * second);
        out.wrong.down_until = out.wrong.down_from + moment(3 * second);
    }
    if (from.one_in(8)) {  // so many that few threads may suffice
        out.slots = 32;
        out.jobs = std::min(out.jobs + from.below(24), most.items);
    }
    out.blocks = from.one_in(4) && most.faults > 0 && out.threads_start < 0;  // else the thread that turns it calls
    return out;
}

constexpr int handled[] = {SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT, SIGTTIN, SIGUSR1};
}  // namespace

void renew_process() {
    using state = std::decay_t<decltype(ojs::detail::process)>;
    for (const int number : handled) ::signal(number, SIG_DFL);
    ojs::detail::process.~state();
    new (&ojs::detail::process) state();
    ojs::detail::process.fork_handler_set = true;  // by the first run
    ojs::detail::running_process = 0;
    ojs::detail::unsettled_machines = 0;
    ojs::detail::stops_end = ojs::time_point();
    ojs::detail::log_sink& log = ojs::detail::sink();
    log.~log_sink();
    new (&log) ojs::detail::log_sink();
}

namespace {
class worker_world : public system {
  public:
    worker_world(std::uint64_t seed, const limits& most);
    std::string describe() const override;
    void run() override;
    void check_end(const ending& how) override;

  private:
    // A worker and what belongs to it.
    struct member {
        member(worker_world& in, const std::string& name)
            : id(name),
              line(in.backend_, in.chosen_.wrong, name, [&in, name](const std::string& what) { in.violate(what); }) {}
        std::string id;
        network line;
        std::shared_mutex calling;  // shared: a member of it; else its destructor
        std::optional<ojs::worker> worker;
        int status = -1;
        std::size_t handlers = 0;  // that run
        std::size_t long_ones = 0;
        bool is_stuck = false;  // it stopped because of that
        bool is_closed = false, is_in_transition = false;
        bool has_seen_end = false;                   // a callback of stopped_token(), after the last transition
        ojs::lifecycle_state latest;                 // that on_transition was given
        ojs::cancel_registration* at_end = nullptr;  // after _exit() it might wait for ever
    };

    void open(member& one);
    void close(member& one);
    int run_to_end(member& one);
    ojs::worker_options options_of(member& one);
    void block() {
        if (chosen_.blocks && dice().one_in(2)) sleep_for(some_time(9 * second));
    }
    std::int64_t max_jobs() const { return seed_ % 7 == 0 ? 3 : 0; }
    std::size_t max_long() const { return seed_ % 4; }  // max_concurrency of type "long"; 0: none
    ojs::outcome handle(member& one, ojs::job_context& job);
    void save(member& one, ojs::job_context& job);
    void wait(ojs::job_context& job);
    void check_timeout(const ledger_job& record, nanoseconds began);
    void give_up(const member& one, ledger_job& job);
    void disturb();
    void at(nanoseconds when, std::function<void()> act);
    void on_event(member& one);
    void call(member& one, std::uint64_t which);
    void stop_and_wait(member& one);
    void stop_until_it_does();
    void signal_shared();
    void count_stop_signal();
    void request_stop();
    bool has_free_slot(const member& one);
    void hint(member& one, bool is_calm);
    bool all_closed() const;
    bool drains() const;
    void watch_pickup(member& one);
    void check_drained(const member& one);
    void check_account(const member& one);
    bool is_exact() const { return chosen_.clock_jumps_at == 0; }
    // What the stop has given up may still come, to a thread that does not run at once.
    bool is_slow() const {
        return chosen_.late_threads + chosen_.slow_threads + chosen_.freezes_for > 0 || chosen_.lacks_threads;
    }
    nanoseconds max_stop_time() const;
    void check_time(nanoseconds limit);

    const std::uint64_t seed_;
    scenario chosen_;
    backend backend_;
    ojs::stop_times times_;
    std::optional<ojs::lifecycle> shared_;
    ojs::signals installed_;  // for both of two
    std::vector<std::unique_ptr<member>> members_;
    std::uint64_t events_ = 0, calls_on_events_ = 0;
    int stop_signals_ = 0;  // that count: not within signal_debounce of another
    nanoseconds counted_at_ = 0, third_at_ = 0, stop_began_ = 0;
};

constexpr nanoseconds beat_interval = 500 * millisecond;
constexpr nanoseconds request_timeout = 700 * millisecond;

worker_world::worker_world(std::uint64_t seed, const limits& most) : seed_(seed), chosen_(draw(seed, most)) {
    constexpr const char* types[] = {"long",  "fails", "throws",  "deaf",      "saves",
                                     "waits", "calls", "unknown", "malformed", "refused"};
    random from(seed ^ 0x77);
    for (std::uint64_t i = 0; i < chosen_.jobs; ++i) {
        ledger_job job;
        job.id = "j" + std::to_string(i);
        job.type = from.one_in(2) ? "quick" : types[from.below(std::size(types))];
        if (job.type == "long" && from.one_in(2))
            job.timeout = std::chrono::milliseconds(1 + from.below(from.one_in(2) ? 2 : 1000));
        if (job.type == "deaf" && i % 2 == 0) job.timeout = 100ms;  // and becomes stuck
        backend_.jobs[job.id] = job;
    }
    backend_.is_exact =
        chosen_.late_threads + chosen_.slow_threads == 0 && chosen_.threads_start < 0 && chosen_.freezes_for == 0;
    if (chosen_.slots == 32) backend_.job_size = from.below(ojs::detail::max_worker_response / 4);
    backend_.lease = static_cast<nanoseconds>(1000 + from.below(2000)) * millisecond;
    times_.shutdown_grace_period = std::chrono::milliseconds(from.one_in(4) ? 0 : from.below(2000));
    times_.stop_timeout = std::chrono::milliseconds((500 + from.below(1000)) * (from.one_in(4) ? 4 : 1));
    times_.cancel_before_deadline = from.one_in(3) ? 300ms : 0ms;
    times_.cancel_grace = from.one_in(3) ? 300ms : 0ms;
    if (chosen_.workers == 2 || from.one_in(4)) shared_.emplace();
    backend_.says_lost = from.one_in(4);
    for (int i = 0; i < chosen_.workers; ++i)
        members_.push_back(std::make_unique<member>(*this, "worker_" + std::to_string(i)));
}

std::string worker_world::describe() const {
    std::string out = std::to_string(chosen_.jobs) + " jobs, " + std::to_string(chosen_.workers) + " workers of " +
                      std::to_string(chosen_.slots) + " slots, ";
    out += chosen_.wrong.one_in == 0 ? "no faults" : "faults 1 in " + std::to_string(chosen_.wrong.one_in);
    if (chosen_.wrong.down_from != 0) out += ", the backend is down";
    if (chosen_.clock_jumps_at != 0) out += ", the wall clock jumps";
    if (chosen_.freezes_for != 0) out += ", the process stands still";
    if (chosen_.threads_start >= 0)
        out += ", thread " + std::to_string(chosen_.threads_start) +
               (chosen_.lacks_threads ? " and all later ones fail" : " fails");
    if (chosen_.late_threads != 0) out += ", threads begin late";
    if (chosen_.slow_threads != 0) out += ", threads are slow";
    if (chosen_.descriptors >= 0) out += ", " + std::to_string(chosen_.descriptors) + " descriptors";
    out += ", " + std::to_string(chosen_.calls) + (chosen_.by_run ? " signals" : " calls");
    return out + (chosen_.destroys ? ", destroyed" : ", stopped");
}

// ---- handlers ----

void worker_world::save(member& one, ojs::job_context& job) {
    handler_run& run = backend_.jobs.at(job.id()).runs[one.id];
    for (int i = 0; i < 3 && !job.cancel_requested(); ++i) {
        run.saving = std::to_string(dice().below(1000));
        const ojs::result<void> saved = job.save_checkpoint(run.saving);
        if (saved || saved.error().code != ojs::errc::cancelled) run.saved = run.saving;
        static_cast<void>(job.sleep_for(std::chrono::nanoseconds(some_time(second))));
    }
}

// For what another thread provides.
void worker_world::wait(ojs::job_context& job) {
    struct shared_item {
        std::mutex access;
        std::condition_variable changed;
        bool is_there = false;
    };
    const auto item = std::make_shared<shared_item>();
    start("provider", [item] {
        sleep_for(some_time(2 * second));
        const std::lock_guard<std::mutex> held(item->access);
        item->is_there = true;
        item->changed.notify_all();
    });
    const ojs::cancel_token token = job.token();
    std::unique_lock<std::mutex> held(item->access);
    const bool found = token.wait(item->changed, held, [&item] { return item->is_there; });
    if (found ? !item->is_there : !token.cancelled()) violate("a wait ends, but not because of its end");
}

void worker_world::check_timeout(const ledger_job& record, nanoseconds began) {
    const nanoseconds latest =
        began + record.timeout / 1ns + 100 * millisecond + (chosen_.late_threads + chosen_.slow_threads) * slowness;
    const bool is_exact = chosen_.threads_start < 0 && chosen_.freezes_for == 0;
    if (record.timeout > 0ms && is_exact && now() > latest) violate(record.id + " runs longer than its timeout");
}

// A claim lasts for its lease, which is counted from its FETCH.
void worker_world::give_up(const member& one, ledger_job& job) {
    const claim& latest = job.claims.back();
    const bool is_ours = job.is == ledger_job::state::active && latest.worker == one.id && latest.delivered;
    const nanoseconds slow = 10 * millisecond + (chosen_.late_threads + chosen_.slow_threads) * slowness;
    if (is_ours && is_exact() && chosen_.freezes_for == 0 && !job.is_mixed && !job.is_cancelled &&
        job.failed_by.count(one.id) == 0 && latest.sent_at + slow < now() &&  // else it is of the claim before
        now() + slow < latest.sent_at + backend_.lease)
        violate(job.id + " is given up, though it was claimed again");
    const handler_run& run = job.runs[one.id];
    if (run.lost_at > 0 && run.tried_at > 0 && now() > std::max(run.lost_at, run.tried_at) + slow && !job.is_mixed &&
        !latest.overlaps && backend_.is_exact && now() < latest.sent_at + backend_.lease)
        violate(job.id + " is lost, but its report waits");
    job.is_given_up = true;
}

ojs::outcome worker_world::handle(member& one, ojs::job_context& job) {
    const outside calm;
    ledger_job& record = backend_.jobs.at(job.id());
    note("the handler of %s begins", job.id().c_str());
    // One whose thread stood still before its first step is abandoned, and may begin later.
    if (one.is_closed && chosen_.slow_threads == 0) violate("a handler begins after the worker's end");
    claim* const own = record.known_to(one.id, job.attempt());
    if (own == nullptr) return violate("a handler begins without a claim"), ojs::outcome::done();
    const bool is_simple = !own->overlaps && !record.is_mixed;
    if (++own->runs > 1 && is_simple) violate(job.id() + " runs twice for one claim");
    // A handler that the stop found begun may have stood still before its first step.
    if (own->reported && is_simple && chosen_.slow_threads == 0) violate(job.id() + " runs though it was reported");
    if (record.lease_end <= now() && is_exact() && chosen_.freezes_for == 0 &&
        chosen_.late_threads + chosen_.slow_threads == 0)
        violate(job.id() + " runs though its lease is over");
    if (own->unstarted && is_simple && chosen_.slow_threads == 0)
        violate(job.id() + " runs though it was handed back as not started");
    handler_run& run = record.runs[one.id];
    if (run.ack_is_due) violate(job.id() + " runs again while its ACK is due");
    run = {};
    const std::string& type = record.type;
    const std::size_t is_long = type == "long" ? 1 : 0;
    ++one.handlers;
    one.long_ones += is_long;
    if (max_long() > 0 && one.long_ones > max_long()) violate("more than max_concurrency jobs of a type run");
    const std::shared_ptr<void> ended(nullptr, [&one, is_long](void*) { --one.handlers, one.long_ones -= is_long; });
    if (type == "quick") sleep_for(some_time(20 * millisecond));
    if (type == "deaf") sleep_for(record.timeout > 0ms ? second : some_time(3 * second));
    if (type == "saves") save(one, job);
    if (type == "waits") wait(job);
    const auto is_over = std::make_shared<bool>();
    const std::shared_ptr<void> ends(nullptr, [is_over](void*) { *is_over = true; });
    const ojs::cancel_registration registration =
        type != "calls" ? ojs::cancel_registration() : job.on_cancel([this, is_over] {
            if (*is_over) violate("a callback begins after the end of its registration");
            sleep_for(some_time(3 * second));
            if (*is_over) violate("a registration ends during its callback");
        });
    if (type == "long" || type == "calls") {
        const nanoseconds began = now();
        const bool is_whole = job.sleep_for(std::chrono::nanoseconds(some_time(4 * second)));
        check_timeout(record, began);
        if (!is_whole) return ojs::outcome::interrupted("stopped");
    }
    if (type == "throws" || type == "fails") sleep_for(some_time(4 * second));
    if (type == "throws") throw std::runtime_error("thrown");
    note("the handler of %s ends", job.id().c_str());
    return type == "fails" ? ojs::outcome::retry("fails") : ojs::outcome();
}

ojs::worker_options worker_world::options_of(member& one) {
    ojs::worker_options out;
    out.concurrency = chosen_.slots;
    out.times = times_;
    out.heartbeat_interval = std::chrono::nanoseconds(beat_interval) / 1ms * 1ms;
    out.poll_interval = 200ms;
    out.profile.requeue_interrupted = seed_ % 3 != 0;
    out.visibility_timeout = std::chrono::milliseconds(backend_.lease / millisecond);
    out.request_timeout = std::chrono::milliseconds(request_timeout / millisecond);
    out.stuck_after = 500ms;
    out.exit_when_idle = seed_ % 5 == 0 ? 3s : 0s;
    out.max_jobs = max_jobs();
    out.worker_id = one.id;
    out.log.hook = [this, &one](const ojs::log_record& record) {
        const outside calm;
        if (one.is_closed) violate("a log record after the worker's end: " + record.message);
        if (record.message == "handlers are stuck; the worker stops") one.is_stuck = true;
        if (record.message == "worker started") one.line.has_started = true;
        if (record.message == "worker stopped") one.line.has_stopped = true;
        if (record.message.find("a FETCH is still unanswered") == 0) one.line.gave_up_fetch = true;
        if (record.message == "phase changed" && record.fields[0].value == "stopping")
            one.line.reports_end =
                now() + millisecond + (times_.stop_timeout - ojs::detail::last_beat_time(times_)) / 1ns;
        if (record.message == "phase changed" && record.fields[2].value == "drained") check_drained(one);
        if (record.message.find("claim lost") == 0) give_up(one, backend_.jobs.at(record.fields[0].value));
        std::string fields;
        if (traces)
            for (const auto& each : record.fields) fields += " " + each.name + "=" + each.value;
        note("LOG %s%s", record.message.c_str(), fields.c_str());
        point("log");
    };
    out.on_transition = [this, &one](const ojs::lifecycle_state& state) {
        const outside calm;
        if (one.is_closed) violate("on_transition after the worker's end");
        if (chosen_.freezes_for == 0 && static_cast<int>(state.stop_signals) > stop_signals_)
            violate("a repeated stop signal counts");
        const bool is_next = static_cast<std::int8_t>(state.sequence - one.latest.sequence) > 0;
        if (!is_next || std::exchange(one.is_in_transition, true)) violate("on_transition is not called in order");
        one.latest = state;
        // It then unsubscribes.
        const auto request_report = [this] { shared_->apply(ojs::event::report_request, {}); };
        if (shared_ && state.phase == ojs::phase::terminated) at(now(), request_report);
        point("on_transition");
        block();
        one.is_in_transition = false;
    };
    return out;
}

// ---- what disturbs them ----

void worker_world::at(nanoseconds when, std::function<void()> act) {
    start("disturber", [this, when, act = std::move(act)] {
        const outside calm;
        sleep_until(when);
        if (!all_closed()) act();
    });
}

void worker_world::call(member& one, std::uint64_t which) {
    if (one.is_closed) return;
    static constexpr int numbers[] = {SIGTSTP, SIGCONT, SIGTSTP, SIGCONT, SIGTTIN, SIGUSR1, SIGTERM, SIGINT};
    if (chosen_.by_run) {
        const int number = numbers[which % std::size(numbers)];
        if (number == SIGTERM || number == SIGINT) count_stop_signal();
        send_signal(number);
        if (number == SIGTSTP && dice().one_in(3)) send_signal(SIGCONT);
        return;
    }
    note("call %lu", which % 8);
    if (which % 8 > 4) {
        if (!shared_) return;
        if (which % 8 == 7) return signal_shared();
        const bool is_quiet = which % 8 == 5;
        shared_->apply(is_quiet ? ojs::event::quiet_request : ojs::event::resume_request, {});
        if (is_quiet && dice().one_in(3)) shared_->apply(ojs::event::resume_request, {});
        return;
    }
    const std::shared_lock<std::shared_mutex> held(one.calling);
    if (one.is_closed) return;
    ojs::worker& on = *one.worker;
    switch (which % 8) {
        case 0: on.quiet(); break;
        case 1: on.resume(); break;
        case 2: on.request_stop_and_cancel(); break;
        case 3:
            if (!backend_.jobs.empty()) one.line.cancel("j0");
            break;
        default: dice().one_in(2) ? stop_and_wait(one) : static_cast<void>(on.request_stop()); break;
    }
}
// Several threads may at once.
void worker_world::stop_and_wait(member& one) {
    const auto limit = std::chrono::milliseconds(dice().below(600));
    const nanoseconds deadline = now() + limit / 1ns;
    const bool was_started = one.line.has_started;
    const bool has_ended = one.worker->stop(limit);
    note("stop(): %s", has_ended ? "ended" : "not ended");
    const nanoseconds slow = chosen_.freezes_for + (chosen_.late_threads + chosen_.slow_threads) * slowness;
    if (now() > deadline + 20 * millisecond + slow) violate("stop() returns long after its deadline");
    if (has_ended && !one.worker->stopped()) violate("stop() returns before the worker has ended");
    if (!has_ended && was_started && !one.line.has_stopped && now() < deadline) violate("stop() returns too early");
}

void worker_world::disturb() {
    random from(seed_ ^ 0x99);
    calls_on_events_ = chosen_.calls / 2;
    for (std::uint64_t i = calls_on_events_; i < chosen_.calls; ++i) {
        const bool is_early = from.one_in(8);  // during the start
        const auto when = static_cast<nanoseconds>(from.below(is_early ? 100 * microsecond : 4 * second));
        member& one = *members_[from.below(members_.size())];
        const std::uint64_t which = from.below(72);
        at(when, [this, &one, which] { call(one, which); });
    }
    if (chosen_.clock_jumps_at != 0)
        at(chosen_.clock_jumps_at, [] {
            note("the wall clock jumps");
            jump_wall_clock(3600 * second);
        });
    if (chosen_.freezes_for != 0)
        at(chosen_.freezes_at, [this] {
            note("the process stands still");
            stand_still(chosen_.freezes_for);
        });
    const bool is_calm = chosen_.wrong.one_in == 0 && chosen_.wrong.down_from == 0 && chosen_.freezes_for == 0 &&
                         chosen_.threads_start < 0 && chosen_.late_threads + chosen_.slow_threads == 0;
    for (const auto& each : members_)
        if (is_calm) at(0, [this, one = each.get()] { watch_pickup(*one); });
    for (std::uint64_t i = from.below(4); i > 0; --i) {
        member& one = *members_[from.below(members_.size())];
        at(static_cast<nanoseconds>(from.below(3 * second)),
           [this, is_calm, &one] { hint(one, is_calm && is_exact()); });
    }
    if (!chosen_.destroys)
        at(chosen_.stop_on_event != 0 ? 3 * second : chosen_.stop_at, [this] { stop_until_it_does(); });
}

// What happens at the moment of a response finds more than what happens at any other.
void worker_world::on_event(member& one) {
    if (++events_ == chosen_.stop_on_event && !chosen_.destroys) at(now(), [this] { stop_until_it_does(); });
    if (calls_on_events_ == 0 || !dice().one_in(8)) return;
    --calls_on_events_;
    const std::uint64_t which = dice().below(72);
    at(now(), [this, &one, which] { call(one, which); });
}

// It runs, and could FETCH.
bool worker_world::has_free_slot(const member& one) {
    const ojs::worker& on = *one.worker;
    // By signals alone a worker is as its lifecycle.
    const ojs::phase phase = chosen_.by_run && shared_ ? shared_->phase() : on.phase();
    return max_jobs() == 0 && phase == ojs::phase::running && on.phase() < ojs::phase::draining &&
           on.active_jobs() + one.handlers < static_cast<std::size_t>(chosen_.slots);
}
// A worker with a free slot then fetches at once.
void worker_world::hint(member& one, bool is_calm) {
    const std::shared_lock<std::shared_mutex> held(one.calling);
    if (one.is_closed) return;
    const nanoseconds since = now();
    const bool is_watched = is_calm && one.line.has_beaten && has_free_slot(one) && !one.line.is_fetching();
    one.line.hint();
    sleep_for(10 * millisecond);
    if (is_watched && has_free_slot(one) && one.line.latest_fetch < since) violate("no FETCH after a hint");
}

bool worker_world::all_closed() const {
    return std::all_of(members_.begin(), members_.end(), [](const auto& each) { return each->is_closed; });
}
bool worker_world::drains() const {
    return std::all_of(members_.begin(), members_.end(), [](const auto& each) {
        return each->is_closed || !each->worker || each->worker->phase() >= ojs::phase::draining;
    });
}

// Three, as the backend goes down: reports are still due.
void worker_world::signal_shared() {
    if (chosen_.wrong.one_in > 0) chosen_.wrong.down_from = now(), chosen_.wrong.down_until = now() + 10 * second;
    for (int i = 0; i < 3; ++i, sleep_for(260 * millisecond)) {
        count_stop_signal();
        shared_->apply(ojs::event::stop_signal, {});
    }
}
// As the lifecycle does, but for the milliseconds until it comes.
void worker_world::count_stop_signal() {
    if (stop_signals_ > 0 && now() - counted_at_ < 248 * millisecond) return;
    counted_at_ = now();
    if (++stop_signals_ == 3) third_at_ = now();
}
void worker_world::request_stop() {
    note("stop");
    stop_began_ = now();
    if (chosen_.by_run) {
        count_stop_signal();
        return send_signal(SIGTERM);
    }
    for (const auto& each : members_) {
        for (std::uint64_t i = dice().below(3); i > 0; --i)
            at(now(), [this, one = each.get()] {
                const std::shared_lock<std::shared_mutex> held(one->calling);
                if (!one->is_closed) stop_and_wait(*one);
            });
        const std::shared_lock<std::shared_mutex> held(each->calling);
        if (!each->is_closed && each->worker) each->worker->request_stop();
    }
}

// What came before a stop may have been undone since, or it came before the worker's start.
void worker_world::stop_until_it_does() {
    if (stop_began_ != 0) return;
    do {
        request_stop();
        sleep_for(second);
    } while (!all_closed() && !drains());
}

// ---- the run ----

void worker_world::open(member& one) {
    ojs::worker_options options = options_of(one);
    shared_ ? one.worker.emplace(std::move(options), one.line, *shared_)
            : one.worker.emplace(std::move(options), one.line);
    one.line.phase = [&one] { return one.worker->phase(); };
    one.line.on_event = [this, &one] { on_event(one); };
    // Two calls that end late, of which one is a heartbeat, delay the next heartbeat; nothing else does.
    // Where threads are missing, the one that sends them may have a report to repeat.
    if (!chosen_.lacks_threads)
        one.line.max_silence = beat_interval + 2 * (request_timeout + second) + 300 * millisecond +
                               chosen_.freezes_for + (chosen_.late_threads + chosen_.slow_threads) * slowness;
    for (const char* type :
         {"quick", "long", "fails", "throws", "deaf", "saves", "waits", "calls", "malformed", "refused"})
        one.worker->register_handler(type, [this, &one](ojs::job_context& job) { return handle(one, job); },
                                     {false, type == std::string("long") ? max_long() : 0});
    one.worker->on_shutdown("step", [] { sleep_for(some_time(50 * millisecond)); });
    const auto at_end = [this, &one] {
        const outside calm;
        one.has_seen_end = one.latest.phase == ojs::phase::terminated;
        const bool is_late = one.is_closed && chosen_.freezes_for == 0;  // one that is asleep is not waited for
        if (!one.line.has_stopped || is_late || (one.has_seen_end && one.is_in_transition))
            violate("stopped_token() is cancelled before or after the end");
        block();
    };
    one.at_end = new ojs::cancel_registration(one.worker->stopped_token().on_cancel(at_end));
}

int worker_world::run_to_end(member& one) {
    if (chosen_.by_run && &one == members_.front().get()) return one.worker->run();
    if (!one.worker->start()) return ojs::exit_status::unavailable;
    if (chosen_.destroys) {
        sleep_until(chosen_.stop_at);
        stop_began_ = now();
        return -1;
    }
    static_cast<void>(one.worker->wait());
    return one.worker->exit_code();
}

void worker_world::close(member& one) {
    note("%s ends with %d", one.id.c_str(), one.status);
    if (one.status >= 0) check_account(one);
    if (one.status >= 0) check_time(max_stop_time());
    // Three stop signals leave what the last heartbeat, handlers and threads get.
    const bool is_cut_short = third_at_ != 0 && !chosen_.by_run && !is_slow();
    if (one.status >= 0 && is_cut_short && now() - third_at_ > (times_.stop_timeout / 4 + 1500ms) / 1ns)
        violate("the stop goes on after a third stop signal");
    std::unique_lock<std::shared_mutex> held(one.calling);
    one.worker.reset();
    one.is_closed = one.line.is_closed = true;
    const bool sees_all = one.status >= 0 && !chosen_.blocks && !is_slow() && one.line.has_started;
    if (sees_all && !one.has_seen_end) violate("a transition or the end is not seen, in this order");
    if (one.line.has_callbacks()) violate("the transport has a callback of a worker that is gone");
    note("%s is destroyed", one.id.c_str());
    check_time(max_stop_time() + request_timeout + second);  // it waits for calls in flight
    held.unlock();
    delete one.at_end;
}
void worker_world::check_time(nanoseconds limit) {
    if (stop_began_ != 0 && now() - stop_began_ > limit)
        violate("the stop took " + std::to_string((now() - stop_began_) / millisecond) + " ms");
}

void worker_world::run() {
    renew_process();
    fail_thread(chosen_.threads_start, chosen_.lacks_threads);
    late_threads(chosen_.late_threads);
    slow_threads(chosen_.slow_threads);
    {
        const outside calm;
        if (shared_ && chosen_.installs_first) installed_ = std::move(*ojs::signals::install(*shared_));
        for (const auto& each : members_) open(*each);
        disturb();
    }
    const auto live = [this](member& one) {
        one.status = run_to_end(one);
        const outside calm;
        close(one);
    };
    for (std::size_t i = 1; i < members_.size(); ++i) start("second", [live, one = members_[i].get()] { live(*one); });
    fail_descriptors(chosen_.descriptors);
    live(*members_.front());
    // A program whose run() ends ends its other workers.
    if (chosen_.by_run && shared_) shared_->apply(ojs::event::stop_request, {});
}

// ---- what must hold ----

nanoseconds worker_world::max_stop_time() const {
    const std::chrono::nanoseconds times = times_.shutdown_grace_period + times_.stop_timeout;
    // Where a callback gets no thread, the one that sends heartbeats calls it.
    const auto callbacks = static_cast<nanoseconds>(chosen_.lacks_threads ? chosen_.jobs : 0) * 3 * second;
    return times.count() + callbacks + chosen_.freezes_for + (chosen_.late_threads + chosen_.slow_threads) * slowness +
           (chosen_.blocks ? 5 : 1) * second;
}

// A running worker with a free slot asks for work, within a second after it could. A drain ends when nothing is in flight.
void worker_world::watch_pickup(member& one) {
    nanoseconds since = now(), in_flight = now();
    for (;; sleep_for(100 * millisecond)) {
        const std::shared_lock<std::shared_mutex> held(one.calling);
        if (!one.worker) return;
        const ojs::worker& on = *one.worker;
        const bool is_free = has_free_slot(one);
        if (!is_free) since = now();
        if (now() - std::max(since, one.line.latest_fetch) > 300 * millisecond + request_timeout)
            return violate("no FETCH for a free slot");
        if (on.phase() != ojs::phase::draining || on.active_jobs() + one.handlers > 0 || one.line.is_fetching())
            in_flight = now();
        if (now() - in_flight > 300 * millisecond) return violate("a drain with nothing in flight does not end");
    }
}

// Then no job is in flight that a response has brought.
void worker_world::check_drained(const member& one) {
    for (const auto& [id, job] : backend_.jobs) {
        if (!job.is_kept_by(one.id) || job.failed_by.count(one.id) != 0) continue;
        const claim& latest = job.claims.back();
        const bool has_lease = now() < latest.sent_at + backend_.lease;  // as the worker counts it
        if (has_lease && latest.runs == 0 && !latest.overlaps && !job.is_mixed && is_exact())
            violate(id + " is claimed, and the drain ends without it");
    }
}

void worker_world::check_account(const member& one) {
    if (one.status == ojs::exit_status::unavailable) {
        if (chosen_.threads_start < 0 && chosen_.descriptors < 0) violate("not started");
        return;
    }
    const ojs::worker_report report = one.worker->report();
    if (one.line.gave_up_fetch && is_slow()) return;
    if (report.claimed != report.completed + report.failed + report.requeued + report.gone + report.unreported.size())
        violate("the account does not add up");
    if (one.is_stuck ? one.status == 0 : report.unreported.empty() != (one.status == 0))
        violate("status " + std::to_string(one.status) + ", and " + std::to_string(report.unreported.size()) +
                " jobs are unreported");
    for (const auto& [id, job] : backend_.jobs) {
        const bool is_named = std::count(report.unreported.begin(), report.unreported.end(), id) > 0;
        if (job.is_kept_by(one.id) && !is_named && is_exact())
            violate(id + " is claimed, and the worker does not name it");
    }
}

void worker_world::check_end(const ending& how) {
    items = backend_.claims;
    if (how.how == ending::kind::deadlock) violate("deadlock:\n" + how.waiting);
    if (how.how == ending::kind::too_many_steps) violate("it does not end:\n" + how.waiting);
    // Where a thread cannot be had, another does its work later.
    if (!how.lost_wake_up.empty() && chosen_.threads_start < 0) violate("not woken: " + how.lost_wake_up);
    if (how.how != ending::kind::exited) return;
    const bool by_signal = how.status == 128 + SIGTERM || how.status == 128 + SIGINT;
    // Before and after a worker's run a signal has its default effect.
    const bool is_outside = std::all_of(members_.begin(), members_.begin() + 1, [this](const auto& each) {
        const bool may_be_early = chosen_.slow_threads > 0 && !each->line.has_started;
        return may_be_early || each->line.has_stopped || each->is_closed;
    });
    if (by_signal && stop_signals_ < 3 && !is_outside) violate("ended by a third signal that was not sent");
    if (!by_signal && how.status != 0 && how.status != 75) violate("_exit(" + std::to_string(how.status) + ")");
    if (how.status != 0) return;
    for (const auto& each : members_) {
        for (const auto& [id, job] : backend_.jobs)
            if (job.is_kept_by(each->id) && !(each->line.gave_up_fetch && is_slow()) && is_exact())
                violate("_exit(0), but " + id + " is claimed and not reported");
    }
}
}  // namespace

void send_signal(int number) {
    const auto call = [number] {
        struct sigaction action {};
        ::sigaction(number, nullptr, &action);
        if ((action.sa_flags & SA_SIGINFO) == 0) return;  // not installed yet, or no more
        note("signal %d", number);
        siginfo_t info{};
        info.si_signo = number;
        info.si_code = SI_USER;
        info.si_pid = 1;
        action.sa_sigaction(number, &info, nullptr);
    };
    dice().one_in(2) ? interrupt(call) : call();
}

std::unique_ptr<system> make_worker(std::uint64_t seed, const limits& most) {
    return std::make_unique<worker_world>(seed, most);
}
}  // namespace sim
