// scenarios: each creates one situation by the content and time of its responses, and then judges the run.
#include "scenarios.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <thread>

#include "ojs_shutdown.hpp"
#include "session.hpp"

namespace probe {
namespace {
void measure_stop(session& at, const record& run) {
    const request* quiet = quiet_beat(run);
    const request* settled = last_settlement(run);
    if (quiet != nullptr) at.measured("signal -> quiet beat", run.first_signal(), quiet->at);
    if (settled != nullptr && run.ended) at.measured("tail: last settlement -> exit", settled->answered, run.ended_at);
}

// ---- the handshake ----

struct step {
    kind what;
    const char* send;  // what a worker does to take it
};
constexpr std::array<step, 3> steps = {{
    {kind::fetch,
     "POST OJS_URL/ojs/v1/workers/fetch {\"queues\":[\"default\"],\"worker_id\":ID,\"count\":N} while a slot "
     "is "
     "free"},
    {kind::beat,
     "POST OJS_URL/ojs/v1/workers/heartbeat "
     "{\"worker_id\":ID,\"state\":\"running\",\"active_jobs\":[JOB...]}, "
     "every OJS_HEARTBEAT_INTERVAL (100ms)"},
    {kind::ack, "POST OJS_URL/ojs/v1/workers/ack {\"job_id\":JOB} when the handler of probe.sleep has returned"},
}};

std::string how_it_stopped(const record& run) {
    const bool killed = run.ended && run.status == -SIGTERM;
    return "SIGTERM: " + ended_how(run) + (killed ? ": the jobs in flight are lost; it needs a handler" : "");
}

verdict missing_steps(const record& started, const record& stopped) {
    std::string missing;
    std::vector<std::string> details;
    for (const step& each : steps) {
        const request* seen = first_accepted(started.requests, each.what);
        const std::string name = name_of(each.what);
        details.push_back(
            name + ": " +
            (seen != nullptr ? "seen at " + started.when(seen->at) : std::string("missing; send ") + each.send));
        const bool possible = each.what != kind::ack || started.count(kind::fetch) > 0;
        if (seen == nullptr && possible) missing += (missing.empty() ? "no " : " and no ") + name;
    }
    if (!started.ended) details.push_back(how_it_stopped(stopped));
    for (std::string& each : exchange(started, last_request(started))) details.push_back(std::move(each));
    verdict out =
        fails("the command sent " + missing + " to OJS_URL" + (started.ended ? "; " + ended_how(started) : " in 10 s"));
    out.details = details;
    return out;
}

// Whether a job waits for another one that is in its handler. By their order, as polling may take any time.
bool is_serial(session& at) {
    const std::string first = at.backend.add_jobs("probe.sleep", 60000).front();
    const auto given = [&](const std::vector<request>& all) { return was_given(all, first); };
    if (!at.wait(given, seconds(10))) return false;
    const std::string second = at.backend.add_jobs("probe.sleep", 0).front();
    const auto settled = [&](const std::vector<request>& all) { return is_settled(all, second); };
    return !at.wait(settled, seconds(10)) && at.worker.alive();
}

// Judges only a worker that does not take the three steps, and stops it, to see what it does.
void shake_hands(findings& out) {
    session at(out, "handshake");
    const std::string job = at.backend.add_jobs("probe.sleep", 0).front();
    at.start();
    const auto complete = [](const std::vector<request>& all) {
        return std::all_of(steps.begin(), steps.end(),
                           [&](const step& each) { return first_accepted(all, each.what) != nullptr; });
    };
    if (at.wait(complete, seconds(10))) {
        if (is_serial(at)) out.note_serial();
        return;
    }
    const record started = at.so_far();
    if (!started.ended) at.signal(SIGTERM);
    at.await_exit(seconds(2));
    at.judge("HANDSHAKE", missing_steps(started, at.finish()));
}

// ---- signals and phases ----

// Whether that number stands alone, not inside of a time or another number.
bool has_number(const std::string& text, const std::string& number) {
    const auto joins = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':' || c == '-';
    };
    for (std::size_t at = 0; (at = text.find(number, at)) != std::string::npos; at += number.size()) {
        const bool begins = at == 0 || !joins(text[at - 1]) || (text[at - 1] == ':' && at > 1 && text[at - 2] == '"');
        const std::size_t end = at + number.size();
        if (begins && (end == text.size() || !joins(text[end]) || (text[end] == '.' && end + 1 == text.size())))
            return true;
    }
    return false;
}

verdict sender_named(const record& run) {
    const std::string sender = std::to_string(::getpid());
    const bool named = std::any_of(run.output.begin(), run.output.end(), [&](const line& each) {
        return each.at >= run.first_signal() && has_number(each.text, sender);
    });
    return named ? passes() : fails("no line of the output names the process that sent SIGTERM, " + sender);
}

void drain(findings& out) {
    session at(out, "drain");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 1200, at.at_a_time(3));
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    measure_stop(at, run);
    at.judge("GS-001", quiet_drain_stop(run, jobs));
    at.judge("GS-004", beats_in_drain(run, 2));
    at.judge("BEATS-JOBS", beats_name_jobs(run, jobs));
    at.judge("NO-FETCH", no_fetch_after_quiet(run));
    at.judge("LAST-BEAT", last_request_is_terminate(run));
    at.judge("ONCE", settled_once(run));
    const bool clean = completed(run, jobs).what == verdict::kind::passes;
    at.judge("SENDER", sender_named(run));
    at.judge("EXIT-0", clean ? exit_status_is(run, 0) : skipped("the drain was not clean"));
}

void interrupt(findings& out) {
    session at(out, "sigint");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 800, at.at_a_time(2));
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
    at.backend.wait([&](const std::vector<request>& all) { return is_settled(all, job); }, seconds(36));
    at.judge("GS-003", interrupted_at(at.finish(), job, milliseconds(29500), seconds(35)));
}

// After the quiet beat: none of `count` more beats says anything else, no FETCH, the process lives.
verdict stays_quiet(session& at, int count) {
    if (!at.await_beats(count)) return fails("no more BEATs while quiet");
    const record run = at.so_far();
    const request* quiet = quiet_beat(run);
    if (quiet == nullptr) return fails("no BEAT with state \"quiet\" after the signal");
    for (const request& each : run.requests) {
        if (each.what == kind::beat && each.at > quiet->at && each.state != "quiet")
            return fails("BEAT \"" + each.state + "\" at " + run.when(each.at) + ", after the quiet one");
    }
    if (run.ended) return fails(ended_how(run));
    return no_fetch_after_quiet(run);
}

void quiet_and_resume(findings& out) {
    session at(out, "tstp");
    at.start_and_await_beat();
    const std::vector<std::string> before = at.run_jobs("probe.sleep", 300);
    at.signal(SIGTSTP);
    const bool was_quiet = at.await_beats(1, "quiet", seconds(3));
    const std::vector<std::string> waiting = at.backend.add_jobs("probe.sleep", 0, 2);
    const verdict quiet = stays_quiet(at, 5);
    at.judge("GS-R001", all_of({quiet, completed(at.so_far(), before)}));
    at.signal(SIGCONT);
    const bool resumed = at.await_beats(1, "running", seconds(3));
    at.backend.wait(
        [&](const std::vector<request>& requests) {
            return std::count_if(requests.begin(), requests.end(), [](const request& each) { return each.settles; }) >=
                   3;
        },
        seconds(3));
    at.judge("RESUME", !was_quiet ? skipped("SIGTSTP did not make it quiet")
                       : resumed  ? completed(at.so_far(), waiting)
                                  : fails("no BEAT with state \"running\" within 3 s after SIGCONT"));
    for (int round = 0; round < 5; ++round) {
        const moment sent = clock::now();
        at.signal(SIGTSTP);
        if (!at.await_beats(1, "quiet", seconds(3))) break;
        for (const request& each : at.backend.requests()) {
            if (each.what != kind::beat || each.at < sent || each.state != "quiet") continue;
            at.measured("signal -> quiet beat", sent, each.at);
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
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 60000, at.at_a_time(2));
    at.signal(SIGTERM);
    at.await_beats(6);  // longer than two signals may be apart and still be one stop event
    const bool waited = at.worker.alive() && std::none_of(jobs.begin(), jobs.end(), [&](const auto& job) {
                            return settled_before(at.so_far(), job, clock::now());
                        });
    at.signal(SIGTERM);
    at.await_exit(seconds(8));
    const record run = at.finish();
    const moment second = run.marks.back().at;
    if (run.ended) at.measured("forced exit: second SIGTERM -> exit", second, run.ended_at);
    at.judge("GS-R002", waited ? all_of({ends_within(run, second, seconds(8)), all_claimed_settled(run)})
                               : fails("it did not wait for its jobs after the first SIGTERM"));
}

// ---- logs ----

// Whether a line has that number, and a word for unfinished jobs.
bool names_remaining(const std::string& text, const std::string& number) {
    std::string words = text;
    for (char& c : words) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* word : {"active", "remaining", "flight", "running", "pending", "left", "drain", "jobs", "wait"}) {
        if (words.find(word) != std::string::npos && has_number(text, number)) return true;
    }
    return false;
}

void progress(findings& out) {
    // The specification requires the line every 5 s; the variable shortens that.
    session at(out, "progress", {{"OJS_CONCURRENCY", "24"}, {"OJS_PROGRESS_INTERVAL", "300ms"}});
    at.start_and_await_beat();
    const std::vector<std::string> longs = at.run_jobs("probe.sleep", 8500, 23);
    const std::string brief = at.run_jobs("probe.sleep", 300).front();
    at.signal(SIGTERM);
    at.await_settled({brief});
    const moment left_23 = clock::now();
    const bool logged = at.worker.wait_output(
        [&](const line& each) { return each.at >= left_23 && names_remaining(each.text, "23"); }, seconds(7));
    at.finish();
    at.judge("GS-R003",
             logged ? passes() : fails("23 of 24 jobs were in flight for 7 s, and no output line reports it"));
}

// ---- health ----

int get(const std::string& address, const char* path) {
    const ojs::result<ojs::http_client> client = ojs::http_client::create("http://" + address);
    if (!client) return 0;
    ojs::http_request request;
    request.target = path;
    auto answer = const_cast<ojs::http_client&>(*client).send(request, {clock::now() + seconds(2)});
    return answer ? answer->status : 0;
}

// The status of the first path that exists: not 404.
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
        return std::string("GET ") + path + (status == 0 ? " is not answered" : " answers " + std::to_string(status));
    };
    if (before != 200) {
        at.judge("GS-R004", fails("while running, " + says("/readyz (or /healthz)", before) + " at OJS_HEALTH_ADDR"));
    } else if (after < 400) {
        at.judge("GS-R004", fails("after SIGTSTP " + says("/readyz (or /healthz)", after)));
    } else {
        at.judge("GS-R004", passes());
    }
    at.judge("LIVE", live_before != 200  ? skipped("there is no GET /livez")
                     : after < 400       ? skipped("readiness did not fail")
                     : live_after != 200 ? fails("after SIGTSTP " + says("/livez", live_after))
                                         : passes());
}

// ---- order on the wire ----

void slow_settlement(findings& out) {
    session at(out, "slow-ack");
    at.start_and_await_beat();
    at.backend.hold(kind::ack);
    at.run_jobs("probe.sleep", 300);
    at.signal(SIGTERM);
    if (!at.backend.wait_held(kind::ack, 1, seconds(5))) at.give_up("no ACK within 5 s");
    const bool beats = at.await_beats(3, "", seconds(3));
    const record meanwhile = at.so_far();
    at.backend.release(kind::ack);
    at.await_exit();
    at.finish();
    at.judge("BEATS-END", beats ? passes()
                          : meanwhile.ended
                              ? fails("the response to an ACK was delayed; " + ended_how(meanwhile))
                              : fails("the response to an ACK was delayed; fewer than 3 BEATs arrived in 3 s"));
}

void many_failures(findings& out) {
    constexpr std::size_t jobs = 20;
    session at(out, "many-fails",
               {{"OJS_CONCURRENCY", std::to_string(jobs)},
                {"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"},
                {"OJS_STOP_TIMEOUT", "10s"}});
    at.start_and_await_beat();
    at.backend.hold(kind::fail);
    at.run_jobs("probe.sleep", 60000, jobs);
    at.signal(SIGTERM);
    const bool together = at.backend.wait_held(kind::fail, jobs / 2, seconds(4));
    const std::size_t sent = at.so_far().count(kind::fail);
    at.backend.release(kind::fail);
    at.await_exit();
    at.judge("FAIL-FAST", together
                              ? all_claimed_settled(at.finish())
                              : fails("of 20 FAILs only " + std::to_string(sent) +
                                      " arrived before the first was answered: sent one by one, they take too long"));
}

void fetch_in_flight(findings& out) {
    std::vector<verdict> settled;
    std::vector<verdict> requeued;
    for (const int delay : {0, 10, 25, 50}) {
        session at(out, "fetch-in-flight");
        at.start_and_await_beat();
        at.backend.hold(kind::fetch);
        if (!at.backend.wait_held(kind::fetch, 1, seconds(5))) at.give_up("no FETCH within 5 s");
        at.backend.add_jobs("probe.sleep", 0, 2);
        at.signal(SIGTERM);
        std::this_thread::sleep_for(milliseconds(delay));
        const bool last_moment = delay == 50;
        if (last_moment) at.await_beats(1, "quiet", seconds(2));  // by then a slow worker drains too
        at.backend.release(kind::fetch);
        at.await_exit();
        const record run = at.finish();
        settled.push_back(all_of({all_claimed_settled(run), ends_within(run, run.first_signal(), seconds(8))}));
        for (const std::string& job : claimed(run)) requeued.push_back(interrupted_without_attempt(run, job));
        if (!last_moment && settled.back().what != verdict::kind::fails) continue;
        at.judge("IN-FLIGHT", all_of(settled));
        const verdict returned = any_of(requeued);
        const bool all_run = returned.what == verdict::kind::skipped && settled.back().what == verdict::kind::passes;
        at.judge("HAND-BACK", all_run ? skipped("the worker ran all jobs that it claimed") : returned);
        return;
    }
}

// ---- a backend in trouble ----

void lost_answer(findings& out) {
    session at(out, "lost-answer");
    at.start_and_await_beat();
    at.backend.lose(kind::ack, 1);
    const std::string job = at.run_jobs("probe.sleep", 300).front();
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    at.judge("LOST", all_of({repeated_after_loss(run, job), ends_within(run, run.first_signal(), seconds(8))}));
}

void away_and_back(findings& out) {
    session at(out, "away-and-back");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 1000);
    at.signal(SIGTERM);
    at.await_beats(1, "quiet", milliseconds(500));
    const moment away = clock::now();
    at.backend.go_away();
    std::this_thread::sleep_for(milliseconds(1200));  // the job ends meanwhile
    if (!at.backend.come_back()) throw cannot_work{"another process took the recorder's port"};
    at.await_exit();
    const record run = at.finish();
    const bool early = settled_before(run, jobs.front(), away);
    at.judge("AWAY-BACK", early ? skipped("the job was settled before the backend went down")
                                : all_of({completed(run, jobs), ends_within(run, run.first_signal(), seconds(10))}));
}

void away_for_good(findings& out) {
    session at(out, "away-for-good", {{"OJS_SHUTDOWN_GRACE_PERIOD", "500ms"}, {"OJS_STOP_TIMEOUT", "1s"}});
    at.start_and_await_beat();
    at.run_jobs("probe.sleep", 60000);
    at.signal(SIGTERM);
    at.await_beats(1, "quiet", milliseconds(300));
    const moment away = clock::now();
    at.backend.go_away();
    at.await_exit(seconds(12));
    const record run = at.finish();
    const bool early = run.ended && run.ended_at < away;
    at.judge("AWAY-GOOD", early ? skipped("the worker ended before the backend went down")
                                : ends_within(run, run.first_signal(), seconds(12)));
    at.judge("UNREPORTED", run.ended ? exit_status_is(run, 75) : skipped(ended_how(run)));
    if (run.ended)
        at.measured("no backend: grace period over -> exit", run.first_signal() + milliseconds(500), run.ended_at);
}

std::vector<raw_answer> hostile_answers() {
    const std::string ok = "HTTP/1.1 200 OK\r\n";
    const std::string json = ok + "Content-Type: application/json\r\nConnection: close\r\n";
    const auto sized = [&](const std::string& body) {
        return json + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    };
    return {
        {json + "Content-Length: 400\r\n\r\n{\"jobs\":[{\"id\":\"x\",\"ty", "", 0},  // truncated
        {sized("{\"jobs\":[],\"state\":1e999,\"n\":1e999}"), "", 0},
        {sized(std::string(200000, '[')), "", 0},
        {sized("{\"jobs\":" + std::string(200000, '{')), "", 0},
        {ok, "X-Padding: " + std::string(4000, 'x') + "\r\n", 8000},  // headers without end
        {json + "Content-Length: -1\r\n\r\n{}", "", 0},
        {json + "Content-Length: 99999999999999999999999\r\n\r\n{}", "", 0},
        {json + "Content-Length: 9000000000\r\n\r\n{", "", 0},
        {json + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}", "", 0},
        {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\nConnection: "
         "close\r\n\r\n",
         "", 0},
        {"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", "", 0},
        {sized("{\"jobs\":7,\"jobs_extended\":{},\"state\":[]}"), "", 0},
        {sized("null"), "", 0},
        {std::string(3, '\0') + "\x01\x02 no HTTP at all\r\n\r\n", "", 0},
    };
}

void hostile(findings& out) {
    session at(out, "hostile");
    at.start_and_await_beat();
    const std::int64_t before = at.worker.resident_kb();
    at.backend.answer_raw(kind::fetch, hostile_answers());
    at.backend.answer_raw(kind::beat, hostile_answers());
    at.backend.answer_raw(kind::ack, {hostile_answers()[0], hostile_answers()[10]});
    const std::vector<std::string> jobs = at.backend.add_jobs("probe.sleep", 0, 4);
    const auto end = clock::now() + seconds(40);
    while (at.backend.raw_left() && clock::now() < end && !at.worker.wait(milliseconds(20))) {
    }
    if (!at.worker.alive()) {
        at.judge("HOSTILE", fails("it did not survive: " + ended_how(at.finish())));
        return;
    }
    if (at.backend.raw_left())
        at.give_up("40 s were not enough to send all hostile responses: the worker sends too few requests");
    const std::int64_t after = at.worker.resident_kb();
    const std::int64_t grown_mb = (after - before) / 1024;
    const std::string memory =
        "memory " + std::to_string(before / 1024) + " MB, then " + std::to_string(after / 1024) + " MB";
    at.await_settled(jobs, seconds(15));
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    const verdict grown = before <= 0 || after <= 0 ? skipped("its memory is not known")
                          : grown_mb > 100          ? fails("it grew: " + memory)
                                                    : passes(memory);
    at.judge("HOSTILE", all_of({grown, ends_within(run, run.first_signal(), seconds(8))}));
}

void strict(findings& out) {
    session at(out, "strict", {{"OJS_SHUTDOWN_GRACE_PERIOD", "500ms"}});
    at.backend.be_strict();
    at.start();
    const std::vector<std::string> brief = at.backend.add_jobs("probe.sleep", 0);
    at.backend.wait([&](const std::vector<request>& all) { return is_settled(all, brief.front()); }, seconds(4));
    const std::vector<std::string> longs = at.backend.add_jobs("probe.sleep", 60000);
    at.backend.wait([&](const std::vector<request>& all) { return was_given(all, longs.front()); }, seconds(4));
    at.await_beats(3, "", seconds(2));
    at.signal(SIGTERM);
    at.await_exit(seconds(6));
    at.judge("STRICT", accepted_by_strict(at.finish()));
}

// ---- directives ----

void directives(findings& out) {
    std::vector<verdict> quiet;
    std::vector<verdict> stays;
    for (const char* members : {"\"state\":\"quiet\"", "\"state\":\"running\",\"directive\":\"quiet\""}) {
        session at(out, "directives");
        at.start_and_await_beat();
        at.mark_event();
        at.backend.say(members);
        const bool obeyed = at.await_beats(1, "quiet", seconds(3));
        quiet.push_back(obeyed ? passes()
                               : fails(std::string("no quiet BEAT within 3 s of the answer {") + members + "}"));
        at.backend.say("\"state\":\"running\"");
        at.backend.add_jobs("probe.sleep", 0, 2);
        stays.push_back(obeyed ? stays_quiet(at, 5) : skipped("it was never quiet"));
        const bool failed = quiet.back().what == verdict::kind::fails || stays.back().what == verdict::kind::fails;
        if (!failed && quiet.size() < 2) continue;
        at.judge("DIR-QUIET", all_of(quiet));
        at.judge("DIR-STAYS", any_of(stays));
        return;
    }
}

void terminate_directive(findings& out) {
    std::vector<verdict> obeyed;
    for (const char* members : {"\"state\":\"terminate\"", "\"state\":\"running\",\"directive\":\"terminate\""}) {
        session at(out, "terminate");
        at.start_and_await_beat();
        const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 800);
        at.mark_event();
        at.backend.say(members);
        at.await_exit(seconds(5));
        const record run = at.finish();
        obeyed.push_back(all_of({ends_within(run, run.first_signal(), seconds(5)), quiet_drain_stop(run, jobs)}));
        obeyed.back().figures.clear();  // the directive arrives with the next beat, at any time
        if (obeyed.back().what != verdict::kind::fails && obeyed.size() < 2) continue;
        at.judge("DIR-TERM", all_of(obeyed));
        return;
    }
}

// ---- sequences of signals ----

void signal_storm(findings& out) {
    session at(out, "storm");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.backend.add_jobs("probe.sleep", 20, 40);
    at.mark_event();
    int sent = 0;
    for (const moment end = clock::now() + seconds(1); clock::now() < end; sent += 2) {
        at.worker.signal(SIGTSTP);
        at.worker.signal(SIGCONT);
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    std::this_thread::sleep_for(milliseconds(50));  // no signal is pending when the last one is sent
    at.worker.signal(SIGCONT);
    at.await_settled(jobs);
    at.signal(SIGTERM);
    at.await_exit();
    at.judge("STORM", all_of({passes(std::to_string(sent) + " signals"), completed(at.so_far(), jobs),
                              exit_status_is(at.finish(), 0)}));
}

void sent_twice(findings& out) {
    std::vector<verdict> all;
    for (const int gap : {20, 120}) {
        session at(out, "sent-twice");
        at.start_and_await_beat();
        const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 1000);
        at.signal(SIGTERM);
        std::this_thread::sleep_for(milliseconds(gap));
        at.signal(SIGTERM);
        at.await_exit();
        const record run = at.finish();
        const double between = milliseconds_between(run.marks[0].at, run.marks[1].at);
        all.push_back(between > 200 ? skipped("the probe was too slow to send two signals within 200 ms")
                                    : completed(run, jobs));
        if (all.back().what != verdict::kind::fails && all.size() < 2) continue;
        at.judge("TWICE", any_of(all));
        return;
    }
}

void cont_after_term(findings& out) {
    session at(out, "cont-after-term");
    at.start_and_await_beat();
    const std::vector<std::string> jobs = at.run_jobs("probe.sleep", 800);
    at.signal(SIGTERM);
    at.signal(SIGCONT);
    at.await_exit();
    const record run = at.finish();
    at.judge("CONT", all_of({quiet_drain_stop(run, jobs), never_runs_again(run), no_fetch_after_quiet(run)}));
}

// Short steps at first; then even ones, until the worker has started; long ones if it takes its time.
int next_delay(int delay) { return delay < 160 || delay > 4000 ? std::max(delay + 1, delay * 2) : delay + 160; }

void early_term(findings& out) {
    constexpr int least = 160;
    constexpr int most = 16000;
    std::vector<verdict> all;
    for (int delay = 0;; delay = next_delay(delay)) {
        session at(out, "early-term", {{"OJS_SHUTDOWN_GRACE_PERIOD", "1s"}});
        at.backend.add_jobs("probe.sleep", 0, 1);
        at.start();
        std::this_thread::sleep_for(milliseconds(delay));
        at.signal(SIGTERM);
        at.await_exit(seconds(6));
        const record run = at.finish();
        const bool worked = !claimed(run).empty();
        all.push_back(any_of({ends_within(run, run.first_signal(), seconds(6)), all_claimed_settled(run)}));
        const bool gone = run.ended && run.ended_at < run.first_signal();
        const bool tried_all = gone || next_delay(delay) > most || (delay >= least && worked);
        if (all.back().what != verdict::kind::fails && !tried_all) continue;
        if (all.back().what == verdict::kind::fails)
            all.back().reason += " (SIGTERM " + std::to_string(delay) + " ms after the start)";
        all.back().figures.clear();
        const bool shown = worked && !gone;
        at.judge("EARLY", shown || all.back().what == verdict::kind::fails
                              ? all_of(all)
                              : skipped(gone ? "the worker ended before SIGTERM came"
                                             : "no job was claimed, however late SIGTERM came"));
        return;
    }
}

// ---- jobs ----

void concurrency(findings& out) {
    constexpr int slots = 4;
    constexpr int jobs = 24;
    constexpr int each_ms = 400;
    session at(out, "concurrency");
    at.start_and_await_beat();
    const std::vector<std::string> ids = at.backend.add_jobs("probe.sleep", each_ms, jobs);
    at.await_settled(ids);
    at.signal(SIGTERM);
    at.await_exit();
    const record run = at.finish();
    // Load never shortens a job: less time means more jobs at once.
    at.judge("SLOTS",
             all_of({took_at_least(run, ids, milliseconds(jobs / slots * each_ms), slots), all_claimed_settled(run)}));
}

void deaf_job(findings& out) {
    session at(out, "deaf", {{"OJS_SHUTDOWN_GRACE_PERIOD", "700ms"}});
    at.start_and_await_beat();
    const std::string job = at.run_jobs("probe.spin", 60000).front();
    at.signal(SIGTERM);
    at.await_exit(seconds(8));
    const record run = at.finish();
    const moment deadline = run.first_signal() + milliseconds(700);
    if (run.ended) at.measured("deaf job: grace period over -> exit", deadline, run.ended_at);
    // A FAIL before the grace period is over is of a handler that returned by itself.
    at.judge("DEAF", all_of({interrupted_as(run, job, ""), interrupted_at(run, job, milliseconds(600), seconds(7)),
                             ends_within(run, deadline, seconds(6))}));
}

void frozen(findings& out) {
    session at(out, "frozen", {{"OJS_VISIBILITY_TIMEOUT", "1s"}});
    at.start_and_await_beat();
    constexpr milliseconds length(2000);
    const std::string job = at.run_jobs("probe.sleep", length.count()).front();
    at.require_in_flight();
    at.worker.signal(SIGSTOP);
    at.backend.expire_leases();
    std::this_thread::sleep_for(milliseconds(1600));  // longer than the lease
    at.signal(SIGCONT);
    std::this_thread::sleep_for(length);  // the job was claimed before the freeze, but may not have started
    const bool woke = at.await_beats(8, "", seconds(5));
    const verdict silent = not_reported(at.finish(), job, "its lease had expired, and no response had renewed it");
    const bool shown = woke || silent.what == verdict::kind::fails;
    at.judge("FROZEN", shown ? silent : fails("not shown: fewer than 8 BEATs in 5 s after the freeze"));
}

// Every slot is taken: the job after them runs only if the cancelled one ends.
void cancelled_at_backend(findings& out) {
    session at(out, "cancelled");
    at.start_and_await_beat();
    const std::string job = at.run_jobs("probe.sleep", 60000, at.at_a_time(4)).front();
    const std::string next = at.backend.add_jobs("probe.sleep", 0).front();
    const auto settled = [&](const std::vector<request>& requests) { return is_settled(requests, next); };
    at.await_beats(3, "", seconds(5));
    if (at.wait(settled, milliseconds(0))) {
        at.judge("CANCELLED", skipped("not shown: it runs more jobs at a time than OJS_CONCURRENCY"));
        return;
    }
    at.mark_event();
    at.backend.cancel_job(job);
    const bool ended = at.wait(settled, seconds(10)) && at.await_beats(2, "", seconds(5));
    at.judge("CANCELLED", ended ? not_reported(at.finish(), job, "it no longer belongs to this worker")
                                : fails("its slot is not free after 10 s"));
}
}  // namespace

const std::vector<named_check> all_checks = {
    {"HANDSHAKE", harm::lost, "the command fetches a job, beats, and acknowledges the job"},
    {"GS-001", harm::lost, "SIGTERM: quiet, drain, stop"},
    {"GS-002", harm::lost, "SIGINT: the same"},
    {"GS-003", harm::late, "the grace period is configurable, 30 s by default"},
    {"GS-004", harm::doubled, "heartbeats continue during the drain"},
    {"GS-005", harm::lost, "FAIL with ShutdownError when the grace period is over"},
    {"GS-R001", harm::late, "SIGTSTP: quiet without stopping"},
    {"GS-R002", harm::late, "second SIGTERM: forced stop"},
    {"GS-R003", harm::comfort, "the drain logs how many jobs are left"},
    {"GS-R004", harm::comfort, "readiness fails when quiet"},
    {"NO-FETCH", harm::late, "no FETCH after the quiet beat"},
    {"LAST-BEAT", harm::comfort, "one beat `terminate`, and it is the last request"},
    {"ONCE", harm::doubled, "each job is settled exactly once"},
    {"EXIT-0", harm::comfort, "exit status 0 after a clean drain"},
    {"ATTEMPT", harm::lost, "an interrupted job is requeued without using up an attempt"},
    {"RESUME", harm::late, "SIGCONT undoes SIGTSTP"},
    {"SENDER", harm::comfort, "the log names the sender of the signal"},
    {"LIVE", harm::comfort, "liveness stays 200 while readiness fails"},
    {"BEATS-JOBS", harm::doubled, "heartbeats of the drain name the jobs in flight"},
    {"BEATS-END", harm::doubled, "heartbeats continue until the last settlement is answered"},
    {"FAIL-FAST", harm::late, "FAILs of many jobs are sent in parallel"},
    {"IN-FLIGHT", harm::lost, "a FETCH in flight at SIGTERM: its jobs are run or requeued"},
    {"HAND-BACK", harm::lost, "jobs never started are requeued without using up an attempt"},
    {"LOST", harm::lost, "the response to an ACK is lost: repeated, 409 accepted"},
    {"AWAY-BACK", harm::lost, "the backend is down for part of the drain: jobs are settled"},
    {"AWAY-GOOD", harm::late, "the backend stays down: the exit is bounded"},
    {"UNREPORTED", harm::lost, "exit status 75 if a job could not be reported"},
    {"HOSTILE", harm::lost, "hostile responses neither end the worker nor grow it"},
    {"STRICT", harm::lost, "a backend that refuses fields unknown to the schemas"},
    {"DIR-QUIET", harm::late, "the backend's directive `quiet`, in either field"},
    {"DIR-STAYS", harm::late, "no response un-quiets a worker"},
    {"DIR-TERM", harm::late, "the backend's directive `terminate`, in either field"},
    {"STORM", harm::lost, "a storm of signals does no harm"},
    {"TWICE", harm::lost, "two stop signals within 200 ms count as one"},
    {"CONT", harm::lost, "SIGCONT right after SIGTERM is harmless"},
    {"EARLY", harm::lost, "SIGTERM during start-up is honoured"},
    {"SLOTS", harm::late, "never more jobs at a time than OJS_CONCURRENCY"},
    {"DEAF", harm::late, "a job that ignores cancellation does not delay the exit"},
    {"FROZEN", harm::doubled, "a job frozen past its lease is not reported"},
    {"CANCELLED", harm::doubled, "a job cancelled at the backend is cancelled in the worker, and not reported"},
};

const scenario handshake = {"handshake", "a FETCH, a BEAT and an ACK, in 10 s", {"HANDSHAKE"}, shake_hands, false};

const std::vector<scenario> scenarios = {
    {"grace-default", "no grace period set: 30 s", {"GS-003"}, default_grace, true},
    {"drain",
     "SIGTERM with three jobs in flight",
     {"GS-001", "GS-004", "BEATS-JOBS", "NO-FETCH", "LAST-BEAT", "ONCE", "SENDER", "EXIT-0"},
     drain,
     false},
    {"sigint", "SIGINT with two jobs in flight", {"GS-002"}, interrupt, false},
    {"grace", "a job longer than the grace period", {"GS-003", "GS-005", "ATTEMPT"}, grace, false},
    {"tstp", "SIGTSTP, then SIGCONT", {"GS-R001", "RESUME"}, quiet_and_resume, false},
    {"second-term", "a second SIGTERM during the drain", {"GS-R002"}, second_term, false},
    {"progress",
     "a drain with many jobs, of which one ends",
     {"GS-R003"},
     progress,
     false,
     "the number 1 in a line does not show what it counts"},
    {"readiness", "the health port while quiet", {"GS-R004", "LIVE"}, readiness, false},
    {"slow-ack", "the response to an ACK is delayed", {"BEATS-END"}, slow_settlement, false},
    {"many-fails",
     "20 jobs to interrupt, FAILs answered late",
     {"FAIL-FAST"},
     many_failures,
     false,
     "there is never more than one FAIL to send"},
    {"fetch-in-flight",
     "a FETCH answered 0 to 50 ms after SIGTERM, or after the first BEAT of the drain",
     {"IN-FLIGHT", "HAND-BACK"},
     fetch_in_flight,
     false},
    {"lost-answer", "an ACK whose response is lost", {"LOST"}, lost_answer, false},
    {"away-and-back", "connections refused for a while during the drain", {"AWAY-BACK"}, away_and_back, false},
    {"away-for-good", "connections refused from the drain on", {"AWAY-GOOD", "UNREPORTED"}, away_for_good, false},
    {"hostile", "responses that are not HTTP or not OJS", {"HOSTILE"}, hostile, false},
    {"strict", "400 to any unknown field", {"STRICT"}, strict, false},
    {"directives", "directive quiet of the backend, then running", {"DIR-QUIET", "DIR-STAYS"}, directives, false},
    {"terminate", "directive terminate of the backend", {"DIR-TERM"}, terminate_directive, false},
    {"storm", "SIGTSTP and SIGCONT without pause for a second", {"STORM"}, signal_storm, false},
    {"sent-twice", "SIGTERM twice, 20 and 120 ms apart", {"TWICE"}, sent_twice, false},
    {"cont-after-term", "SIGTERM, immediately followed by SIGCONT", {"CONT"}, cont_after_term, false},
    {"early-term", "SIGTERM at many times of the start, until the worker works", {"EARLY"}, early_term, false},
    {"concurrency", "24 jobs on 4 slots", {"SLOTS"}, concurrency, false, "it cannot reach the limit"},
    {"deaf", "a job that ignores its cancellation", {"DEAF"}, deaf_job, false},
    {"frozen", "SIGSTOP for longer than the lease", {"FROZEN"}, frozen, false},
    {"cancelled", "a job in its handler is cancelled at the backend", {"CANCELLED"}, cancelled_at_backend, false},
};
}  // namespace probe
