#include "store.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "clock.hpp"
#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {

// ---- jobs ----

namespace {

std::string fixed_part(const new_job& given, const std::string& id) {
    const std::string now = iso_time();
    json_object out;
    out.text("specversion", "1.0").text("id", id).text("type", given.type).text("queue", given.queue);
    out.raw("args", given.args).number("priority", given.priority);
    out.number("max_attempts", given.retry.max_attempts);
    if (given.timeout.count() > 0) out.number("timeout_ms", given.timeout.count());
    if (given.reservation.count() > 0) out.number("visibility_timeout_ms", given.reservation.count());
    if (!given.retry_source.empty()) out.raw("retry", given.retry_source);
    if (given.scheduled_ms > 0) out.text("scheduled_at", iso_time(given.scheduled_ms));
    if (given.expires_ms > 0) out.text("expires_at", iso_time(given.expires_ms));
    if (!given.tags.empty()) out.texts("tags", given.tags);
    out.text("created_at", now).text("enqueued_at", now);
    return out.open_text() + given.extra;
}

// Converts wall clock time; a time out of range becomes a far one.
ojs::time_point moment_of(std::int64_t wall) {
    constexpr std::int64_t century = 3155760000000;
    const std::int64_t left = std::min(std::max<std::int64_t>(wall - wall_ms(), 0), century);
    return ojs::steady_clock::now() + milliseconds(left);
}

std::size_t index_of(job_state state) {
    return static_cast<std::size_t>(state);
}

bool is_older_than(std::string_view fixed, milliseconds period) {
    const std::string created = json_view(raw_member(fixed, "created_at")).string().value_or("");
    return parse_iso_time(created).value_or(0) + period.count() <= wall_ms();
}

}  // namespace

job_state first_state_of(const new_job& given) {
    if (given.pending) return job_state::pending;
    return given.scheduled_ms > wall_ms() ? job_state::scheduled : job_state::available;
}

void store::require_unique(const new_job& given) const {
    if (!given.unique) return;
    for (const auto& [id, each] : jobs_) {
        if (!given.unique->states[index_of(each->state)] || each->type != given.type) continue;
        const std::string fixed = each->fixed + "}";
        const job_identity other{each->type, each->queue, raw_member(fixed, "args")};
        if (!are_duplicates(*given.unique, identity_of(given), other)) continue;
        if (given.unique->period.count() > 0 && is_older_than(fixed, given.unique->period)) continue;
        refuse_duplicate("unique: job " + id + " (" + name_of(each->state) + ") is a duplicate");
    }
}

const job& store::add(const new_job& given) {
    auto added = std::make_unique<job>();
    static_cast<job_terms&>(*added) = given;
    added->id = given.id.empty() ? ids_.next() : given.id;
    if (has(added->id)) refuse_duplicate_id();
    added->fixed = fixed_part(given, added->id);
    added->meta = given.meta.empty() ? "{}" : given.meta;
    added->has_checkpoint = !raw_member(added->meta, "checkpoint").empty();
    added->turn = ++last_turn_;
    added->state = first_state_of(given);
    job& out = insert(std::move(added));
    if (out.state == job_state::scheduled) timers_.set(out, moment_of(given.scheduled_ms));
    change(out);
    feed_.add(out.state == job_state::scheduled ? "job.scheduled" : "job.enqueued", out);
    ledger_.write("push",
                  ledger_.fields().text("job_id", out.id).text("type", out.type).text("queue", out.queue));
    return out;
}

job& store::insert(std::unique_ptr<job> added) {
    job& out = *jobs_.emplace(added->id, std::move(added)).first->second;
    ++counts_.in_state[index_of(out.state)];
    auto& available = available_[out.queue];
    if (out.state != job_state::available) return out;
    available.insert(&out);
    streams_.on_available(out, job_state::available);
    return out;
}

job& store::own_job(const std::string& id) const {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) throw refusal{404, "not_found", "no such job"};
    return *found->second;
}

// The only function that changes a job's state: keeps queues, owners, timers and counts consistent.
void store::move(job& moved, job_state next) {
    if (moved.state == job_state::available) available_[moved.queue].erase(&moved);
    if (moved.owner != nullptr) moved.owner->jobs.erase(&moved);
    moved.owner = nullptr;
    moved.times_out = ojs::time_point::max();
    timers_.set(moved, ojs::time_point::max());
    --counts_.in_state[index_of(moved.state)];
    ++counts_.in_state[index_of(next)];
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

std::vector<const job*> store::claim(const std::string& worker_id, const std::vector<std::string>& queues,
                                     std::size_t count, milliseconds lease) {
    worker& by = own_worker(worker_id);
    std::vector<const job*> out;
    const std::int64_t now = wall_ms();
    for (const std::string& queue : queues) {
        const auto& waiting = available_[queue];
        while (!waiting.empty() && out.size() < count && !is_paused(queue)) {
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
    next.lease = lease.count() > 0 ? lease : next.reservation.count() > 0 ? next.reservation : default_lease;
    next.started_ms = wall_ms();
    ++next.attempt;
    if (next.timeout.count() > 0) {
        next.times_out = ojs::steady_clock::now() + next.timeout + options_.timeout_grace;
    }
    renew_lease(next);
    feed_.add("job.started", next).text("worker_id", by.id).number("attempt", next.attempt);
}

// Renewal does not extend an attempt beyond the job's timeout.
void store::renew_lease(job& held) {
    timers_.set(held, std::min(ojs::steady_clock::now() + held.lease, held.times_out));
}

void store::complete(const std::string& id, std::string result) {
    job& done = own_job(id);
    done.result = std::move(result);
    done.error.clear();
    if (done.has_checkpoint) forget_checkpoint(id);
    end(done, job_state::completed);
    feed_.add("job.completed", done)
        .number("attempt", done.attempt)
        .number("duration_ms", done.ended_ms - done.started_ms);
}

job_state store::fail(const std::string& id, const failure& report) {
    job& failed = own_job(id);
    failed.error = report.error;
    if (report.requeue) {
        --failed.attempt;  // the attempt does not count
        ++counts_.requeued;
        move(failed, job_state::available);
        return failed.state;
    }
    note_error(failed, report);
    feed_.add("job.failed", failed).number("attempt", failed.attempt).raw("error", report.error);
    const job_state next = state_after(failed, report);
    if (next == job_state::retryable) {
        if (report.lease_ended) {
            move(failed, job_state::available);
            failed.started_ms = 0;
        } else {
            wait_for_retry(failed);
        }
        feed_.add("job.retrying", failed)
            .number("attempt", failed.attempt)
            .raw("error", report.error)
            .number("max_attempts", failed.retry.max_attempts);
    } else {
        end(failed, next);
        feed_.add("job.discarded", failed)
            .number("total_attempts", failed.attempt)
            .raw("last_error", report.error);
    }
    return failed.state;
}

// The next state of a failed attempt: the handler's choice, else the policy's. [OJS retry 6, 7]
job_state store::state_after(job& failed, const failure& report) {
    const bool is_retryable =
        report.lease_ended || (report.retryable && !is_non_retryable(failed.retry, report.type));
    const bool may_retry = is_retryable && failed.attempt < failed.retry.max_attempts;
    const bool says_discard = report.code == "DISCARD" || report.code == "FAIL";
    const bool says_dead = report.code == "DEAD_LETTER";
    if (may_retry && !says_discard && !says_dead) return job_state::retryable;
    failed.is_dead_letter = says_dead || (failed.retry.dead_letter && !says_discard);
    return job_state::discarded;
}

void store::wait_for_retry(job& failed) {
    const double random = std::uniform_real_distribution<double>(0, 1)(random_);
    failed.retry_delay = options_.retry_delay.value_or(delay_after(failed.retry, failed.attempt, random));
    move(failed, job_state::retryable);
    timers_.set(failed, ojs::steady_clock::now() + failed.retry_delay);
}

void store::note_error(job& failed, const failure& report) {
    constexpr std::size_t kept = 25;
    std::string others = report.error;
    for (const char* key : {"attempt", "occurred_at", "type"}) others = with_raw_member(others, key, "");
    others.pop_back();
    json_object out = json_object::continued(std::move(others));
    out.text("type", report.type).number("attempt", failed.attempt).text("occurred_at", iso_time());
    failed.errors.push_back(out.str());
    if (failed.errors.size() > kept) failed.errors.erase(failed.errors.begin());
}

void store::cancel(const std::string& id) {
    job& of = own_job(id);
    end(of, job_state::cancelled);
    feed_.add("job.cancelled", of);
    ledger_.write("cancelled", ledger_.fields().text("job_id", id));
}

void store::activate(const std::string& id) {
    job& of = own_job(id);
    if (of.state != job_state::pending) {
        throw refusal{409, "conflict", std::string("the job is not pending but ") + name_of(of.state)};
    }
    const bool is_early = of.scheduled_ms > wall_ms();
    move(of, is_early ? job_state::scheduled : job_state::available);
    if (is_early) timers_.set(of, moment_of(of.scheduled_ms));
    feed_.add(is_early ? "job.scheduled" : "job.enqueued", of);
}

job& store::own_dead_letter(const std::string& id) const {
    job& of = own_job(id);
    if (!of.is_dead_letter) throw refusal{404, "not_found", "no such dead letter"};
    return of;
}

void store::retry_dead_letter(const std::string& id) {
    job& of = own_dead_letter(id);
    of.is_dead_letter = false;
    of.attempt = 0;
    of.error.clear();
    of.errors.clear();
    of.started_ms = of.ended_ms = 0;
    of.retry_delay = milliseconds(0);
    move(of, job_state::available);
    feed_.add("job.enqueued", of);
}

void store::remove_dead_letter(const std::string& id) {
    job& of = own_dead_letter(id);
    if (options_.is_kept) changes_.fetch_add(1);
    changed_.erase(std::remove(changed_.begin(), changed_.end(), &of), changed_.end());
    if (of.is_stored) removed_.push_back(id);
    --counts_.in_state[index_of(of.state)];
    jobs_.erase(id);
}

std::vector<const job*> store::in_order_of_arrival() const {
    std::vector<const job*> out;
    for (const auto& each : jobs_) out.push_back(each.second.get());
    std::sort(out.begin(), out.end(), [](const job* a, const job* b) { return a->turn < b->turn; });
    return out;
}

void store::keep_checkpoint(const std::string& id, std::string_view state) {
    job& of = own_job(id);
    of.meta = with_raw_member(of.meta, "checkpoint", state);
    of.has_checkpoint = true;
    change(of);
}

void store::forget_checkpoint(const std::string& id) {
    job& of = own_job(id);
    of.meta = with_raw_member(of.meta, "checkpoint", "");
    of.has_checkpoint = false;
    change(of);
}

// ---- queues ----

void store::require_queue(const std::string& name) const {
    if (available_.count(name) == 0) throw refusal{404, "not_found", "no such queue"};
}

void store::pause(const std::string& queue) {
    require_queue(queue);
    if (paused_.insert(queue).second) streams_.on_status(queue, "queue.paused");
}

void store::resume(const std::string& queue) {
    require_queue(queue);
    if (paused_.erase(queue) > 0) streams_.on_status(queue, "queue.resumed");
}

// ---- workers ----

worker& store::own_worker(const std::string& id) {
    auto found = workers_.find(id);
    if (found == workers_.end()) {
        if (id.size() > max_worker_id) refuse_shape("worker_id is longer than 256 bytes");
        if (workers_.size() >= max_workers) forget_a_worker();
        found = workers_.emplace(id, std::make_unique<worker>()).first;
        found->second->id = id;
        found->second->directive = directive_for_new_;
    }
    found->second->last_seen = ++last_seen_;
    return *found->second;
}

void store::forget_a_worker() {
    auto oldest = workers_.end();
    for (auto at = workers_.begin(); at != workers_.end(); ++at) {
        if (!at->second->jobs.empty()) continue;
        if (oldest == workers_.end() || at->second->last_seen < oldest->second->last_seen) oldest = at;
    }
    if (oldest == workers_.end()) throw refusal{503, "backend_error", "too many workers hold jobs"};
    timers_.set(*oldest->second, ojs::time_point::max());
    workers_.erase(oldest);
}

const worker& store::note(beat report) {
    worker& from = own_worker(report.worker_id);
    from.state = std::move(report.state);
    from.registration = std::move(report.registration);
    from.last_active = std::move(report.active);
    ++from.beats;
    from.last_beat_ms = wall_ms();
    for (const job* held : from.jobs) {
        if (!held->test_directive.empty()) set_directive(from, held->test_directive, {});
    }
    return from;
}

std::vector<std::string> store::extend_leases(const std::string& worker_id,
                                              const std::vector<std::string>& ids, milliseconds lease) {
    const worker& of = own_worker(worker_id);
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

void store::expect_beat_by(const std::string& worker_id, ojs::time_point when) {
    timers_.set(own_worker(worker_id), when);
}

void store::say_goodbye(const std::string& worker_id) {
    worker& from = own_worker(worker_id);
    take_back_jobs(from, "requeued_at_deregistration");
    timers_.set(from, ojs::time_point::max());
}

// A dead worker holds no jobs.
void store::take_back_jobs(worker& from, const char* event) {
    while (!from.jobs.empty()) {
        job& taken = **from.jobs.begin();
        move(taken, job_state::available);
        ledger_.write(event, ledger_.fields().text("worker_id", from.id).text("job_id", taken.id));
    }
}

void store::set_directive(worker& holder, const std::string& directive,
                          const std::vector<std::string>& queues) {
    holder.directive = directive;
    holder.directive_queues = queues;
}

void store::direct(const std::string& worker_id, const std::string& directive,
                   const std::vector<std::string>& queues) {
    if (worker_id != "*") {
        set_directive(own_worker(worker_id), directive, queues);
    } else {
        directive_for_new_ = queues.empty() ? directive : "running";
        for (const auto& entry : workers_) set_directive(*entry.second, directive, queues);
    }
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
    timers_.wake();
    if (timer_thread_.joinable()) timer_thread_.join();
}

void store::run_timers() {
    lock held(mutex_);
    while (!stopping_) {
        run_due(ojs::steady_clock::now());
        timers_.wait(held);
    }
}

void store::run_due(ojs::time_point now) {
    while (worker* const silent = timers_.due_worker(now)) {
        ledger_.write("dead", ledger_.fields()
                                  .text("worker_id", silent->id)
                                  .number("jobs", static_cast<std::int64_t>(silent->jobs.size())));
        take_back_jobs(*silent, "requeued_from_dead");
        timers_.set(*silent, ojs::time_point::max());
    }
    while (job* const due = timers_.due_job(now)) run_due(*due, now);
}

void store::run_due(job& due, ojs::time_point now) {
    json_object event = ledger_.fields();
    event.text("job_id", due.id);
    if (due.owner != nullptr) event.text("worker_id", due.owner->id);
    if (due.state != job_state::active) {
        const bool was_scheduled = due.state == job_state::scheduled;
        move(due, job_state::available);
        if (was_scheduled) feed_.add("job.enqueued", due);
        ledger_.write("promoted", event);
    } else if (due.times_out <= now) {
        json_object error;
        error.text("code", "timeout").text("type", "timeout");
        error.text("message", "the attempt took longer than " + std::to_string(due.timeout.count()) + " ms");
        error.text("timeout_kind", "execution").flag("retryable", true);
        const std::string next = name_of(fail(due.id, {error.str(), "timeout", "timeout"}));
        ledger_.write("timed_out", event.text("state", next));
    } else {
        ++counts_.expired;
        ledger_.write("expired", event.text("state", name_of(expire(due))));
    }
}

// The attempt counts, so that a job that crashes workers is discarded in the end. [OJS worker protocol 5.5]
job_state store::expire(job& held) {
    json_object error;
    error.text("code", "visibility_timeout").text("type", "visibility_timeout");
    error.text("message", "no report or heartbeat for " + std::to_string(held.lease.count()) + " ms");
    failure report{error.flag("retryable", true).str(), "visibility_timeout", "visibility_timeout"};
    report.lease_ended = true;
    return fail(held.id, report);
}

void store::hold_time(milliseconds least) {
    const lock held(mutex_);
    const ojs::time_point until = ojs::steady_clock::now() + least;
    for (const auto& [id, each] : workers_) {
        if (each->dead_at < until) timers_.set(*each, until);
        for (job* const of : each->jobs) {
            if (of->due < until) timers_.set(*of, until);
        }
    }
}

// ---- storage ----

void store::change(job& changed) {
    if (!options_.is_kept) return;
    changes_.fetch_add(1);
    if (!changed.is_changed) changed_.push_back(&changed);
    changed.is_changed = true;
}

changed_rows store::take_changes() {
    changed_rows out;
    out.number = changes_.load();
    out.removed.swap(removed_);
    for (job* each : changed_) {
        out.rows.push_back(row_of(*each));
        each->is_changed = false;
        each->is_stored = true;
    }
    changed_.clear();
    return out;
}

void store::restore(const row& kept) {
    const lock held(mutex_);
    std::unique_ptr<job> restored = job_of(kept);
    if (restored->turn <= last_turn_) refuse_shape("turn is that of another job");
    const bool was_active = restored->state == job_state::active;
    job& out = insert(std::move(restored));
    last_turn_ = out.turn;
    if (was_active) {  // its worker could send no heartbeat: a full lease again
        out.owner = &own_worker(kept.worker);
        out.owner->jobs.insert(&out);
        const std::int64_t may_take = (out.timeout + options_.timeout_grace).count();
        if (out.timeout.count() > 0) out.times_out = moment_of(out.started_ms + may_take);
        renew_lease(out);
    } else if (kept.due_ms > 0) {
        timers_.set(out, moment_of(kept.due_ms));
    }
}

void store::clear() {
    const lock held(mutex_);
    for (const auto& each : jobs_) {
        timers_.set(*each.second, ojs::time_point::max());
        if (each.second->is_stored) removed_.push_back(each.first);
    }
    for (const auto& each : workers_) timers_.set(*each.second, ojs::time_point::max());
    if (options_.is_kept) changes_.fetch_add(1);
    changed_.clear();
    available_.clear();
    paused_.clear();
    jobs_.clear();
    workers_.clear();
    feed_.clear();
    counts_ = {};
    directive_for_new_ = "running";
}

}  // namespace dev_backend
