// instance: what groups know of a process.
#pragma once

#include <cstdint>
#include <string>

#include "../../base/log.hpp"
#include "../launcher_options.hpp"

namespace ojs::detail {

// So that a few of them can be added.
inline std::chrono::milliseconds summable(std::chrono::milliseconds time) noexcept {
    return time < no_limit / 8 ? time : no_limit / 8;
}

// From the order to the end, SIGKILL included.
inline std::chrono::milliseconds stop_time(const shutdown_timeouts& of) noexcept {
    return summable(of.max_duration) + summable(of.report_time) + 2 * summable(of.kill_delay) +
           std::chrono::seconds(5);
}

// One process, from its start to its end. Every member is thread-safe.
class instance : public ref_counted {
  public:
    virtual process_info info() const = 0;
    // Returns at once; the first order counts.
    virtual void shut_down(const shutdown_options& order) = 0;
    // SIGTERM now, SIGKILL after kill_delay. Returns at once.
    virtual void force() = 0;
    // Asks it early how it is.
    virtual void poll() = 0;
    // Asks the process now, for an operator.
    virtual result<shutdown_status> ask_status(time_point deadline) = 0;
};

// Called after every change, in order, from the process's own thread, no lock held; must be short.
using instance_changed = function<void(const process_info& now, instance_state before)>;

struct instance_spec {
    std::string id;
    std::string group;
    process_options options;
    std::uint64_t generation = 0;
    std::string address;           // where its coordinator is to listen; empty: it does not take part
    std::string launcher_address;  // where it may push to; empty: nowhere
};

using instance_starter = function<result<ref<instance>>(const instance_spec&, instance_changed)>;

// A real process. Returns before it runs; `changed` says that it does, or why it does not. An error: out of threads,
// descriptors or memory. Where the last reference goes before it is over, it is killed.
result<ref<instance>> start_instance(const instance_spec& spec, instance_changed changed, const logger& log);

}  // namespace ojs::detail
