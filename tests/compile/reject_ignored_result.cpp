// expect: nodiscard
// flags: -DOJS_SHUTDOWN_SEPARATE=1
#include <ojs_shutdown.hpp>

int main() {
    ojs::lifecycle lifecycle;
    ojs::signals::install(lifecycle);
}
