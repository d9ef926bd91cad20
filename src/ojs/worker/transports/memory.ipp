#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/json_view.hpp"
#include "memory.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct memory_node : ref_counted {
    memory_job job;
    std::uint64_t number = 0;
    memory_node* next = nullptr;  // in its line: a queue, or the settled jobs

    void keep_checkpoint(const std::string& json) {
        job.job.meta_json = with_raw_member(job.job.meta_json, "checkpoint", json);
    }
};

// A linked list of jobs; each job is in one at most.
struct memory_line {
    memory_node* first = nullptr;
    memory_node* last = nullptr;

    void append(memory_node& added) noexcept {
        (last == nullptr ? first : last->next) = &added;
        last = &added;
        added.next = nullptr;
    }
    // Sorted by number. Searches from the front, because a job offered again is older than most.
    void insert(memory_node& added) noexcept {
        if (last == nullptr || last->number < added.number) return append(added);
        memory_node** place = &first;
        while ((*place)->number < added.number) place = &(*place)->next;
        added.next = *place;
        *place = &added;
    }
    memory_node* take_first() noexcept {
        memory_node* const taken = first;
        if (taken == nullptr) return nullptr;
        first = taken->next;
        if (first == nullptr) last = nullptr;
        return taken;
    }
};

// Jobs by number, with lists of the available and the settled ones, so that no operation scans all jobs.
class memory_queue : public ref_counted {
  public:
    explicit memory_queue(std::size_t max_settled) : max_settled_(max_settled) {}

    memory_job& add(std::string queue) {
        nodes_.push_back(make_ref<memory_node>());
        memory_node& added = *nodes_.back();
        added.number = ++last_;
        added.job.job.id = cat({"job-", static_cast<unsigned long long>(last_)});
        added.job.job.queue = std::move(queue);
        offer(added);
        return added.job;
    }
    // Claims the oldest available jobs of a queue, until `claimed` has `count`.
    void claim(const std::string& queue, std::size_t count, std::vector<job>& claimed) {
        memory_line& waiting = line_of(queue);
        while (waiting.first != nullptr && claimed.size() < count) {
            if (!retry_allocation([&] { claimed.push_back(waiting.first->job.job); }))
                return;  // the job stays pending
            memory_job& next = waiting.take_first()->job;
            next.state = "active";
            claimed.back().attempt = ++next.job.attempt;
        }
    }
    memory_node* find_active(const std::string& id) {
        memory_node* const found = find(id);
        return found == nullptr || found->job.job.id != id || found->job.state != "active" ? nullptr : found;
    }
    // offer() and settle() take a job that find_active() returned.
    void offer(memory_node& again) {
        again.job.state = "available";
        line_of(again.job.job.queue).insert(again);
    }
    void settle(memory_node& done, const char* state) {
        done.job.state = state;
        settled_.append(done);
        if (++settled_count_ <= max_settled_) return;
        --settled_count_;
        forget(*settled_.take_first());
    }
    std::vector<memory_job> all() const {
        std::vector<memory_job> out;
        for (const ref<memory_node>& node : nodes_) {
            if (node->job.state != forgotten) out.push_back(node->job);
        }
        return out;
    }

    function<void()> on_available;  // called with the guard held
    mutex guard;                    // the caller of any function above holds it

  private:
    static constexpr const char* forgotten = "forgotten";
    struct queue_line {
        std::string queue;
        memory_line line;
    };

    memory_node* find(std::string_view id) noexcept {
        std::uint64_t number = 0;  // of no job
        if (id.substr(0, 4) == "job-") parse_number(id.substr(4), ~std::uint64_t{0}, number);
        const auto is_before = [&](std::size_t place) { return nodes_[place]->number < number; };
        const std::size_t place = lower_bound(0, nodes_.size(), is_before);
        return place < nodes_.size() && nodes_[place]->number == number ? nodes_[place].get() : nullptr;
    }
    memory_line& line_of(const std::string& queue) {
        for (queue_line& entry : lines_) {
            if (entry.queue == queue) return entry.line;
        }
        lines_.push_back({queue, {}});
        return lines_.back().line;
    }
    // Leaves an empty node, until half of all nodes are empty: the cost per job stays constant.
    void forget(memory_node& old) {
        old.job = memory_job();
        old.job.state = forgotten;
        if (++forgotten_count_ * 2 < nodes_.size()) return;
        std::size_t kept = 0;
        for (ref<memory_node>& node : nodes_) {
            if (node->job.state != forgotten) detail::swap(nodes_[kept++], node);
        }
        while (nodes_.size() > kept) nodes_.pop_back();
        forgotten_count_ = 0;
    }

    const std::size_t max_settled_;
    std::uint64_t last_ = 0;
    array<ref<memory_node>> nodes_;  // in the order of their numbers
    array<queue_line> lines_;
    memory_line settled_;  // oldest first
    std::size_t settled_count_ = 0;
    std::size_t forgotten_count_ = 0;
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
                                                                     time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    if (request.should_send && !request.should_send()) return error{errc::cancelled, 0, "no longer wanted"};
    std::vector<job> claimed;
    for (const std::string& queue : request.worker->queues) queue_->claim(queue, request.count, claimed);
    return claimed;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::ack(const ack_request& request,
                                                          time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    detail::memory_node* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->job.result_json = request.result_json;
    ++found->job.settlements;
    queue_->settle(*found, "completed");
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::fail(const fail_request& request,
                                                           time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    detail::memory_node* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    if (request.requeue) --found->job.job.attempt;
    found->job.error = request.error;
    if (!request.checkpoint_json.empty()) found->keep_checkpoint(request.checkpoint_json);
    ++found->job.settlements;
    if (request.requeue ||
        (request.error.retryable && found->job.job.attempt < found->job.job.max_attempts)) {
        queue_->offer(*found);
    } else {
        queue_->settle(*found, "discarded");
    }
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::save_checkpoint(const checkpoint_request& request,
                                                                      time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    detail::memory_node* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->keep_checkpoint(request.state_json);
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<std::string> memory_transport::load_checkpoint(const std::string& job_id,
                                                                          time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    const detail::memory_node* const found = queue_->find_active(job_id);
    if (found == nullptr) return std::string();
    return std::string(detail::raw_member(found->job.job.meta_json, "checkpoint"));
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> memory_transport::heartbeat(const heartbeat_request& request,
                                                                           time_point /*deadline*/) {
    const detail::unique_lock held(queue_->guard);
    heartbeat_response response;
    for (const std::string& id : request.active_jobs) {
        if (queue_->find_active(id) != nullptr) response.jobs_extended.push_back(id);
    }
    return response;
}

}  // namespace v0_1_0
}  // namespace ojs
