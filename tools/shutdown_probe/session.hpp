// session: one worker and one recorder, with the operations of a scenario.
#pragma once
#include <string>
#include <vector>

#include "scenarios.hpp"

namespace probe {
using std::chrono::seconds;

// Thrown when a scenario cannot reach its test; every check that it has not judged yet gets that verdict.
struct gives_up {
    verdict why;
};

class session {
  public:
    // `extra` overrides the settings of all scenarios; an empty value removes one.
    session(findings& out, const char* scenario, const environment& extra = {});

    recorder backend;
    child worker;

    void start();                 // the worker, without waiting for it
    void start_and_await_beat();  // and until it fetches and beats
    // Adds jobs of `ms` milliseconds, and waits until the worker names them in a beat, 10 s at most.
    std::vector<std::string> run_jobs(const char* type, std::int64_t ms, std::size_t count = 1);
    void signal(int number);
    void mark_event();  // for what is no signal
    // Gives up if the jobs of run_jobs() have all ended. The first signal or event calls it.
    void require_in_flight();
    // As recorder::wait(), but no longer than the worker lives.
    bool wait(const recorder::condition& holds, milliseconds limit);
    // Each gives up with `what` if the condition never holds; `limit` ends a hang and judges nothing.
    void await(const recorder::condition& holds, const std::string& what, milliseconds limit = seconds(10));
    void await_settled(const std::vector<std::string>& jobs, milliseconds limit = seconds(10));
    bool await_exit(milliseconds limit = seconds(10)) { return worker.wait(limit); }
    // Waits for `count` beats in that state (empty: any). False: they did not arrive, or the worker has ended.
    bool await_beats(int count, const std::string& state = {}, milliseconds limit = seconds(5));

    record so_far();
    record finish();  // kills what is left of the worker; so_far() is from before that
    [[noreturn]] void give_up(const std::string& why);
    void judge(const char* id, const verdict& what) { out_.add(id, scenario_, with_evidence(what)); }
    // A latency. There is none where `to` came first, such as an exit before the grace period was over.
    void measured(const char* name, moment from, moment to) {
        if (from <= to) out_.measured(name, milliseconds_between(from, to));
    }
    // That many jobs at a time, or one if the worker is serial.
    std::size_t at_a_time(std::size_t jobs) const { return out_.serial() ? 1 : jobs; }

  private:
    // A failure, with the last request if it shows no other one, and with the last output of the worker.
    verdict with_evidence(verdict what);

    findings& out_;
    const char* const scenario_;
    environment settings_;
    std::vector<std::string> jobs_;  // of run_jobs()
    record run_;
    bool is_finished_ = false;
};
}  // namespace probe
