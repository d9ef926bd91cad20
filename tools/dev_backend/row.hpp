// row: a job as stored on disk.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "job.hpp"

namespace dev_backend {

struct row {
    std::string id;
    std::int64_t turn = 0;
    std::string fixed;  // JSON: the constant part
    std::string meta;   // JSON
    std::string state;
    std::int64_t attempt = 0;
    std::string worker;
    std::int64_t lease_ms = 0;
    std::int64_t due_ms = 0;  // since the epoch; 0: never
    std::int64_t started_ms = 0;
    std::int64_t ended_ms = 0;
    std::int64_t retry_delay_ms = 0;
    std::string result;  // JSON
    std::string error;   // JSON
    std::string errors;  // JSON, an array
    bool is_dead_letter = false;
    bool is_new = false;  // not on disk yet: `fixed` is set
};

row row_of(const job& kept);
// Restores all but the links to workers, queues and timers. Throws a refusal for an invalid column.
std::unique_ptr<job> job_of(const row& kept);

// The changes since the last call of take_changes().
struct changed_rows {
    std::uint64_t number = 0;  // store::changes() at that time
    std::vector<row> rows;
    std::vector<std::string> removed;  // ids
};

}  // namespace dev_backend
