// library: ojs_shutdown.hpp, with its server.
#pragma once
#define OJS_SHUTDOWN_SERVER 1
#include "ojs_shutdown.hpp"
