// instance_states: what a process can be, and what makes it something else. [RFC-041 "Process State Machine"]
#pragma once

#include "../process_info.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

enum class instance_event { runs, warms, is_ready, fails, is_asked, drains, ends_well, ends_badly, is_ended };

// What becomes of a state. `same`: nothing. A process that is ended by us is what it was until it has ended.
inline instance_state next_state(instance_state now, instance_event what) noexcept {
    using s = instance_state;
    constexpr s same = s(-1);
    static constexpr s table[][9] = {
        // runs        warms       is_ready  fails         is_asked               drains       ends_well    ends_badly  is_ended
        {s::starting, same, same, same, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // spawning
        {same, s::warming, s::ready, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // starting
        {same, same, s::ready, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // warming
        {same, same, same, s::unhealthy, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // ready
        {same, same, s::ready, same, s::shutdown_requested, same, s::crashed, s::crashed,
         s::forced},  // unhealthy
        {same, same, same, same, same, s::draining, s::complete, s::crashed,
         s::forced},                                                               // shutdown_requested
        {same, same, same, same, same, same, s::complete, s::crashed, s::forced},  // draining
    };
    if (is_over(now)) return now;
    const s next = table[static_cast<int>(now)][static_cast<int>(what)];
    return next == same ? now : next;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
