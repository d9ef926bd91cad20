// The one file with the definitions of the library and of ojs_redis_streams.hpp, for the programs that use it.
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include "ojs_ops.hpp"
#include "ojs_redis_streams.hpp"
