// flags: -Itests/compile/no_picojson
// In the separate form only the implementation needs picojson: here it cannot be included.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

const char* name_of_busy() {
    return ojs::to_string(ojs::errc::busy);
}
