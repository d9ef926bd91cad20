// scenarios: the table of what the probe does to a worker.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "verdicts.hpp"

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

// A verdict about one requirement, from one scenario.
struct finding {
    std::string id;
    std::string scenario;
    verdict what;
    std::vector<std::string> last_lines;  // of the worker's output, where it fails
};

// The worker's command, and the verdicts of all scenarios. Thread-safe.
class findings {
  public:
    explicit findings(std::vector<std::string> command) : command_(std::move(command)) {}
    const std::vector<std::string>& command() const { return command_; }
    void add(finding one);
    std::vector<finding> all() const;
    void measured(const std::string& name, double ms);
    std::map<std::string, std::vector<double>> figures() const;

  private:
    const std::vector<std::string> command_;
    mutable std::mutex mutex_;
    std::vector<finding> all_;
    std::map<std::string, std::vector<double>> figures_;
};

struct scenario {
    const char* name;
    const char* what;
    std::vector<const char*> judges;  // ids of requirements
    void (*play)(findings&);
    bool in_background;  // it mostly waits: runs beside the others
};
extern const std::vector<scenario> scenarios;

}  // namespace probe
