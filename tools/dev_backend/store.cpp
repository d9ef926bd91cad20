#include "store.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "clock.hpp"
#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {
// ---- jobs ----

namespace {
std::string fixed_part(const new_job& given, const job& added) {
    const std::string now = iso_time(added.created_ms);
    json_object out;
    out.text("specversion", "1.0").text("id", added.id).text("type", given.type).text("queue", given.queue);
    out.raw("args", given.args).number("priority", given.priority);
    out.number("max_attempts", given.retry.max_attempts);
    if (given.timeout.count() > 0) out.number("timeout_ms", given.timeout.count());
    if (given.lease_length.count() > 0) out.number("visibility_timeout_ms", given.lease_length.count());
    if (!given.retry_source.empty()) out.raw("retry", given.retry_source);
    if (!given.unique_source.empty()) out.raw("unique", given.unique_source);
    if (given.scheduled_ms > 0) out.text("scheduled_at", iso_time(given.scheduled_ms));
    if (given.expires_ms > 0) out.text("expires_at", iso_time(given.expires_ms));
    if (!given.tags.empty()) out.raw("tags", given.tags);
    out.text("created_at", now).text("enqueued_at", now);
    return out.open_text() + given.extra;
}

// Converts wall clock time; a time out of range becomes a far one.
ojs::time_point moment_of(std::int64_t wall) {
    constexpr std::int64_t century = 3155760000000;
    return ojs::steady_clock::now() + milliseconds(std::clamp(wall - wall_ms(), std::int64_t{0}, century));
}

std::size_t index_of(job_state state) { return static_cast<std::size_t>(state); }
}  // namespace

template <class Timed>
void store::set_timer(timers<Timed>& in, Timed& timed, ojs::time_point when) {
    in.set(timed, when);
    if (when < wakes_at_) timers_changed_.notify_all();
}

void store::require_new(const new_job& given) const {
    if (jobs_.count(given.id) > 0) refuse_duplicate("a job with this id exists already");
    if (given.unique_key.empty()) return;
    const std::int64_t period = given.unique_period.count();
    for (const auto& [id, each] : jobs_) {
        const bool is_old = period > 0 && each->created_ms + period <= wall_ms();
        if (each->unique_key == given.unique_key && !has_ended(each->state) && !is_old)
            refuse_duplicate("unique: job " + id + " (" + name_of(each->state) + ") is a duplicate");
    }
}

const job& store::add(const new_job& given) {
    auto added = std::make_unique<job>();
    static_cast<job_terms&>(*added) = given;
    if (given.id.empty()) added->id = ids_.next();
    added->created_ms = wall_ms();
    added->fixed = fixed_part(given, *added);
    added->meta = given.meta.empty() ? "{}" : given.meta;
    added->turn = ++last_turn_;
    const bool is_early = given.scheduled_ms > added->created_ms;
    if (is_early) added->state = job_state::scheduled;
    job& out = insert(std::move(added));
    if (is_early) set_timer(job_timers_, out, moment_of(given.scheduled_ms));
    change(out);
    feed_.add(is_early ? "job.scheduled" : "job.enqueued", out);
    ledger_.write("push", json_object().text("job_id", out.id).text("type", out.type).text("queue", out.queue));
    return out;
}

job& store::insert(std::unique_ptr<job> added) {
    job& out = *jobs_.emplace(added->id, std::move(added)).first->second;
    ++in_state_[index_of(out.state)];
    if (out.state != job_state::available) return out;
    available_[out.queue].insert(&out);
    streams_.on_available(out, job_state::available);
    return out;
}

job& store::find(const std::string& id) const {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) throw refusal{404, "not_found", "no such job"};
    return *found->second;
}

job& store::find_dead_letter(const std::string& id) const {
    job& out = find(id);
    if (!out.is_dead_letter) throw refusal{404, "not_found", "no such dead letter"};
    return out;
}

std::vector<const job*> store::dead_letters() const {
    std::vector<const job*> out;
    for (const auto& [id, each] : jobs_) {
        if (each->is_dead_letter) out.push_back(each.get());
    }
    std::sort(out.begin(), out.end(), [](const job* a, const job* b) { return a->turn < b->turn; });
    return out;
}

std::map<std::string, store::state_counts> store::count_by_queue() const {
    std::map<std::string, state_counts> out;
    for (const auto& [id, each] : jobs_) ++out[each->queue][static_cast<std::size_t>(each->state)];
    return out;
}

// The only function that changes a job's state: keeps queues, owners, timers and counts consistent.
void store::move(job& moved, job_state next) {
    if (moved.state == job_state::available) available_[moved.queue].erase(&moved);
    if (moved.owner != nullptr) moved.owner->jobs.erase(&moved);
    moved.owner = nullptr;
    moved.times_out = never;
    set_timer(job_timers_, moved, never);
    --in_state_[index_of(moved.state)];
    ++in_state_[index_of(next)];
    const job_state previous = std::exchange(moved.state, next);
    if (next == job_state::available) {
        available_[moved.queue].insert(&moved);
        streams_.on_available(moved, previous);
    }
    change(moved);
}

void store::end(job& ended, job_state state) {
    move(ended, state);
    ended.ended_ms = wall_ms();
}

std::vector<const job*> store::claim(worker& by, const std::vector<std::string>& queues, std::size_t count,
                                     milliseconds lease) {
    std::vector<const job*> out;
    const std::int64_t now = wall_ms();
    for (const std::string& queue : queues) {
        const auto& waiting = available_[queue];
        while (!waiting.empty() && out.size() < count) {
            job& next = **waiting.begin();
            if (next.expires_ms > 0 && next.expires_ms <= now) {
                end(next, job_state::discarded);
                feed_.add("job.expired", next);
                continue;
            }
            start_attempt(next, by, lease);
            out.push_back(&next);
        }
    }
    return out;
}

void store::start_attempt(job& next, worker& by, milliseconds lease) {
    constexpr milliseconds default_lease{30000};
    move(next, job_state::active);
    next.owner = &by;
    by.jobs.insert(&next);
    next.lease = lease.count() > 0 ? lease : next.lease_length.count() > 0 ? next.lease_length : default_lease;
    next.started_ms = wall_ms();
    ++next.attempt;
    if (next.timeout.count() > 0) next.times_out = ojs::steady_clock::now() + next.timeout + options_.timeout_grace;
    renew_lease(next);
    feed_.add("job.started", next);
}

// Renewal does not extend an attempt beyond the job's timeout.
void store::renew_lease(job& held) {
    set_timer(job_timers_, held, std::min(ojs::steady_clock::now() + held.lease, held.times_out));
}

void store::complete(job& done, std::string result) {
    done.result = std::move(result);
    done.error.clear();
    done.meta = with_raw_member(done.meta, "checkpoint", "");
    end(done, job_state::completed);
    feed_.add("job.completed", done);
}

// A lease that ends makes the job available at once. [OJS retry 6, 7]
void store::fail(job& failed, const failure& report) {
    failed.error = report.error;
    if (report.requeue) {
        --failed.attempt;  // the attempt does not count
        ++requeued_;
        move(failed, job_state::available);
        return;
    }
    note_error(failed, report);
    feed_.add("job.failed", failed);
    const bool is_retryable = report.retryable && !is_non_retryable(failed.retry, report.type);
    if (!is_retryable || failed.attempt >= failed.retry.max_attempts) {
        failed.is_dead_letter = failed.retry.dead_letter;
        end(failed, job_state::discarded);
        feed_.add("job.discarded", failed);
        return;
    }
    if (report.lease_ended) {
        move(failed, job_state::available);
        failed.started_ms = 0;
    } else {
        const double random = std::uniform_real_distribution<double>(0, 1)(random_);
        const bool is_fixed = options_.retry_delay.count() >= 0;
        failed.retry_delay = is_fixed ? options_.retry_delay : delay_after(failed.retry, failed.attempt, random);
        move(failed, job_state::retryable);
        set_timer(job_timers_, failed, ojs::steady_clock::now() + failed.retry_delay);
    }
    feed_.add("job.retrying", failed);
}

void store::note_error(job& failed, const failure& report) {
    constexpr std::size_t max_errors = 25;
    std::string others = report.error;
    for (const char* key : {"attempt", "occurred_at", "type"}) others = with_raw_member(others, key, "");
    others.pop_back();
    json_object out(std::move(others));
    out.text("type", report.type).number("attempt", failed.attempt).text("occurred_at", iso_time());
    failed.errors.push_back(out.str());
    if (failed.errors.size() > max_errors) failed.errors.erase(failed.errors.begin());
}

void store::cancel(job& of) {
    end(of, job_state::cancelled);
    feed_.add("job.cancelled", of);
    ledger_.write("cancelled", json_object().text("job_id", of.id));
}

void store::retry(job& dead_letter) {
    dead_letter.is_dead_letter = false;
    dead_letter.attempt = 0;
    dead_letter.error.clear();
    dead_letter.errors.clear();
    dead_letter.started_ms = dead_letter.ended_ms = 0;
    dead_letter.retry_delay = milliseconds(0);
    move(dead_letter, job_state::available);
    feed_.add("job.enqueued", dead_letter);
}

void store::remove(job& dead_letter) {
    changes_.fetch_add(1);
    changed_.erase(std::remove(changed_.begin(), changed_.end(), &dead_letter), changed_.end());
    if (dead_letter.is_stored) removed_.push_back(dead_letter.id);
    --in_state_[index_of(dead_letter.state)];
    jobs_.erase(std::string(dead_letter.id));
}

void store::set_checkpoint(job& of, std::string_view state) {
    of.meta = with_raw_member(of.meta, "checkpoint", state);
    change(of);
}

// ---- workers ----

worker& store::find_worker(const std::string& id) {
    const auto [found, is_new] = workers_.try_emplace(id);
    if (is_new) {
        found->second.id = id;
        found->second.directive = directive_for_new_;
    }
    return found->second;
}

std::vector<std::string> store::extend_leases(const worker& of, const std::vector<std::string>& ids,
                                              milliseconds lease) {
    std::vector<std::string> out;
    for (const std::string& id : ids) {
        const auto found = jobs_.find(id);
        if (found == jobs_.end() || found->second->owner != &of) continue;
        job& extended = *found->second;
        if (lease.count() > 0 && lease != extended.lease) {
            extended.lease = lease;
            change(extended);
        }
        renew_lease(extended);
        out.push_back(id);
    }
    return out;
}

void store::expect_heartbeat_by(worker& from, ojs::time_point when) { set_timer(worker_timers_, from, when); }

void store::say_goodbye(worker& from) {
    take_back_jobs(from, "requeued_at_deregistration");
    set_timer(worker_timers_, from, never);
}

// A dead worker holds no jobs.
void store::take_back_jobs(worker& from, const char* event) {
    while (!from.jobs.empty()) {
        job& taken = **from.jobs.begin();
        move(taken, job_state::available);
        ledger_.write(event, json_object().text("worker_id", from.id).text("job_id", taken.id));
    }
}

void store::direct(const std::string& worker_id, const std::string& directive) {
    if (worker_id != "*") {
        find_worker(worker_id).directive = directive;
        return;
    }
    directive_for_new_ = directive;
    for (auto& [id, each] : workers_) each.directive = directive;
}

// ---- timers ----

void store::start() {
    timer_thread_ = std::thread([this] { run_timers(); });
}

void store::stop() {
    {
        const lock held(mutex_);
        stopping_ = true;
    }
    timers_changed_.notify_all();
    if (timer_thread_.joinable()) timer_thread_.join();
}

void store::run_timers() {
    lock held(mutex_);
    while (!stopping_) {
        const ojs::time_point now = ojs::steady_clock::now();
        while (worker* const silent = worker_timers_.find_due(now)) {
            const auto jobs = static_cast<std::int64_t>(silent->jobs.size());
            ledger_.write("dead", json_object().text("worker_id", silent->id).number("jobs", jobs));
            take_back_jobs(*silent, "requeued_from_dead");
            set_timer(worker_timers_, *silent, never);
        }
        while (job* const due = job_timers_.find_due(now)) run_due(*due, now);
        wakes_at_ = std::min(job_timers_.next(), worker_timers_.next());
        if (wakes_at_ == never) {
            timers_changed_.wait(held);
        } else {
            timers_changed_.wait_until(held, wakes_at_);
        }
    }
}

void store::run_due(job& due, ojs::time_point now) {
    json_object event;
    event.text("job_id", due.id);
    if (due.state != job_state::active) {
        const bool was_scheduled = due.state == job_state::scheduled;
        move(due, job_state::available);
        if (was_scheduled) feed_.add("job.enqueued", due);
        ledger_.write("promoted", event);
        return;
    }
    // An attempt whose lease ends counts, so that a job that crashes workers is discarded in the end.
    // [OJS worker protocol 5.5]
    const bool is_timeout = due.times_out <= now;
    const char* const code = is_timeout ? "timeout" : "visibility_timeout";
    const std::int64_t limit = (is_timeout ? due.timeout : due.lease).count();
    const char* const what = is_timeout ? "the attempt took longer than " : "no report or heartbeat for ";
    json_object error;
    error.text("code", code).text("type", code).text("message", what + std::to_string(limit) + " ms");
    event.text("worker_id", due.owner->id);
    fail(due, {error.flag("retryable", true).str(), code, true, false, !is_timeout});
    ledger_.write(is_timeout ? "timed_out" : "expired", event.text("state", name_of(due.state)));
}

// ---- the journal ----

void store::change(job& changed) {
    if (!options_.is_kept) return;
    changes_.fetch_add(1);
    if (!changed.is_changed) changed_.push_back(&changed);
    changed.is_changed = true;
}

std::string store::take_changes() {
    std::vector<std::string> records;
    for (const std::string& id : std::exchange(removed_, {}))
        records.push_back(json_object().text("id", id).flag("is_removed", true).str());
    for (job* each : std::exchange(changed_, {})) {
        records.push_back(record_of(*each));
        each->is_changed = false;
        each->is_stored = true;
    }
    std::string out;
    for (const std::string& each : records) out.append(out.empty() ? "[" : ",").append(each);
    return out.empty() ? out : out + "]\n";
}

void store::restore(std::string_view fixed, json_view record) {
    std::unique_ptr<job> restored = job_of(fixed, record);
    const lock held(mutex_);
    job& out = insert(std::move(restored));
    last_turn_ = out.turn;
    if (out.state == job_state::active) {  // its worker could send no heartbeat: a full lease again
        out.owner = &find_worker(text_or(record, "worker", ""));
        out.owner->jobs.insert(&out);
        const std::int64_t limit = (out.timeout + options_.timeout_grace).count();
        if (out.timeout.count() > 0) out.times_out = moment_of(out.started_ms + limit);
        renew_lease(out);
    } else if (const std::int64_t due_ms = integer_or(record, "due_ms", 0, 0); due_ms > 0) {
        set_timer(job_timers_, out, moment_of(due_ms));
    }
}

void store::clear() {
    const lock held(mutex_);
    for (const auto& [id, each] : jobs_) {
        if (each->is_stored) removed_.push_back(id);
    }
    changes_.fetch_add(1);
    job_timers_.clear();
    worker_timers_.clear();
    changed_.clear();
    available_.clear();
    jobs_.clear();
    workers_.clear();
    feed_.clear();
    in_state_ = {};
    requeued_ = 0;
    directive_for_new_ = "running";
}
}  // namespace dev_backend
