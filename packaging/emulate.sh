#!/bin/sh
# emulate.sh EMULATOR PROGRAM [OPTION]...: the unit tests of another processor, all of them.
set -eu
# By name, as then the cases of as_init come early: they fork by the hundred, against a guard of 20 s. qemu-user keeps 170 kB
# for each thread that ever was, and a fork copies the table of all those pages: 1 ms in the beginning, 100 ms in the end.
exec "$@" --order-by=name
