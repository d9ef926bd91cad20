// job_context and outcome: the parameter and the result of a handler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../net/json_view.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The kinds of outcome. `implicit`: the handler returned nothing.
enum class outcome_kind { implicit, done, retry, discard, interrupted };

namespace detail {
struct outcome_data {
    outcome_kind kind = outcome_kind::implicit;
    std::string text;  // the result or the reason
};
}  // namespace detail

/// The result of a handler. A handler that returns nothing means done(), or interrupted() if it saw its cancellation.
/// A job's result is JSON text, or a picojson::value if `<picojson.h>` is included.
class [[nodiscard]] outcome : public detail::outcome_data {
  public:
    outcome() = default;
    /// Completed, with a result: ACK.
    outcome(std::string result_json) : outcome(outcome_kind::done, std::move(result_json)) {}
    outcome(const char* result_json) : outcome(std::string(result_json)) {}
    outcome(std::nullptr_t) = delete;
    template <class V, detail::if_picojson<V> = 0>
    outcome(const V& result) : outcome(result.serialize()) {}

    /// Completed: ACK, with a result if one is given.
    static outcome done(outcome result = std::string()) { return result; }
    /// Failed: FAIL, retryable.
    static outcome retry(std::string reason) { return {outcome_kind::retry, std::move(reason)}; }
    /// Failed for good: FAIL, not retryable.
    static outcome discard(std::string reason) { return {outcome_kind::discard, std::move(reason)}; }
    /// Returned early because of its cancellation: FAIL, as the cancellation's reason requires.
    static outcome interrupted(std::string reason = {}) { return {outcome_kind::interrupted, std::move(reason)}; }

  private:
    outcome(outcome_kind how, std::string why) : outcome_data{how, std::move(why)} {}
};

namespace detail {
struct active_job;
class slots;
class worker_state;
// An argument, or a member of it; `member` without data(): the argument itself.
struct argument_place {
    std::size_t index;
    std::string_view member;
};
// An empty view: there is none.
result<json_view> find_argument(std::string_view args_json, argument_place place);
error argument_error(argument_place place, const error& failure);
// In two's complement.
result<std::uint64_t> integer_argument(json_view source, std::int64_t min, std::uint64_t max);
result<double> floating_argument(json_view source, bool is_float);
template <class T>
using argument_type = std::conditional_t<std::is_same_v<T, const char*>, std::string, T>;

template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);
template <class T>
inline constexpr bool is_integer = is_one_of<T, signed char, unsigned char, short, unsigned short, int, unsigned, long,
                                             unsigned long, long long, unsigned long long>;
}  // namespace detail

/// A handler's view of its job. Valid until the handler returns; every member is thread-safe meanwhile.
class job_context : detail::non_copyable {
  public:
    const std::string& id() const noexcept { return claimed_.id; }        ///< job::id
    const std::string& type() const noexcept { return claimed_.type; }    ///< job::type
    const std::string& queue() const noexcept { return claimed_.queue; }  ///< job::queue
    std::int64_t attempt() const noexcept { return claimed_.attempt; }    ///< 1 on the first run
    const ojs::job& job() const noexcept { return claimed_; }             ///< everything else
    /// The arguments, a JSON array.
    const std::string& args_json() const noexcept { return claimed_.args_json; }

    /// Returns one argument, or a member of one that is an object, as std::string, bool, or any integer or
    /// floating-point type except character types; with `<picojson.h>` also as picojson::value, array or object.
    /// Integers are exact, other numbers are read as double. `arg<std::string>` of what is neither a string nor null
    /// returns its JSON text. errc::invalid_argument: it is missing, has another type or does not fit into T;
    /// errc::bad_response: json_view::parse() rejects it.
    template <class T>
    result<T> arg(std::size_t index, std::string_view member = {}) const;
    /// The arguments, as picojson::array or value.
    template <class T>
    result<T> args() const {
        return json_view(args_json()).as<T>();
    }
    /// `arg<T>()`, but throws std::invalid_argument on an error, which fails the attempt with its text. Needs exceptions.
    template <class T>
    T require_arg(std::size_t index, std::string_view member = {}) const {
        result<T> read = arg<T>(index, member);
#ifdef __cpp_exceptions
        if (!read) throw std::invalid_argument(read.error().text);
#else
        static_assert(!std::is_same_v<T, T>, "require_arg<T> and arg_or throw: without exceptions, test arg<T>");
#endif
        return *std::move(read);
    }
    /// An optional argument or member: `fallback`, a std::string if it is a literal, if it or the argument is missing or
    /// null. Throws std::invalid_argument if it has another type.
    template <class T>
    detail::argument_type<T> arg_or(std::size_t index, T fallback) const {
        return arg_or<T>(index, std::string_view(), std::move(fallback));
    }
    template <class T>
    detail::argument_type<T> arg_or(std::size_t index, std::string_view member, T fallback) const {
        using value_type = detail::argument_type<T>;
        const result<json_view> source = detail::find_argument(args_json(), {index, member});
        if (source && (!*source || source->type() == json_type::null)) return value_type(std::move(fallback));
        return require_arg<value_type>(index, member);
    }
    /// A member of `meta`: a string as it is, anything else as JSON text, empty if absent.
    std::string meta(std::string_view key) const;

    /// The worker is draining: finish soon, start nothing long, save a checkpoint.
    bool stop_requested() const noexcept;
    /// This job is cancelled, which comes later: return now.
    bool cancel_requested() const noexcept { return token().cancelled(); }
    /// The stop reports the job without its handler, which comes last: it may soon run elsewhere, so change no more.
    bool abandoned() const noexcept;
    /// Like cancel_token::on_cancel().
    cancel_registration on_cancel(function<void()> callback) const { return token().on_cancel(std::move(callback)); }
    /// Sleeps; returns false at once when cancelled.
    [[nodiscard]] bool sleep_for(detail::any_duration<> duration) const { return token().sleep_for(duration); }
    ojs::cancel_token token() const noexcept;  ///< the job's, for calls that take one

    /// Saves `state_json`, any JSON text, for the next run of this job, and replaces the previous one; "null": none. The
    /// FAIL carries it, as `meta.checkpoint`; a run that ends without one, as by SIGKILL, loses it. errc::invalid_argument:
    /// not JSON in UTF-8; cancelled: the job was reported without its handler.
    result<void> save_checkpoint(std::string_view state_json);
    template <class V, detail::if_picojson<V> = 0>
    result<void> save_checkpoint(const V& state) {
        return save_checkpoint(std::string_view(state.serialize()));
    }
    /// Returns the last saved state: of this run, or else `meta.checkpoint` of the job, external input; empty: none. With
    /// T, as a picojson::value, array or object; null: none.
    std::string checkpoint() const;
    template <class T>
    result<T> checkpoint() const {
        const std::string state = checkpoint();
        return json_view(state.empty() ? "null" : state).as<T>();
    }

    /// When the drain will interrupt the job; time_point::max(): no drain.
    time_point deadline() const noexcept;
    /// Requests a heartbeat, which renews this job's visibility timeout, and returns at once. At least a fifth of
    /// heartbeat_interval, or 1 s, passes between two.
    void extend_lease() const noexcept;

  private:
    friend class detail::slots;
    job_context(detail::worker_state& worker, detail::active_job& job, const ojs::job& claimed) noexcept
        : worker_(worker), job_(job), claimed_(claimed) {}

    detail::worker_state& worker_;
    detail::active_job& job_;
    const ojs::job& claimed_;
};

template <class T>
result<T> job_context::arg(std::size_t index, std::string_view member) const {
    const detail::argument_place place{index, member};
    using limits = std::numeric_limits<T>;
    const result<json_view> source = detail::find_argument(args_json(), place);
    if (!source) return source.error();
    if (!*source) return detail::argument_error(place, detail::invalid("missing"));
    const auto checked = [place](auto read) {
        return read ? result<T>(static_cast<T>(*std::move(read))) : detail::argument_error(place, read.error());
    };
    if constexpr (std::is_same_v<T, std::string>) {
        if (source->type() == json_type::null || source->type() == json_type::string) return checked(source->string());
        return std::string(source->text());
    } else if constexpr (std::is_same_v<T, bool>) {
        return checked(source->boolean());
    } else if constexpr (detail::is_integer<T>) {
        return checked(detail::integer_argument(*source, limits::min(), limits::max()));
    } else if constexpr (detail::is_one_of<T, float, double, long double>) {
        return checked(detail::floating_argument(*source, std::is_same_v<T, float>));
    } else {
        static_assert(std::is_class_v<T> && !std::is_same_v<T, std::string_view>,
                      "arg<T>: std::string, bool, or an integer or floating type; picojson::value with picojson");
        return checked(source->as<T>());
    }
}

/// Options of worker::register_handler().
struct handler_options {
    bool reports_shutdown_timeout = false;  ///< interrupted jobs are reported as ShutdownTimeout [GS 7.2]
    /// Jobs of this type that one worker, not all workers, runs at a time; 0: as many as it has slots. Up to 100 more
    /// wait, claimed, and are requeued like jobs without a handler, which uses no attempt; behind more, other jobs wait.
    std::size_t max_concurrency = 0;
};

/// Runs the rest of the wrappers and the handler, and returns its outcome (`kind`, and as `text` the result or reason) to
/// look at; throws what the handler throws. See worker::wrap().
using next_handler = function<const outcome&()>;

namespace detail {
using job_handler = function<outcome(job_context&)>;
using handler_wrapper = function<void(job_context&, const next_handler&)>;
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
