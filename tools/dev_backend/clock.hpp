// clock: the time, in the form of the ledger and the responses.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace dev_backend {

std::int64_t monotonic_ns();
std::int64_t wall_ms();                 // since the epoch
std::string iso_time(std::int64_t ms);  // since the epoch: 2026-01-31T12:00:00.000Z
inline std::string iso_time() {
    return iso_time(wall_ms());
}
// Parses RFC 3339 with a zone into milliseconds since the epoch; nullopt: invalid.
std::optional<std::int64_t> parse_iso_time(const std::string& text);

}  // namespace dev_backend
