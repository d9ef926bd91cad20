// What every unit test includes: doctest, and the library as a user sees it, with its extensions.
#pragma once
#include <doctest/doctest.h>

#include "every_extension.hpp"
