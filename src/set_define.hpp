// Whether a header emits definitions: always, or in the separate form only with OJS_SHUTDOWN_IMPLEMENTATION.
#if OJS_SHUTDOWN_SEPARATE && !defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE 0
#elif defined(__cpp_exceptions)
#define OJS_SHUTDOWN_DEFINE 1
#else
#error "the definitions need exceptions: remove -fno-exceptions, or compile them separately (OJS_SHUTDOWN_SEPARATE)"
#define OJS_SHUTDOWN_DEFINE 0  // no further errors
#endif
