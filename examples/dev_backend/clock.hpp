// clock: the time, as the ledger and the answers tell it.
#pragma once
#include <time.h>

#include <cstdint>
#include <string>

namespace dev_backend {

std::int64_t monotonic_ns();
timespec wall_clock();
std::string iso_time();  // 2026-01-31T12:00:00.000Z

}  // namespace dev_backend
