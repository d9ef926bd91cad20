// readiness: combines a process's reported state and its checks into one response.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../server/detail/thread_end.ipp"
#include "../messages.hpp"

namespace ojs::detail {
inline constexpr auto checks_timeout = std::chrono::milliseconds(500);  // of all; below a launcher's rpc_timeout

// A check of the program, called on its own thread: a hanging check must not delay a response or the shutdown.
class async_check : public ref_counted {
  public:
    async_check(std::string check_name, function<bool()> call) : name(std::move(check_name)), call_(std::move(call)) {}

    // Does nothing while the previous call runs. Without a thread the check has failed.
    static void begin(const ref<async_check>& self) {
        unique_lock held(self->mutex_);
        if (self->busy_) return;
        self->passed_ = false;
        thread_options options;
        options.name = "ojs-check";
        result<thread> runner = thread::start([self] { self->run(); }, options);
        if (!runner) return;
        runner->detach();
        self->busy_ = true;  // the new thread needs the mutex to reset it
    }
    bool await_result(time_point deadline) {
        unique_lock held(mutex_);
        while (busy_ && returned_.wait_until(held, deadline)) continue;
        return !busy_ && passed_;
    }

    const std::string name;

  private:
    void run() {
        bool passes = false;
        const auto ended = [&] {
            const unique_lock held(mutex_);
            passed_ = passes;
            busy_ = false;
            returned_.notify_all();
        };
        call_guarded(
            [&] {
                try {
                    passes = call_();
                } catch (...) {
                    rethrow_thread_exit();
                }
            },
            ended);
        ended();
    }

    function<bool()> call_;
    mutex mutex_;
    condition returned_;
    bool busy_ = false;
    bool passed_ = false;
};

class readiness_reports {
  public:
    void set_state(readiness_state state, std::string message) {
        const unique_lock held(mutex_);
        reported_.state = state;
        reported_.message = std::move(message);
    }
    void set_server(bool yes) {
        const unique_lock held(mutex_);
        server_reported_ = true;
        reported_.checks.grpc_server_ready = yes;
    }
    void set_backend(bool connected, bool warmed) {
        const unique_lock held(mutex_);
        backend_reported_ = true;
        reported_.checks.backend_connected = connected;
        reported_.checks.backend_warmed = warmed;
    }
    void set_check(std::string name, bool passed) {
        const unique_lock held(mutex_);
        for (readiness_check& each : reported_.checks.custom_checks) {
            if (each.name != name) continue;
            each.passed = passed;
            return;
        }
        reported_.checks.custom_checks.push_back({std::move(name), passed});
    }
    void add_check(std::string name, function<bool()> check) {
        const unique_lock held(mutex_);
        async_checks_.push_back(make_ref<async_check>(std::move(name), std::move(check)));
    }

    readiness_response run_checks(bool takes_work) {
        const array<ref<async_check>> all = async_checks();
        const time_point deadline = steady_clock::now() + checks_timeout;
        std::vector<readiness_check> answers;
        for (const auto& each : all) async_check::begin(each);
        for (const auto& each : all) answers.push_back({each->name, each->await_result(deadline)});
        const unique_lock held(mutex_);
        readiness_response out = reported_;
        for (readiness_check& each : answers) out.checks.custom_checks.push_back(std::move(each));
        const bool reported_ready = reported_.state == readiness_state::ready;
        readiness_checks& checks = out.checks;
        if (!server_reported_) checks.grpc_server_ready = reported_ready;
        if (!backend_reported_) checks.backend_connected = checks.backend_warmed = reported_ready;
        const std::string failed = failed_check(checks);
        if (!takes_work) {
            out.state = readiness_state::draining;
        } else if (reported_ready && failed.empty()) {
            was_ready_ = true;
        } else if (reported_ready) {
            out.state = was_ready_ ? readiness_state::unhealthy : readiness_state::warming;
            out.message = cat({"not passed: ", failed});
        }
        return out;
    }
    void await_checks(time_point deadline) {
        for (const auto& each : async_checks()) each->await_result(deadline);
    }

  private:
    // A copy, so that no check is called or awaited under the mutex.
    array<ref<async_check>> async_checks() {
        const unique_lock held(mutex_);
        return async_checks_;
    }
    static std::string failed_check(const readiness_checks& checks) {
        if (!checks.grpc_server_ready) return "server";
        if (!checks.backend_connected) return "backend connected";
        if (!checks.backend_warmed) return "backend warmed";
        for (const readiness_check& each : checks.custom_checks) {
            if (!each.passed) return each.name.empty() ? "\"\"" : each.name;
        }
        return {};
    }

    mutex mutex_;
    readiness_response reported_;
    bool server_reported_ = false;
    bool backend_reported_ = false;
    bool was_ready_ = false;
    array<ref<async_check>> async_checks_;
};
}  // namespace ojs::detail
