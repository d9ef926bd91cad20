// shutdown_sequence: named steps at the end of a program, none holding up the rest.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "../base/detail/array.hpp"
#include "../base/duration.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class step_end {
    done,
    threw,
    timed_out,   // it was left behind, and its thread may still run
    not_started  // no thread was to be had
};
// "done", "threw", "timed out", "not started". Never null. Thread-safe.
const char* to_string(step_end how) noexcept;

// What became of one step.
struct step_result {
    std::string name;
    step_end how = step_end::done;
    std::chrono::milliseconds took{0};
};

// Runs its steps in the order they were added, each on a thread of its own, until it returns,
// throws or its time is over; then comes the next. Of one thread at a time.
class shutdown_sequence {
  public:
    // `limit`: how long it may take, no_limit for as long as it likes. False for a step without a function.
    bool add(std::string name, function<void()> call, std::chrono::milliseconds limit);
    // Runs all of them, once, and calls `ended` after each, if given. `stack_size` as in worker_options.
    std::vector<step_result> run(const function<void(const step_result&)>& ended = nullptr,
                                 std::size_t stack_size = 0);
    std::size_t size() const noexcept { return steps_.size(); }
    // What all of them may take.
    std::chrono::milliseconds limit() const noexcept;

  private:
    struct step {
        std::string name;
        function<void()> call;
        std::chrono::milliseconds limit;
    };
    static step_end run_one(step& each, std::size_t stack_size);

    detail::array<step> steps_;
};

}  // namespace v0_1_0
}  // namespace ojs
