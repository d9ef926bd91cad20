// refusal: why a request is not done.
#pragma once
#include <string>
#include <utility>

namespace dev_backend {

// Thrown while a request is handled; becomes the error answer. The codes are those of the HTTP binding and of its OpenAPI
// description.
struct refusal {
    int status;
    const char* code;
    std::string message;
    const char* type = "";  // where a code says too little
};

[[noreturn]] inline void refuse_shape(std::string message) {
    throw refusal{400, "invalid_payload", std::move(message)};
}

[[noreturn]] inline void refuse_duplicate() {
    throw refusal{409, "duplicate", "there is a job with this id already"};
}

}  // namespace dev_backend
