#pragma once

#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE bool heartbeat_answer::extends(const std::string& job_id) const {
    for (const std::string& id : jobs_extended) {
        if (id == job_id) return true;
    }
    return false;
}

OJS_SHUTDOWN_INLINE transport::~transport() = default;

OJS_SHUTDOWN_INLINE result<bool> transport::confirm_claim(const claim_query& /*query*/,
                                                          time_point /*deadline*/) {
    return true;
}

OJS_SHUTDOWN_INLINE result<void> transport::register_worker(const worker_identity& /*worker*/,
                                                            time_point /*deadline*/) {
    return {};
}

OJS_SHUTDOWN_INLINE result<void> transport::deregister_worker(const worker_identity& /*worker*/,
                                                              time_point /*deadline*/) {
    return {};
}

OJS_SHUTDOWN_INLINE result<settled> transport::save_checkpoint(const checkpoint_request& /*request*/,
                                                               time_point /*deadline*/) {
    return error{errc::unsupported, 0, "this transport keeps no checkpoints"};
}

OJS_SHUTDOWN_INLINE result<std::string> transport::load_checkpoint(const std::string& /*job_id*/,
                                                                   time_point /*deadline*/) {
    return std::string();
}

OJS_SHUTDOWN_INLINE void transport::when_work_may_wait(function<void()> /*tell*/) {}

OJS_SHUTDOWN_INLINE void transport::when_jobs_are_revoked(
    function<void(const std::string& job_id)> /*tell*/) {}

}  // namespace v0_1_0
}  // namespace ojs
