#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/json_view.hpp"
#include "memory.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct memory_entry : ref_counted {
    memory_job job;
    std::uint64_t number = 0;
    std::uint64_t settled = 0;  // how many were settled before it, and it; 0: it is not

    void keep_checkpoint(const std::string& json) {
        job.job.meta_json = with_raw_member(job.job.meta_json, "checkpoint", json);
    }
};

// Jobs in the order of their numbers. No operation scans all of them, but for one in max_settled.
class memory_queue : public ref_counted {
  public:
    explicit memory_queue(std::size_t max_settled) : max_settled_(max_settled) {}

    memory_job& add(std::string queue) {
        entries_.push_back(make_ref<memory_entry>());
        memory_entry& added = *entries_.back();
        added.number = ++last_;
        added.job.job.id = cat({"job-", static_cast<unsigned long long>(last_)});
        added.job.job.queue = std::move(queue);
        return added.job;
    }
    // Claims the oldest available jobs of a queue, until `claimed` has `count`.
    void claim(const std::string& queue, std::size_t count, std::vector<job>& claimed) {
        std::uint64_t& next = next_of(queue);
        for (std::size_t i = place_of(next); i < entries_.size() && claimed.size() < count; ++i) {
            memory_job& found = entries_[i]->job;
            const bool is_next = found.state == "available" && found.job.queue == queue;
            if (is_next && !retry_allocation([&] { claimed.push_back(found.job); }))
                return;  // the job stays pending
            next = entries_[i]->number + 1;
            if (!is_next) continue;
            found.state = "active";
            claimed.back().attempt = ++found.job.attempt;
        }
    }
    memory_entry* find_active(const std::string& id) {
        std::uint64_t number = 0;  // of no job
        if (id.substr(0, 4) == "job-") parse_number(id.substr(4), ~std::uint64_t{0}, number);
        const std::size_t place = place_of(number);
        memory_entry* const found = place < entries_.size() ? entries_[place].get() : nullptr;
        return found == nullptr || found->job.job.id != id || found->job.state != "active" ? nullptr : found;
    }
    // Calls change(entry) if the job is active.
    template <class Change>
    result<settled> change_active(const std::string& id, Change change) {
        const unique_lock held(guard);
        memory_entry* const found = find_active(id);
        if (found == nullptr) return settled::gone;
        change(*found);
        return settled::accepted;
    }
    // offer() and settle() take a job that find_active() returned.
    void offer(memory_entry& again) {
        again.job.state = "available";
        std::uint64_t& next = next_of(again.job.job.queue);
        next = detail::min(next, again.number);
    }
    void settle(memory_entry& done, const char* state) {
        done.job.state = state;
        done.settled = ++settled_;
        if ((settled_ - removed_) / 2 <= detail::max<std::uint64_t>(max_settled_, 32)) return;
        std::size_t kept = 0;
        for (ref<memory_entry>& entry : entries_) {
            if (is_kept(*entry)) detail::swap(entries_[kept++], entry);
        }
        while (entries_.size() > kept) entries_.pop_back();
        removed_ = settled_ - max_settled_;
    }
    std::vector<memory_job> all() const {
        std::vector<memory_job> out;
        for (const ref<memory_entry>& entry : entries_) {
            if (is_kept(*entry)) out.push_back(entry->job);
        }
        return out;
    }

    function<void()> on_available;  // called with the guard held
    mutable mutex guard;            // the caller of any function above but change_active() holds it

  private:
    struct queue_cursor {
        std::string queue;
        std::uint64_t next;  // no job of the queue before this number is available
    };

    bool is_kept(const memory_entry& entry) const noexcept {
        return entry.settled == 0 || settled_ - entry.settled < max_settled_;
    }
    std::size_t place_of(std::uint64_t number) const noexcept {
        return lower_bound(0, entries_.size(), [&](std::size_t i) { return entries_[i]->number < number; });
    }
    std::uint64_t& next_of(const std::string& queue) {
        for (queue_cursor& cursor : cursors_) {
            if (cursor.queue == queue) return cursor.next;
        }
        cursors_.push_back({queue, 0});
        return cursors_.back().next;
    }

    const std::size_t max_settled_;
    std::uint64_t last_ = 0;
    std::uint64_t settled_ = 0;
    std::uint64_t removed_ = 0;  // of those settled
    array<ref<memory_entry>> entries_;
    array<queue_cursor> cursors_;
};

}  // namespace detail

OJS_SHUTDOWN_INLINE memory_transport::memory_transport(std::size_t max_settled)
    : queue_(detail::make_ref<detail::memory_queue>(max_settled)) {}
OJS_SHUTDOWN_INLINE memory_transport::~memory_transport() = default;

OJS_SHUTDOWN_INLINE std::string memory_transport::push(std::string type, std::string args_json,
                                                       std::int64_t max_attempts, std::string queue) {
    const detail::unique_lock held(queue_->guard);
    job& added = queue_->add(std::move(queue)).job;
    added.type = std::move(type);
    added.args_json = std::move(args_json);
    added.attempt = 0;
    added.max_attempts = max_attempts;
    std::string id = added.id;
    if (queue_->on_available) queue_->on_available();
    return id;
}

OJS_SHUTDOWN_INLINE void memory_transport::on_work_available(function<void()> callback) {
    const detail::unique_lock held(queue_->guard);
    queue_->on_available = std::move(callback);
}

OJS_SHUTDOWN_INLINE std::vector<memory_job> memory_transport::jobs() const {
    const detail::unique_lock held(queue_->guard);
    return queue_->all();
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> memory_transport::fetch(const fetch_request& request,
                                                                     time_point) {
    const detail::unique_lock held(queue_->guard);
    if (request.should_send && !request.should_send()) return error{errc::cancelled, 0, "no longer wanted"};
    std::vector<job> claimed;
    for (const std::string& queue : request.worker->queues) queue_->claim(queue, request.count, claimed);
    return claimed;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::ack(const ack_request& request, time_point) {
    return queue_->change_active(request.job_id, [&](auto& found) {
        found.job.result_json = request.result_json;
        ++found.job.settlements;
        queue_->settle(found, "completed");
    });
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::fail(const fail_request& request, time_point) {
    return queue_->change_active(request.job_id, [&](auto& found) {
        if (request.requeue) --found.job.job.attempt;
        found.job.error = request.error;
        if (!request.checkpoint_json.empty()) found.keep_checkpoint(request.checkpoint_json);
        ++found.job.settlements;
        const bool has_attempts = found.job.job.attempt < found.job.job.max_attempts;
        if (request.requeue || (request.error.retryable && has_attempts))
            queue_->offer(found);
        else
            queue_->settle(found, "discarded");
    });
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::save_checkpoint(const checkpoint_request& request,
                                                                      time_point) {
    return queue_->change_active(request.job_id,
                                 [&](auto& found) { found.keep_checkpoint(request.state_json); });
}

OJS_SHUTDOWN_INLINE result<std::string> memory_transport::load_checkpoint(const std::string& job_id,
                                                                          time_point) {
    const detail::unique_lock held(queue_->guard);
    const detail::memory_entry* const found = queue_->find_active(job_id);
    if (found == nullptr) return std::string();
    return std::string(detail::raw_member(found->job.job.meta_json, "checkpoint"));
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> memory_transport::heartbeat(const heartbeat_request& request,
                                                                           time_point) {
    const detail::unique_lock held(queue_->guard);
    heartbeat_response response;
    for (const std::string& id : request.active_jobs) {
        if (queue_->find_active(id) != nullptr) response.jobs_extended.push_back(id);
    }
    return response;
}

}  // namespace v0_1_0
}  // namespace ojs
