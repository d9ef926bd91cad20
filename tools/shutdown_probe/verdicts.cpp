// verdicts: each judges the order of messages first, and times only with a wide margin.
#include "verdicts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "ojs_shutdown.hpp"

namespace probe {
namespace {
// A FETCH sent before the worker noticed the signal may still arrive a moment after the beat.
constexpr milliseconds fetch_latency{100};

std::string quoted(const std::string& text) { return "\"" + text.substr(0, 60) + "\""; }

bool is_settlement(const request& each) { return each.what == kind::ack || each.what == kind::fail; }

std::string describe(const record& run, const request& each) {
    std::string out = each.what == kind::other ? each.route : name_of(each.what);
    if (!each.state.empty()) out += " " + quoted(each.state);
    if (!each.job.empty()) out += " of job " + each.job;
    return out + " at " + run.when(each.at);
}

// The median; 0: fewer than two.
milliseconds median_gap(const std::vector<request>& requests) {
    std::vector<milliseconds> gaps;
    for (std::size_t i = 1; i < requests.size(); ++i)
        gaps.push_back(std::chrono::duration_cast<milliseconds>(requests[i].at - requests[i - 1].at));
    std::sort(gaps.begin(), gaps.end());
    return gaps.empty() ? milliseconds(0) : gaps[gaps.size() / 2];
}

// The median time between FETCHes before the first signal.
milliseconds fetch_gap(const record& run) {
    std::vector<request> before;
    for (const request& each : run.requests) {
        if (each.what == kind::fetch && each.at < run.first_signal()) before.push_back(each);
    }
    return median_gap(before);
}

// Claimed jobs without a settlement, at most at a time.
std::size_t max_claimed(const record& run) {
    std::size_t now = 0;
    std::size_t most = 0;
    for (const request& each : run.requests) {
        now += each.given.size();
        now -= each.settles ? 1 : 0;
        most = std::max(most, now);
    }
    return most;
}
}  // namespace

const char* name_of(kind what) {
    constexpr std::array<const char*, 5> names = {"FETCH", "ACK", "FAIL", "BEAT", "request"};
    return names[static_cast<std::size_t>(what)];
}

std::string record::when(moment at) const {
    const moment zero = marks.empty() ? started : marks.front().at;
    const double ms = milliseconds_between(zero, at);
    const char* const before = marks.empty()               ? " before the start"
                               : marks.front().signal == 0 ? " before the event"
                                                           : " before the signal";
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), ms < 0 ? "%.1f ms" : "+%.1f ms", std::abs(ms));
    return ms < 0 ? text.data() + std::string(before) : text.data();
}

std::string ended_how(const record& run) {
    if (!run.ended) return "it still ran and was killed";
    if (run.status < 0) return "it was ended by " + ojs::signal_name(-run.status);
    return "it exited with status " + std::to_string(run.status);
}

std::size_t record::count(kind what) const {
    return static_cast<std::size_t>(
        std::count_if(requests.begin(), requests.end(), [&](const request& each) { return each.what == what; }));
}

verdict passes(std::string figures) { return {verdict::kind::passes, "", std::move(figures), {}, {}, {}}; }
verdict fails(std::string reason) { return {verdict::kind::fails, std::move(reason), "", {}, {}, {}}; }
verdict fails(std::string reason, const record& run, const request* shown_by) {
    return {verdict::kind::fails, std::move(reason), "", exchange(run, shown_by), {}, {}};
}
verdict skipped(std::string reason) { return {verdict::kind::skipped, std::move(reason), "", {}, {}, {}}; }

std::string cause_of(const record& run, const std::string& reason) {
    const std::string end = ended_how(run);
    const bool by_signal = run.ended && run.status < 0;
    return by_signal || reason.find(end) != std::string::npos ? end : "";
}

milliseconds beat_gap(const std::vector<request>& requests) {
    std::vector<request> beats;
    std::copy_if(requests.begin(), requests.end(), std::back_inserter(beats),
                 [](const request& each) { return each.what == kind::beat; });
    return median_gap(beats);
}

verdict in_flight(const record& run, const std::vector<std::string>& jobs, milliseconds beat_interval) {
    for (const std::string& job : jobs) {
        const request* settled = settlement(run, job);
        if (settled != nullptr && settled->what == kind::fail)
            return fails("FAIL before the signal: " + describe(run, *settled), run, settled);
    }
    const auto runs = [&](const std::string& job) { return settlement(run, job) == nullptr; };
    if (jobs.empty() || std::any_of(jobs.begin(), jobs.end(), runs)) return passes();
    const milliseconds gap = beat_gap(run.requests);
    const bool names_jobs = std::any_of(run.requests.begin(), run.requests.end(), [](const request& each) {
        return each.what == kind::beat && (!each.active.empty() || each.active_count > 0);
    });
    verdict out = skipped("no job was in flight at the signal: ");
    if (gap > 3 * beat_interval) {
        out.cause = "OJS_HEARTBEAT_INTERVAL is probably ignored";
        out.reason += out.cause + ": BEATs come every " + std::to_string(gap.count()) + " ms, not every " +
                      std::to_string(beat_interval.count()) + " ms, and the probe waits for one that names the job";
    } else if (!names_jobs) {
        out.cause = "no BEAT has active_jobs";
        out.reason += out.cause + ", so the probe waits for three BEATs after the claim";
    } else {
        out.reason += "its handler returned early, or the machine is too busy";
    }
    return out;
}

verdict all_of(const std::vector<verdict>& each) {
    verdict out = each.empty() ? skipped("nothing to judge") : each.front();
    out.figures.clear();
    for (const verdict& one : each) {
        if (one.what == verdict::kind::fails) return one;
        if (one.what == verdict::kind::skipped && out.what != one.what) out = one;
        if (!one.figures.empty()) out.figures += (out.figures.empty() ? "" : ", ") + one.figures;
    }
    return out;
}

verdict any_of(const std::vector<verdict>& each) {
    std::vector<verdict> judged;
    std::copy_if(each.begin(), each.end(), std::back_inserter(judged),
                 [](const verdict& one) { return one.what != verdict::kind::skipped; });
    return all_of(judged.empty() ? each : judged);
}

std::vector<std::string> exchange(const record& run, const request* about) {
    if (about == nullptr) return {};
    const std::string status = about->status == 0 ? "" : std::to_string(about->status) + " ";
    return {"request " + run.when(about->at) + "  " + about->route + " " + about->body,
            about->answered == moment::max() ? std::string("answer  none yet")
                                             : "answer  " + run.when(about->answered) + "  " + status + about->answer};
}

double milliseconds_between(moment from, moment to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

std::string figure(const char* name, double ms) {
    std::array<char, 120> text{};
    std::snprintf(text.data(), text.size(), "%s %.1f ms", name, ms);
    return text.data();
}

bool settled_before(const record& run, const std::string& job, moment at) {
    const request* settled = settlement(run, job);
    return settled != nullptr && settled->at < at;
}

const request* quiet_beat(const record& run) {
    for (const request& each : run.requests) {
        if (each.what == kind::beat && each.at >= run.first_signal() && each.state == "quiet") return &each;
    }
    return nullptr;
}

const request* first_accepted(const std::vector<request>& requests, kind what) {
    for (const request& each : requests) {
        if (each.what == what && each.status / 100 == 2) return &each;
    }
    return nullptr;
}

bool is_settled(const std::vector<request>& requests, const std::string& job) {
    return std::any_of(requests.begin(), requests.end(),
                       [&](const request& each) { return each.settles && each.job == job; });
}

bool was_given(const std::vector<request>& requests, const std::string& job) {
    return std::any_of(requests.begin(), requests.end(), [&](const request& each) {
        return std::find(each.given.begin(), each.given.end(), job) != each.given.end();
    });
}

const request* settlement(const record& run, const std::string& job) {
    for (const request& each : run.requests) {
        if (each.settles && each.job == job) return &each;
    }
    return nullptr;
}

const request* last_settlement(const record& run) {
    const request* out = nullptr;
    for (const request& each : run.requests) {
        if (is_settlement(each)) out = &each;
    }
    return out;
}

const request* last_beat(const record& run) {
    const request* out = nullptr;
    for (const request& each : run.requests) {
        if (each.what == kind::beat) out = &each;
    }
    return out;
}

const request* last_request(const record& run) { return run.requests.empty() ? nullptr : &run.requests.back(); }

const request* claim(const record& run, const std::string& job) {
    for (const request& each : run.requests) {
        if (std::find(each.given.begin(), each.given.end(), job) != each.given.end()) return &each;
    }
    return nullptr;
}

std::vector<std::string> claimed(const record& run) {
    std::vector<std::string> out;
    for (const request& each : run.requests) out.insert(out.end(), each.given.begin(), each.given.end());
    return out;
}

int beats_between(const record& run, moment from, moment to) {
    return static_cast<int>(std::count_if(run.requests.begin(), run.requests.end(), [&](const request& each) {
        return each.what == kind::beat && each.at > from && each.at < to;
    }));
}

verdict completed(const record& run, const std::vector<std::string>& jobs) {
    for (const std::string& job : jobs) {
        const request* settled = settlement(run, job);
        if (settled == nullptr)
            return fails("job " + job + " was never settled; " + ended_how(run), run, claim(run, job));
        if (settled->what != kind::ack)
            return fails("FAIL of a job that had time to finish: " + describe(run, *settled), run, settled);
    }
    return passes();
}

verdict ends_within(const record& run, moment from, milliseconds limit) {
    if (!run.ended) return fails("no exit: " + ended_how(run));
    const double took = milliseconds_between(from, run.ended_at);
    if (took > static_cast<double>(limit.count()))
        return fails("exit as late as " + run.when(run.ended_at) + ", " +
                     figure("allowed:", static_cast<double>(limit.count())));
    return passes();
}

verdict quiet_drain_stop(const record& run, const std::vector<std::string>& jobs) {
    const verdict done = completed(run, jobs);
    if (done.what == verdict::kind::fails) return done;
    const request* quiet = quiet_beat(run);
    if (quiet == nullptr) return fails("no BEAT with state \"quiet\" after the signal", run, last_beat(run));
    const request* settled = last_settlement(run);
    if (settled != nullptr && quiet->at > settled->at)
        return fails("the first quiet BEAT came after the last settlement: " + describe(run, *quiet), run, quiet);
    if (!run.ended) return fails("jobs done, but no exit: " + ended_how(run));
    if (run.status < 0) return fails(ended_how(run));
    return passes(figure("quiet beat", milliseconds_between(run.first_signal(), quiet->at)));
}

verdict beats_in_drain(const record& run, int least) {
    const request* settled = last_settlement(run);
    if (settled == nullptr) return skipped("no job was settled");
    const request* quiet = quiet_beat(run);
    const int seen = beats_between(run, quiet == nullptr ? run.first_signal() : quiet->at, settled->at);
    if (seen < least) {
        return fails(std::to_string(seen) + " BEATs after the first of the drain, until the last settlement at " +
                         run.when(settled->at) + "; expected " + std::to_string(least),
                     run, last_beat(run));
    }
    return passes(std::to_string(seen) + " beats");
}

// By a list of ids or, without a list, by their number.
bool names_all(const request& beat, const std::vector<std::string>& jobs) {
    if (beat.active.empty()) return beat.active_count == static_cast<std::int64_t>(jobs.size());
    return std::all_of(jobs.begin(), jobs.end(), [&](const std::string& job) {
        return std::find(beat.active.begin(), beat.active.end(), job) != beat.active.end();
    });
}

verdict beats_name_jobs(const record& run, const std::vector<std::string>& jobs) {
    moment first_settled = moment::max();
    for (const std::string& job : jobs) {
        const request* settled = settlement(run, job);
        if (settled != nullptr) first_settled = std::min(first_settled, settled->at);
    }
    int seen = 0;
    for (const request& each : run.requests) {
        if (each.what != kind::beat || each.at < run.first_signal() || each.answered >= first_settled) continue;
        if (!names_all(each, jobs)) return fails(describe(run, each) + " does not name the jobs in flight", run, &each);
        ++seen;
    }
    return seen > 0 ? passes() : skipped("no BEAT came while all jobs were in flight");
}

verdict interrupted_as(const record& run, const std::string& job, const std::string& error) {
    const request* settled = settlement(run, job);
    if (settled == nullptr)
        return fails("the job in flight was never settled; " + ended_how(run), run, claim(run, job));
    if (settled->at < run.first_signal())
        return fails("not shown: " + describe(run, *settled) + ": it was not in flight", run, settled);
    if (settled->what == kind::ack)
        return fails("the interrupted job was reported as done: " + describe(run, *settled), run, settled);
    if (!error.empty() && std::find(settled->errors.begin(), settled->errors.end(), error) == settled->errors.end()) {
        return fails(describe(run, *settled) + " has error " +
                         quoted(settled->errors.empty() ? "" : settled->errors.front()) + ", not " + error,
                     run, settled);
    }
    if (!settled->retryable) return fails(describe(run, *settled) + " is not retryable", run, settled);
    return passes();
}

verdict interrupted_without_attempt(const record& run, const std::string& job) {
    const request* settled = settlement(run, job);
    if (settled == nullptr || settled->what != kind::fail) return skipped("the job was not failed");
    if (settled->at < run.first_signal()) return skipped("the job was failed before the signal");
    if (!settled->requeue)
        return fails(describe(run, *settled) + " has no requeue:true, so the deploy uses up its only attempt", run,
                     settled);
    return passes();
}

verdict interrupted_at(const record& run, const std::string& job, milliseconds least, milliseconds most) {
    const request* settled = settlement(run, job);
    if (settled == nullptr)
        return fails("the job in flight was never settled; " + ended_how(run), run, claim(run, job));
    const double after = milliseconds_between(run.first_signal(), settled->at);
    if (after < static_cast<double>(least.count()) || after > static_cast<double>(most.count())) {
        return fails(describe(run, *settled) + ", not within " + std::to_string(least.count()) + " to " +
                         std::to_string(most.count()) + " ms",
                     run, settled);
    }
    return passes(figure("interrupted after", after));
}

verdict no_fetch_after_quiet(const record& run) {
    const request* quiet = quiet_beat(run);
    const moment from = quiet == nullptr ? run.first_signal() : quiet->at;
    int later = 0;
    const request* first = nullptr;
    for (const request& each : run.requests) {
        if (each.what != kind::fetch || each.at <= from + fetch_latency) continue;
        ++later;
        if (first == nullptr) first = &each;
    }
    if (later > 0)
        return fails(std::to_string(later) + " FETCH(es) after the quiet BEAT, the first " + describe(run, *first), run,
                     first);
    if (quiet == nullptr) return skipped("there was no BEAT with state \"quiet\"");
    if (run.ended && run.ended_at < from + fetch_latency)
        return skipped("not shown: it ended right after the quiet BEAT");
    const milliseconds gap = fetch_gap(run);
    if (run.ended && run.ended_at < from + gap)
        return skipped("not shown: FETCHes come every " + std::to_string(gap.count()) +
                       " ms, and it ended sooner. Is OJS_POLL_INTERVAL ignored?");
    return passes();
}

verdict last_request_is_terminate(const record& run) {
    if (run.requests.empty()) return fails("no request at all");
    if (!run.ended) return fails("no exit: " + ended_how(run));
    int terminates = 0;
    for (const request& each : run.requests) terminates += each.what == kind::beat && each.state == "terminate" ? 1 : 0;
    const request& last = run.requests.back();
    if (last.what != kind::beat || last.state != "terminate")
        return fails("the last request is " + describe(run, last) + ", not BEAT \"terminate\"");
    if (terminates != 1) return fails(std::to_string(terminates) + " BEATs \"terminate\" instead of one");
    return passes();
}

verdict settled_once(const record& run) {
    std::map<std::string, const request*> settled;
    for (const request& each : run.requests) {
        if (!is_settlement(each)) continue;
        const request*& before = settled[each.job];
        if (before != nullptr && !before->lost)
            return fails("settled twice: " + describe(run, *before) + ", then " + describe(run, each), run, &each);
        before = &each;
    }
    if (settled.empty()) return skipped("no job was settled");
    for (const std::string& job : claimed(run)) {
        if (settled.count(job) == 0)
            return fails("job " + job + " was never settled; " + ended_how(run), run, claim(run, job));
    }
    return passes(std::to_string(settled.size()) + " jobs");
}

verdict all_claimed_settled(const record& run) {
    const std::vector<std::string> jobs = claimed(run);
    if (jobs.empty()) return skipped("no job was claimed");
    for (const std::string& job : jobs) {
        if (settlement(run, job) == nullptr) {
            return fails("job " + job + ", given to the FETCH of " + run.when(claim(run, job)->at) + " (answered at " +
                             run.when(claim(run, job)->answered) + "), was never settled; " + ended_how(run),
                         run, claim(run, job));
        }
    }
    return passes(std::to_string(jobs.size()) + " claimed");
}

verdict exit_status_is(const record& run, int status) {
    if (!run.ended || run.status != status) return fails(ended_how(run));
    return passes();
}

verdict repeated_after_loss(const record& run, const std::string& job) {
    int asked = 0;
    bool conflict = false;
    for (const request& each : run.requests) {
        if (!is_settlement(each) || each.job != job) continue;
        if (each.what == kind::fail) return fails("the job was ACKed, then FAILed: " + describe(run, each), run, &each);
        if (conflict) return fails("repeated after ACK was answered 409: " + describe(run, each), run, &each);
        conflict = each.status == 409;
        ++asked;
    }
    if (asked == 0) return fails("no ACK; " + ended_how(run));
    if (asked == 1) return fails("one ACK, whose response was lost; it was not repeated");
    return passes();
}

verdict never_runs_again(const record& run) {
    const request* quiet = quiet_beat(run);
    if (quiet == nullptr) return skipped("there was no BEAT with state \"quiet\"");
    for (const request& each : run.requests) {
        if (each.what == kind::beat && each.at > quiet->at && each.state == "running")
            return fails(describe(run, each) + ", after the quiet one", run, &each);
    }
    return passes();
}

verdict accepted_by_strict(const record& run) {
    struct accepted_kind {
        kind what;
        int accepted;
        const request* refused;
    };
    std::array<accepted_kind, 4> all = {
        {{kind::fetch, 0, nullptr}, {kind::beat, 0, nullptr}, {kind::ack, 0, nullptr}, {kind::fail, 0, nullptr}}};
    for (const request& each : run.requests) {
        for (accepted_kind& one : all) {
            if (one.what != each.what) continue;
            one.accepted += each.status == 200 ? 1 : 0;
            if (!each.refused.empty()) one.refused = &each;
        }
    }
    std::string missing;
    const request* refused = nullptr;
    for (const accepted_kind& one : all) {
        if (one.accepted > 0) continue;
        missing += (missing.empty() ? "" : "; ") + std::string("no ") + name_of(one.what) + " was accepted";
        if (one.refused != nullptr) missing += " (400: " + one.refused->refused + ")";
        if (refused == nullptr) refused = one.refused;
    }
    return missing.empty() ? all_claimed_settled(run) : fails(missing, run, refused);
}

verdict took_at_least(const record& run, const std::vector<std::string>& jobs, milliseconds least, std::size_t slots) {
    const request* first = claim(run, jobs.front());
    const request* last = last_settlement(run);
    if (first == nullptr || last == nullptr) return fails("the jobs were not run");
    const double took = milliseconds_between(first->answered, last->at);
    const auto shortest = static_cast<double>(least.count());
    if (took < shortest) {
        return fails("all jobs were done in " + std::to_string(static_cast<int>(took)) +
                     " ms; with its number of slots that takes at least " + std::to_string(least.count()));
    }
    if (max_claimed(run) > slots && took > shortest * 1.25) {
        return skipped("not shown: it held " + std::to_string(max_claimed(run)) + " jobs at a time, but " +
                       figure("took", took) + ": it fetches too slowly. Is OJS_POLL_INTERVAL ignored?");
    }
    return passes(figure("took", took));
}

verdict not_reported(const record& run, const std::string& job, const char* why_not) {
    for (const request& each : run.requests) {
        if (is_settlement(each) && each.job == job) return fails(why_not + (": " + describe(run, each)), run, &each);
    }
    return run.ended ? fails(ended_how(run)) : passes();
}
}  // namespace probe
