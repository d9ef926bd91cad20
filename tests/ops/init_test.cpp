// run_as_init with real processes: A is the init, made by a fork of this test; B is the program below it.
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "processes.hpp"
#include "raw_peer.hpp"

using test::pipe_ends;

namespace {
void send(int fd, int number) {
    if (::write(fd, &number, sizeof number) != sizeof number) ::_exit(90);
}

// -1 at the guard.
int receive(int fd) {
    int number = -1;
    return peer::readable(fd) && ::read(fd, &number, sizeof number) == sizeof number ? number : -1;
}

void die_with_parent() {
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
}

// A: `before` runs in it, then run_as_init(); `program` runs in B, and its value is B's exit status.
template <class Before, class Program>
pid_t start(Before before, Program program) {
    const pid_t init = ::fork();
    REQUIRE(init >= 0);
    if (init != 0) return init;
    die_with_parent();
#ifdef __linux__
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come to A, as they would to PID 1
#endif
    before();
    const pid_t a = ::getpid();
    const ojs::result<void> done = ojs::run_as_init({true});
    if (!done || ::getpid() == a) ::_exit(91);
    die_with_parent();
    ::_exit(program());
}

template <class Program>
int status_of(Program program) {
    return test::status_of(start([] {}, program));
}

sigset_t set_of(std::initializer_list<int> numbers) {
    sigset_t out;
    sigemptyset(&out);
    for (const int number : numbers) sigaddset(&out, number);
    return out;
}

const std::initializer_list<int> forwarded = {SIGTERM, SIGINT,  SIGTSTP, SIGTTIN, SIGTTOU, SIGHUP,
                                              SIGUSR1, SIGUSR2, SIGQUIT, SIGCONT, SIGWINCH};
}  // namespace

TEST_CASE("run_as_init: a call in a process other than PID 1 does nothing") {
    const pid_t self = ::getpid();
    CHECK(ojs::run_as_init());
    CHECK(::getpid() == self);
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
    CHECK(errno == ECHILD);
}

TEST_CASE("run_as_init: a call after signals were installed is refused with busy") {
    ojs::lifecycle lifecycle;
    const auto claimed = ojs::signals::install(lifecycle);
    REQUIRE(claimed);
    CHECK(test::code_of(ojs::run_as_init({true})) == ojs::errc::busy);
}

TEST_CASE("run_as_init: the init exits with the status of the program, or 128+n if a signal ended the program") {
    for (const int status : {0, 1, 75, 255}) CHECK(status_of([=] { return status; }) == status);
    for (const int number : {SIGKILL, SIGTERM, SIGHUP}) {
        CHECK(status_of([=] {
                  ::signal(number, SIG_DFL);  // nohup leaves SIGHUP ignored
                  ::kill(::getpid(), number);
                  return 0;
              }) == 128 + number);
    }
}

#ifdef __linux__  // elsewhere orphans go to the real PID 1

// In B: a process that runs `body` after its parent has ended.
template <class Body>
pid_t orphan(Body body) {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(93);
    const pid_t child = ::fork();
    if (child == 0) {
        const pid_t parent = ::getpid();
        const pid_t grandchild = ::fork();
        if (grandchild == 0) {
            while (::getppid() == parent) ::sched_yield();
            ::_exit(body());
        }
        send(ends[1], grandchild);
        ::_exit(4);
    }
    if (test::status_of(child) != 4) ::_exit(94);
    return receive(ends[0]);
}

TEST_CASE("run_as_init: orphans are reaped while the program runs") {
    CHECK(status_of([] {
              for (int i = 0; i < 20; ++i) {
                  const pid_t pid = orphan([] { return 3; });
                  if (!test::eventually([pid] { return ::kill(pid, 0) != 0 && errno == ESRCH; })) return 95;
              }
              return 0;
          }) == 0);
}

TEST_CASE("run_as_init: a running orphan does not keep the init from exiting with the program") {
    const pipe_ends end;  // closed with the test, which ends the orphan
    CHECK(status_of([&] {
              ::close(end.writer());
              orphan([&] {
                  char byte = 0;
                  return ::read(end.reader(), &byte, 1) == 0 ? 0 : 1;
              });
              return 6;
          }) == 6);
}

#endif

TEST_CASE("run_as_init: signals are forwarded to the program") {
    sigset_t all = set_of(forwarded);
    for (const int number : forwarded) {
        for (const bool is_pending : {false, true}) {  // before the program exists
            CAPTURE(number);
            CAPTURE(is_pending);
            const pipe_ends report;
            const pid_t init = start(
                [&] {
                    ::sigprocmask(SIG_BLOCK, &all, nullptr);
                    if (is_pending) ::raise(number);
                },
                [&] {
                    send(report.writer(), 0);
                    int taken = 0;
                    ::sigwait(&all, &taken);
                    send(report.writer(), taken);
                    return 5;
                });
            CHECK(receive(report.reader()) == 0);
            if (!is_pending) ::kill(init, number);
            CHECK(receive(report.reader()) == number);
            ::kill(init, SIGKILL);
            test::status_of(init);
        }
    }
}

TEST_CASE("run_as_init: the program starts with the signal mask and SIGCHLD disposition of its caller") {
    const auto sees = [](bool blocked, void (*on_child)(int)) {
        return [=] {
            sigset_t mask;
            ::sigprocmask(SIG_SETMASK, nullptr, &mask);
            struct sigaction found {};
            ::sigaction(SIGCHLD, nullptr, &found);
            const bool right = sigismember(&mask, SIGUSR1) == (blocked ? 1 : 0) && sigismember(&mask, SIGTERM) == 0;
            return right && found.sa_handler == on_child ? 8 : 97;
        };
    };
    CHECK(test::status_of(start([] {}, sees(false, SIG_DFL))) == 8);
    CHECK(test::status_of(start(
              [] {
                  sigset_t some = set_of({SIGUSR1});
                  ::sigprocmask(SIG_BLOCK, &some, nullptr);
                  ::signal(SIGCHLD, SIG_IGN);  // statuses would be dropped, the program's among them
              },
              sees(true, SIG_IGN))) == 8);
}

#if OJS_SHUTDOWN_USE_PROC
TEST_CASE("run_as_init: the process name of the init is ojs-init, and the program keeps its own name") {
    CHECK(status_of([] {
              const auto is_init = [](pid_t pid) {
                  std::string name;
                  std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
                  return name == "ojs-init";
              };
              const bool is_named = test::eventually([&] { return is_init(::getppid()); }, 20s);
              return is_named && !is_init(::getpid()) ? 3 : 97;
          }) == 3);
}
#endif
