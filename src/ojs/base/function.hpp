// function<R(A...)>: a callable, or none. With std::function the header compiles 24 % longer, and the separate form
// 32 %.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "detail/light.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// A callable that can be compared with nullptr, as function pointers, std::function and its like can, may be empty.
template <class F, class = void>
inline constexpr bool may_be_empty = false;
template <class F>
inline constexpr bool may_be_empty<F, decltype(static_cast<void>(std::declval<const F&>() == nullptr))> =
    true;

template <class F>
bool is_empty(const F& callable) {
    if constexpr (may_be_empty<F>) {
        return callable == nullptr;
    } else {
        return false;
    }
}

}  // namespace detail

template <class Signature>
class function;

// A callable, or nothing: made from nullptr, from a null function pointer or from an empty std::function (or another
// callable that equals nullptr) it is empty. Copies share one callable, which may therefore be move-only. Calling it is
// as thread-safe as the callable; copying it is thread-safe. An empty one that returns void does nothing when called;
// any other must not be called.
template <class R, class... Args>
class function<R(Args...)> {
  public:
    function() = default;
    function(std::nullptr_t) {}
    template <class F, std::enable_if_t<!std::is_same_v<std::decay_t<F>, function>, int> = 0>
    function(F&& callable) {
        if (detail::is_empty<std::decay_t<F>>(callable)) return;
        body_ = detail::ref<body>(new holder<std::decay_t<F>>(std::forward<F>(callable)));
    }

    explicit operator bool() const noexcept { return static_cast<bool>(body_); }
    friend bool operator==(const function& one, std::nullptr_t) noexcept { return !one; }
    friend bool operator!=(const function& one, std::nullptr_t) noexcept { return static_cast<bool>(one); }
    R operator()(Args... args) const {
        if constexpr (std::is_same_v<R, void>) {
            if (body_) body_->call(std::forward<Args>(args)...);
        } else {
            return body_->call(std::forward<Args>(args)...);
        }
    }

  private:
    struct body : detail::ref_counted {
        virtual R call(Args... args) = 0;
    };
    template <class F>
    struct holder final : body {
        explicit holder(F target) : callable(std::move(target)) {}
        R call(Args... args) override {
            if constexpr (std::is_same_v<R, void>) {
                callable(std::forward<Args>(args)...);
            } else {
                return callable(std::forward<Args>(args)...);
            }
        }
        F callable;
    };

    detail::ref<body> body_;
};

// Finds an environment variable; null if unset. An empty one stands for the environment of the process.
using environment_lookup = function<const char*(const char* name)>;

namespace detail {
inline const char* find_variable(const environment_lookup& lookup, const char* name) {
    return lookup ? lookup(name) : std::getenv(name);
}
}  // namespace detail

}  // namespace v0_1_0
}  // namespace ojs
