// stop_token: std::stop_token from and to cancel_token. Needs C++20.
#pragma once

#if __has_include(<stop_token>)
#include <stop_token>
#endif

#ifndef __cpp_lib_jthread
#error "ojs_stop_token.hpp needs std::stop_token: compile with -std=c++20 or later"
#else

#include <utility>

#include "../base/function.hpp"
#include "../core/cancel_token.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Requests a stop of its std::stop_tokens once a cancel_token is cancelled: for code that takes a
/// std::stop_token, and for std::condition_variable_any. The requesting end of std::jthread is its own: pass
/// get_token() as an argument instead.
///
/// The request comes from the cancelling thread, or from the constructor if the token is cancelled already,
/// and calls the std::stop_callbacks there: they must be short, and one that throws ends the process
/// (std::terminate). It counts as seen, see cancel_token::seen(): an item of a loop that is linked counts as
/// requeued once it is cancelled.
///
/// The destructor ends the link, and waits while another thread calls the stop callbacks: do not hold a lock
/// that one of them takes. A stop callback may destroy the object that called it. Tokens may outlive the link:
/// they are not stopped then, unless they were before. get_token() is thread-safe; the rest is used by one
/// thread at a time.
class [[nodiscard]] stop_source_of {
  public:
    /// Throws std::bad_alloc.
    explicit stop_source_of(const cancel_token& token)
        : registration_(token.on_cancel([source = source_]() mutable { source.request_stop(); })) {}
    stop_source_of(stop_source_of&& other) noexcept = default;
    stop_source_of& operator=(stop_source_of&& other) noexcept = default;
    ~stop_source_of() = default;

    std::stop_token get_token() const noexcept { return source_.get_token(); }  ///< any number of them

  private:
    std::stop_source source_;
    cancel_registration registration_;  // destroyed first
};

namespace detail {
struct stop_request_call {
    cancel_source* source;
    cancel_reason reason;
    void operator()() const { source->cancel(reason); }
};
}  // namespace detail

/// Keeps a cancel_source linked to a std::stop_token, see cancel_on(). Neither copied nor moved.
using stop_registration = std::stop_callback<detail::stop_request_call>;

/// Cancels `source` with `reason` once `token` is requested to stop, as long as the returned object lives.
///
///     std::jthread thread([](std::stop_token stop) {
///         ojs::cancel_source source;
///         const ojs::stop_registration link = ojs::cancel_on(stop, source);
///         work(source.token());  // ends as the jthread is destroyed
///     });
///
/// The cancellation comes from the thread that requests the stop, or from this call if it was requested
/// already, and calls the callbacks of on_cancel() there. The destructor ends the link, and waits while
/// another thread does that. `source` must outlive the link, and is not moved meanwhile. A link in each
/// direction between the same two is allowed.
[[nodiscard]] inline stop_registration cancel_on(std::stop_token token, cancel_source& source,
                                                 cancel_reason reason = cancel_reason::cancelled) {
    return stop_registration(std::move(token), detail::stop_request_call{&source, reason});
}
}  // namespace v0_1_0
}  // namespace ojs

#endif  // __cpp_lib_jthread
