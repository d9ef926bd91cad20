#include "backend.hpp"

#include <utility>

#include "json.hpp"

namespace dev_backend {

ojs::http_response json_answer(int status, std::string body) {
    ojs::http_response out;
    out.status = status;
    out.headers = {{"Content-Type", "application/openjobspec+json"}, {"OJS-Version", "1.0"}};
    out.body = std::move(body);
    return out;
}

ojs::http_response error_answer(const refusal& why) {
    json_object inner;
    inner.text("code", why.code).text("message", why.message).flag("retryable", why.status >= 500);
    return json_answer(why.status, json_object().raw("error", inner.str()).str());
}

}  // namespace dev_backend
