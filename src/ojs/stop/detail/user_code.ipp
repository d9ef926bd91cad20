// user_code: calls of what the user has given: callbacks, hooks and extensions.
#pragma once

#include <unistd.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/drain_barrier.hpp"
#include "../worker_extension.hpp"

namespace ojs::detail {

// If user code calls fork() and the child returns from it, two processes must not act for one worker.
inline void exit_if_forked(pid_t process) noexcept {
    constexpr std::string_view text =
        "error: a child made by fork() in a job handler, a consumer or a callback returned from it; the "
        "child ends here\n";
    if (process == ::getpid()) return;
    // Not by the log, whose reader the parent may be. A failed write is ignored.
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(70);
    _exit(70);
}

// Holds a ticket of `gate` while a thread is in user code. Lives on the stack.
class user_call {
  public:
    explicit user_call(drain_barrier& gate) noexcept
        : gate_(gate), ticket_(gate.enter()), outer_(detail::exchange(innermost(), this)) {}
    user_call(const user_call&) = delete;
    user_call& operator=(const user_call&) = delete;
    ~user_call() {
        innermost() = outer_;
        exit_if_forked(process_);
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
    const pid_t process_ = ::getpid();
};

// The user's callbacks, hooks and extensions. Not called once the worker is destroyed.
class user_code {
  public:
    explicit user_code(const logger& log) : log_(log) {}
    user_code(const user_code&) = delete;
    user_code& operator=(const user_code&) = delete;
    ~user_code() { delete_extensions(); }

    // Calls on_transition.
    template <class Callback>
    void call_back(const char* message_if_thrown, Callback call) {
        const user_call entered(callbacks);
        if (entered) guard(message_if_thrown, call);
    }
    // Calls each extension, on a thread that may outlive the worker.
    template <class Call>
    void notify_extensions(Call call) {
        if (extensions.empty()) return;
        const user_call entered(callbacks);
        if (entered) for_each_extension(call);
    }
    // The same on the supervising thread.
    template <class Call>
    void for_each_extension(Call call) {
        for (worker_extension* extension : extensions)
            guard("a worker extension threw; ignored", [&] { call(*extension); });
    }
    // These two too. Returns when to call the first again.
    time_point tick_extensions() {
        time_point out = time_point::max();
        for_each_extension([&out](worker_extension& extension) {
            constexpr std::chrono::milliseconds retry_delay{1000};  // after it threw
            const time_point now = steady_clock::now();
            const time_point former = detail::exchange(out, detail::min(now + retry_delay, out));
            out = detail::min(extension.on_tick(now), former);
        });
        return out;
    }
    void notify_phase(const lifecycle_state& now) {
        for_each_extension([&now](worker_extension& extension) { extension.on_phase(now); });
    }
    template <class Call>
    void guard(const char* message_if_thrown, Call call) {
        try {
            call();
        } catch (...) {
            log_.write(log_level::error, message_if_thrown, {field("error", thrown_text())});
        }
    }
    void delete_extensions() noexcept {
        for (worker_extension* extension : extensions) delete extension;
        extensions.clear();
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
    array<worker_extension*> extensions;  // made before any thread starts
    std::size_t running_extensions = 0;   // those that were not stopped

  private:
    const logger& log_;
};

}  // namespace ojs::detail
