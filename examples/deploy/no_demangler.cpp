// no_demangler: keeps the C++ library's demangler out of a static program, which libc++ would make a sixth larger.
//
// It is there for one line: what an uncaught exception is called as the program ends by it. That line now has the type's
// mangled name, which c++filt(1) reads. Only for static programs, and only where nothing else asks for readable names.
#include <cstddef>

extern "C" char* __cxa_demangle(const char*, char*, std::size_t*, int* status) {
    if (status != nullptr) *status = -2;  // "not a mangled name": the caller shows it as it is
    return nullptr;
}
