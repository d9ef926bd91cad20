// flags: -Wpedantic -Wshadow -Wconversion
// A file that uses picojson includes it first...
#include <picojson.h>

#include <ojs_shutdown.hpp>

#include "picojson_values.hpp"
