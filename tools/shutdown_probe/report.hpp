// report: a line for each check once it is judged; then all by what a failure costs, and as JSON and JUnit.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "verdicts.hpp"

namespace probe {
// What users have from a failed check, the worst first.
enum class harm { lost, doubled, late, comfort };

// One check over all scenarios: it fails if it fails in one of them.
struct check {
    std::string id;
    harm costs = harm::lost;
    std::string what;
    std::vector<std::string> pending;  // scenarios that have not judged it yet
    bool judged = false;
    std::string scenario;  // whose verdict counts
    verdict result;
};

// The worker's command, and the verdicts of all scenarios. Thread-safe.
class findings {
  public:
    findings(std::vector<std::string> command, std::vector<check> checks)
        : command_(std::move(command)), checks_(std::move(checks)) {}

    const std::vector<std::string>& command() const { return command_; }
    // Prints the check if no other scenario is left to judge it.
    void add(const std::string& id, const std::string& scenario, const verdict& what);
    // Adds that verdict to all checks which the scenario has not judged.
    void add_pending(const std::string& scenario, const verdict& what);
    void measured(const std::string& name, double ms);
    // The worker runs one job at a time. Call before a scenario runs in the background; prints a note.
    void note_serial();
    bool serial() const { return serial_; }
    int count(verdict::kind what) const;

    // Ends the collection: from now on, every other thread that calls a member blocks.
    void close() { mutex_.lock(); }
    // Prints the report: checks below their headings, sums, what to fix first. `interrupted`: by that signal, or 0.
    bool print_end(double took, int interrupted);
    std::string as_json(double took, int interrupted) const;
    std::string as_junit(double took) const;

    static const char* name_of(harm costs);

  private:
    std::vector<check> judged() const;

    const std::vector<std::string> command_;
    bool serial_ = false;
    mutable std::recursive_mutex mutex_;  // guards what follows
    std::vector<check> checks_;
    std::map<std::string, std::vector<double>> figures_;
};
}  // namespace probe
