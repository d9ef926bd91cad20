#!/bin/sh
# variants.sh FOLDER COMMAND...: the headers that amalgamate.py can make besides the committed ones compile alone, and the
# extensions in any order.
set -eu
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/flat"
compile() { "$@" -fsyntax-only -Wall -Wextra -Werror -I"$folder" -Itests/compile/no_picojson tests/compile/accept_twice.cpp; }
make_header() { python3 tools/amalgamate.py --output "$folder/ojs_shutdown.hpp" "$@"; }

# Every layer of the main header, with no more than what it needs, which is never picojson.
for layer in $(python3 -B -c 'import sys; sys.path.append("tools"); import amalgamate; print(*amalgamate.PRODUCTS["shutdown"][0])'); do
    make_header --modules "$layer"
    compile "$@"
done

# With picojson inside, for its values without its file. Its warnings are its own.
picojson=$(echo '#include <picojson.h>' | "$@" -x c++ -M - | tr -s ' \\' '\n' | grep 'picojson\.h$')
make_header --bundle-picojson "$picojson"
"$@" -fsyntax-only -Itests/compile/no_picojson -include "$folder/ojs_shutdown.hpp" -x c++ tests/compile/picojson_values.hpp

# One file with every extension in it.
make_header --all
compile "$@"

# All headers copied into one folder: each extension alone, then all of them, from the last to the first and again.
cp ojs_shutdown.hpp extensions/*.hpp "$folder/flat"
# Those that want a library of their own, or a later C++, are compiled by their tests.
own=$(cd extensions && ls | grep -v -e tls -e river -e amqp -e redis_streams -e stop_token)
for header in $own; do
    printf '#include "%s"\n' "$header" | "$@" -fsyntax-only -Wall -Wextra -Werror -I"$folder/flat" -Itests/compile/no_picojson -x c++ -
done
printf '#include "%s"\n' $(printf '%s\n' $own | sort -r) $own |
    "$@" -fsyntax-only -Wall -Wextra -Werror -I"$folder/flat" -x c++ -
# Another version is refused, by both names.
sed 's/^#define OJS_SHUTDOWN_VERSION_MINOR .*/#define OJS_SHUTDOWN_VERSION_MINOR 99/' ojs_shutdown.hpp >"$folder/flat/ojs_shutdown.hpp"
if printf '#include "ojs_server.hpp"\n' | "$@" -fsyntax-only -I"$folder/flat" -x c++ - 2>"$folder/refusal"; then
    echo "ojs_server.hpp takes an ojs_shutdown.hpp of another version"
    exit 1
fi
grep -q 'error.*ojs_server.hpp 0.*ojs_shutdown.hpp' "$folder/refusal"

# Without the definitions the linker names the macro; a C++ that is too old ends with that line.
source='#include "ojs_shutdown.hpp"
int main() {}'
if echo "$source" | "$@" -DOJS_SHUTDOWN_SEPARATE -I. -x c++ - -o "$folder/missing" 2>"$folder/refusal"; then
    echo "a program without the definitions links"
    exit 1
fi
grep -q 'define_OJS_SHUTDOWN_IMPLEMENTATION_in_one_source_file' "$folder/refusal"
if echo "$source" | "$@" -std=c++14 -fsyntax-only -I. -x c++ - 2>"$folder/refusal"; then
    echo "C++14 compiles it"
    exit 1
fi
grep -q 'needs C++17' "$folder/refusal"
[ "$(grep -c 'error: ' "$folder/refusal")" = 2 ]
