// flags: -Wpedantic -Wshadow -Wconversion -DOJS_SHUTDOWN_SEPARATE=1
// ... or after.
#include <ojs_shutdown.hpp>

#include <picojson.h>

#include "picojson_values.hpp"
