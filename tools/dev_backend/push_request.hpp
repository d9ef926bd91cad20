// push_request: what a PUSH asks for.
#pragma once
#include <picojson.h>

#include <string_view>

#include "job.hpp"

namespace dev_backend {

// `source` is the text `parsed` was read from; `hyphens` may be in a type, which the specification does not have.
new_job read_push(const picojson::value& parsed, std::string_view source, bool hyphens);

}  // namespace dev_backend
