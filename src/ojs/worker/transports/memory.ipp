#pragma once

#include <map>

#include "../../net/json.hpp"
#include "memory.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The jobs by their number, and which of them are available and settled: no operation looks at the others.
class memory_queue : public ref_counted {
  public:
    explicit memory_queue(std::size_t settled_kept) : settled_kept_(settled_kept) {}

    memory_job& add(std::string queue) {
        memory_job& added = jobs_[++last_];
        added.job.id = cat({"job-", static_cast<unsigned long long>(last_)});
        added.job.queue = std::move(queue);
        offer(last_, added);
        return added;
    }
    // Claims the oldest available ones of a queue, up to `count` in `claimed`.
    void claim(const std::string& queue, std::size_t count, std::vector<job>& claimed) {
        const auto found = available_.find(queue);
        if (found == available_.end()) return;
        numbers& waiting = found->second;
        while (!waiting.empty() && claimed.size() < count) {
            memory_job& next = *waiting.begin()->second;
            next.state = "active";
            ++next.job.attempt;
            claimed.push_back(next.job);
            waiting.erase(waiting.begin());
        }
        if (waiting.empty()) available_.erase(found);
    }
    memory_job* find_active(const std::string& id) {
        const auto found = jobs_.find(number_of(id));
        if (found == jobs_.end() || found->second.job.id != id || found->second.state != "active")
            return nullptr;
        return &found->second;
    }
    // Both end what find_active() found.
    void offer_again(memory_job& again) { offer(number_of(again.job.id), again); }
    void settle(memory_job& done, const char* state) {
        done.state = state;
        settled_[++settlements_] = number_of(done.job.id);
        if (settled_.size() <= settled_kept_) return;
        jobs_.erase(settled_.begin()->second);
        settled_.erase(settled_.begin());
    }
    std::vector<memory_job> all() const {
        std::vector<memory_job> out;
        out.reserve(jobs_.size());
        for (const auto& each : jobs_) out.push_back(each.second);
        return out;
    }

    mutex guard;  // held by whoever calls any of the above

  private:
    using numbers = std::map<std::uint64_t, memory_job*>;

    static std::uint64_t number_of(std::string_view id) {
        constexpr std::string_view prefix = "job-";
        std::uint64_t number = 0;  // which no job has
        if (id.substr(0, prefix.size()) == prefix) {
            static_cast<void>(parse_number(id.substr(prefix.size()), ~std::uint64_t{0}, number));
        }
        return number;
    }
    void offer(std::uint64_t number, memory_job& job) {
        job.state = "available";
        available_[job.job.queue][number] = &job;
    }

    const std::size_t settled_kept_;
    std::uint64_t last_ = 0;
    std::uint64_t settlements_ = 0;
    std::map<std::uint64_t, memory_job> jobs_;
    std::map<std::string, numbers> available_;        // by queue
    std::map<std::uint64_t, std::uint64_t> settled_;  // numbers of jobs, in the order they were settled
};

}  // namespace detail

OJS_SHUTDOWN_INLINE memory_transport::memory_transport(std::size_t settled_kept)
    : queue_(detail::make_ref<detail::memory_queue>(settled_kept)) {}
OJS_SHUTDOWN_INLINE memory_transport::~memory_transport() = default;

OJS_SHUTDOWN_INLINE std::string memory_transport::push(std::string type, std::string args_json,
                                                       std::int64_t max_attempts, std::string queue) {
    const detail::lock_guard held(queue_->guard);
    job& added = queue_->add(std::move(queue)).job;
    added.type = std::move(type);
    added.args_json = std::move(args_json);
    added.attempt = 0;
    added.max_attempts = max_attempts;
    return added.id;
}

OJS_SHUTDOWN_INLINE std::vector<memory_job> memory_transport::jobs() const {
    const detail::lock_guard held(queue_->guard);
    return queue_->all();
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> memory_transport::fetch(const fetch_request& request,
                                                                     time_point /*deadline*/) {
    const detail::lock_guard held(queue_->guard);
    if (request.still_wanted && !request.still_wanted()) return error{errc::cancelled, 0, "no longer wanted"};
    std::vector<job> claimed;
    for (const std::string& queue : request.worker->queues) queue_->claim(queue, request.count, claimed);
    return claimed;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::ack(const ack_request& request,
                                                          time_point /*deadline*/) {
    const detail::lock_guard held(queue_->guard);
    memory_job* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->result_json = request.result_json;
    ++found->settlements;
    queue_->settle(*found, "completed");
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::fail(const fail_request& request,
                                                           time_point /*deadline*/) {
    const detail::lock_guard held(queue_->guard);
    memory_job* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    if (request.requeue) --found->job.attempt;
    found->error = request.error;
    if (!request.checkpoint_json.empty())
        found->job.meta_json =
            detail::with_raw_member(found->job.meta_json, "checkpoint", request.checkpoint_json);
    ++found->settlements;
    if (request.requeue || (request.error.retryable && found->job.attempt < found->job.max_attempts)) {
        queue_->offer_again(*found);
    } else {
        queue_->settle(*found, "discarded");
    }
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::save_checkpoint(const checkpoint_request& request,
                                                                      time_point /*deadline*/) {
    const detail::lock_guard held(queue_->guard);
    memory_job* const found = queue_->find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->job.meta_json = detail::with_raw_member(found->job.meta_json, "checkpoint", request.state_json);
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<std::string> memory_transport::load_checkpoint(const std::string& job_id,
                                                                          time_point /*deadline*/) {
    const detail::lock_guard held(queue_->guard);
    const memory_job* const found = queue_->find_active(job_id);
    if (found == nullptr) return std::string();
    return std::string(detail::raw_member(found->job.meta_json, "checkpoint"));
}

OJS_SHUTDOWN_INLINE result<heartbeat_answer> memory_transport::heartbeat(const heartbeat_request& request,
                                                                         time_point /*deadline*/) {
    heartbeat_answer answer;
    answer.jobs_extended = request.active_jobs;
    return answer;
}

}  // namespace v0_1_0
}  // namespace ojs
