// refusal: why a request is not done.
#pragma once
#include <string>
#include <utility>

namespace dev_backend {

// Thrown while a request is handled; becomes the error answer.
struct refusal {
    int status;
    const char* code;
    std::string message;
};

[[noreturn]] inline void refuse_shape(std::string message) {
    throw refusal{400, "INVALID_PAYLOAD", std::move(message)};
}

}  // namespace dev_backend
