// shutdown_steps: runs what the application gave worker::on_shutdown(), on a thread of its own.
#pragma once

#include "../../base/detail/sync.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "../detail/worker_context.ipp"

namespace ojs::detail {

class shutdown_steps : public ref_counted {
  public:
    shutdown_steps(worker_context& worker, shutdown_sequence& steps)
        : context_(&worker), worker_(worker), steps_(steps) {}

    // On a thread of its own; if none can be created, on the calling one.
    thread start() {
        const ref<shutdown_steps> self(this);
        result<thread> started = unless_out_of_memory(
            [&] { return thread::start([self] { self->run(); }, worker_.service_thread("ojs-steps")); });
        if (started) return std::move(*started);
        worker_.log.write(log_level::warn, "cannot create a thread; shutdown steps run without a time limit",
                          {field("error", started.error().text)});
        run();
        return {};
    }
    bool ended() const noexcept { return ended_.load(memory_order::acquire); }

    // Call it after the end: whether a step has this status.
    bool any(step_end how) const noexcept {
        for (const step_result& each : results_) {
            if (each.how == how) return true;
        }
        return false;
    }
    void publish() { worker_.tally.set_steps(std::move(results_)); }  // for report()

  private:
    void run() {
        insist([this] { run_steps(); });  // throws only before the first step
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

    const ref<worker_context> context_;  // for a thread that is left behind
    worker_context& worker_;
    shutdown_sequence& steps_;
    std::vector<step_result> results_;  // of the thread, until it has ended
    atomic<bool> ended_{false};
};

}  // namespace ojs::detail
