#pragma once

#include "../base/detail/text.hpp"
#include "../net/json_view.hpp"
#include "memory_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline std::string with_checkpoint(std::string_view meta, std::string_view checkpoint) {
    std::string out = cat({"{\"checkpoint\":", checkpoint});
    for (json_iterator at(meta, '{'); at; ++at) {
        if (!json_key_is(at->key, "checkpoint")) append(out, {",", at->key.text(), ":", at->value.text()});
    }
    return out + "}";
}
}  // namespace detail

OJS_SHUTDOWN_INLINE memory_transport::memory_transport(std::size_t max_settled) : max_settled_(max_settled) {}
OJS_SHUTDOWN_INLINE memory_transport::~memory_transport() {}

OJS_SHUTDOWN_INLINE std::string memory_transport::push(std::string type, std::string args_json,
                                                       std::int64_t max_attempts, std::string queue) {
    const detail::unique_lock held(guard_);
    std::string id = detail::cat({"job-", static_cast<unsigned long long>(++pushed_)});
    detail::memory_entry entry;
    entry.stored = detail::make_ref<detail::stored_job>();
    job& added = entry.job().job;
    added.id = id;
    added.type = std::move(type);
    added.args_json = std::move(args_json);
    added.queue = std::move(queue);
    added.attempt = 0;
    added.max_attempts = max_attempts;
    entries_.push_back(std::move(entry));
    if (on_available_) on_available_();
    return id;
}

OJS_SHUTDOWN_INLINE void memory_transport::on_work_available(function<void()> callback) {
    const detail::unique_lock held(guard_);
    on_available_ = std::move(callback);
}

OJS_SHUTDOWN_INLINE std::vector<memory_job> memory_transport::jobs() const {
    const detail::unique_lock held(guard_);
    std::vector<memory_job> out;
    for (const detail::memory_entry& entry : entries_) {
        out.push_back(entry.job());
        out.back().state = entry.state;
    }
    return out;
}

OJS_SHUTDOWN_INLINE detail::memory_entry* memory_transport::find_active(const std::string& id) {
    for (detail::memory_entry& entry : entries_) {
        if (entry.state == "active" && entry.job().job.id == id) return &entry;
    }
    return nullptr;
}

// Calls change(entry) if the job is active.
template <class Change>
result<settle_result> memory_transport::change_active(const std::string& id, Change change) {
    const detail::unique_lock held(guard_);
    detail::memory_entry* const found = find_active(id);
    if (found == nullptr) return settle_result::gone;
    change(*found);
    return settle_result::accepted;
}

// Also removes the job that was settled `max_settled` jobs before, which may be this one.
OJS_SHUTDOWN_INLINE void memory_transport::settle(detail::memory_entry& done, std::string_view state) {
    done.state = state;
    done.settled = ++settled_;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const std::uint64_t ordinal = entries_[i].settled;
        if (ordinal != 0 && settled_ - ordinal == max_settled_) return static_cast<void>(entries_.remove(i));
    }
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> memory_transport::fetch(const fetch_request& request, time_point) {
    const detail::unique_lock held(guard_);
    if (request.should_send && !request.should_send())
        return error{errc::cancelled, 0, "cancelled: the worker stopped fetching"};
    std::vector<job> claimed;
    for (const std::string& queue : request.worker->queues) {
        for (detail::memory_entry& entry : entries_) {
            if (claimed.size() >= request.count) return claimed;
            if (entry.state != "available" || entry.job().job.queue != queue) continue;
            job& found = entry.job().job;
            claimed.push_back(found);
            entry.state = "active";
            claimed.back().attempt = ++found.attempt;
            claimed.back().visibility_timeout = no_limit;
        }
    }
    return claimed;
}

OJS_SHUTDOWN_INLINE result<settle_result> memory_transport::ack(const ack_request& request, time_point) {
    return change_active(request.job_id, [&](detail::memory_entry& found) {
        found.job().result_json = request.result_json;
        ++found.job().settlements;
        settle(found, "completed");
    });
}

OJS_SHUTDOWN_INLINE result<settle_result> memory_transport::fail(const fail_request& request, time_point) {
    return change_active(request.job_id, [&](detail::memory_entry& found) {
        found.job().error = request.error;
        ++found.job().settlements;
        job& failed = found.job().job;
        if (!request.checkpoint_json.empty())
            failed.meta_json = detail::with_checkpoint(failed.meta_json, request.checkpoint_json);
        if (request.requeue) --failed.attempt;
        if (request.requeue || (request.error.retryable && failed.attempt < failed.max_attempts))
            found.state = "available";
        else
            settle(found, "discarded");
    });
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> memory_transport::heartbeat(const heartbeat_request& request,
                                                                           time_point) {
    const detail::unique_lock held(guard_);
    heartbeat_response response;
    for (const detail::memory_entry& entry : entries_) {
        if (entry.state == "active" && detail::contains(request.active_jobs, entry.job().job.id))
            response.jobs_extended.push_back(entry.job().job.id);
    }
    return response;
}

OJS_SHUTDOWN_INLINE transport_scheme memory() {
    const auto open = [](const detail::transport_setup& setup) -> result<transport_ref> {
        if (setup.address.empty()) return transport_ref(new memory_transport());
        return error{errc::invalid_argument, 0, "memory: takes no address"};
    };
    return {"memory", open, nullptr};
}
}  // namespace v0_1_0
}  // namespace ojs
