// Before declarations and before definitions of each header: what those outside a class begin with.
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif
