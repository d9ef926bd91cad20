// Linked with other_version.cpp, which holds the header in another version: the two share neither functions nor state. The
// Makefile sees to it that no symbol of the library is in both files.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <ojs_shutdown.hpp>

const char* other_version();
int other_phase();
bool other_install(bool chain_foreign);
bool other_install_is_busy();
void other_uninstall();
int other_runs_a_job();

namespace {

int failures = 0;

void check(bool holds, const char* what) {
    if (holds) return;
    std::puts(what);
    ++failures;
}

struct sigaction term_action() {
    struct sigaction out {};
    ::sigaction(SIGTERM, nullptr, &out);
    return out;
}

// The exit status of a child that does this, or minus the signal that ended it.
template <class Do>
int in_child(Do what) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(what());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Ours first, theirs on top: to them ours is a foreign handler.
void check_signals() {
    ojs::lifecycle life(std::chrono::milliseconds(0));
    {
        ojs::result<ojs::signals> ours = ojs::signals::install(life);
        check(ours.has_value(), "cannot install");
        check(other_install_is_busy(), "the other version took signals that have a handler");
        check(other_install(true), "the other version cannot chain");
        ::raise(SIGTERM);
        check(life.phase() == ojs::phase::draining, "the other version did not chain to ours");
        check(other_phase() == 2, "the other version has not seen the signal");
        check(life.state().stop_signals == 1, "one signal came twice");
        check(in_child([] {
                  ::raise(SIGTERM);
                  return 1;
              }) == -SIGTERM,
              "a child does not die of SIGTERM");
        check(in_child([&] {
                  ojs::lifecycle own;
                  const ojs::result<ojs::signals> again = ojs::signals::install(own);
                  ::raise(SIGTERM);
                  return again && own.phase() == ojs::phase::draining && other_phase() == 2 ? 0 : 1;
              }) == 0,
              "a child cannot claim the signals anew");
        other_uninstall();
        ::raise(SIGTERM);
        check(life.phase() == ojs::phase::stopping, "ours is not back after theirs went");
        check(other_phase() == 2, "theirs goes on after it went");
    }
    const struct sigaction left = term_action();
    check((left.sa_flags & SA_SIGINFO) == 0 && left.sa_handler == SIG_DFL, "a handler was left behind");
    check(other_install(false), "the other version cannot install where nobody has");
    ojs::result<ojs::signals> refused = ojs::signals::install(life);
    check(!refused && refused.error().code == ojs::errc::busy, "theirs is not foreign to us");
    other_uninstall();
}

}  // namespace

int main() {
    check(std::string(OJS_SHUTDOWN_VERSION) != other_version(), "the versions are the same");
    check_signals();
    check(other_runs_a_job() == 0, "the other version's worker failed");
    return failures == 0 ? 0 : 1;
}
