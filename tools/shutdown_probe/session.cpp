// session: starting, waiting with a bound, judging.
#include "session.hpp"

#include <algorithm>

namespace probe {
namespace {
constexpr seconds start_limit{30};  // some runtimes take their time
constexpr std::size_t max_lines_shown = 6;

constexpr milliseconds beat_interval{100};

// What all scenarios start the worker with. --help lists it.
const environment common = {
    {"OJS_QUEUES", "default"},           {"OJS_CONCURRENCY", "4"},      {"OJS_SHUTDOWN_GRACE_PERIOD", "10s"},
    {"OJS_HEARTBEAT_INTERVAL", "100ms"}, {"OJS_POLL_INTERVAL", "50ms"}, {"OJS_VISIBILITY_TIMEOUT", "30s"},
    {"OJS_STOP_TIMEOUT", "2s"}};

bool contains(const std::vector<std::string>& all, const std::string& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
}

// Their claim was answered, and a later beat names them, or three beats name no job at all.
bool running(const std::vector<request>& requests, const std::vector<std::string>& jobs) {
    std::size_t given = 0;
    int beats = 0;
    for (const request& each : requests) {
        if (each.answered == moment::max()) continue;
        for (const std::string& job : jobs) given += contains(each.given, job) ? 1U : 0U;
        if (each.what != kind::beat || given < jobs.size()) continue;
        const bool all =
            std::all_of(jobs.begin(), jobs.end(), [&](const std::string& job) { return contains(each.active, job); });
        const bool names_none = each.active.empty() && each.active_count <= 0;
        if (all || each.active_count >= static_cast<std::int64_t>(jobs.size())) return true;
        if (names_none && ++beats >= 3) return true;
    }
    return false;
}
}  // namespace

session::session(findings& out, const char* scenario, const environment& extra)
    : out_(out), scenario_(scenario), settings_(common) {
    std::string why;
    if (!backend.start(why)) throw cannot_work{why};
    settings_["OJS_URL"] = backend.url();
    for (const auto& [name, value] : extra) {
        if (value.empty()) {
            settings_.erase(name);
        } else {
            settings_[name] = value;
        }
    }
}

void session::start() {
    std::string why;
    run_.started = clock::now();
    if (!worker.start(out_.command(), settings_, why)) throw cannot_work{why};
}

void session::start_and_await_beat() {
    start();
    const auto works = [](const std::vector<request>& requests) {
        return first_accepted(requests, kind::fetch) != nullptr && first_accepted(requests, kind::beat) != nullptr;
    };
    if (wait(works, start_limit)) return;
    give_up(worker.alive() ? "no FETCH and BEAT received in 30 s" : "the worker ended while it started");
}

bool session::wait(const recorder::condition& holds, milliseconds limit) {
    for (const moment end = clock::now() + limit; clock::now() < end;) {
        if (backend.wait(holds, milliseconds(50))) return true;
        if (!worker.alive()) break;
    }
    return backend.wait(holds, milliseconds(0));
}

std::vector<std::string> session::run_jobs(const char* type, std::int64_t ms, std::size_t count) {
    const std::vector<std::string> jobs = backend.add_jobs(type, ms, count);
    const auto taken = [&](const std::vector<request>& requests) { return running(requests, jobs); };
    jobs_.insert(jobs_.end(), jobs.begin(), jobs.end());
    if (wait(taken, seconds(10))) return jobs;
    const std::vector<std::string> given = claimed(so_far());
    const auto missing =
        std::count_if(jobs.begin(), jobs.end(), [&](const std::string& job) { return !contains(given, job); });
    if (missing == 0) return jobs;  // without a BEAT; require_in_flight() says whether they still run
    give_up("the worker did not take " + std::to_string(missing) + " of " + std::to_string(jobs.size()) + " jobs");
}

void session::signal(int number) {
    if (run_.marks.empty()) require_in_flight();
    run_.marks.push_back({number, clock::now()});
    worker.signal(number);
}

void session::mark_event() {
    if (run_.marks.empty()) require_in_flight();
    run_.marks.push_back({0, clock::now()});
}

void session::require_in_flight() {
    const verdict shown = in_flight(so_far(), jobs_, beat_interval);
    if (shown.what != verdict::kind::passes) throw gives_up{with_evidence(shown)};
}

void session::await(const recorder::condition& holds, const std::string& what, milliseconds limit) {
    if (!wait(holds, limit)) give_up(what);
}

void session::await_settled(const std::vector<std::string>& jobs, milliseconds limit) {
    await(
        [&](const std::vector<request>& requests) {
            return std::all_of(jobs.begin(), jobs.end(),
                               [&](const std::string& job) { return is_settled(requests, job); });
        },
        "jobs were not settled", limit);
}

bool session::await_beats(int count, const std::string& state, milliseconds limit) {
    const moment from = clock::now();
    limit = std::max(limit, (count + 1) * beat_gap(backend.requests()));  // of a worker with an interval of its own
    return wait(
        [&](const std::vector<request>& requests) {
            return std::count_if(requests.begin(), requests.end(), [&](const request& each) {
                       return each.what == kind::beat && each.at > from && (state.empty() || each.state == state);
                   }) >= count;
        },
        limit);
}

record session::so_far() {
    if (is_finished_) return run_;
    run_.ended = !worker.alive();  // first: the requests are then all those before the end
    run_.requests = backend.requests();
    run_.output = worker.output();
    if (run_.ended) {
        run_.status = worker.status();
        run_.ended_at = worker.ended_at();
    }
    return run_;
}

record session::finish() {
    so_far();
    worker.kill_group();
    run_.output = worker.output();
    is_finished_ = true;
    return run_;
}

verdict session::with_evidence(verdict what) {
    if (what.what != verdict::kind::fails) return what;
    const record run = so_far();
    if (what.cause.empty()) what.cause = cause_of(run, what.reason);
    if (what.details.empty()) what.details = exchange(run, last_request(run));
    const std::size_t lines = run.output.size();
    for (std::size_t i = lines - std::min(lines, max_lines_shown); i < lines; ++i)
        what.output.push_back("[" + run.when(run.output[i].at) + "] " + run.output[i].text.substr(0, 300));
    return what;
}

void session::give_up(const std::string& why) {
    const record run = so_far();
    throw gives_up{with_evidence(fails(why + "; " + (run.ended ? ended_how(run) : "it is running")))};
}
}  // namespace probe
