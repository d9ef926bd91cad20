// Whether a header emits definitions: always, or in the separate form only with OJS_SHUTDOWN_IMPLEMENTATION.
#if OJS_SHUTDOWN_SEPARATE && !defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE 0
#else
#define OJS_SHUTDOWN_DEFINE 1
#endif
#if OJS_SHUTDOWN_DEFINE && !defined(__cpp_exceptions)
#error "the definitions need exceptions: remove -fno-exceptions, or compile them separately (OJS_SHUTDOWN_SEPARATE)"
#undef OJS_SHUTDOWN_DEFINE
#define OJS_SHUTDOWN_DEFINE 0  // no further errors
#endif
