// scenarios: the table of what the probe does to a worker.
#pragma once
#include <string>
#include <vector>

#include "report.hpp"

namespace probe {
struct named_check {
    const char* id;
    harm costs;
    const char* what;
};
extern const std::vector<named_check> all_checks;

// Thrown when the probe itself cannot work: no port, no process.
struct cannot_work {
    std::string why;
};

struct scenario {
    const char* name;
    const char* what;
    std::vector<const char*> judges;  // ids of checks
    void (*play)(findings&);
    bool in_background;                     // it mostly waits: runs beside the others
    const char* concurrency_for = nullptr;  // why it needs several jobs at a time; null: it does not
};
extern const scenario handshake;  // before all others: whether there is something to judge
extern const std::vector<scenario> scenarios;
}  // namespace probe
