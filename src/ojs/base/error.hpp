// error, result<T> and finding: how functions report failure. Nothing is thrown across the API.
#pragma once

#include <chrono>
#include <new>
#include <string>
#include <utility>

namespace ojs {
inline namespace v0_1_0 {

// What went wrong, coarse enough to act on.
enum class errc {
    invalid_argument,  // a value the caller gave (option, URL, environment variable) cannot be used
    unsupported,       // asks for something this library leaves to others (https:// and the like)
    busy,              // someone else already holds it (a second signal installer, a port in use)
    system,            // a system call failed; sys_errno says which way
    timed_out,         // the deadline passed; a request may or may not have been processed
    unreachable,       // no connection: the request cannot have been processed
    disconnected,      // the connection broke in the middle; the request may have been processed
    bad_response,      // the peer's answer is not valid HTTP or JSON, or larger than allowed
    unavailable,       // the peer answered, but not now (5xx, 408, 429): ask again later
    rejected,          // the peer understood and refused (any other 4xx): asking again will not help
    cancelled          // given up before anything was sent, because it is no longer wanted
};

// Short lower-case name of an errc ("timed_out"). Never null. Thread-safe, async-signal-safe.
const char* to_string(errc code) noexcept;

struct error {
    errc code = errc::system;
    int sys_errno = 0;                         // errno, where a system call failed; else 0
    std::string text;                          // one line for a person
    int http_status = 0;                       // status of the answer that says so; else 0
    std::chrono::milliseconds retry_after{0};  // what the peer's Retry-After asked for; else 0
};

namespace detail {
// Prints the error on standard error and aborts.
[[noreturn]] void abort_without_value(const error& failure) noexcept;
}  // namespace detail

// Either a T or an error. Test it first: `if (!r) use(r.error());`. Reading the value of an error prints that error and
// aborts, in every build; reading the error of a value is undefined.
template <class T>
class [[nodiscard]] result {
  public:
    // Not by value: compilers before P1825 (Clang 12) would copy a local T that is returned.
    result(T&& value) : ok_(true) { new (static_cast<void*>(&value_)) T(std::move(value)); }
    result(const T& value) : ok_(true) { new (static_cast<void*>(&value_)) T(value); }
    result(ojs::error failure) : ok_(false) {
        new (static_cast<void*>(&error_)) ojs::error(std::move(failure));
    }
    result(result&& other) noexcept : ok_(other.ok_) { adopt(std::move(other)); }
    result(const result& other) : ok_(other.ok_) { adopt(other); }
    result& operator=(result other) noexcept {
        destroy();
        ok_ = other.ok_;
        adopt(std::move(other));
        return *this;
    }
    ~result() { destroy(); }

    bool has_value() const noexcept { return ok_; }
    explicit operator bool() const noexcept { return ok_; }
    T& operator*() & noexcept { return checked(*this).value_; }
    const T& operator*() const& noexcept { return checked(*this).value_; }
    T&& operator*() && noexcept { return std::move(checked(*this).value_); }
    T* operator->() noexcept { return &checked(*this).value_; }
    const T* operator->() const noexcept { return &checked(*this).value_; }
    T value_or(T fallback) const { return ok_ ? value_ : std::move(fallback); }
    const ojs::error& error() const noexcept { return error_; }

  private:
    template <class Self>
    static Self& checked(Self& self) noexcept {
        if (!self.ok_) detail::abort_without_value(self.error_);
        return self;
    }
    // Copies or moves.
    template <class Other>
    void adopt(Other&& other) {
        if (ok_) {
            new (static_cast<void*>(&value_)) T(std::forward<Other>(other).value_);
        } else {
            new (static_cast<void*>(&error_)) ojs::error(std::forward<Other>(other).error_);
        }
    }
    void destroy() noexcept {
        if (ok_) {
            value_.~T();
        } else {
            error_.~error();
        }
    }

    bool ok_;
    union {
        T value_;
        ojs::error error_;
    };
};

// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> {
  public:
    result() = default;
    result(ojs::error failure) : ok_(false), error_(std::move(failure)) {}

    bool has_value() const noexcept { return ok_; }
    explicit operator bool() const noexcept { return ok_; }
    const ojs::error& error() const noexcept { return error_; }

  private:
    bool ok_ = true;
    ojs::error error_;
};

enum class severity { info, warning, error };

// "info", "warning", "error". Never null. Thread-safe.
constexpr const char* to_string(severity level) noexcept {
    return level == severity::error ? "error" : level == severity::warning ? "warning" : "info";
}

// What a check found wrong or worth knowing, and what to do about it.
struct finding {
    ojs::severity severity = ojs::severity::info;
    std::string id;       // short and stable: "budget-exceeded"
    std::string problem;  // one line for a person
    std::string fix;      // one line; empty where nothing is to be done
};

}  // namespace v0_1_0
}  // namespace ojs
