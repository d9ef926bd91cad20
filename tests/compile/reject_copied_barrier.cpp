// expect: deleted
#include <ojs_shutdown.hpp>

void copy(const ojs::drain_barrier& one) {
    const ojs::drain_barrier other = one;
}
