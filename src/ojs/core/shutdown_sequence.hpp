// shutdown_sequence: named steps at the end of a program, none holding up the rest.
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
namespace detail {
class sequence_run;
}

enum class step_status {
    running,  // not ended yet: what sequence_options::progress is told at its begin
    done,
    failed,  // its result<void> says why
    threw,
    timed_out,   // it was left behind, and its thread may still run
    cut_short,   // the same, because of a second stop signal
    not_started  // out of memory: it did not run
};
// "running", "done", "failed", "threw", "timed out", "cut short", "not started". Never null. Thread-safe.
const char* to_string(step_status status) noexcept;

// What became of one step.
struct step_result {
    std::string name;
    step_status status = step_status::running;
    std::chrono::milliseconds took{0};
    std::string error;  // of one that failed or threw, where it says why
};

// What a step is told, if it takes it.
struct step_context {
    time_point deadline;  // when it is left behind
    cancel_token abort;   // cancelled by the second stop signal: what waits should return within 50 ms
};

struct sequence_options {
    // For all steps together; but each may take 50 ms, or its own timeout if that is less, also when that is over, or
    // when aborted.
    std::chrono::milliseconds timeout = no_limit;
    // Its second stop signal, or stop_and_cancel, hurries the steps. Null: nothing does. It must outlive run().
    ojs::lifecycle* lifecycle = nullptr;
    // Called when a step begins and when it has ended, from the thread that called run(), which waits for it. It must
    // not throw.
    function<void(const step_result&)> progress;
    log_options log;                    // at debug when a step begins, at info or error when it has ended
    std::size_t thread_stack_size = 0;  // bytes, as in worker_options
};

// OJS_SERVER_SHUTDOWN_TIMEOUT as a duration, for `timeout`; 30 s where it is not set. `lookup` empty: of the process.
// Errors: invalid_argument. Thread-safe while nobody changes the environment. [GS 9.2]
result<std::chrono::milliseconds> server_shutdown_timeout(const environment_lookup& lookup = nullptr);

// Runs its steps in the order they were added, each on a thread of its own, until it returns, fails, throws or its time
// is over; then comes the next, whatever became of that one. That time includes the destructors of the thread's
// thread_local objects. If no thread can be created, a step runs on the calling thread, without a limit. Of one thread
// at a time. [GS 9.1]
//
//     ojs::shutdown_sequence steps;
//     steps.add("http", [&](const ojs::step_context& step) { server->stop(step.deadline); }, 20s);
//     steps.add("database", [&] { database.close(); });
//     steps.run();
class shutdown_sequence {
  public:
    // `step` takes a const step_context& or nothing, and returns nothing or a result<void>. `timeout`: how long it may
    // take, no_limit for as long as run() has. False where it is an empty function.
    template <class Step>
    bool add(std::string name, Step&& step, std::chrono::milliseconds timeout = no_limit) {
        return add_step(std::move(name), as_call(std::forward<Step>(step)), timeout, false);
    }
    // The same, beginning at once with the step added before it. The next one waits for both.
    template <class Step>
    bool add_parallel(std::string name, Step&& step, std::chrono::milliseconds timeout = no_limit) {
        return add_step(std::move(name), as_call(std::forward<Step>(step)), timeout, true);
    }
    // Runs all of them, once: one result for each, in the order they were added. What is added meanwhile is for the
    // next run.
    std::vector<step_result> run(const sequence_options& options = {});
    std::size_t size() const noexcept { return steps_.size(); }
    // What all of them may take.
    std::chrono::milliseconds timeout() const noexcept;

  private:
    friend class detail::sequence_run;
    using step_call = function<result<void>(const step_context&)>;
    struct entry {
        std::string name;
        step_call call;
        std::chrono::milliseconds timeout{0};
        bool parallel = false;
    };
    template <class Step>
    static step_call as_call(Step&& step);
    bool add_step(std::string name, step_call call, std::chrono::milliseconds timeout, bool parallel);

    detail::array<entry> steps_;
};

template <class Step>
shutdown_sequence::step_call shutdown_sequence::as_call(Step&& step) {
    using target = std::decay_t<Step>;
    if (detail::is_empty<target>(step)) return nullptr;
    return [call = target(std::forward<Step>(step))](const step_context& context) mutable -> result<void> {
        const auto run = [&]() -> decltype(auto) {
            if constexpr (std::is_invocable_v<target&, const step_context&>) {
                return call(context);
            } else {
                return call();
            }
        };
        if constexpr (std::is_void_v<decltype(run())>) {
            run();
            return {};
        } else {
            static_assert(std::is_same_v<decltype(run()), result<void>>,
                          "a step returns nothing, or a result<void>");
            return run();
        }
    };
}

}  // namespace v0_1_0
}  // namespace ojs
