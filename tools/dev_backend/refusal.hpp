// refusal: why a request is rejected.
#pragma once
#include <string>
#include <utility>

namespace dev_backend {
// Thrown by a handler; becomes the error response. The codes are those of the HTTP binding and its OpenAPI description.
struct refusal {
    int status;
    const char* code;
    std::string message;
    const char* type = "";  // where the code is too general
};

[[noreturn]] inline void refuse_shape(std::string message) {
    throw refusal{400, "invalid_payload", std::move(message)};
}

// A member that is unknown or has an invalid value, of a job whose JSON is otherwise fine.
[[noreturn]] inline void refuse_member(std::string why) {
    throw refusal{422, "invalid_request", std::move(why), "validation_error"};
}

[[noreturn]] inline void refuse_duplicate(std::string why) { throw refusal{409, "duplicate", std::move(why)}; }
}  // namespace dev_backend
