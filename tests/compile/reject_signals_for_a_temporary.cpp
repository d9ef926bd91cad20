// expect: bind
// flags: -DOJS_SHUTDOWN_SEPARATE=1
// The lifecycle must outlive its signals, so a temporary one is refused.
#include <ojs_shutdown.hpp>

int main() {
    const auto installed = ojs::signals::install(ojs::lifecycle());
    return installed ? 0 : 1;
}
