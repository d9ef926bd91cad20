// expect: deleted
#include <ojs_shutdown.hpp>

void copy(const ojs::signals& one) {
    const ojs::signals other = one;
}
