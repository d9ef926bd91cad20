// drain_state: how far a shutdown has come, as a child says it, and what moves it on.
#pragma once

#include "../messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What moves a shutdown on. `asked`: by a Shutdown, a signal or a call.
enum class drain_event : unsigned char { asked, begun, blocked, unblocked, ended, failed };

// Where each event leads. Nothing goes back but blocked to draining. That forced is missing is right: a process does not
// say it of itself.
inline constexpr shutdown_state drain_moves[6][5] = {
    // clang-format off
    //              running                    requested                  draining                   blocked                    complete
    /* asked     */ {shutdown_state::requested, shutdown_state::requested, shutdown_state::draining, shutdown_state::blocked,  shutdown_state::complete},
    /* begun     */ {shutdown_state::running,   shutdown_state::draining,  shutdown_state::draining, shutdown_state::blocked,  shutdown_state::complete},
    /* blocked   */ {shutdown_state::running,   shutdown_state::blocked,   shutdown_state::blocked,  shutdown_state::blocked,  shutdown_state::complete},
    /* unblocked */ {shutdown_state::running,   shutdown_state::requested, shutdown_state::draining, shutdown_state::draining, shutdown_state::complete},
    /* ended     */ {shutdown_state::complete,  shutdown_state::complete,  shutdown_state::complete, shutdown_state::complete, shutdown_state::complete},
    /* failed    */ {shutdown_state::blocked,   shutdown_state::blocked,   shutdown_state::blocked,  shutdown_state::blocked,  shutdown_state::complete},
    // clang-format on
};
constexpr shutdown_state drain_move(drain_event what, shutdown_state now) noexcept {
    return drain_moves[static_cast<int>(what)][static_cast<int>(now)];
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
