// `function<R(A...)>`: a callable, or none. std::function would make the header compile 24 % longer.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "detail/light.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// What compares with nullptr, as function pointers and std::function do, may be empty.
template <class F>
auto is_empty(const F& callable, int) -> decltype(bool(callable == nullptr)) {
    return callable == nullptr;
}
template <class F>
bool is_empty(const F& /*callable*/, long) {
    return false;
}

// The result of the call as an R; R() if it returns nothing.
template <class R, class F, class... Args>
R call_as(F& callable, Args&... args) {
    if constexpr (std::is_void_v<decltype(callable(args...))>)
        return callable(args...), R();
    else
        return R(callable(args...));
}
}  // namespace detail

template <class Signature>
class function;

/// A callable, or none, if made from what equals nullptr. Copies share one callable, which may be move-only; copying is
/// thread-safe. Calling an empty one does nothing if R is void, else it is undefined.
template <class R, class... Args>
class function<R(Args...)> {
  public:
    function() = default;
    function(std::nullptr_t) {}  ///< an empty one
    template <class F, std::enable_if_t<!std::is_same_v<std::decay_t<F>, function>, int> = 0>
    function(F&& callable) {
        if (detail::is_empty<std::decay_t<F>>(callable, 0)) return;
        body_ = detail::ref<body>(new holder<std::decay_t<F>>(std::forward<F>(callable)));
    }

    explicit operator bool() const noexcept { return static_cast<bool>(body_); }  ///< false: empty
    friend bool operator==(const function& one, std::nullptr_t) noexcept { return !one; }
    friend bool operator!=(const function& one, std::nullptr_t) noexcept { return static_cast<bool>(one); }
    /// Calls it.
    R operator()(Args... args) const {
        if constexpr (std::is_void_v<R>) {
            if (!body_) return;
        }
        return body_->call(std::forward<Args>(args)...);
    }

  private:
    struct body : detail::ref_counted {
        virtual R call(Args... args) = 0;
    };
    template <class F>
    struct holder final : body {
        explicit holder(F target) : callable(std::move(target)) {}
        R call(Args... args) override { return static_cast<R>(callable(std::forward<Args>(args)...)); }
        F callable;
    };

    detail::ref<body> body_;
};

/// The value of an environment variable, or null. An empty lookup reads the process environment.
using environment_lookup = function<const char*(const char* name)>;

namespace detail {
inline const char* find_variable(const environment_lookup& lookup, const char* name) {
    return lookup ? lookup(name) : std::getenv(name);
}
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
