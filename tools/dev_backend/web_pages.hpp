// web_pages: refuses requests that a page in a browser can send.
#pragma once
#include "library.hpp"

namespace dev_backend {

// Any page in a developer's browser can make it send requests to any address on this machine.
void refuse_web_pages(const ojs::http_request& request);

}  // namespace dev_backend
