// coordinator_body: what a shutdown_coordinator holds, and all that it does.
#pragma once

#include <string>
#include <vector>

#include "../../base/detail/backoff.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "../../net/http_client.hpp"
#include "../../net/http_server.hpp"
#include "../coordinator.hpp"
#include "drain_state.ipp"
#include "message_fields.ipp"
#include "readiness.ipp"
#include "rpc.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr cause rpc_cause{cause_kind::rpc, 0, 0, 0};
inline constexpr auto push_time = std::chrono::milliseconds(500);  // one try
inline constexpr int push_tries = 2;

inline std::chrono::milliseconds said_or(std::int32_t seconds, std::chrono::milliseconds fallback) noexcept {
    const std::chrono::milliseconds said = seconds == 0 ? fallback : std::chrono::seconds(seconds);
    return said < longest_shutdown ? said : longest_shutdown;
}

// Something to be told to the launcher.
struct launcher_push {
    bool due = false;
    int tries = 0;
    time_point at{};
};

class coordinator_body final : public ref_counted {
  public:
    coordinator_body(coordinator_options options, lifecycle& life, const worker* of)
        : options_(std::move(options)), life_(life), worker_(of), log_(options_.log) {}
    ~coordinator_body() override { close(); }

    result<void> start();
    void follow(const worker& of) {
        checks_.say(readiness_state::warming, "the backend has not answered yet");
        answered_ = of.answered_token().on_cancel([this] { say(readiness_state::ready, {}); });
        ended_ = of.stopped_token().on_cancel([this] { finish("the worker has ended"); });
    }
    result<void> run(const function<result<void>(const cancel_token&)>& drain, const cancel_token& until);
    void finish(std::string message);
    void close();

    void say(readiness_state state, std::string message);
    void push_ready();
    void set_metrics(shutdown_metrics now);
    void block(std::string operation);
    void unblock(const std::string& operation);
    void need(std::chrono::seconds additional);
    bool add_step(std::string name, function<void()> step, std::chrono::milliseconds limit);

    bool active() const noexcept { return static_cast<bool>(server_); }
    const std::string& address() const noexcept { return address_; }
    readiness_board& checks() noexcept { return checks_; }

  private:
    // What is asked.
    result<void> serve();
    rpc_service service();
    result<shutdown_ack> shut_down(const shutdown_request& request);
    shutdown_status status();
    shutdown_metrics metrics();
    result<void> is_for_us(const std::string& process_id) const;

    // What happens, whoever is behind it.
    ojs::phase phase() const noexcept { return worker_ != nullptr ? worker_->phase() : life_.phase(); }
    void notice();
    void set_times(time_point from, std::chrono::milliseconds grace, std::chrono::milliseconds max);
    void move(drain_event what) { state_ = drain_move(what, state_); }
    bool under_way() const noexcept {
        return state_ != shutdown_state::running && state_ != shutdown_state::complete;
    }

    // The thread.
    result<void> start_thread();
    void follow();
    bool cancel_late();
    bool push_due();
    bool push_now(bool complete);
    time_point next_due() const;

    result<void> await_stop(const cancel_token& until);
    void await_pushed();

    const coordinator_options options_;
    lifecycle& life_;
    const worker* const worker_;
    const logger log_;
    readiness_board checks_;
    std::string address_;
    wake wake_;
    cancel_source cancel_;
    result<http_client> launcher_ = error{};  // none: there is no launcher to be told
    result<http_server> server_ = error{};    // none: nothing is served
    thread thread_;
    cancel_registration answered_;
    cancel_registration ended_;

    mutex mutex_;  // guards what follows; held for no call to the program, the lifecycle or the log
    condition pushed_;
    shutdown_state state_ = shutdown_state::running;
    std::string message_;
    shutdown_metrics metrics_;
    std::vector<std::string> blocking_;
    shutdown_sequence steps_;
    bool asked_ = false;      // by a Shutdown
    bool runs_ = false;       // run() says when the drain begins
    bool failed_ = false;     // the drain ended with an error
    bool cancelled_ = false;  // what was at work too long
    bool closing_ = false;
    bool more_said_ = false;  // need_more_time() was called
    std::int32_t more_seconds_ = 0;
    time_point received_{};
    time_point ask_more_at_ = time_point::max();
    time_point cancel_at_ = time_point::max();
    std::int64_t took_ms_ = 0;
    launcher_push ready_push_;
    launcher_push complete_push_;
    backoff pause_{std::chrono::milliseconds(100), std::chrono::milliseconds(1000)};
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
