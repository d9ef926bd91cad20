// What every unit test includes: doctest, and the library as a user sees it.
#pragma once
#include <doctest/doctest.h>
#include <ojs_shutdown.hpp>
