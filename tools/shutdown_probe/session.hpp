// session: one worker against one recorder, and what a scenario does with the two.
#pragma once
#include <string>
#include <vector>

#include "scenarios.hpp"

namespace probe {

using std::chrono::seconds;

// Thrown where a scenario cannot come to its point; all it judges and has not judged yet fails.
struct gives_up {
    std::string why;
    std::vector<std::string> last_lines;
};

class session {
  public:
    // `extra` beats the settings that all scenarios have; an empty value takes one away.
    session(findings& out, const char* scenario, const environment& extra = {});

    recorder backend;
    child worker;

    void start();                 // the worker, without waiting for it
    void start_and_await_beat();  // and until it fetches and beats
    // Jobs of `ms` milliseconds, until the worker has them and says so in a beat.
    std::vector<std::string> run_jobs(const char* type, std::int64_t ms, std::size_t count = 1);
    void signal(int number);
    void mark_event() { run_.marks.push_back({0, clock::now()}); }  // for what is no signal
    // Each gives up with `what` where it does not come true; `limit` ends a hang and judges nothing.
    void await(const recorder::condition& holds, const std::string& what, milliseconds limit = seconds(10));
    void await_settled(const std::vector<std::string>& jobs, milliseconds limit = seconds(10));
    bool await_exit(milliseconds limit = seconds(10)) { return worker.wait(limit); }
    // So many beats from now on, in that state (empty: any). False: they did not come, or the worker has ended.
    bool await_beats(int count, const std::string& state = {}, milliseconds limit = seconds(5));

    record so_far();
    record finish();  // kills what is left of the worker
    void judge(const char* id, verdict what);
    void measured(const char* name, double ms) { out_.measured(name, ms); }

  private:
    // As recorder::wait(), but no longer than the worker lives.
    bool wait(const recorder::condition& holds, milliseconds limit);
    [[noreturn]] void give_up(const std::string& why);
    std::vector<std::string> last_lines() const;

    findings& out_;
    const char* const scenario_;
    environment settings_;
    record run_;
};

}  // namespace probe
