// push_request: reads a PUSH.
#pragma once
#include <picojson.h>

#include <string_view>

#include "job.hpp"

namespace dev_backend {

// `source` is the text of `parsed`. `hyphens` allows them in job types, against the specification.
new_job read_push(const picojson::value& parsed, std::string_view source, bool hyphens);

}  // namespace dev_backend
