#include "network.hpp"

#include <errno.h>

#include <algorithm>
#include <utility>

namespace sim {
nanoseconds some_time(nanoseconds limit) {
    const nanoseconds upper = dice().one_in(8) ? limit : limit / 20 + 1;
    return static_cast<nanoseconds>(dice().below(static_cast<std::uint64_t>(upper)));
}

// ---- the ledger ----

claim* ledger_job::known_to(const std::string& worker, std::int64_t attempt) {
    const auto found = std::find_if(claims.rbegin(), claims.rend(), [&](const claim& each) {
        return each.delivered && each.worker == worker && (attempt == 0 || each.attempt == attempt);
    });
    return found == claims.rend() ? nullptr : &*found;
}
bool ledger_job::is_kept_by(const std::string& worker) const {
    if (is != state::active || lease_end <= now() || is_given_up) return false;
    const claim& latest = claims.back();
    return latest.delivered && !latest.reported && latest.worker == worker;
}

void backend::expire() {
    for (auto& [id, job] : jobs) {
        if (job.is != ledger_job::state::active || job.lease_end > now()) continue;
        job.is = ledger_job::state::available;
        ++job.attempt;
        note("the lease of %s ends", id.c_str());
    }
}

std::vector<ojs::job> backend::hand_out(std::size_t count, const std::string& worker) {
    expire();
    std::vector<ojs::job> out;
    for (auto& [id, job] : jobs) {
        if (out.size() == count) break;
        if (job.is != ledger_job::state::available || job.due > now()) continue;
        job.is = ledger_job::state::active;
        job.lease_end = now() + lease;
        job.claims.push_back({worker, job.attempt});
        ++claims;
        note("%s is claimed, attempt %d", id.c_str(), static_cast<int>(job.attempt));
        ojs::job sent;
        sent.id = id;
        sent.type = job.type;
        sent.queue = "default";
        sent.attempt = job.attempt;
        sent.timeout = job.timeout;
        sent.envelope_json.resize(job_size);
        if (job.type == "malformed") sent.malformed = "args is no array";
        out.push_back(std::move(sent));
    }
    return out;
}

// The worker knows of the claim from now on.
void tell(ledger_job& job, const std::string& worker, std::int64_t attempt, nanoseconds sent_at) {
    const claim* const before = job.known_to(worker);
    const bool overlaps = before != nullptr && (!before->reported || before->overlaps);
    if (before == nullptr || before->reported) job.runs[worker] = {};
    job.runs[worker].lost_at = 0;
    for (claim& each : job.claims) {
        if (each.worker != worker || each.attempt != attempt || each.delivered) continue;
        each.delivered = true;
        job.is_given_up = false;
        each.sent_at = sent_at;
        each.overlaps = overlaps;
        if (&each != &job.claims.back()) job.is_mixed = true;  // the response is older than a later claim
    }
}

// ---- what happens to a request ----

namespace {
enum class fault { none, lost_request, lost_response, late_response, overdue_response, reset, unavailable, rejected };

nanoseconds until(ojs::time_point deadline) {
    return deadline == ojs::time_point::max() ? INT64_MAX / 2 : now() + (deadline - ojs::steady_clock::now()).count();
}
template <class T>
ojs::result<T> give_up(nanoseconds end) {
    sleep_until(end);
    return ojs::error{ojs::errc::timed_out, 0, "no response"};
}
}  // namespace

network::network(backend& to, faults& wrong, std::string worker, reporter violate)
    : backend_(to), faults_(wrong), worker_(std::move(worker)), violate_(std::move(violate)) {
    retain();  // it is no heap object, and outlives the worker
}

void network::check_request(const std::string& name) {
    if (is_closed) violate_(name + " after the worker's end");
    if (last_beat_ended_ && name.compare(0, 4, "BEAT") != 0) violate_(name + " after the last heartbeat");
}

// The last heartbeat waits for those in flight, a quarter of a second where it has the time.
std::shared_ptr<void> network::note_beat(const std::string& name, nanoseconds left) {
    if (name.compare(0, 4, "BEAT") != 0) return nullptr;
    const bool is_fresh = beats_ > 0 && now() - beats_since_ < 50 * millisecond;
    if (name == "BEAT terminate" && is_fresh && left > 150 * millisecond && backend_.is_exact)
        violate_("the last heartbeat overtakes another");
    if (beats_++ == 0 && now() - beats_until_ > 20 * millisecond) beats_since_ = now();
    return std::shared_ptr<void>(nullptr, [this](void*) {
        if (--beats_ == 0) beats_until_ = now();
    });
}

// A request and its response take a while. `carry_out(arrives)`: whether the worker gets the response.
template <class T, class CarryOut>
ojs::result<T> network::call(const std::string& name, const ojs::function<bool()>* should_send,
                             ojs::time_point deadline, const CarryOut& carry_out) {
    const outside calm;
    point("transport");
    if (should_send != nullptr && *should_send && !(*should_send)())
        return ojs::error{ojs::errc::cancelled, 0, "not sent"};
    const nanoseconds end = until(deadline);
    if (end <= now()) return give_up<T>(end);
    check_request(name);
    const std::shared_ptr<void> ended = note_beat(name, end - now());
    const auto about = backend_.jobs.find(name.substr(name.find(' ') + 1));
    const bool is_refused = about != backend_.jobs.end() && about->second.type == "refused";
    const fault wrong = is_refused          ? fault::rejected
                        : faults_.happens() ? static_cast<fault>(1 + dice().below(7))
                                            : fault::none;
    note("%s is sent%s", name.c_str(), wrong == fault::none ? "" : ", and something goes wrong");
    sleep_until(std::min(end, now() + some_time(100 * millisecond)));
    if (now() >= faults_.down_from && now() < faults_.down_until)
        return ojs::error{ojs::errc::unreachable, ECONNREFUSED, "the backend is down"};
    if (wrong == fault::lost_request) return give_up<T>(end);
    if (wrong == fault::rejected) return ojs::error{ojs::errc::rejected, 0, "422", 422};
    if (wrong == fault::unavailable)
        return ojs::error{ojs::errc::unavailable, 0, "503 or 401", dice().one_in(4) ? 401 : 503,
                          std::chrono::milliseconds(dice().one_in(3) ? dice().below(3000) : 0)};
    nanoseconds back = now() + some_time(200 * millisecond);
    if (wrong == fault::late_response) back = end - some_time(20 * millisecond);
    if (wrong == fault::overdue_response) back = end + some_time(900 * millisecond);
    const bool arrives =
        wrong == fault::overdue_response || ((wrong == fault::none || wrong == fault::late_response) && back < end);
    T out = carry_out(arrives);
    if (wrong == fault::reset) return ojs::error{ojs::errc::disconnected, ECONNRESET, "connection reset"};
    if (!arrives) return give_up<T>(end);
    sleep_until(back);
    note("%s has its response", name.c_str());
    on_event();
    return ojs::result<T>(std::move(out));
}

// ---- requests ----

ojs::result<std::vector<ojs::job>> network::fetch(const ojs::fetch_request& request, ojs::time_point deadline) {
    const bool drains = phase() >= ojs::phase::draining;
    const nanoseconds sent_at = latest_fetch = now();
    if (is_fetching()) allow_early("ojs-job");  // beside another FETCH, no slot waits for the time of the next
    const nanoseconds end = until(deadline);
    bool is_sent = false;
    const ojs::function<bool()> should_send = [&] {
        is_sent = request.should_send();
        if (is_sent) fetches_.insert(end), latest_fetch = now();
        return is_sent;
    };
    auto out = call<std::vector<ojs::job>>("FETCH", &should_send, deadline, [&](bool) {
        if (drains) violate_("a FETCH that began in a drain was sent");
        const std::size_t surplus = faults_.happens(30) ? 2 : 0;
        std::vector<ojs::job> jobs = backend_.hand_out(request.count + surplus, worker_);
        if (!jobs.empty() && faults_.happens(30)) jobs.push_back(jobs.front());
        if (jobs.size() * backend_.job_size > ojs::detail::max_worker_response)
            violate_("a FETCH claims more than a response can hold");
        return jobs;
    });
    const outside calm;
    if (is_sent) fetches_.erase(fetches_.find(end));
    if (out && !has_stopped)
        for (const ojs::job& job : *out) tell(backend_.jobs.at(job.id), worker_, job.attempt, sent_at);
    return out;
}

// `apply(job, own claim, holds)` returns whether it requeues the job.
template <class Apply>
ojs::settle_result network::settle(const std::string& id, bool arrives, const Apply& apply) {
    backend_.expire();
    ledger_job& job = backend_.jobs.at(id);
    claim* const own = job.known_to(worker_);
    if (own == nullptr) return violate_(id + " is reported without a claim"), ojs::settle_result::gone;
    const bool holds = job.is == ledger_job::state::active;
    if (holds && (own != &job.claims.back() || own->overlaps)) job.is_mixed = true;
    if (own->reported && !own->overlaps && !job.is_mixed)
        violate_(id + (own->requeued ? " is reported after it was requeued" : " is reported twice"));
    const bool requeues = apply(job, *own, holds);
    if (holds && job.is == ledger_job::state::available) job.due = now() + some_time(second);
    if (arrives) {
        own->reported = true;
        own->requeued = requeues;
    }
    return holds ? ojs::settle_result::accepted : ojs::settle_result::gone;
}

template <class Request, class Apply>
ojs::result<ojs::settle_result> network::report(const std::string& name, const Request& request,
                                                ojs::time_point deadline, const Apply& apply) {
    if (now() > reports_end && backend_.is_exact) violate_(name + " after the end of reports");
    auto out = call<ojs::settle_result>(name, &request.should_send, deadline,
                                        [&](bool arrives) { return settle(request.job_id, arrives, apply); });
    ledger_job& job = backend_.jobs.at(request.job_id);
    handler_run& run = job.runs[worker_];
    run.tried_at = now();
    const bool is_refused = !out && out.error().code == ojs::errc::rejected;
    run.is_refused = run.is_refused || is_refused;
    if (out || is_refused) run.ack_is_due = false;
    claim* const own = job.known_to(worker_);
    if (is_refused && own != nullptr && ++own->refusals > 7) violate_(name + " after seven refusals");
    return out;
}

ojs::result<ojs::settle_result> network::ack(const ojs::ack_request& request, ojs::time_point deadline) {
    handler_run& run = backend_.jobs.at(request.job_id).runs[worker_];
    run.ack_is_due = true;
    return report("ACK " + request.job_id, request, deadline, [](ledger_job& job, const claim&, bool holds) {
        if (holds) job.is = ledger_job::state::settled;
        return false;
    });
}

ojs::result<ojs::settle_result> network::fail(const ojs::fail_request& request, ojs::time_point deadline) {
    const std::string name = (request.requeue ? "NACK " : "FAIL ") + request.job_id;
    ledger_job& job = backend_.jobs.at(request.job_id);
    job.failed_by.insert(worker_);
    return report(name, request, deadline, [&](ledger_job&, claim& own, bool holds) {
        const bool can_run = job.type != "unknown" && job.type != "malformed";
        if (own.runs == 0 && !own.overlaps && !job.is_mixed && !job.is_cancelled && !request.requeue && can_run &&
            backend_.is_exact)
            violate_(job.id + " loses an attempt without a run");
        own.unstarted = request.error.details_json.find("not_started") != std::string::npos;
        // A thread that stood still before its handler's first step may begin during the next claim.
        if (own.unstarted && own.runs > 0 && !own.overlaps && !job.is_mixed && backend_.is_exact)
            violate_(job.id + " is handed back as not started, but it runs");
        if (!holds) return false;
        const handler_run& run = job.runs[worker_];
        const bool may_have_none = run.is_refused || (own.runs == 0 && request.checkpoint_json.empty());
        if (!may_have_none && request.checkpoint_json != run.saved && request.checkpoint_json != run.saving)
            violate_(job.id + " is failed without its checkpoint");
        job.is = request.requeue || request.error.retryable ? ledger_job::state::available : ledger_job::state::settled;
        if (!request.requeue) ++job.attempt;
        return request.requeue;
    });
}

ojs::heartbeat_response network::extend(const ojs::heartbeat_request& request) {
    backend_.expire();
    ojs::heartbeat_response out;
    out.claims_lost = backend_.says_lost;
    for (const std::string& id : request.active_jobs) {
        ledger_job& job = backend_.jobs.at(id);
        if (job.is != ledger_job::state::active || job.claims.back().worker != worker_) continue;
        job.lease_end = now() + backend_.lease;
        out.jobs_extended.push_back(id);
    }
    if (faults_.happens(40)) out.directive = ojs::directive::quiet;
    if (faults_.happens(80)) out.directive = ojs::directive::terminate;
    return out;
}

ojs::result<ojs::heartbeat_response> network::heartbeat(const ojs::heartbeat_request& request,
                                                        ojs::time_point deadline) {
    if (latest_beat_ != 0 && now() - latest_beat_ > max_silence)
        violate_("no heartbeat for " + std::to_string((now() - latest_beat_) / millisecond) + " ms");
    const bool is_soon = now() - latest_beat_ < 900 * millisecond;
    if (has_bad_token_ && is_soon && backend_.is_exact && (request.state != "terminate" || last_beat_ended_))
        violate_("two heartbeats within a second, and the backend refuses the token");
    latest_beat_ = now();
    has_beaten = true;
    auto out = call<ojs::heartbeat_response>("BEAT " + request.state, &request.should_send, deadline,
                                             [&](bool) { return extend(request); });
    for (const std::string& id : request.active_jobs) {
        ledger_job& job = backend_.jobs.at(id);
        if (!out) break;
        const bool is_listed = std::count(out->jobs_extended.begin(), out->jobs_extended.end(), id) > 0;
        if (!is_listed) job.runs[worker_].ack_is_due = false;
        if (!is_listed && out->claims_lost && job.claims.back().sent_at < latest_beat_)
            job.runs[worker_].lost_at = now();
    }
    if (request.state == "terminate") last_beat_ended_ = true;
    has_bad_token_ = !out && out.error().http_status == 401;
    return out;
}

ojs::result<bool> network::confirm_claim(const ojs::job_request& query, ojs::time_point deadline) {
    ledger_job& job = backend_.jobs.at(query.job_id);
    auto out = call<bool>("INFO " + query.job_id, &query.should_send, deadline, [&](bool) {
        backend_.expire();
        return job.is == ledger_job::state::active && job.attempt == query.attempt;
    });
    if (out && !*out) job.runs[worker_].ack_is_due = false;
    return out;
}

void network::on_job_cancelled(ojs::function<void(const std::string&)> callback) {
    const outside calm;
    if (is_closed) violate_("a callback is set after the worker's end");
    const std::lock_guard<std::mutex> held(calling_back_);
    on_cancelled_ = std::move(callback);
}
void network::on_work_available(ojs::function<void()> callback) {
    const outside calm;
    if (is_closed) violate_("a callback is set after the worker's end");
    const std::lock_guard<std::mutex> held(calling_back_);
    on_available_ = std::move(callback);
}
void network::on_phase(ojs::phase) {
    if (is_closed || last_beat_ended_) violate_("on_phase() after the last heartbeat");
}
void network::hint() {
    const std::lock_guard<std::mutex> held(calling_back_);
    note("there may be work");
    if (on_available_) on_available_();
}
void network::cancel(const std::string& id) {
    ledger_job& job = backend_.jobs.at(id);
    if (job.is != ledger_job::state::active || job.claims.back().worker != worker_) return;
    note("the backend cancels %s", id.c_str());
    job.is_cancelled = true;
    const std::lock_guard<std::mutex> held(calling_back_);
    if (on_cancelled_) on_cancelled_(id);
}
}  // namespace sim
