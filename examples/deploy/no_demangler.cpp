// no_demangler: keeps the C++ library's demangler out of a static program, which is a sixth larger with it.
//
// libc++ uses it only to print the type of an uncaught exception. With this file it prints the mangled name, which
// c++filt(1) translates. Only for static programs in which nothing else demangles names.
#include <cstddef>

extern "C" char* __cxa_demangle(const char*, char*, std::size_t*, int* status) {
    if (status != nullptr) *status = -2;  // "not a mangled name": the caller prints it unchanged
    return nullptr;
}
