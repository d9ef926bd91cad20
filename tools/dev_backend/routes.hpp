// routes: maps a request to its operation, and injects faults.
#pragma once
#include "backend.hpp"

namespace dev_backend {

ojs::http_response handle(backend& on, const ojs::http_request& request);

}  // namespace dev_backend
