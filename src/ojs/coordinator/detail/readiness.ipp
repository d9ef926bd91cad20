// readiness: what a process says of itself, and its checks, as one answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../messages.hpp"

namespace ojs::detail {

inline constexpr auto checks_time = std::chrono::seconds(1);  // of all checks together

// A check of the program's, asked on a thread of its own: one that hangs must hold up neither an answer nor the end.
class asked_check : public ref_counted {
  public:
    asked_check(std::string called, function<bool()> call)
        : name(std::move(called)), call_(std::move(call)) {}

    // Unless it has not returned since the last time. Where no thread can be created it has failed.
    static void begin(const ref<asked_check>& self) {
        unique_lock held(self->mutex_);
        if (self->busy_) return;
        self->passed_ = false;
        thread_options options;
        options.name = "ojs-check";
        result<thread> asking = thread::start([self] { self->ask(); }, options);
        if (!asking) return;
        asking->detach();
        self->busy_ = true;  // its thread waits for the mutex, to say that it is not
    }
    bool passed(time_point deadline) {
        unique_lock held(mutex_);
        while (busy_ && returned_.wait_until(held, deadline)) continue;
        return !busy_ && passed_;
    }

    const std::string name;

  private:
    void ask() {
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
                    pass_on_thread_end();
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

class readiness_board {
  public:
    void say(readiness_state state, std::string message) {
        const unique_lock held(mutex_);
        said_.state = state;
        said_.message = std::move(message);
    }
    void set_server(bool yes) {
        const unique_lock held(mutex_);
        server_said_ = true;
        said_.checks.grpc_server_ready = yes;
    }
    void set_backend(bool connected, bool warmed) {
        const unique_lock held(mutex_);
        backend_said_ = true;
        said_.checks.backend_connected = connected;
        said_.checks.backend_warmed = warmed;
    }
    void set_check(std::string name, bool passed) {
        const unique_lock held(mutex_);
        for (readiness_check& each : said_.checks.custom_checks) {
            if (each.name != name) continue;
            each.passed = passed;
            return;
        }
        said_.checks.custom_checks.push_back({std::move(name), passed});
    }
    void add_check(std::string name, function<bool()> check) {
        const unique_lock held(mutex_);
        asked_.push_back(make_ref<asked_check>(std::move(name), std::move(check)));
    }

    readiness_response look(bool takes_work) {
        const array<ref<asked_check>> all = asked();
        const time_point deadline = steady_clock::now() + checks_time;
        std::vector<readiness_check> answers;
        for (const auto& each : all) asked_check::begin(each);
        for (const auto& each : all) answers.push_back({each->name, each->passed(deadline)});
        const unique_lock held(mutex_);
        readiness_response out = said_;
        for (readiness_check& each : answers) out.checks.custom_checks.push_back(std::move(each));
        const bool said_ready = said_.state == readiness_state::ready;
        readiness_checks& checks = out.checks;
        if (!server_said_) checks.grpc_server_ready = said_ready;
        if (!backend_said_) checks.backend_connected = checks.backend_warmed = said_ready;
        const std::string failed = failed_check(checks);
        if (!takes_work) {
            out.state = readiness_state::draining;
        } else if (said_ready && failed.empty()) {
            was_ready_ = true;
        } else if (said_ready) {
            out.state = was_ready_ ? readiness_state::unhealthy : readiness_state::warming;
            out.message = cat({"not passed: ", failed});
        }
        return out;
    }
    // Checks that are under way have until the deadline.
    void await_checks(time_point deadline) {
        for (const auto& each : asked()) each->passed(deadline);
    }

  private:
    array<ref<asked_check>> asked() {
        const unique_lock held(mutex_);
        return asked_;
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
    readiness_response said_;
    bool server_said_ = false;
    bool backend_said_ = false;
    bool was_ready_ = false;
    array<ref<asked_check>> asked_;
};

}  // namespace ojs::detail
