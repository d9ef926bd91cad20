// The child that the tests of the controller give it to start: child_job MODE FIFO JOB_FILE
//
// It opens FIFO for writing, keeps it open, and writes "MODE PID JOB_FILE" into it: so a reader there knows that it
// runs and, by the end of the stream, that it and all that it started are gone. MODE says what it does then:
//   finish  waits for a byte from FIFO.go, and exits with 0
//   fail    exits with 3
//   deaf    ignores SIGTERM, as does the grandchild it starts, and stays
//   obey    writes "SIGTERM" into FIFO on that signal, and exits with 0
#include <fcntl.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {
int out = -1;

void write_all(const std::string& text) {
    if (::write(out, text.data(), text.size()) < 0) ::_exit(90);
}

[[noreturn]] void stay() {
    for (;;) ::pause();
}

int finish(const std::string& fifo) {
    const int go = ::open((fifo + ".go").c_str(), O_RDONLY);
    char byte = 0;
    return go >= 0 && ::read(go, &byte, 1) == 1 ? 0 : 91;
}

int deaf() {
    ::signal(SIGTERM, SIG_IGN);
    int begun[2];
    if (::pipe(begun) != 0) return 92;
    if (::fork() == 0) {
        ::close(begun[0]);
        ::close(begun[1]);
        stay();
    }
    ::close(begun[1]);
    char byte = 0;
    if (::read(begun[0], &byte, 1) < 0) return 93;  // its end: the grandchild runs
    return 0;
}

void obey() {
    ::signal(SIGTERM, [](int) {
        if (::write(out, "SIGTERM\n", 8) < 0) ::_exit(94);
        ::_exit(0);
    });
}
}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 99;
    const std::string mode = argv[1];
    const std::string fifo = argv[2];
    out = ::open(fifo.c_str(), O_WRONLY);
    if (out < 0) return 98;
#ifdef PR_SET_PTRACER
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // a test holds it; it is not its parent
#endif
    if (mode == "deaf" && deaf() != 0) return 97;
    if (mode == "obey") obey();
    write_all(mode + " " + std::to_string(::getpid()) + " " + argv[3] + "\n");
    if (mode == "fail") return 3;
    if (mode == "finish") return finish(fifo);
    stay();
}
