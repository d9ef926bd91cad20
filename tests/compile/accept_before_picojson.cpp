// ... or after.
#include <ojs_shutdown.hpp>

#include <picojson.h>

picojson::value number() {
    return picojson::value(1.0);
}
