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
    // Before the first thread and the first request. An error or an exception ends the start: run() returns 64. The
    // extension may keep references to `machine` until stop().
    virtual result<void> start(const machine_ref& machine) = 0;
    // On the turning thread when the worker runs, and after each change of phase. Must not block.
    virtual void on_phase(const lifecycle_state& /*state*/) {}
    // On the same thread whenever it has woken up. Returns the latest time of the next call.
    virtual time_point on_tick(time_point /*now*/) { return time_point::max(); }
    // These three on the threads that send requests, several at once: after each heartbeat, after each FETCH, and after
    // each accepted settlement. Abandoned threads may call them after stop(), but not after the worker's destruction.
    virtual void on_heartbeat(bool /*has_response*/) {}
    virtual void on_fetch(fetch_status /*status*/) {}
    virtual void on_job_settled(const job_settlement& /*job*/) {}
    // Once: on the turning thread as the worker ends, or after a failed start, this extension's included. Must return by
    // the deadline and drop every reference to the worker. The worker deletes the extension when no thread uses it.
    virtual void stop(time_point deadline) = 0;
};

struct worker_extension_factory {
    std::string name;                    // of the extension, such as "ops"
    function<worker_extension*()> make;  // a new extension for each start; the worker deletes it
    // Optional, must not throw: checks the options for the extension, in validate(), run() and start().
    function<result<void>(const loop_options& options)> check = nullptr;
};

// The extensions in loop_options, by name. Copyable; not thread-safe.
template <class Extension>
class extension_list : public array<Extension> {
  public:
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
