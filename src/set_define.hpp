// Whether a header emits definitions: always, or in the separate form only with OJS_SHUTDOWN_IMPLEMENTATION.
#if !OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_DEFINE 1
#elif !defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE 0
#elif 1 - OJS_SHUTDOWN_IMPLEMENTATION - 1 == 2  // 1 - -1: it has no value
#define OJS_SHUTDOWN_DEFINE 1
#else
#define OJS_SHUTDOWN_DEFINE OJS_SHUTDOWN_IMPLEMENTATION
#endif
#if OJS_SHUTDOWN_DEFINE && !defined(__cpp_exceptions)
#error "the definitions need exceptions: remove -fno-exceptions, or compile them separately (OJS_SHUTDOWN_SEPARATE)"
#undef OJS_SHUTDOWN_DEFINE
#define OJS_SHUTDOWN_DEFINE 0  // no further errors
#endif
