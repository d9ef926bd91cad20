// shutdown_sequence: named steps that end a program; a step that hangs stops no other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// How a step ended. `running`: not yet; `failed`: it returned an error; `timed_out`: its thread may still run.
enum class step_status { running, done, failed, threw, timed_out };
/// "timed out", ... Never null. Thread-safe.
inline const char* to_string(step_status status) noexcept {
    return detail::name_of(status, {"running", "done", "failed", "threw", "timed out"});
}

/// The outcome of one step.
struct step_result {
    std::string name;                           ///< the name given to add()
    step_status status = step_status::running;  ///< how it ended
    std::chrono::milliseconds took{0};          ///< from its start
    std::string error;                          ///< why it failed or threw
};

/// An argument that a step may take.
struct step_context {
    time_point deadline;  ///< when the step is abandoned
};

/// How run() runs.
struct sequence_options {
    /// For all steps together. Once it has passed, each may still take 50 ms, or its own timeout if that is less.
    std::chrono::milliseconds timeout = no_limit;
    /// Called when a step starts and when it has ended, on the caller's thread. It must not throw.
    function<void(const step_result&)> progress;
    std::size_t thread_stack_size = 0;  ///< bytes, as in worker_options
};

/// Runs steps in the order they were added, each on its own thread (or, if there is none, on the caller's, without a
/// timeout); the next step runs in any case. Not thread-safe. [GS 9.1]
///
///     ojs::shutdown_sequence steps;
///     steps.add("http", [&](const ojs::step_context& step) { server->stop(step.deadline); }, 20s);
///     steps.add("database", [&] { database.close(); });
///     steps.run();
class shutdown_sequence {
  public:
    /// Adds a step that takes a const step_context& or nothing, and returns nothing or a result<void>. False if empty.
    template <class Step>
    bool add(std::string name, Step&& call, detail::any_ms timeout = no_limit) {
        return add_step({std::move(name), as_call(std::forward<Step>(call)), timeout});
    }
    /// Runs all steps once. Steps added meanwhile are for the next run.
    std::vector<step_result> run(const sequence_options& options = {});
    std::size_t size() const noexcept { return steps_.size(); }  ///< number of steps of the next run()
    std::chrono::milliseconds timeout() const noexcept;          ///< the longest that all of them may take

  private:
    using step_call = function<result<void>(const step_context&)>;
    struct step {
        std::string name;
        step_call call;
        std::chrono::milliseconds timeout;
    };
    class running_step;

    template <class Step>
    static step_call as_call(Step&& step) {
        using target = std::decay_t<Step>;
        if (detail::is_empty<target>(step, 0)) return nullptr;
        return [call = target(std::forward<Step>(step))](const step_context& context) mutable -> result<void> {
            if constexpr (std::is_invocable_v<target&, const step_context&>)
                return detail::call_as<result<void>>(call, context);
            else
                return detail::call_as<result<void>>(call);
        };
    }
    bool add_step(step added);

    detail::array<step> steps_;
};
}  // namespace v0_1_0
}  // namespace ojs
