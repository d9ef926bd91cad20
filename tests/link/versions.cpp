// Linked with other_version.cpp, which holds the header in another version: the two share neither functions nor state. The
// Makefile sees to it that no symbol of the library is in both files.
#include <signal.h>

#include <cstdio>
#include <ojs_shutdown.hpp>

const char* other_version();
bool other_install();
int other_runs_a_job();

namespace {
int failures = 0;

void check(bool holds, const char* what) {
    if (holds) return;
    std::puts(what);
    ++failures;
}

// To them ours is a foreign handler.
void check_signals() {
    ojs::lifecycle life(std::chrono::milliseconds(0));
    const ojs::result<ojs::signals> ours = ojs::signals::install(life);
    check(ours.has_value(), "cannot install");
    check(!other_install(), "the other version took signals that have a handler");
    ::raise(SIGTERM);
    check(life.phase() == ojs::phase::draining, "ours does not drive its lifecycle");
}
}  // namespace

int main() {
    check(std::string(OJS_SHUTDOWN_VERSION) != other_version(), "the versions are the same");
    check_signals();
    check(other_runs_a_job() == 0, "the other version's worker failed");
    return failures == 0 ? 0 : 1;
}
