// shutdown_steps: runs what the application gave worker::on_shutdown(), on a thread of its own.
#pragma once

#include "../../base/detail/sync.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

class shutdown_steps : public ref_counted {
  public:
    shutdown_steps(worker_context& worker, shutdown_sequence& steps) : worker_(worker), steps_(steps) {}

    result<thread> start() {
        const ref<shutdown_steps> self(this);
        result<thread> started = thread::start([self] { self->run(); }, worker_.service_thread("ojs-steps"));
        if (!started)
            worker_.log.write(log_level::error, "shutdown steps were not run",
                              {field("error", started.error().text)});
        return started;
    }
    bool ended() const noexcept { return ended_.load(memory_order::acquire); }

    // Once ended: to where report() finds them. False where one of them is still running.
    bool publish() {
        bool all_home = true;
        for (const step_result& each : results_) all_home = all_home && each.how != step_end::timed_out;
        worker_.tally.set_steps(std::move(results_));
        return all_home;
    }

  private:
    void run() {
        insist([this] {
            run_steps();
        });  // once steps have begun, nothing in it asks for memory that must be there
        ended_.store(true, memory_order::release);
        worker_.supervisor.notify();
    }

    void run_steps() {
        sequence_options options;
        options.log.level = log_level::off;  // it is told by the worker's
        options.progress = [this](const step_result& each) { log_step(worker_.log, each); };
        options.thread_stack_size = worker_.options.thread_stack_size;
        results_ = steps_.run(options);
    }

    worker_context& worker_;
    shutdown_sequence& steps_;
    std::vector<step_result> results_;  // of the thread, until it has ended
    atomic<bool> ended_{false};
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
