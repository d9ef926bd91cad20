// worker_extension: what an extension adds to a worker or a loop, which it sees as a machine_state.
#pragma once

#include <string>
#include <string_view>

#include "../../base/detail/light.hpp"
#include "../../base/duration.hpp"
#include "../../base/error.hpp"
#include "../../base/function.hpp"
#include "../../core/lifecycle.hpp"

namespace ojs {
inline namespace v0_1_0 {
struct loop_options;
namespace detail {
class machine;
class machine_state;
using machine_ref = ref<machine_state>;

enum class fetch_status : std::uint8_t { jobs, empty, failed };
enum class settled_state : std::uint8_t { completed, retryable, discarded, available };  // as requested

// A settlement that the backend accepted. Jobs requeued before they began have none.
struct job_settlement {
    std::string_view queue;
    std::string_view type;  // empty: it has no handler
    settled_state state = settled_state::completed;
    steady_clock::duration duration{0};  // since it was claimed
};

// Exceptions are logged. No function may destroy the worker or wait for its end.
class worker_extension : public ref_counted {
  public:
    // Before the first thread and request. An error or an exception ends the start, and run() returns 64 or 71. The
    // extension may keep `machine` until stop().
    virtual result<void> start(const machine_ref& machine) = 0;
    // On the turning thread at the start and after each change of phase. Must not block.
    virtual void on_phase(const lifecycle_state& /*state*/) {}
    // Whenever that thread wakes up. Returns the latest time of the next call.
    virtual time_point on_tick(time_point /*now*/) { return time_point::max(); }
    // On threads that send requests, several at once: after each heartbeat, FETCH and accepted settlement. Abandoned
    // threads may call them after stop(), but not after the worker's destruction.
    virtual void on_heartbeat(bool /*has_response*/) {}
    virtual void on_fetch(fetch_status /*status*/) {}
    virtual void on_job_settled(const job_settlement& /*job*/) {}
    // Once, as the worker ends or after a failed start, this extension's included. Must return by the deadline and drop
    // `machine`. The worker deletes the extension when no thread uses it.
    virtual void stop(time_point deadline) = 0;
};

struct worker_extension_factory {
    std::string name;                    // of the extension, such as "ops"
    function<worker_extension*()> make;  // a new one for each start; the worker deletes it
    // Optional, must not throw: in validate(), run() and start().
    function<result<void>(const loop_options& options)> check = nullptr;
};

// By name.
template <class Extension>
struct extension_list : array<Extension> {
    // Replaces one of the same name.
    void add(Extension extension) {
        for (Extension& present : *this) {
            if (present.name == extension.name) return static_cast<void>(present = std::move(extension));
        }
        this->push_back(std::move(extension));
    }
};
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
