// doctest's main, shared by all test programs. Its signal handlers stay out of the way of the ones under test.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <doctest/doctest.h>

#include <cstdio>

// By the line, also into a pipe: what was said before a crash is not lost, nor said twice after a fork.
[[maybe_unused]] static const int line_buffered = std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
