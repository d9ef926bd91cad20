// A transport that records every call in order and returns the responses that the test sets; with what tests of workers
// include.
#pragma once

#include <picojson.h>

#include <deque>

#include "test.hpp"

namespace recorder {
using test::counter;
using test::event;
inline constexpr auto guard = test::hang_guard;

// As a thread_local: counts the thread once it ends, and so when nothing more can come from it.
struct counts_at_end {
    explicit counts_at_end(std::shared_ptr<counter> of) : ended(std::move(of)) {}
    ~counts_at_end() { ended->add(); }
    const std::shared_ptr<counter> ended;
};

// One call to the transport, as it began.
struct call {
    std::string what;  // fetch, ack, fail, beat, claim
    std::string id;    // ack, fail, claim
    std::string state;
    std::size_t count = 0;  // fetch
    std::string result_json;
    ojs::job_error error;
    bool requeue = false;
    std::string checkpoint_json;  // fail
    std::vector<std::string> active;
    ojs::time_point at;

    // "ack", "fail timeout", "fail cancelled final", "fail ShutdownError requeue".
    std::string text() const {
        if (what != "fail") return what;
        return "fail " + error.code + (error.retryable ? "" : " final") + (requeue ? " requeue" : "");
    }
};

// The counts of its report that are not 0, the jobs that it names, and its exit status.
inline std::string sums(const ojs::worker& ended) {
    const ojs::worker_report report = ended.report();
    const std::pair<const char*, std::uint64_t> counts[] = {
        {"claimed ", report.claimed},         {"completed ", report.completed}, {"failed ", report.failed},
        {"interrupted ", report.interrupted}, {"requeued ", report.requeued},   {"gone ", report.gone}};
    std::string out;
    for (const auto& each : counts) out += each.second == 0 ? "" : each.first + std::to_string(each.second) + " ";
    for (const std::string& each : report.unreported) out += "unreported " + each + " ";
    for (const std::string& each : report.stuck) out += "stuck " + each + " ";
    return out + "exit " + std::to_string(ended.exit_code());
}

inline ojs::job make_job(std::string id, std::string type = "work", std::string args_json = "[]") {
    ojs::job out;
    out.id = std::move(id);
    out.type = std::move(type);
    out.queue = "default";
    out.args_json = std::move(args_json);
    return out;
}

class transport : public ojs::transport {
  public:
    using settling = ojs::result<ojs::settle_result>;

    // Called inside the call, without any lock. Set before the worker starts.
    struct hooks {
        std::function<void(std::size_t)> fetch;    // before the jobs are taken
        std::function<void(std::size_t)> fetched;  // after
        std::function<settling(const ojs::ack_request&, ojs::time_point)> ack;
        std::function<settling(const ojs::fail_request&, ojs::time_point)> fail;
        std::function<ojs::result<ojs::heartbeat_response>(const ojs::heartbeat_request&)> beat;
        std::function<ojs::result<bool>(const ojs::job_request&)> claim;
    } on;

    void give(ojs::job added) {
        const std::lock_guard<std::mutex> held(mutex_);
        waiting_.push_back(std::move(added));
    }
    // The next `times` calls of that kind, or heartbeats with that state, are answered with the error.
    void refuse(const std::string& what, int times, ojs::error why) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (int i = 0; i < times; ++i) refusals_[what].push_back(why);
    }

    std::vector<call> calls() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return calls_;
    }
    std::vector<call> calls(const std::string& what) const {
        std::vector<call> out;
        for (const call& each : calls()) {
            if (each.what == what) out.push_back(each);
        }
        return out;
    }
    std::vector<call> settlements(const std::string& id) const {
        std::vector<call> out;
        for (const call& each : calls()) {
            if (each.id == id && (each.what == "ack" || each.what == "fail")) out.push_back(each);
        }
        return out;
    }
    // The text of the one report of this job.
    std::string settled(const std::string& id) const {
        const std::vector<call> all = settlements(id);
        REQUIRE(all.size() == 1);
        return all[0].text();
    }
    // Waits until so many calls of that kind have begun (for beats: with that state, if one is given).
    bool wait_for(const std::string& what, std::size_t times, const std::string& state = "") const {
        std::unique_lock<std::mutex> held(mutex_);
        return changed_.wait_for(held, guard, [&] {
            std::size_t seen = 0;
            for (const call& each : calls_) {
                if (each.what == what && (state.empty() || each.state == state)) ++seen;
            }
            return seen >= times;
        });
    }

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request, ojs::time_point /*deadline*/) override {
        call begun = named("fetch");
        begun.count = request.count;
        ojs::error why;
        if (is_refused(std::move(begun), why, request.should_send)) return why;
        if (on.fetch) on.fetch(request.count);
        std::vector<ojs::job> taken;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            while (taken.size() < request.count && !waiting_.empty()) {
                taken.push_back(std::move(waiting_.front()));
                waiting_.pop_front();
            }
        }
        if (on.fetched) on.fetched(taken.size());
        return taken;
    }

    settling ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        call begun = named("ack");
        begun.id = request.job_id;
        begun.result_json = request.result_json;
        ojs::error why;
        if (is_refused(std::move(begun), why, request.should_send)) return why;
        return on.ack ? on.ack(request, deadline) : settling(ojs::settle_result::accepted);
    }

    settling fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        call begun = named("fail");
        begun.id = request.job_id;
        begun.error = request.error;
        begun.requeue = request.requeue;
        begun.checkpoint_json = request.checkpoint_json;
        ojs::error why;
        if (is_refused(std::move(begun), why, request.should_send)) return why;
        return on.fail ? on.fail(request, deadline) : settling(ojs::settle_result::accepted);
    }

    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point /*deadline*/) override {
        call begun = named("beat");
        begun.state = request.state;
        begun.active = request.active_jobs;
        ojs::error why;
        if (is_refused(std::move(begun), why, request.should_send)) return why;
        if (on.beat) return on.beat(request);
        ojs::heartbeat_response answer;
        answer.jobs_extended = request.active_jobs;
        return answer;
    }

    ojs::result<bool> confirm_claim(const ojs::job_request& query, ojs::time_point deadline) override {
        call begun = named("claim");
        begun.id = query.job_id;
        ojs::error why;
        if (is_refused(std::move(begun), why, query.should_send)) return why;
        return on.claim ? on.claim(query) : ojs::transport::confirm_claim(query, deadline);
    }

    void on_job_cancelled(ojs::function<void(const std::string&)> tell) override {
        const std::lock_guard<std::mutex> held(mutex_);
        revoke_ = std::move(tell);
    }
    // As when the backend cancels a job; false: no callback is set.
    bool revoke(const std::string& id) const {
        const std::lock_guard<std::mutex> held(mutex_);
        revoke_(id);
        return bool(revoke_);
    }

  private:
    static call named(const char* what) {
        call out;
        out.what = what;
        out.at = ojs::steady_clock::now();
        return out;
    }
    // Records the call, unless it is no longer to be sent.
    bool is_refused(call begun, ojs::error& why, const ojs::function<bool()>& should_send = nullptr) {
        const std::lock_guard<std::mutex> held(mutex_);
        why = {ojs::errc::cancelled, 0, "no longer to be sent"};
        if (should_send && !should_send()) return true;
        std::deque<ojs::error>& refusals = refusals_[refusals_.count(begun.state) > 0 ? begun.state : begun.what];
        calls_.push_back(std::move(begun));
        changed_.notify_all();
        if (refusals.empty()) return false;
        why = refusals.front();
        refusals.pop_front();
        return true;
    }

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::vector<call> calls_;
    std::deque<ojs::job> waiting_;
    std::map<std::string, std::deque<ojs::error>> refusals_;
    ojs::function<void(const std::string&)> revoke_;
};

// Nothing happens by the clock, so every effect has an event as its cause.
inline ojs::worker_options options(std::int64_t concurrency = 1) {
    ojs::worker_options out;
    out.concurrency = concurrency;
    out.log.level = ojs::log_level::off;
    out.times.shutdown_grace_period = 1h;
    out.poll_interval = 1h;
    out.heartbeat_interval = 1h;
    out.visibility_timeout = 2h;
    out.progress_interval = 1h;
    out.request_timeout = 20s;
    out.times.stop_timeout = 5s;
    return out;
}

// The same for tests in which handlers must return after their cancellation, however slow the machine is.
inline ojs::worker_options patient(std::int64_t concurrency = 1) {
    ojs::worker_options out = options(concurrency);
    out.times.cancel_grace = out.times.reclaim_grace = 50s;
    out.times.stop_timeout = 60s;
    return out;
}

// Every stopped worker sends one last heartbeat with this state, as its last request.
inline void check_last_word(const transport& wire, const std::string& state = "terminate") {
    const std::vector<call> all = wire.calls();
    REQUIRE(!all.empty());
    CHECK(all.back().what == "beat");
    CHECK(all.back().state == state);
    CHECK(std::count_if(all.begin(), all.end(), [&](const call& each) { return each.state == state; }) == 1);
}

inline picojson::value parse(const std::string& text) {
    picojson::value out;
    const std::string failure = picojson::parse(out, text);
    CHECK(failure.empty());
    return out;
}

inline void do_nothing(ojs::job_context& /*job*/) {}

// As when the process gets this signal.
inline void send(ojs::lifecycle& life, int signal) {
    using ojs::event;
    life.apply(signal == SIGTSTP   ? event::quiet_request
               : signal == SIGCONT ? event::resume_request
               : signal == SIGUSR1 ? event::reclaim
                                   : event::stop_signal,
               {ojs::cause_kind::signal, signal});
}

// A started worker with this handler for the type "work".
template <class Handler>
std::unique_ptr<ojs::worker> start_worker(std::unique_ptr<ojs::worker> out, Handler handler) {
    out->register_handler("work", std::move(handler));
    REQUIRE(out->start());
    return out;
}
template <class Handler>
std::unique_ptr<ojs::worker> start_worker(transport& wire, ojs::worker_options settings, Handler handler) {
    return start_worker(std::make_unique<ojs::worker>(std::move(settings), wire), std::move(handler));
}
template <class Handler>
std::unique_ptr<ojs::worker> start_worker(transport& wire, Handler handler) {
    return start_worker(wire, options(), std::move(handler));
}
template <class Handler>
std::unique_ptr<ojs::worker> start_worker(transport& wire, ojs::worker_options settings, ojs::lifecycle& life,
                                          Handler handler) {
    return start_worker(std::make_unique<ojs::worker>(std::move(settings), wire, life), std::move(handler));
}

// Such a worker, stopped after so many calls of that kind have begun. With one slot, a second FETCH follows a report.
template <class Handler>
std::unique_ptr<ojs::worker> run_until(const char* what, std::size_t times, transport& wire,
                                       ojs::worker_options settings, Handler handler) {
    auto out = start_worker(wire, std::move(settings), std::move(handler));
    REQUIRE(wire.wait_for(what, times));
    REQUIRE(out->stop(guard));
    return out;
}
template <class Handler>
std::unique_ptr<ojs::worker> run_until(const char* what, std::size_t times, transport& wire, Handler handler) {
    return run_until(what, times, wire, options(), std::move(handler));
}

// The report of this job by a worker with one slot, which ran it with this handler.
template <class Handler>
call run_one(ojs::job given, Handler handler) {
    transport wire;
    const std::string id = given.id;
    wire.give(std::move(given));
    const auto worker = run_until("fetch", 2, wire, std::move(handler));
    CHECK(worker->exit_code() == 0);
    CHECK(worker->report().claimed == 1);
    check_last_word(wire);
    REQUIRE(wire.settlements(id).size() == 1);
    return wire.settlements(id).front();
}

inline std::string value_of(const ojs::log_record& record, const std::string& name) {
    for (const ojs::log_field& each : record.fields) {
        if (each.name == name) return each.value;
    }
    return "";
}

// The records of a worker with these options. Each is found by the begin of its level and message: "warn job is stuck".
class kept_log {
  public:
    explicit kept_log(ojs::worker_options& settings, ojs::log_level level = ojs::log_level::debug) {
        settings.log.level = level;
        settings.log.hook = [all = all_](const ojs::log_record& record) {
            const std::lock_guard<std::mutex> held(all->mutex);
            all->records.push_back(record);
            all->changed.notify_all();
        };
    }
    std::vector<ojs::log_record> records(const std::string& begin = "") const {
        const std::lock_guard<std::mutex> held(all_->mutex);
        return all_->find(begin);
    }
    std::size_t count(const std::string& begin) const { return records(begin).size(); }
    bool wait_for(const std::string& begin, std::chrono::milliseconds timeout = guard) const {
        std::unique_lock<std::mutex> held(all_->mutex);
        return all_->changed.wait_for(held, timeout, [&] { return !all_->find(begin).empty(); });
    }
    std::string text() const {
        std::string out;
        for (const ojs::log_record& each : records())
            out += ojs::format_log_record(each, ojs::log_format::logfmt) + "\n";
        return out;
    }

  private:
    struct entries {
        std::vector<ojs::log_record> find(const std::string& begin) const {
            std::vector<ojs::log_record> out;
            for (const ojs::log_record& each : records) {
                const std::string line = std::string(ojs::to_string(each.level)) + " " + each.message;
                if (line.compare(0, begin.size(), begin) == 0) out.push_back(each);
            }
            return out;
        }
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<ojs::log_record> records;
    };
    const std::shared_ptr<entries> all_ = std::make_shared<entries>();
};
}  // namespace recorder
