// scenarios: the table of what the probe does to a worker.
#pragma once
#include <string>
#include <vector>

#include "report.hpp"

namespace probe {

struct requirement {
    const char* id;
    const char* what;
};
extern const std::vector<requirement> requirements;

// Thrown when the probe itself cannot work: no port, no process.
struct cannot_work {
    std::string why;
};

struct scenario {
    const char* name;
    const char* what;
    std::vector<const char*> judges;  // ids of requirements
    void (*play)(findings&);
    bool in_background;  // it mostly waits: runs beside the others
};
extern const scenario handshake;  // before all others: whether there is something to judge
extern const std::vector<scenario> scenarios;

}  // namespace probe
