// shutdown_sequence: named steps that end a program; a step that hangs delays no other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "cancel_token.hpp"
#include "lifecycle.hpp"

namespace ojs {
inline namespace v0_1_0 {

/// How a step ended.
enum class step_status {
    running,     ///< not yet: the status in the first call of sequence_options::progress
    done,        ///< it returned
    failed,      ///< it returned an error
    threw,       ///< an exception
    timed_out,   ///< it was abandoned; its thread may still run
    cut_short,   ///< abandoned after a second stop signal or stop_and_cancel()
    not_started  ///< it did not run: check() fails
};
/// "running", "done", "failed", "threw", "timed out", "cut short", "not started". Never null. Thread-safe.
const char* to_string(step_status status) noexcept;

/// The outcome of one step.
struct step_result {
    std::string name;                           ///< as passed to add()
    step_status status = step_status::running;  ///< how it ended
    std::chrono::milliseconds started{0};       ///< from the start of run() until its group starts
    std::chrono::milliseconds took{0};          ///< from the start of its group: the steps that start with it
    bool critical = false;  ///< one of the chain that determined the time of all: set when run() returns
    std::string error;      ///< why it failed, threw or did not run; empty if unknown
};

/// What a step may take as its argument.
struct step_context {
    time_point deadline;  ///< when the step is abandoned
    cancel_token
        abort;  ///< cancelled by a second stop signal: return within 50 ms; a thread calls its callbacks
};

/// The steps that a step waits for, by name: also those that are added later.
struct after {
    explicit after(std::vector<std::string> steps) : names(std::move(steps)) {}  ///< {}: none
    std::vector<std::string> names;                                              ///< as passed to add()
};

/// How run() runs.
struct sequence_options {
    /// For all steps together. Each step may still take 50 ms, or its own timeout if that is less, once this has passed
    /// or the steps are aborted.
    std::chrono::milliseconds timeout = no_limit;
    /// A forced stop (a second stop signal, or one in a drain that a call began) or stop_and_cancel aborts the steps.
    /// Null: nothing does. It must outlive run().
    ojs::lifecycle* lifecycle = nullptr;
    /// Called when a step starts and when it has ended, on the thread that called run(), which waits for it. It must not
    /// throw.
    function<void(const step_result&)> progress;
    /// debug: a step starts; info or error: it has ended. Without a hook, `automatic` writes text to standard error.
    log_options log;
    std::size_t thread_stack_size = 0;  ///< bytes, as in worker_options
};

/// OJS_SERVER_SHUTDOWN_TIMEOUT as a duration, for `timeout`; 30 s if unset. An empty `lookup` reads the process
/// environment. Errors: invalid_argument. Thread-safe while no thread calls setenv(). [GS 9.2]
result<std::chrono::milliseconds> server_shutdown_timeout(const environment_lookup& lookup = nullptr);

namespace detail {

struct sequence_step {
    enum class start { in_order, parallel, after_named };
    std::string name;
    function<result<void>(const step_context&)> call;
    std::chrono::milliseconds timeout{0};
    start order = start::in_order;
    std::vector<std::string> after;
};

}  // namespace detail

/// Runs steps in the order they were added, each on its own thread, until it returns, fails, throws or times out; the
/// next step runs in any case. A step with after() waits for the named ones only. The timeout includes the destructors
/// of the thread's thread_local objects. If no thread can be created, a step runs on the calling thread, without a
/// timeout. Not thread-safe. [GS 9.1]
///
///     ojs::shutdown_sequence steps;
///     steps.add("http", [&](const ojs::step_context& step) { server->stop(step.deadline); }, 20s);
///     steps.add("database", [&] { database.close(); });
///     steps.run();
class shutdown_sequence {
  public:
    /// It starts when all steps added before it have ended. `step` takes a const step_context& or nothing, and returns
    /// nothing or a result<void>. no_limit as `timeout`: only that of run(). False if `step` is an empty function.
    template <class Step>
    bool add(std::string name, Step&& step, std::chrono::milliseconds timeout = no_limit) {
        return add_step(std::move(name), as_call(std::forward<Step>(step)), timeout, order::in_order);
    }
    /// As add(), but starts together with the step added before it. The next step waits for both.
    template <class Step>
    bool add_parallel(std::string name, Step&& step, std::chrono::milliseconds timeout = no_limit) {
        return add_step(std::move(name), as_call(std::forward<Step>(step)), timeout, order::parallel);
    }
    /// As add(), but starts when the named steps have ended, even if they failed or timed out:
    /// steps.add("database", close, ojs::after({"http", "queue"})).
    template <class Step>
    bool add(std::string name, Step&& step, after steps, std::chrono::milliseconds timeout = no_limit) {
        return add_step(std::move(name), as_call(std::forward<Step>(step)), timeout, order::after_named,
                        std::move(steps.names));
    }
    /// Call it after the last add(), at start-up. Errors: invalid_argument: after() names a step that was not added, or
    /// several of that name, or steps wait for each other.
    result<void> check() const;
    /// Runs all steps once and returns a result for each, in the order they were added. Steps added meanwhile are for
    /// the next run. If check() fails, it runs no step and keeps them; each is `not_started`, with the error.
    std::vector<step_result> run(const sequence_options& options = {});
    std::size_t size() const noexcept { return steps_.size(); }  ///< steps that the next run() has
    /// The longest time that all of them may take; 0 if check() fails.
    std::chrono::milliseconds timeout() const;

  private:
    using step_call = function<result<void>(const step_context&)>;
    using order = detail::sequence_step::start;
    template <class Step>
    static step_call as_call(Step&& step);
    bool add_step(std::string name, step_call call, std::chrono::milliseconds timeout, order start,
                  std::vector<std::string> after = {});

    detail::array<detail::sequence_step> steps_;
};

template <class Step>
shutdown_sequence::step_call shutdown_sequence::as_call(Step&& step) {
    using target = std::decay_t<Step>;
    if (detail::is_empty<target>(step)) return nullptr;
    if constexpr (!std::is_invocable_v<target&, const step_context&>) {
        return as_call(
            [call = target(std::forward<Step>(step))](const step_context&) mutable { return call(); });
    } else if constexpr (std::is_void_v<std::invoke_result_t<target&, const step_context&>>) {
        return
            [call = target(std::forward<Step>(step))](const step_context& context) mutable -> result<void> {
                call(context);
                return {};
            };
    } else {
        static_assert(std::is_same_v<std::invoke_result_t<target&, const step_context&>, result<void>>,
                      "a step returns nothing, or a result<void>");
        return std::forward<Step>(step);
    }
}

}  // namespace v0_1_0
}  // namespace ojs
