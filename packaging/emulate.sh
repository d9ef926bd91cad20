#!/bin/sh
# emulate.sh EMULATOR PROGRAM [OPTION]...: the unit tests of another processor, but for those that emulation is unfit for.
set -eu
# Under emulation a fork takes up to 100 ms. These make hundreds or thousands, against a guard of 20 s.
exec "$@" --test-case-exclude='as_init: a signal in the first moments is never lost,as_init: a status the program waits for*'
