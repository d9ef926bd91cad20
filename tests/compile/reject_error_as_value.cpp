// expect: conver
// flags: -DOJS_SHUTDOWN_SEPARATE=1
// A result is not its value: it has to be looked at.
#include <chrono>
#include <ojs_shutdown.hpp>

std::chrono::milliseconds grace() {
    return ojs::parse_duration("30s");
}
