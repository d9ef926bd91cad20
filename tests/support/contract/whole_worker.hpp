// Case: ojs::worker itself on the transport.
#pragma once

#include <climits>

#include "trial.hpp"

namespace transport_contract {
// How a job ends, by its number.
enum class fate { done, second_time, never, worth_no_retry };
inline fate fate_of(std::int64_t number) { return static_cast<fate>(number % 4); }
inline std::int64_t runs_of(std::int64_t number) {
    return fate_of(number) == fate::second_time || fate_of(number) == fate::never ? 2 : 1;
}

// `used_up`: the attempts end a job that never succeeds, not its handler.
inline ojs::outcome run_by_fate(std::int64_t number, std::int64_t attempt, bool used_up) {
    const fate of = fate_of(number);
    if (of == fate::done) return ojs::outcome::done("[" + std::to_string(number) + "]");
    if (of == fate::second_time && attempt > 1) return ojs::outcome::done();
    if (of == fate::worth_no_retry) return ojs::outcome::discard("no use");
    if (of == fate::never && !used_up && attempt >= runs_of(number)) return ojs::outcome::discard("never");
    return ojs::outcome::retry("not yet");
}

// The runs of each job, as the handlers saw them.
struct run_book {
    void note(std::int64_t number, std::int64_t attempt) {
        const std::lock_guard<std::mutex> held(mutex);
        runs[number].push_back(attempt);
        ++count;
        decided += attempt >= runs_of(number) ? 1 : 0;
    }

    std::mutex mutex;
    std::map<std::int64_t, std::vector<std::int64_t>> runs;
    std::atomic<int> count{0};
    std::atomic<int> decided{0};
};

// A worker with its own transport; its options make the result independent of timing.
class contract_worker {
  public:
    // After `pause` runs, its handlers return only once it is stopped.
    contract_worker(trial& t, run_book& book, int pause)
        : trial_(t), hands_(t), worker_(options(hands_), *hands_.wire) {
        const bool used_up = t.can.requeue_spares_attempt;
        const auto handler = [&book, pause, used_up](ojs::job_context& job) {
            const std::int64_t number = job.arg<std::int64_t>(0).value_or(-1);
            book.note(number, job.attempt());
            while (book.count >= pause && !job.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
            return run_by_fate(number, job.attempt(), used_up);
        };
        t.require(worker_.register_handler("contract.work", handler), "the handler is refused");
        const auto started = worker_.start();
        t.require(started.has_value(), "the worker does not start: " + text_of(started));
    }
    ojs::worker_report stop() {
        trial_.check(worker_.stop(soon()), "the stop took too long");
        const ojs::worker_report report = worker_.report();
        const std::uint64_t settled = report.completed + report.failed + report.requeued;
        trial_.equal(settled, report.claimed, "the number of jobs settled");
        trial_.equal(report.gone, 0U, "the number of jobs gone");
        trial_.equal(report.unreported, texts(), "the list of jobs unreported");
        return report;
    }

  private:
    static ojs::worker_options options(const test_worker& of) {
        ojs::worker_options out;
        out.queues = of.identity.queues;
        out.worker_id = of.identity.worker_id;
        out.concurrency = 8;
        out.poll_interval = milliseconds(5);
        out.visibility_timeout = long_lease;
        out.heartbeat_interval = milliseconds(1000);
        out.request_timeout = guard;
        out.times.shutdown_grace_period = guard;
        out.times.stop_timeout = guard;
        out.log.level = ojs::log_level::off;
        return out;
    }

    trial& trial_;
    test_worker hands_;
    ojs::worker worker_;
};

inline void check_runs(trial& t, const run_book& book, std::int64_t count) {
    t.equal(book.runs.size(), static_cast<std::size_t>(count), "the number of jobs that ran");
    for (const auto& [number, attempts] : book.runs) {
        std::vector<std::int64_t> wanted = {1, 2};
        wanted.resize(static_cast<std::size_t>(runs_of(number)));
        // Where a job requeued at the stop has lost an attempt, that run is left out.
        const bool fits = t.can.requeue_spares_attempt
                              ? attempts == wanted
                              : attempts.size() <= wanted.size() && std::is_sorted(attempts.begin(), attempts.end());
        t.check(fits, "job " + std::to_string(number) + " ran " + std::to_string(attempts.size()) + " times");
    }
}

inline void whole_worker(trial& t) {
    constexpr int count = 500;
    texts ids;
    const std::int64_t max_attempts = t.can.requeue_spares_attempt ? 2 : 8;
    for (int i = 0; i < count; ++i) ids.push_back(t.push("[" + std::to_string(i) + "]", max_attempts));
    run_book book;
    std::uint64_t settled_by_handlers = 0;
    {
        contract_worker first(t, book, count / 2);
        t.check(t.eventually([&] { return book.count >= count / 2; }), "the first worker does not get far");
        const ojs::worker_report report = first.stop();
        settled_by_handlers += report.completed + report.failed;
    }
    t.check(book.count < count, "nothing is left for the second worker");
    contract_worker second(t, book, INT_MAX);
    t.check(t.eventually([&] { return book.decided >= count; }), "the second worker does not come to the end");
    const ojs::worker_report report = second.stop();
    settled_by_handlers += report.completed + report.failed;
    t.equal(settled_by_handlers, static_cast<std::uint64_t>(book.count), "the number of runs settled");
    for (int i = 0; i < count; ++i)
        t.state_is(ids[static_cast<std::size_t>(i)],
                   fate_of(i) <= fate::second_time ? job_state::completed : job_state::discarded);
    check_runs(t, book, count);
}
}  // namespace transport_contract
