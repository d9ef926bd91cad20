// error and `result<T>`: how functions report failure. Nothing is thrown across the API.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "detail/light.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// What went wrong. `unsupported`: not built in, such as TLS; `system`: see sys_errno; `cancelled`: by the caller.
enum class errc {
    invalid_argument,  ///< an unusable value (option, URL, environment variable)
    unsupported,
    busy,  ///< already in use (a second signal installer, a port)
    system,
    timed_out,     ///< the deadline passed; a request may have been processed
    unreachable,   ///< no connection: the request cannot have been processed
    disconnected,  ///< the connection broke in the middle; the request may have been processed
    bad_response,  ///< the peer's response is not valid HTTP or JSON, or exceeds a limit
    unavailable,   ///< the peer cannot serve the request now (5xx, 408, 429): retry later
    rejected,      ///< the peer refused the request (any other 4xx): a retry will not help
    cancelled
};

/// Short lower-case name of an errc ("timed_out"). Never null. Thread-safe, async-signal-safe.
inline const char* to_string(errc code) noexcept {
    return detail::name_of(code, {"invalid_argument", "unsupported", "busy", "system", "timed_out", "unreachable",
                                  "disconnected", "bad_response", "unavailable", "rejected", "cancelled"});
}

/// Why a function failed.
struct error {
    errc code = errc::system;                  ///< what to act on
    int sys_errno = 0;                         ///< errno of the failed system call; else 0
    std::string text{};                        ///< one line for a person
    int http_status = 0;                       ///< status of the response that caused it; else 0
    std::chrono::milliseconds retry_after{0};  ///< the peer's Retry-After; else 0
};

namespace detail {
#if OJS_SHUTDOWN_SEPARATE
// The linker names it if no file has the definitions.
extern const char define_OJS_SHUTDOWN_IMPLEMENTATION_in_one_source_file;
[[gnu::used]] static const char* const needs_definitions = &define_OJS_SHUTDOWN_IMPLEMENTATION_in_one_source_file;
#endif

struct nothing {};
inline error invalid(std::string text) { return {errc::invalid_argument, 0, std::move(text)}; }
[[noreturn]] void abort_with(const char* reason, std::string_view details = {}) noexcept;
}  // namespace detail

/// Either a T or an error. Reading the value of an error prints that and aborts, in every build. As thread-safe as T.
/// An error holds a default T.
template <class T>
class [[nodiscard]] result {
  public:
    /// Takes a reference: from a value, Clang 12 would copy a local T that is returned.
    result(T&& value) : has_value_(true), value_(std::move(value)) {}
    result(const T& value) : has_value_(true), value_(value) {}
    result(ojs::error failure) : error_(std::move(failure)) {}

    bool has_value() const noexcept { return has_value_; }          ///< true: a value; false: an error
    explicit operator bool() const noexcept { return has_value_; }  ///< has_value()
    /// The value.
    T& operator*() & noexcept { return check(), value_; }
    const T& operator*() const& noexcept { return check(), value_; }
    T&& operator*() && noexcept { return check(), std::move(value_); }
    /// The value.
    T* operator->() noexcept { return check(), &value_; }
    const T* operator->() const noexcept { return check(), &value_; }
    T value_or(T fallback) const { return has_value_ ? value_ : std::move(fallback); }  ///< never aborts
    const ojs::error& error() const noexcept { return error_; }                         ///< why; no text if a value

  private:
    void check() const noexcept {
        if (!has_value_) detail::abort_with("the value of a failed result was read: ", error_.text);
    }

    bool has_value_ = false;
    T value_{};
    ojs::error error_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> : public result<detail::nothing> {
  public:
    result() : result<detail::nothing>(detail::nothing()) {}
    result(ojs::error failure) : result<detail::nothing>(std::move(failure)) {}
};
}  // namespace v0_1_0
}  // namespace ojs
