// routes: from a request to the operation that does it, and to the faults that are to meet it.
#pragma once
#include "backend.hpp"

namespace dev_backend {

ojs::http_response handle(backend& on, const ojs::http_request& request);

}  // namespace dev_backend
