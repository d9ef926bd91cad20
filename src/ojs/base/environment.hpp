// environment_lookup: where environment variables are looked up.
#pragma once

#include <cstdlib>

#include "function.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Finds an environment variable; null if unset.
using environment_lookup = function<const char*(const char* name)>;

namespace detail {

// An empty lookup stands for the environment of the process.
inline const char* find_variable(const environment_lookup& lookup, const char* name) {
    return lookup ? lookup(name) : std::getenv(name);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
