// expect: the definitions need exceptions: remove -fno-exceptions, or compile them separately (OJS_SHUTDOWN_SEPARATE)
// flags: -fno-exceptions
#include HEADER
