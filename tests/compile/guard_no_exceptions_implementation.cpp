// expect: the definitions need exceptions: remove -fno-exceptions, or compile them separately (OJS_SHUTDOWN_SEPARATE)
// flags: -fno-exceptions -DOJS_SHUTDOWN_SEPARATE=1 -DOJS_SHUTDOWN_IMPLEMENTATION=1
#include HEADER
