#include "store.hpp"

#include <utility>

#include "clock.hpp"
#include "json.hpp"
#include "json_slicer.hpp"
#include "refusal.hpp"

namespace dev_backend {

// ---- jobs ----

const job& store::add(const new_job& given) {
    auto added = std::make_unique<job>();
    const std::string now = iso_time();
    added->id = ids_.next();
    added->queue = given.queue;
    added->priority = given.priority;
    added->max_attempts = given.max_attempts;
    added->turn = ++last_turn_;
    json_object fixed;
    fixed.text("specversion", "1.0")
        .text("id", added->id)
        .text("type", given.type)
        .text("queue", given.queue);
    added->meta = given.meta.empty() ? "{}" : given.meta;
    fixed.raw("args", given.args);
    fixed.number("priority", given.priority).number("max_attempts", given.max_attempts);
    if (given.timeout.count() > 0) fixed.number("timeout_ms", given.timeout.count());
    if (!given.tags.empty()) fixed.texts("tags", given.tags);
    fixed.text("created_at", now).text("enqueued_at", now);
    added->fixed = fixed.open_text() + given.extra;
    job& out = *jobs_.emplace(added->id, std::move(added)).first->second;
    ++counts_.in_state[static_cast<std::size_t>(job_state::available)];
    available_[out.queue].insert(&out);
    ledger_.write("push",
                  json_object().text("job_id", out.id).text("type", given.type).text("queue", out.queue));
    return out;
}

job& store::own_job(const std::string& id) const {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) throw refusal{404, "NOT_FOUND", "no such job"};
    return *found->second;
}

// The one place where a job changes its state: keeps queues, owners, timers and counts in step.
void store::move(job& moved, job_state next) {
    if (moved.state == job_state::available) available_[moved.queue].erase(&moved);
    if (moved.owner != nullptr) moved.owner->jobs.erase(&moved);
    moved.owner = nullptr;
    timers_.set(moved, ojs::time_point::max());
    --counts_.in_state[static_cast<std::size_t>(moved.state)];
    ++counts_.in_state[static_cast<std::size_t>(next)];
    moved.state = next;
    if (next == job_state::available) available_[moved.queue].insert(&moved);
}

std::vector<const job*> store::claim(const std::string& worker_id, const std::vector<std::string>& queues,
                                     std::size_t count, milliseconds lease) {
    worker& by = own_worker(worker_id);
    std::vector<const job*> out;
    const std::string now = iso_time();
    for (const std::string& queue : queues) {
        const auto waiting = available_.find(queue);
        while (waiting != available_.end() && !waiting->second.empty() && out.size() < count) {
            job& next = **waiting->second.begin();
            move(next, job_state::active);
            next.owner = &by;
            by.jobs.insert(&next);
            next.lease = lease;
            next.started_at = now;
            ++next.attempt;
            timers_.set(next, ojs::steady_clock::now() + lease);
            out.push_back(&next);
        }
    }
    return out;
}

void store::complete(const std::string& id, std::string result) {
    job& done = own_job(id);
    done.result = std::move(result);
    if (done.has_checkpoint) forget_checkpoint(id);
    move(done, job_state::completed);
}

job_state store::fail(const std::string& id, failure what) {
    job& failed = own_job(id);
    failed.error = std::move(what.error);
    job_state next = job_state::discarded;
    if (what.requeue) {
        next = job_state::available;
        --failed.attempt;  // handed back, not tried: the attempt does not count
        ++counts_.handed_back;
    } else if (what.retryable && failed.attempt < failed.max_attempts) {
        next = job_state::retryable;
    }
    move(failed, next);
    if (next == job_state::retryable) timers_.set(failed, ojs::steady_clock::now() + retry_delay_);
    return next;
}

void store::cancel(const std::string& id) {
    move(own_job(id), job_state::cancelled);
    ledger_.write("cancelled", json_object().text("job_id", id));
}

void store::keep_checkpoint(const std::string& id, std::string_view state) {
    job& of = own_job(id);
    of.meta = json_slicer::with(of.meta, "checkpoint", state);
    of.has_checkpoint = true;
}

void store::forget_checkpoint(const std::string& id) {
    job& of = own_job(id);
    of.meta = json_slicer::with(of.meta, "checkpoint", "");
    of.has_checkpoint = false;
}

// ---- workers ----

worker& store::own_worker(const std::string& id) {
    std::unique_ptr<worker>& found = workers_[id];
    if (!found) {
        found = std::make_unique<worker>();
        found->id = id;
        found->directive = directive_for_new_;
    }
    return *found;
}

const worker& store::note(beat said) {
    worker& from = own_worker(said.worker_id);
    from.state = std::move(said.state);
    from.registration = std::move(said.registration);
    from.last_active = std::move(said.active);
    ++from.beats;
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
        if (lease.count() > 0) extended.lease = lease;
        timers_.set(extended, ojs::steady_clock::now() + extended.lease);
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

// A worker that is gone no longer works on anything.
void store::take_back_jobs(worker& from, const char* event) {
    while (!from.jobs.empty()) {
        job& taken = **from.jobs.begin();
        move(taken, job_state::available);
        ledger_.write(event, json_object().text("worker_id", from.id).text("job_id", taken.id));
    }
}

void store::direct(const std::string& worker_id, const std::string& directive,
                   const std::vector<std::string>& queues) {
    const auto tell = [&](worker& told) {
        told.directive = directive;
        told.directive_queues = queues;
    };
    if (worker_id != "*") {
        tell(own_worker(worker_id));
    } else {
        directive_for_new_ = queues.empty() ? directive : "running";
        for (const auto& entry : workers_) tell(*entry.second);
    }
}

// ---- what time brings ----

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
        do_what_is_due(ojs::steady_clock::now());
        timers_.wait(held);
    }
}

void store::do_what_is_due(ojs::time_point now) {
    while (worker* const silent = timers_.due_worker(now)) {
        ledger_.write("dead", json_object()
                                  .text("worker_id", silent->id)
                                  .number("jobs", static_cast<std::int64_t>(silent->jobs.size())));
        take_back_jobs(*silent, "requeued_from_dead");
        timers_.set(*silent, ojs::time_point::max());
    }
    while (job* const due = timers_.due_job(now)) {
        json_object event;
        event.text("job_id", due->id);
        if (due->owner != nullptr) event.text("worker_id", due->owner->id);
        const bool was_active = due->state == job_state::active;
        if (was_active) ++counts_.expired;
        move(*due, job_state::available);
        ledger_.write(was_active ? "expired" : "promoted", event);
    }
}

}  // namespace dev_backend
