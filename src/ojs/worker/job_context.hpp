// job_context and outcome: what a handler gets, and what it may answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../net/json_view.hpp"
#include "job.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class outcome_kind { implicit, done, retry, discard, interrupted };

// What a handler says about its job. Returning nothing means done(), unless the handler saw that it was
// cancelled: then it means interrupted(). A result is JSON text, or a picojson::value where <picojson.h> is included.
class [[nodiscard]] outcome {
  public:
    outcome() = default;
    outcome(std::string result_json) : kind_(outcome_kind::done), text_(std::move(result_json)) {}
    outcome(const char* result_json) : outcome(std::string(result_json)) {}
    outcome(std::nullptr_t) = delete;
    template <class V, detail::if_picojson<V> = 0>
    outcome(const V& result) : outcome(detail::write_picojson(result)) {}

    static outcome done(std::string result_json = {}) { return outcome(std::move(result_json)); }  // ACK
    template <class V, detail::if_picojson<V> = 0>
    static outcome done(const V& result) {
        return outcome(result);
    }
    static outcome retry(std::string reason) {
        return {outcome_kind::retry, std::move(reason)};
    }  // FAIL, retryable
    // FAIL, not retryable.
    static outcome discard(std::string reason) { return {outcome_kind::discard, std::move(reason)}; }
    static outcome interrupted(std::string reason = {}) {
        return {outcome_kind::interrupted, std::move(reason)};
    }

    outcome_kind kind() const noexcept { return kind_; }
    const std::string& text() const noexcept { return text_; }  // the result, or why

  private:
    outcome(outcome_kind kind, std::string text) : kind_(kind), text_(std::move(text)) {}

    outcome_kind kind_ = outcome_kind::implicit;
    std::string text_;
};

// What job_context::require() throws.
class bad_argument : public std::exception {
  public:
    explicit bad_argument(std::string text) : text_(std::move(text)) {}
    const char* what() const noexcept override { return text_.c_str(); }

  private:
    std::string text_;
};

namespace detail {
class active_job;
class worker_context;
result<std::string_view> argument_source(std::string_view args_json, std::size_t index);
error argument_error(std::size_t index, const error& why);
// The string that `json` writes, or else `json` itself.
std::string string_or_json(std::string_view json);
result<bool> bool_argument(std::string_view source, std::size_t index);

// A whole number from `min` to `max`, as 64 bits in two's complement.
struct whole_range {
    std::int64_t min;
    std::uint64_t max;
    int bits;
};
result<std::uint64_t> whole_argument(std::string_view source, std::size_t index, whole_range wanted);
// From -largest to largest.
result<double> real_argument(std::string_view source, std::size_t index, double largest);

template <class T, class... Others>
inline constexpr bool one_of = (std::is_same_v<T, Others> || ...);
template <class T>
inline constexpr bool is_whole = one_of<T, signed char, unsigned char, short, unsigned short, int, unsigned,
                                        long, unsigned long, long long, unsigned long long>;
template <class T>
inline constexpr bool is_real = one_of<T, float, double, long double>;
}  // namespace detail

// A handler's view of its job. Valid until the handler returns; every member is thread-safe meanwhile.
class job_context {
  public:
    job_context(const job_context&) = delete;
    job_context& operator=(const job_context&) = delete;

    const std::string& id() const noexcept { return claimed_.id; }
    const std::string& type() const noexcept { return claimed_.type; }
    const std::string& queue() const noexcept { return claimed_.queue; }
    std::int64_t attempt() const noexcept { return claimed_.attempt; }
    const ojs::job& job() const noexcept { return claimed_; }

    // The arguments as JSON text (an array), and one of them: std::string, bool, or a number of any integer or
    // floating type but the character types. errc::invalid_argument when there is no such argument, it is of another
    // type, or it does not fit into a T: the text names the argument and the range. A whole number is read to its
    // last digit, a floating one as a double. A string argument that is not a string comes as its JSON text. Where
    // <picojson.h> is included, T may also be picojson::value, array or object, whose numbers are doubles;
    // errc::bad_response: the argument is not what json_view::parse() takes.
    const std::string& args_json() const noexcept { return claimed_.args_json; }
    template <class T>
    result<T> arg(std::size_t index) const {
        using limits = std::numeric_limits<T>;
        const result<std::string_view> source = detail::argument_source(args_json(), index);
        if (!source) return source.error();
        if constexpr (std::is_same_v<T, std::string>) {
            return detail::string_or_json(*source);
        } else if constexpr (std::is_same_v<T, bool>) {
            return detail::bool_argument(*source, index);
        } else if constexpr (detail::is_whole<T>) {
            const result<std::uint64_t> found = detail::whole_argument(
                *source, index, {limits::min(), limits::max(), limits::digits + limits::is_signed});
            return found ? result<T>(static_cast<T>(*found)) : result<T>(found.error());
        } else if constexpr (detail::is_real<T>) {
            constexpr bool small = std::is_same_v<T, float>;
            const result<double> found = detail::real_argument(
                *source, index,
                small ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max());
            return found ? result<T>(static_cast<T>(*found)) : result<T>(found.error());
        } else if constexpr (detail::is_picojson<T, picojson::value>) {
            const result<T> found = detail::read_picojson<T>(*source);
            return found ? found : result<T>(detail::argument_error(index, found.error()));
        } else {
            static_assert(!detail::one_of<T, std::string_view, const char*, char*>,
                          "arg<T>: there is no text to point to; use std::string");
            static_assert(
                std::is_same_v<T, std::string>,
                "arg<T>: std::string, bool, or an integer or floating type; picojson::value with picojson");
        }
    }
    // All arguments: T is picojson::array or value, with the errors of arg<T>().
    template <class T>
    result<T> args() const {
        return json_view(args_json()).as<T>();
    }
    // arg<T>(), but throws bad_argument on an error, which fails the attempt with the text of that error. Needs
    // exceptions.
    template <class T>
    T require(std::size_t index) const {
        result<T> found = arg<T>(index);
#ifdef __cpp_exceptions
        if (!found) throw bad_argument(found.error().text);
#else
        static_assert(!std::is_same_v<T, T>, "require<T> throws: without exceptions, test arg<T>");
#endif
        return *std::move(found);
    }
    // A member of `meta`: a string as it is, anything else as JSON text, empty if absent.
    std::string meta(std::string_view key) const;

    // Three moments, each one later than the last.
    // The worker is draining: finish soon, start nothing long, save a checkpoint.
    bool stop_requested() const noexcept;
    // This job is cancelled: return now.
    bool cancel_requested() const noexcept {
        return token().cancelled();
    }
    // The stop reports the job without its handler: what that returns is ignored, unless it comes first, and the job
    // may run elsewhere soon. Change nothing any more.
    bool abandoned() const noexcept;
    // Calls back once on cancellation; see cancel_token::on_cancel. Keep the result while it should hold.
    cancel_registration on_cancel(function<void()> callback) const {
        return token().on_cancel(std::move(callback));
    }
    // Sleeps; false, at once, when cancelled: then return.
    [[nodiscard]] bool sleep_for(std::chrono::nanoseconds duration) const {
        return token().sleep_for(duration);
    }
    ojs::cancel_token token() const noexcept;

    // Keeps `state_json`, any JSON text of the handler's own, for the next run of this job, in place of what was kept
    // before; "null": nothing. It goes to the backend at once, where that has a place for it, and so outlives this
    // process; and it goes with the FAIL, should there be one. One round trip of at most request_timeout; of several
    // threads one at a time. Errors: invalid_argument: not JSON in UTF-8, nothing is kept; cancelled: the job was
    // reported without its handler, nothing is kept. With any other error the state still goes with the FAIL, and the
    // work may go on: rejected with http_status 409: the job is no longer this worker's; 413: too large for the
    // backend; unreachable, timed_out, ...: the backend may not have it. [WIRE 1]
    result<void> save_checkpoint(std::string_view state_json);
    template <class V, detail::if_picojson<V> = 0>
    result<void> save_checkpoint(const V& state) {
        return save_checkpoint(std::string_view(detail::write_picojson(state)));
    }
    // What was saved last, by this run or an earlier one; empty: nothing. The backend is asked, once; where it keeps
    // nothing, or cannot be asked (which is logged), it is what came with the job, in `checkpoint.state` or else in
    // `meta.checkpoint`. Validate it: it comes from outside.
    std::string checkpoint() const;
    // The same as a picojson::value, array or object; nothing saved: null. Errors as those of arg<T>().
    template <class T>
    result<T> checkpoint() const {
        const std::string state = checkpoint();
        return json_view(state.empty() ? "null" : state).as<T>();
    }

    // When the drain will interrupt the job; time_point::max() while none is under way.
    time_point deadline() const noexcept;
    // Asks for a heartbeat, which renews this job's visibility timeout: at once, or, however often handlers ask, a
    // second or a fifth of heartbeat_interval after the one before. Returns at once.
    void heartbeat() const noexcept;

  private:
    friend class detail::active_job;
    job_context(detail::worker_context& worker, detail::active_job& job, const ojs::job& claimed) noexcept
        : worker_(worker), job_(job), claimed_(claimed) {}
    detail::worker_context& worker_;
    detail::active_job& job_;
    const ojs::job& claimed_;
};

struct handler_options {
    bool long_running = false;  // interrupted jobs are reported as ShutdownTimeout [GS 7.2]
};

// Called on several threads at once. What it throws becomes a retryable FAIL, and so does the end of its thread, by
// pthread_exit() or pthread_cancel(); the latter acts in the handler's own code, not in calls to this library.
using job_handler = function<outcome(job_context&)>;

}  // namespace v0_1_0
}  // namespace ojs
