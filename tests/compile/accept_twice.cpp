// flags: -Itests/compile/no_picojson
// The header may come any number of times, and leaves no internal macro behind. It includes no JSON library: picojson
// cannot be included here.
#include <ojs_shutdown.hpp>

#include <ojs_shutdown.hpp>

#ifdef OJS_SHUTDOWN_INLINE
#error OJS_SHUTDOWN_INLINE leaks
#endif
#ifdef OJS_SHUTDOWN_DEFINE
#error OJS_SHUTDOWN_DEFINE leaks
#endif

int main() { return ojs::to_string(ojs::errc::busy) == nullptr; }
