// hold_signals: an entry point that blocks SIGTERM, SIGINT and SIGTSTP, then jumps to the usual one.
//
// For static programs that run as PID 1. The kernel discards a signal to PID 1 that is neither handled nor blocked, which
// is every SIGTERM before main() installs its handlers. A blocked signal stays pending, and is delivered when
// ojs::signals::install() unblocks it. These are the first instructions of the program; a constructor would run only after
// the C library's initialisation. A signal before the first instruction stays pending only if the parent process started
// the program with it blocked (env --block-signal).
//
// A program linked with this must call ojs::signals::install(); otherwise it never receives the three signals:
//
//     g++ -static ... worker.cpp hold_signals.S -Wl,-e,hold_signals

#include <asm/unistd.h>

        .text
        .balign 16
        .globl  hold_signals
        .type   hold_signals, %function
hold_signals:
// rt_sigprocmask(SIG_BLOCK, held, NULL, 8). Everything else must reach _start unchanged.
#if defined(__x86_64__) && !defined(__ILP32__)
        .cfi_startproc
        .cfi_undefined rip
        movq    %rdx, %r8               // a function for atexit, or null
        movl    $__NR_rt_sigprocmask, %eax
        xorl    %edi, %edi
        leaq    held(%rip), %rsi
        xorl    %edx, %edx
        movl    $8, %r10d
        syscall
        movq    %r8, %rdx
        jmp     _start
        .cfi_endproc
#elif defined(__aarch64__)
        .cfi_startproc
        .cfi_undefined x30
        mov     x9, x0                  // a function for atexit, or null
        mov     x8, #__NR_rt_sigprocmask
        mov     x0, #0
        adrp    x1, held
        add     x1, x1, :lo12:held
        mov     x2, #0
        mov     x3, #8
        svc     #0
        mov     x0, x9
        b       _start
        .cfi_endproc
#else
#error "not written for this processor: leave this file and -e out"
#endif
        .size   hold_signals, . - hold_signals

        .section .rodata
        .balign 8
held:   .quad   (1 << (2 - 1)) | (1 << (15 - 1)) | (1 << (20 - 1))  // SIGINT, SIGTERM, SIGTSTP

        .section .note.GNU-stack, "", %progbits
