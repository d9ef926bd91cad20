#!/bin/sh
# compile.sh COMPILER OBJECT: what must compile for a system that cannot be run here: both forms, and the examples.
set -eu
$1 -DOJS_SHUTDOWN_SEPARATE=1 -c tests/link/implementation.cpp -o "$2"
$1 -c examples/hello_worker.cpp -o "$2"
for source in examples/*.cpp tools/shutdown_probe/*.cpp; do
    $1 -DOJS_SHUTDOWN_SEPARATE=1 -c "$source" -o "$2"
done
