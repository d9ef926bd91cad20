// scenarios: each forces one situation by what it answers and when, and then asks the verdicts.
#include "scenarios.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "ojs_shutdown.hpp"
#include "session.hpp"

namespace probe {
namespace {

void measure_stop(session& at, const record& run) {
    const request* quiet = quiet_beat(run);
    const request* settled = last_settlement(run);
    if (quiet != nullptr)
        at.measured("signal -> quiet beat", milliseconds_between(run.first_signal(), quiet->at));
    if (settled != nullptr && run.ended)
        at.measured("tail: last settlement -> exit", milliseconds_between(settled->answered, run.ended_at));
}

// ---- signals and phases ----

void drain(findings& out) {
    session at(out, "drain");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 900, 3);
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    measure_stop(at, run);
    at.judge("GS-001", quiet_drain_stop(run, jobs));
    at.judge("GS-004", beats_in_drain(run, 2));
    at.judge("NO-FETCH", no_fetch_after_quiet(run));
    at.judge("LAST-BEAT", last_request_is_terminate(run));
    at.judge("ONCE", settled_once(run));
    at.judge("EXIT-0", exit_status_is(run, 0));
}

void interrupt(findings& out) {
    session at(out, "sigint");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 500, 2);
    at.signal(SIGINT);
    at.await_exit();
    const record run = at.finish();
    measure_stop(at, run);
    at.judge("GS-002", all_of({quiet_drain_stop(run, jobs), no_fetch_after_quiet(run)}));
}

void grace(findings& out) {
    session at(out, "grace", {{"OJS_SHUTDOWN_GRACE_PERIOD", "1s"}});
    at.start_and_await_beat();
    const std::string job = at.run_jobs("probe.sleep", 60000).front();
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    measure_stop(at, run);
    at.judge("GS-003", interrupted_at(run, job, milliseconds(900), seconds(5)));
    at.judge("GS-005", interrupted_as(run, job, "ShutdownError"));
    at.judge("ATTEMPT", interrupted_without_attempt(run, job));
}

void default_grace(findings& out) {
    session at(out, "grace-default", {{"OJS_SHUTDOWN_GRACE_PERIOD", ""}});
    at.start_and_await_beat();
    const std::string job = at.run_jobs("probe.sleep", 120000).front();
    at.signal(SIGTERM);
    at.backend.wait(
        [&](const std::vector<request>& requests) {
            return std::any_of(requests.begin(), requests.end(),
                               [&](const request& each) { return each.settles && each.job == job; });
        },
        seconds(36));
    at.judge("GS-003", interrupted_at(at.finish(), job, milliseconds(29500), seconds(35)));
}

// After the quiet beat: none of `count` more beats says anything else, no FETCH, the process lives.
verdict stays_quiet(session& at, int count) {
    if (!at.await_beats(count)) return fails("no more BEATs while quiet");
    const record run = at.so_far();
    const request* quiet = quiet_beat(run);
    if (quiet == nullptr) return fails("no BEAT with state \"quiet\"");
    for (const request& each : run.requests) {
        if (each.what == kind::beat && each.at > quiet->at && each.state != "quiet")
            return fails("BEAT \"" + each.state + "\" at " + run.when(each.at) + ", after the quiet one");
    }
    if (run.ended) return fails("it ended, with status " + std::to_string(run.status));
    return no_fetch_after_quiet(run);
}

void quiet_and_resume(findings& out) {
    session at(out, "tstp");
    at.start_and_await_beat();
    const std::vector<std::string> before = at.run_jobs("probe.sleep", 300);
    at.signal(SIGTSTP);
    at.await_beats(1, "quiet", seconds(3));
    const std::vector<std::string> waiting = at.backend.add_jobs("probe.sleep", 0, 2);
    const verdict quiet = stays_quiet(at, 5);
    at.judge("GS-R001", all_of({quiet, completed(at.so_far(), before)}));
    at.signal(SIGCONT);
    const bool resumed = at.await_beats(1, "running", seconds(3));
    at.backend.wait(
        [&](const std::vector<request>& requests) {
            return std::count_if(requests.begin(), requests.end(),
                                 [](const request& each) { return each.settles; }) >= 3;
        },
        seconds(3));
    at.judge("RESUME", resumed ? completed(at.so_far(), waiting)
                               : fails("no BEAT with state \"running\" within 3 s after SIGCONT"));
    for (int round = 0; round < 5; ++round) {
        const moment sent = clock::now();
        at.signal(SIGTSTP);
        if (!at.await_beats(1, "quiet", seconds(3))) break;
        for (const request& each : at.backend.requests()) {
            if (each.what != kind::beat || each.at < sent || each.state != "quiet") continue;
            at.measured("signal -> quiet beat", milliseconds_between(sent, each.at));
            break;
        }
        at.signal(SIGCONT);
        if (!at.await_beats(1, "running", seconds(3))) break;
    }
    at.finish();
}

void second_term(findings& out) {
    session at(out, "second-term", {{"OJS_SHUTDOWN_GRACE_PERIOD", "60s"}});
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 60000, 2);
    at.signal(SIGTERM);
    at.await_beats(6);  // longer than two signals may be apart and still be one stop event
    const bool waited = at.worker.alive();
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    const moment second = run.marks.back().at;
    if (run.ended)
        at.measured("forced exit: second SIGTERM -> exit", milliseconds_between(second, run.ended_at));
    at.judge("GS-R002", waited ? all_of({ends_within(run, second, seconds(8)), all_claimed_settled(run)})
                               : fails("it did not wait for its jobs after the first SIGTERM"));
}

// ---- what it tells its operators ----

bool has_number(const std::string& text, const std::string& number) {
    const auto joins = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':' || c == '-';
    };
    for (std::size_t at = 0; (at = text.find(number, at)) != std::string::npos; at += number.size()) {
        const bool begins =
            at == 0 || !joins(text[at - 1]) || (text[at - 1] == ':' && at > 1 && text[at - 2] == '"');
        const std::size_t end = at + number.size();
        if (begins &&
            (end == text.size() || !joins(text[end]) || (text[end] == '.' && end + 1 == text.size())))
            return true;
    }
    return false;
}

// A line with that number and a word for jobs that are not done.
bool names_remaining(const std::string& text, const std::string& number) {
    std::string words = text;
    for (char& c : words) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* word :
         {"active", "remaining", "flight", "running", "pending", "left", "drain", "jobs", "wait"}) {
        if (words.find(word) != std::string::npos && has_number(text, number)) return true;
    }
    return false;
}

void progress(findings& out) {
    // The specification wants the line every 5 s; a worker that knows the variable is done sooner.
    session at(out, "progress", {{"OJS_CONCURRENCY", "24"}, {"OJS_PROGRESS_INTERVAL", "300ms"}});
    at.start_and_await_beat();
    const std::vector<std::string> longs = at.run_jobs("probe.sleep", 8500, 23);
    const std::string brief = at.run_jobs("probe.sleep", 300).front();
    at.signal(SIGTERM);
    at.await_settled({brief});
    const moment left_23 = clock::now();
    const bool told = at.worker.wait_output(
        [&](const line& each) { return each.at >= left_23 && names_remaining(each.text, "23"); }, seconds(7));
    const record run = at.finish();
    at.judge(
        "GS-R003",
        told ? holds() : fails("23 of 24 jobs were in flight for 7 s, and no line of the output said so"));
    const std::string sender = std::to_string(::getpid());
    const bool known = std::any_of(run.output.begin(), run.output.end(), [&](const line& each) {
        return each.at >= run.first_signal() && has_number(each.text, sender);
    });
    at.judge("SENDER",
             known ? holds() : fails("no line of the output names the process that sent SIGTERM, " + sender));
}

// ---- health ----

int get(const std::string& address, const char* path) {
    const ojs::result<ojs::http_client> client = ojs::http_client::create("http://" + address);
    if (!client) return 0;
    ojs::http_request request;
    request.target = path;
    auto answer = const_cast<ojs::http_client&>(*client).send(
        request, {clock::now() + seconds(2), ojs::resend::if_unsent, nullptr});
    return answer ? answer->status : 0;
}

// The status of the first path that is there: 404 is not.
int get_first(const std::string& address, const std::vector<const char*>& paths) {
    int status = 0;
    for (const char* path : paths) {
        status = get(address, path);
        if (status != 404 && status != 0) return status;
    }
    return status;
}

void readiness(findings& out) {
    std::string why;
    recorder port;  // finds a free one
    if (!port.start(why)) throw cannot_work{why};
    const std::string address = port.url().substr(7);
    port.go_away();
    session at(out, "readiness", {{"OJS_HEALTH_ADDR", address}});
    at.start_and_await_beat();
    const auto ready = [&] { return get_first(address, {"/readyz", "/healthz"}); };
    int before = ready();
    for (int tries = 0; before != 200 && tries < 20; ++tries) {
        at.await_beats(1);
        before = ready();
    }
    const int live_before = get(address, "/livez");
    at.signal(SIGTSTP);
    at.await_beats(2, "quiet", seconds(3));
    const int after = ready();
    const int live_after = get(address, "/livez");
    at.finish();
    const auto says = [](const char* path, int status) {
        return std::string("GET ") + path +
               (status == 0 ? " is not answered" : " answers " + std::to_string(status));
    };
    if (before != 200) {
        at.judge("GS-R004",
                 fails("while running, " + says("/readyz (or /healthz)", before) + " at OJS_HEALTH_ADDR"));
    } else if (after < 400) {
        at.judge("GS-R004", fails("after SIGTSTP " + says("/readyz (or /healthz)", after)));
    } else {
        at.judge("GS-R004", holds());
    }
    at.judge("LIVE", live_before != 200  ? skipped("there is no GET /livez")
                     : live_after != 200 ? fails("after SIGTSTP " + says("/livez", live_after))
                                         : holds());
}

}  // namespace

const std::vector<requirement> requirements = {
    {"GS-001", "SIGTERM: quiet, drain, stop"},
    {"GS-002", "SIGINT: the same"},
    {"GS-003", "the grace period is configurable, 30 s by default"},
    {"GS-004", "heartbeats go on during the drain"},
    {"GS-005", "FAIL with ShutdownError when the grace period is over"},
    {"GS-R001", "SIGTSTP: quiet without stopping"},
    {"GS-R002", "second SIGTERM: forced stop"},
    {"GS-R003", "the drain logs how many jobs are left"},
    {"GS-R004", "readiness fails when quiet"},
    {"NO-FETCH", "no FETCH after the quiet beat"},
    {"LAST-BEAT", "one beat `terminate`, and it is the last request"},
    {"ONCE", "each job is settled exactly once"},
    {"EXIT-0", "exit status 0 after a clean drain"},
    {"ATTEMPT", "an interrupted job is handed back without using up an attempt"},
    {"RESUME", "SIGCONT undoes SIGTSTP"},
    {"SENDER", "the log says who sent the signal"},
    {"LIVE", "liveness holds while readiness fails"},
};

const std::vector<scenario> scenarios = {
    {"grace-default", "no grace period set: 30 s", {"GS-003"}, default_grace, true},
    {"drain",
     "SIGTERM with three jobs in flight",
     {"GS-001", "GS-004", "NO-FETCH", "LAST-BEAT", "ONCE", "EXIT-0"},
     drain,
     false},
    {"sigint", "SIGINT with two jobs in flight", {"GS-002"}, interrupt, false},
    {"grace", "a job longer than the grace period", {"GS-003", "GS-005", "ATTEMPT"}, grace, false},
    {"tstp", "SIGTSTP, then SIGCONT", {"GS-R001", "RESUME"}, quiet_and_resume, false},
    {"second-term", "a second SIGTERM during the drain", {"GS-R002"}, second_term, false},
    {"progress", "a drain with many jobs, one of which ends", {"GS-R003", "SENDER"}, progress, false},
    {"readiness", "the health port while quiet", {"GS-R004", "LIVE"}, readiness, false},
};

void findings::add(finding one) {
    const std::lock_guard<std::mutex> held(mutex_);
    all_.push_back(std::move(one));
}

std::vector<finding> findings::all() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return all_;
}

void findings::measured(const std::string& name, double ms) {
    const std::lock_guard<std::mutex> held(mutex_);
    figures_[name].push_back(ms);
}

std::map<std::string, std::vector<double>> findings::figures() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return figures_;
}

}  // namespace probe
