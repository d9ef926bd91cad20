#pragma once

#include "../../net/json.hpp"
#include "memory.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE memory_transport::memory_transport() = default;
OJS_SHUTDOWN_INLINE memory_transport::~memory_transport() = default;

OJS_SHUTDOWN_INLINE std::string memory_transport::push(std::string type, std::string args_json,
                                                       std::int64_t max_attempts, std::string queue) {
    const detail::lock_guard held(mutex_);
    memory_job added;
    added.job.id = detail::cat("job-", jobs_.size() + 1);
    added.job.type = std::move(type);
    added.job.queue = std::move(queue);
    added.job.args_json = std::move(args_json);
    added.job.attempt = 0;
    added.job.max_attempts = max_attempts;
    jobs_.push_back(std::move(added));
    return jobs_.back().job.id;
}

OJS_SHUTDOWN_INLINE std::vector<memory_job> memory_transport::jobs() const {
    const detail::lock_guard held(mutex_);
    return jobs_;
}

OJS_SHUTDOWN_INLINE memory_job* memory_transport::find_active(const std::string& id) {
    for (memory_job& each : jobs_) {
        if (each.job.id == id && each.state == "active") return &each;
    }
    return nullptr;
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> memory_transport::fetch(const fetch_request& request,
                                                                     time_point /*deadline*/) {
    const detail::lock_guard held(mutex_);
    if (request.still_wanted && !request.still_wanted()) return error{errc::cancelled, 0, "no longer wanted"};
    std::vector<job> claimed;
    for (const std::string& queue : request.worker->queues) {
        for (memory_job& each : jobs_) {
            if (claimed.size() >= request.count) break;
            if (each.state != "available" || each.job.queue != queue) continue;
            each.state = "active";
            ++each.job.attempt;
            claimed.push_back(each.job);
        }
    }
    return claimed;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::ack(const ack_request& request,
                                                          time_point /*deadline*/) {
    const detail::lock_guard held(mutex_);
    memory_job* found = find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->state = "completed";
    found->result_json = request.result_json;
    ++found->settlements;
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::fail(const fail_request& request,
                                                           time_point /*deadline*/) {
    const detail::lock_guard held(mutex_);
    memory_job* found = find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    if (request.requeue) --found->job.attempt;
    const bool again =
        request.requeue || (request.error.retryable && found->job.attempt < found->job.max_attempts);
    found->state = again ? "available" : "discarded";
    found->error = request.error;
    if (!request.checkpoint_json.empty())
        found->job.meta_json =
            detail::with_raw_member(found->job.meta_json, "checkpoint", request.checkpoint_json);
    ++found->settlements;
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<settled> memory_transport::save_checkpoint(const checkpoint_request& request,
                                                                      time_point /*deadline*/) {
    const detail::lock_guard held(mutex_);
    memory_job* found = find_active(request.job_id);
    if (found == nullptr) return settled::gone;
    found->job.meta_json = detail::with_raw_member(found->job.meta_json, "checkpoint", request.state_json);
    return settled::accepted;
}

OJS_SHUTDOWN_INLINE result<std::string> memory_transport::load_checkpoint(const std::string& job_id,
                                                                          time_point /*deadline*/) {
    const detail::lock_guard held(mutex_);
    const memory_job* found = find_active(job_id);
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
