// user_code: calls of what the user has given: callbacks, hooks and extensions.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/drain_barrier.hpp"
#include "environment.ipp"
#include "worker_extension.hpp"

namespace ojs::detail {

inline atomic<pid_t> known_process{0};

// getpid() without its system call, which would cost a job as much as all else here.
inline pid_t this_process() noexcept {
    static const int handled = pthread_atfork(nullptr, nullptr, [] { known_process = 0; });
    const pid_t known = handled == 0 ? pid_t(known_process) : 0;
    if (known != 0) return known;
    const pid_t found = ::getpid();
    known_process = found;
    return found;
}

// Holds a ticket of `gate` while a thread is in user code. Lives on the stack.
class user_call {
  public:
    explicit user_call(drain_barrier& gate) noexcept
        : gate_(gate), ticket_(gate.enter()), outer_(detail::exchange(innermost(), this)) {}
    ~user_call() {
        innermost() = outer_;
        if (process_ != this_process()) _exit(70);  // a child of fork(): two must not act for one worker
    }
    explicit operator bool() const noexcept { return bool(ticket_); }

    // The calling thread is in such a call.
    static bool is_in(const drain_barrier& gate) noexcept {
        const user_call* call = innermost();
        while (call != nullptr && &call->gate_ != &gate) call = call->outer_;
        return call != nullptr;
    }

  private:
    static user_call*& innermost() noexcept {
        thread_local user_call* of_this_thread = nullptr;
        return of_this_thread;
    }

    const drain_barrier& gate_;
    drain_barrier::ticket ticket_;
    user_call* const outer_;
    const pid_t process_ = this_process();
};

// The user's callbacks, hooks and extensions. Not called once the worker is destroyed.
class user_code {
  public:
    explicit user_code(const logger& log) : log_(log) {}

    // Calls `code`, unless the worker is destroyed, and logs what it throws.
    template <class Code>
    void call(const char* message_if_thrown, Code code) {
        try {
            const user_call entered(callbacks);
            if (entered) code();
        } catch (...) {
            log_.write(log_level::error, message_if_thrown, {field("error", thrown_text())});
        }
    }
    // Before other threads use them. After an error the caller calls stop_extensions().
    result<void> start_extensions(const machine_ref& machine, const loop_options& options) {
        extensions.clear();  // of a failed start
        for (const worker_extension_factory& factory : options.extensions) {
            const ref<worker_extension> made(factory.make ? factory.make() : nullptr);
            if (!made) return invalid(cat({"worker extension '", factory.name, "' cannot be made"}));
            extensions.push_back(made);
            ++running_extensions_;
            result<void> started = invalid(cat({"worker extension '", factory.name, "' threw in start()"}));
            call("a worker extension threw in start()", [&] { started = made->start(machine); });
            if (!started) return started;
        }
        return {};
    }
    // In reverse order. Idempotent.
    void stop_extensions(time_point deadline) {
        while (running_extensions_ > 0) {
            --running_extensions_;
            call("a worker extension threw in stop()", [&] { extensions[running_extensions_]->stop(deadline); });
        }
    }
    template <class Code>
    void call_extensions(Code code) {
        for (const ref<worker_extension>& extension : extensions)
            call("a worker extension threw; ignored", [&] { code(*extension); });
    }
    // Returns when to call it again.
    time_point tick_extensions() {
        time_point out = time_point::max();
        call_extensions(
            [&out](worker_extension& extension) { out = detail::min(out, extension.on_tick(steady_clock::now())); });
        return out;
    }
    // Returns `log` with a hook that writes to standard error once the worker is destroyed.
    log_options with_gated_hook(const log_options& log) {
        log_options out = log;
        if (!out.hook) return out;
        out.hook = [this, &log](const log_record& record) {
            const user_call entered(callbacks);
            if (entered) return log.hook(record);
            log_options without_hook;
            without_hook.format = log.format;
            logger(without_hook, record.component, record.worker_id).write(record);
        };
        return out;
    }

    drain_barrier callbacks;  // entered by the supervising thread, and for every call from another thread
    array<ref<worker_extension>> extensions;  // made before any thread starts

  private:
    std::size_t running_extensions_ = 0;  // those that were not stopped
    const logger& log_;
};

}  // namespace ojs::detail
