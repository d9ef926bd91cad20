// flags: -fno-exceptions -fno-rtti
// In the separate form the code that uses the library needs neither exceptions nor RTTI.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

int main() {
    ojs::lifecycle lifecycle;
    const ojs::result<ojs::signals> installed = ojs::signals::install(lifecycle);
    return installed ? 0 : 1;
}
