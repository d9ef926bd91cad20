// instance_readiness: whether a process may be given work.
#pragma once

#include "managed_instance.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline void managed_instance::look_at_readiness() {
    const time_point deadline = earlier(deadline_after(longest_question), ready_by_);
    const result<readiness_response> answer = client_->readiness(spec_.id, deadline);
    if (was_interrupted(answer)) return;
    if (answer) {
        answered_ = true;
        failed_looks_ = 0;
        failed_questions_ = 0;
        heard(*answer);
    } else {
        look_failed(answer.error());
    }
    const bool is_ready = state() == instance_state::ready;
    const std::chrono::milliseconds pause =
        is_ready ? spec_.options.health_interval : spec_.options.readiness_interval;
    next_look_ = is_ready && pause.count() == 0 ? time_point::max() : deadline_after(pause);
}

inline void managed_instance::heard(const readiness_response& answer) {
    const std::string said = printable(answer.message);
    update([&](process_info& now) {
        now.readiness = answer;
        now.message = said;
    });
    if (answer.state == readiness_state::warming) {
        change(instance_event::warms, log_level::info, "process warming", said);
    } else if (answer.state == readiness_state::unhealthy) {
        be_unhealthy(said);
    } else if (answer.state == readiness_state::ready) {
        ready_by_ = time_point::max();
        change(instance_event::is_ready, log_level::info, "process ready", said);
    }
}

inline void managed_instance::look_failed(const error& why) {
    const bool is_ready = state() == instance_state::ready;
    tell_failure("readiness not known", is_ready ? log_level::warn : log_level::debug, why);
    if (is_ready && ++failed_looks_ >= spec_.options.unhealthy_after) be_unhealthy(why.text);
}

inline void managed_instance::be_unhealthy(const std::string& why) {
    change(instance_event::fails, log_level::warn, "process unhealthy", why);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
