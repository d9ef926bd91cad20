// push_request: reads a PUSH.
#pragma once
#include "job.hpp"

namespace dev_backend {

// `hyphens` allows them in job types, against the specification. Ignores unknown members, as stored jobs have some.
new_job read_push(const json_members& from, bool hyphens);
// Of a client: refuses unknown members by name.
new_job read_new_push(const json_members& from, bool hyphens);

}  // namespace dev_backend
