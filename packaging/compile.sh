#!/bin/sh
# compile.sh FOLDER PROGRAMS -- COMPILER...: what must compile for a system that cannot be run here: the definitions, the
# header-only form, and the programs.
set -eu
folder=$1
programs=$2
shift 3
mkdir -p "$folder"
"$@" -DOJS_SHUTDOWN_SEPARATE=1 -c tests/link/implementation.cpp -o "$folder/implementation.o"
"$@" -c examples/hello_worker.cpp -o "$folder/hello_worker.o"
for program in $programs; do
    "$@" -DOJS_SHUTDOWN_SEPARATE=1 -c "$program" -o "$folder/program.o"
done
