// restricted COMMAND...: runs it as systemd does under SystemCallFilter=~@resources, where one of these system calls ends the
// process with SIGSYS.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
    constexpr long resources[] = {SYS_ioprio_set,
                                  SYS_mbind,
                                  SYS_migrate_pages,
                                  SYS_move_pages,
                                  SYS_sched_setattr,
                                  SYS_sched_setaffinity,
                                  SYS_sched_setparam,
                                  SYS_setpriority,
                                  SYS_set_mempolicy,
                                  SYS_sched_setscheduler
#ifdef SYS_setrlimit
                                  ,
                                  SYS_setrlimit
#endif
    };
    std::vector<sock_filter> rules = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const long number : resources) {
        rules.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
        rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    }
    rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog filter{static_cast<unsigned short>(rules.size()), rules.data()};
    if (argc < 2 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        std::puts("no seccomp");
        return 77;
    }
    ::execv(argv[1], argv + 1);
    return 70;
}
