// expect: deleted
// flags: -DOJS_SHUTDOWN_SEPARATE=1
#include <ojs_shutdown.hpp>

void copy(const ojs::drain_barrier& one) {
    const ojs::drain_barrier other = one;
}
