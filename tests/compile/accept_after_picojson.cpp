// A project that uses picojson itself includes it first...
#include <picojson.h>

#include <ojs_shutdown.hpp>

picojson::value number() {
    return picojson::value(1.0);
}
