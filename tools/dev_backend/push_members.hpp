// push_members: which members a PUSH may have, and where.
#pragma once
#include "json.hpp"

namespace dev_backend {

// Members whose names begin with `x_` or `ext_` are kept in the job, whatever they are. [OJS core 5.5]
bool is_extension_member(std::string_view name);

// Each refuses the first unknown member by name. Of a known one in the wrong place the message says where it belongs.
void require_known_members(const json_members& push);
void require_known_batch_members(const json_members& batch);

}  // namespace dev_backend
