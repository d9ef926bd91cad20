#!/bin/sh
# emulate.sh EMULATOR PROGRAM [OPTION]...: the unit tests of another processor, without those of what qemu-user lacks.
set -eu
skip() {
    echo "skipped: $1: $2"
    skipped="${skipped:+$skipped,}$1"
}
skip 'as_init: orphans are reaped while the program runs' 'PR_SET_CHILD_SUBREAPER is an error'
skip 'signals: every configured stop signal*' 'the last real-time signals cannot be sent'
skip 'result: reading the value of a failed result*' 'abort() writes a line of the emulator'
skip 'draining server: a connection that is idle or whose request was refused*' 'the memory is that of the emulator too'
# Two minutes of an emulated processor, and nothing of its own.
case $* in */portable*)
    skip 'json: is_json() accepts*' 'in make portability'
    skip 'spool: random names*' 'in make portability' ;;
esac
# By name, as then the cases of as_init come early: they fork by the hundred, against a guard of 20 s. qemu-user keeps 170 kB
# for each thread that ever was, and a fork copies the table of all those pages: 1 ms in the beginning, 100 ms in the end.
exec "$@" --order-by=name --test-case-exclude="$skipped"
