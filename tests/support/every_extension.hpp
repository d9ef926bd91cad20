// The library with every extension that needs no other library.
#pragma once
#include <ojs_launcher.hpp>
#include <ojs_server.hpp>
