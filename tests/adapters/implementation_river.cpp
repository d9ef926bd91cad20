// The one file with the definitions of the library and of ojs_river.hpp, for the programs that use it.
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include "ojs_ops.hpp"
#include "ojs_river.hpp"
