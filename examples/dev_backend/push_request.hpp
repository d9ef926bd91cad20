// push_request: what a PUSH asks for.
#pragma once
#include <picojson.h>

#include <string_view>

#include "job.hpp"

namespace dev_backend {

// `source` is the text `parsed` was read from.
new_job read_push(const picojson::value& parsed, std::string_view source);

}  // namespace dev_backend
