// transport_scheme: opens the transport that the scheme of worker_options::url names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/error.hpp"
#include "../base/log.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct worker_options;

struct transport_setup {
    const worker_options& options;
    std::string_view address;  // options.url after the colon
    const worker_identity& worker;
    log_hook log;  // writes to the worker's log; valid as long as the transport, from any thread
};

struct transport_scheme {
    std::string name;  // before the colon of a URL, in any case: "spool"
    // Called by run() and start(), once, before any thread of the worker starts. An error ends the start, with exit status 64
    // from run(); its text must not repeat a password. The worker owns the transport.
    function<result<transport_ref>(const transport_setup& setup)> open;
    // Optional: findings about the address, for doctor(). Must change nothing.
    function<std::vector<finding>(std::string_view address)> inspect;
};

// The schemes that a program adds to http, https, unix and memory. Copyable; not thread-safe.
class transport_schemes {
  public:
    // Takes precedence over a scheme of that name that is built in or was added before.
    void add(transport_scheme scheme) { added_.push_back(std::move(scheme)); }
    const detail::array<transport_scheme>& added() const noexcept { return added_; }

  private:
    detail::array<transport_scheme> added_;
};

}  // namespace v0_1_0
}  // namespace ojs
