// push_request: reads a PUSH.
#pragma once
#include "job.hpp"

namespace dev_backend {
// `hyphens` allows them in job types, against the specification. Ignores unknown members, as stored jobs have some.
new_job read_push(json_view from, bool hyphens);
// Of a client: refuses unknown members by name.
new_job read_new_push(json_view from, bool hyphens);

// push_members.cpp: each refuses the first unknown member by name. Of a known one in the wrong place the message says where
// it belongs.
void require_known_members(json_view push);
void require_known_batch_members(json_view batch);
// Members whose names begin with `x_` or `ext_` are kept in the job. [OJS core 5.5]
bool is_extension_member(std::string_view name);
}  // namespace dev_backend
