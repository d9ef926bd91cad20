// schemas: what the published JSON Schemas of OJS allow in the bodies a worker sends.
#pragma once
#include <string>

#include "recorder.hpp"

namespace probe {

// Why a body does not fit its schema; empty if it does.
std::string schema_fault(kind what, const std::string& body);

}  // namespace probe
