#pragma once

#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE transport::~transport() = default;

}  // namespace v0_1_0
}  // namespace ojs
