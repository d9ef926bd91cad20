// doctest's main, shared by all test programs. Its signal handlers stay out of the way of the ones under test.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <cstdio>

// By the line, also into a pipe: what was said before a crash is not lost, nor said twice after a fork.
[[maybe_unused]] static const int line_buffered = std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);

// Started without standard input (some build daemons do that), a test's own file would be number 0, which means another
// thing to the programs it starts.
static void occupy_standard_streams() {
    for (int fd = 0; fd <= 2; ++fd) {
        if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
    }
}

// A shell ignores SIGINT for what it starts in the background, nohup SIGHUP, and a test runner may block what it likes.
static void restore_signals() {
    for (const int number :
         {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGTTIN, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE})
        ::signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

#ifdef __SANITIZE_THREAD__
// A std::mutex, which only the tests have, is never destroyed as far as ThreadSanitizer sees: two on the same stack address
// are one to it, and are taken in any order.
extern "C" const char* __tsan_default_suppressions() { return "deadlock:std::mutex::lock\n"; }
#endif

int main(int argc, char** argv) {
    occupy_standard_streams();
    restore_signals();
    // Never destroyed: a handler that a test left behind may still be on its way out of a CHECK.
    static doctest::Context& context = *new doctest::Context(argc, argv);
    return context.run();
}
