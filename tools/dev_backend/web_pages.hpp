// web_pages: what a page in a browser can send is refused.
#pragma once
#include "library.hpp"

namespace dev_backend {

// A page that a browser shows may have it send requests to any address on this machine. What they look like is refused:
// whoever develops here also browses.
void refuse_web_pages(const ojs::http_request& request);

}  // namespace dev_backend
