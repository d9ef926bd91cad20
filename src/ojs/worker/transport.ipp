#pragma once

#include "transport.hpp"

namespace ojs {
inline namespace v1 {

OJS_SHUTDOWN_INLINE transport::~transport() = default;

OJS_SHUTDOWN_INLINE result<void> transport::register_worker(const worker_identity& /*worker*/,
                                                            time_point /*deadline*/) {
    return {};
}

OJS_SHUTDOWN_INLINE result<void> transport::deregister_worker(const worker_identity& /*worker*/,
                                                              time_point /*deadline*/) {
    return {};
}

}  // namespace v1
}  // namespace ojs
