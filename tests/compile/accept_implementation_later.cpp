// Declarations may be seen before the definitions: another header of the project includes this one first.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include <ojs_shutdown.hpp>

#ifdef OJS_SHUTDOWN_INLINE
#error OJS_SHUTDOWN_INLINE leaks
#endif

const char* name_of_busy() {
    return ojs::to_string(ojs::errc::busy);
}
