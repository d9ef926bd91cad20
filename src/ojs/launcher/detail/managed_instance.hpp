// managed_instance: one child, from its start to its end. [RFC-041 "Process State Machine", "Handshake Flows"]
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#include "instance.hpp"
#include "instance_states.ipp"
#include "lifecycle_client.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds longest_question{
    1000};  // to a coordinator, while its process is watched
inline constexpr std::chrono::milliseconds kill_patience{5000};  // a SIGKILL that takes longer is told
inline constexpr unsigned told_failure = 10;                     // of questions in a row, each so many-th

// In process_info 0 is "not yet".
inline std::chrono::milliseconds took_since(time_point then) noexcept {
    const long long took = milliseconds_since(then);
    return std::chrono::milliseconds(took > 0 ? took : 1);
}

inline time_point earlier(time_point one, time_point other) noexcept {
    return one < other ? one : other;
}

// One thread watches the child, asks its coordinator, and alone takes its status. Other threads leave wishes.
class managed_instance final : public instance {
  public:
    managed_instance(const instance_spec& spec, instance_changed changed, const logger& log)
        : spec_(spec), told_(std::move(changed)), log_(log) {
        info_.id = spec.id;
        info_.group = spec.group;
        info_.address = spec.options.participates ? spec.address : std::string();
        info_.generation = spec.generation;
    }
    // Kills what still runs, and joins. Not from the own thread, that is, not from `changed`.
    ~managed_instance() override {
        wish(&wishes::abandoned);
        thread_.join();
    }

    result<void> start();

    process_info info() const override {
        const lock_guard held(mutex_);
        return info_;
    }
    void shut_down(const shutdown_order& order) override {
        {
            const lock_guard held(mutex_);
            if (wishes_.shut_down) return;
            order_ = order;
            wishes_.shut_down = true;
            interrupt_.notify();
        }
        waker_.notify();
    }
    void force() override { wish(&wishes::force); }
    void notified(const ready_notification&) override { wish(&wishes::look); }
    void notified(const shutdown_complete&) override { wish(&wishes::look); }
    instance_state await(bool (*holds)(instance_state), time_point deadline,
                         const cancel_token& until) override;
    result<shutdown_status> ask_status(time_point deadline) override;

  private:
    struct wishes {
        bool shut_down = false;
        bool force = false;
        bool look = false;
        bool abandoned = false;
    };
    enum class manner { by_itself, asked, asked_by_signal, forced };
    using fields = std::initializer_list<log_field>;

    void wish(bool wishes::*which);
    wishes take_wishes();
    child_options options_of_child() const;

    // Of the thread alone.
    void work();
    void begin();
    bool sleep_until(time_point deadline);
    void watch();
    void act(const wishes& wanted, time_point limit);
    template <class Answer>
    bool was_interrupted(const result<Answer>& answer) noexcept;
    void look_at_readiness();
    void heard(const readiness_response& answer);
    void look_failed(const error& why);
    void be_unhealthy(const std::string& why);
    void ask_to_shut_down();
    void send_request();
    void look_at_status();
    void tell_grace_is_over();
    void heard(const shutdown_status& answer);
    void grant_time(const shutdown_status& answer, bool is_new);
    void tell_failure(const char* text, log_level level, const error& why);
    time_point end_of_patience() const;
    std::string why_no_longer() const;
    void end_by_signal(manner how, time_point kill_at, const char* text, const std::string& why);
    void await_end(time_point kill_at);
    bool has_rest();
    void kill_child();
    instance_event kind_of_end(const result<child_exit>& ended) const;
    void over(const result<child_exit>& ended);

    instance_state state() const;
    bool change(instance_event what, log_level level, const char* text, const std::string& message);
    template <class How>
    void update(How how);
    void say(log_level level, const char* text, instance_state from, instance_state now,
             std::string_view reason, fields more = {}) const;

    const instance_spec spec_;
    const instance_changed told_;
    const logger log_;
    time_point started_{};
    wake waker_;
    wake interrupt_;  // of a question: something is wished for that does not wait for its answer
    ref<lifecycle_client> client_;  // none: it does not take part
    child_process child_;
    thread thread_;

    mutable mutex mutex_;  // of the next four; held for no call to anybody
    condition changed_;
    process_info info_;
    wishes wishes_;
    shutdown_order order_;

    // Of the thread alone.
    time_point next_look_{};
    time_point ready_by_ = time_point::max();
    bool answered_ = false;  // its coordinator, ever
    int failed_looks_ = 0;
    unsigned failed_questions_ = 0;
    manner manner_ = manner::by_itself;
    bool delivered_ = false;
    bool past_grace_ = false;
    shutdown_request request_;
    time_point asked_at_{};
    time_point grace_end_ = time_point::max();
    time_point granted_end_ = time_point::max();  // where only what is asked for is granted
    time_point hard_end_ = time_point::max();
    time_point complete_end_ = time_point::max();  // when it must be gone that said it is complete
};

// By a wish: what was asked is asked again at once, if it still matters then.
template <class Answer>
bool managed_instance::was_interrupted(const result<Answer>& answer) noexcept {
    if (answer || answer.error().code != errc::cancelled) return false;
    next_look_ = steady_clock::now();
    return true;
}

// What others may act on is told to them; the rest they see when they look.
template <class How>
void managed_instance::update(How how) {
    lock_guard held(mutex_);
    const instance_state before = info_.state;
    const bool was_routable = info_.routable;
    const bool wanted_time = info_.shutdown.need_more_time;
    how(info_);
    info_.routable = info_.state == instance_state::ready && info_.readiness.state == readiness_state::ready;
    const bool same = before == info_.state && was_routable == info_.routable &&
                      wanted_time == info_.shutdown.need_more_time;
    if (same) return;
    const process_info now = info_;
    changed_.notify_all();
    held.unlock();
    told_(now, before);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
