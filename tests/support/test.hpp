// What every unit test includes: doctest, and the library as a user sees it, with its leaf. The programs are compiled
// without that.
#pragma once
#define OJS_SHUTDOWN_LAUNCHER 1
#include <doctest/doctest.h>
#include <ojs_shutdown.hpp>
