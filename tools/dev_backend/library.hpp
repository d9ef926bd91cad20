// library: ojs_shutdown.hpp, with its server.
#pragma once
#include "ojs_server.hpp"
