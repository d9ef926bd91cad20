// present: what is fixed once it is made, and may be absent.
#pragma once

#include <utility>

#include "../../base/detail/ref.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

template <class T>
struct present final : ref_counted {
    explicit present(T made) : value(std::move(made)) {}
    T value;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
