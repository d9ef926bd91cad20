// group_surroundings: what all groups of a launcher share.
#pragma once

#include <string>

#include "../../base/log.hpp"
#include "instance.hpp"
#include "launcher_events.ipp"
#include "routing.ipp"
#include "state_ledger.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct group_surroundings : ref_counted {
    instance_starter starter;
    ref<ojs::detail::routing> routing;
    ref<launcher_events> events = make_ref<launcher_events>();
    logger log;
    ref<state_ledger> ledger;  // may be none
    function<void()> wake;     // the supervisor: something is to be looked at
    std::string socket_folder;
    std::string launcher_address;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
