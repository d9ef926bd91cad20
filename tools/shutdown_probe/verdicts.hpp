// verdicts: judge a run, as pure functions of its record.
#pragma once
#include <string>
#include <vector>

#include "child.hpp"
#include "recorder.hpp"

namespace probe {
// A signal that was sent.
struct mark {
    int signal = 0;  // 0: another event
    moment at;
};

// Everything about one run of the worker.
struct record {
    moment started;
    std::vector<mark> marks;
    std::vector<request> requests;
    std::vector<line> output;
    bool ended = false;  // by itself, not killed by the probe
    int status = 0;      // exit status, or minus the signal
    moment ended_at;

    // "+123.4 ms" after the first signal, or after the start where none was sent; "5.0 ms before the signal".
    std::string when(moment at) const;
    std::size_t count(kind what) const;
    moment first_signal() const { return marks.empty() ? moment::max() : marks.front().at; }
};

struct verdict {
    enum class kind { passes, fails, skipped };
    kind what = kind::skipped;
    std::string reason;                // what was seen, and when
    std::string figures;               // measured on the way
    std::vector<std::string> details;  // where it fails: hints, the request that shows it and its answer
    std::vector<std::string> output;   // where it fails: the last lines of the worker
    std::string cause;                 // the same for verdicts of one cause; empty: nothing more than the reason
};

verdict passes(std::string figures = {});
verdict fails(std::string reason);
verdict fails(std::string reason, const record& run, const request* shown_by);
verdict skipped(std::string reason);
// What explains other failures of the run as well: how it ended. Empty: nothing.
std::string cause_of(const record& run, const std::string& reason);
// Of jobs before the first signal: fails if one was FAILed, is skipped with the likely cause if all had ended.
verdict in_flight(const record& run, const std::vector<std::string>& jobs, milliseconds beat_interval);
// The median time between heartbeats; 0: fewer than two came.
milliseconds beat_gap(const std::vector<request>& requests);
// The first that fails, else the first that was skipped, else the figures of all. Skipped if there is none.
verdict all_of(const std::vector<verdict>& each);
// The same of those that were not skipped; skipped if all are.
verdict any_of(const std::vector<verdict>& each);
// The request and its answer, a line each.
std::vector<std::string> exchange(const record& run, const request* about);

double milliseconds_between(moment from, moment to);
std::string figure(const char* name, double ms);

// ---- looking things up; null where there is none ----

const request* quiet_beat(const record& run);                          // the first after the first signal
const request* settlement(const record& run, const std::string& job);  // the one that decided the job
bool settled_before(const record& run, const std::string& job, moment at);
const request* last_settlement(const record& run);
const request* last_beat(const record& run);
const request* last_request(const record& run);
const request* claim(const record& run, const std::string& job);
std::vector<std::string> claimed(const record& run);
int beats_between(const record& run, moment from, moment to);

const request* first_accepted(const std::vector<request>& requests, kind what);  // answered by 2xx
bool is_settled(const std::vector<request>& requests, const std::string& job);
bool was_given(const std::vector<request>& requests, const std::string& job);
std::string ended_how(const record& run);
const char* name_of(kind what);

// ---- the checks ----

verdict quiet_drain_stop(const record& run, const std::vector<std::string>& jobs);  // all run to their ACK
verdict beats_in_drain(const record& run, int least);
// From the first signal until the first of these jobs is settled: or their leases end, with the jobs still in flight.
verdict beats_name_jobs(const record& run, const std::vector<std::string>& jobs);
// FAILed as retryable, with that error; "": whatever error.
verdict interrupted_as(const record& run, const std::string& job, const std::string& error);
verdict interrupted_without_attempt(const record& run, const std::string& job);
// The job is settled by the stop, and not before `least` after the first signal; at most `most` after it.
verdict interrupted_at(const record& run, const std::string& job, milliseconds least, milliseconds most);
verdict no_fetch_after_quiet(const record& run);
verdict last_request_is_terminate(const record& run);
verdict settled_once(const record& run);
verdict all_claimed_settled(const record& run);
verdict ends_within(const record& run, moment from, milliseconds limit);  // by itself
verdict exit_status_is(const record& run, int status);
verdict completed(const record& run, const std::vector<std::string>& jobs);  // by ACK
verdict repeated_after_loss(const record& run, const std::string& job);
verdict never_runs_again(const record& run);  // no beat "running" after the quiet one
verdict accepted_by_strict(const record& run);
// Skipped if it claimed more than `slots` at a time, but fetched too slowly for the time to show how many of them ran.
verdict took_at_least(const record& run, const std::vector<std::string>& jobs, milliseconds least, std::size_t slots);
verdict not_reported(const record& run, const std::string& job,
                     const char* why_not);  // after the first signal
}  // namespace probe
