// expect: deleted
// flags: -DOJS_SHUTDOWN_SEPARATE=1
#include <ojs_shutdown.hpp>

void copy(const ojs::signals& one) {
    const ojs::signals other = one;
}
