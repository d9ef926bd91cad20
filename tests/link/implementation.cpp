// The one file of a build in the separate form that holds the definitions; -DOJS_SHUTDOWN_SEPARATE=1 comes from outside,
// as for every other file. Without it this is just one more file that includes the header.
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include <ojs_shutdown.hpp>
