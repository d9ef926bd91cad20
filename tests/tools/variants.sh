#!/bin/sh
# variants.sh FOLDER COMMAND...: the headers that amalgamate.py can make besides the committed one compile alone.
set -eu
folder=$1
shift
compile() { "$@" -fsyntax-only -Wall -Wextra -Werror -I"$folder" tests/compile/accept_twice.cpp; }
make_header() { python3 tools/amalgamate.py --output "$folder/ojs_shutdown.hpp" "$@"; }
mkdir -p "$folder"

# Every room, with no more than what it needs; the lowest three do without picojson.
for room in base core system net server worker launcher; do
    [ -d "src/ojs/$room" ] || continue
    make_header --modules "$room"
    case $room in
        base | core | system) compile "$@" -Itests/compile/no_picojson ;;
        server) compile "$@" -DOJS_SHUTDOWN_SERVER=1 ;;
        launcher) compile "$@" -DOJS_SHUTDOWN_LAUNCHER=1 ;;
        *) compile "$@" ;;
    esac
done

# A single file: the same with picojson inside, on an include path that has none. Its warnings are its own.
picojson=$(echo '#include <picojson.h>' | "$@" -x c++ -M - | tr -s ' \\' '\n' | grep 'picojson\.h$')
make_header --bundle-picojson "$picojson"
"$@" -fsyntax-only -I"$folder" -Itests/compile/no_picojson tests/compile/accept_twice.cpp
