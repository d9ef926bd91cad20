// group_member: one process of a group, as the group sees it.
#pragma once

#include <string>

#include "../../base/detail/array.hpp"
#include "instance.hpp"
#include "restart_policy.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// One process of a group. Its fields are under the group's mutex, but for `id` and what is const.
struct member : ref_counted {
    member(std::string name, std::uint64_t of, ref<restart_history> where)
        : id(std::move(name)), generation(of), place(std::move(where)) {}

    const std::string id;
    const std::uint64_t generation;
    const ref<restart_history> place;
    ref<instance> process;  // none until it was started
    process_info info;      // as last told
    bool was_ready = false;
    bool failed_readiness = false;  // and was counted as that
    bool told_routable = false;     // to the hooks
    bool leaving = false;           // was asked to end: it is not restarted
    bool given_up = false;          // forced for its ill health: it is
    bool forced = false;
    bool notified = false;  // before it was there to be told
    shutdown_order order;   // while it leaves
};

using members = array<ref<member>>;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
