// expect: deleted
// flags: -DOJS_SHUTDOWN_SEPARATE=1
#include <ojs_shutdown.hpp>

int main() {
    ojs::drain_barrier barrier;
    const ojs::drain_barrier::ticket one = barrier.enter();
    const ojs::drain_barrier::ticket other = one;
}
