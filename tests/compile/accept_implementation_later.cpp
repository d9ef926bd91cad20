// Declarations may be seen before the definitions: another header of the project includes this one first. And names that
// the library uses inside its namespace may exist outside of it too.
struct error {};
struct signals {};
struct worker {};
struct job {};
namespace detail {
struct wake {};
}  // namespace detail

#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>
#define OJS_SHUTDOWN_IMPLEMENTATION
#include <ojs_shutdown.hpp>

#ifdef OJS_SHUTDOWN_INLINE
#error OJS_SHUTDOWN_INLINE leaks
#endif

const char* name_of_busy(error, signals, worker, job, detail::wake) { return ojs::to_string(ojs::errc::busy); }
