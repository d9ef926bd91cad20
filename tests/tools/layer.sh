#!/bin/sh
# layer.sh FILE...: prints one source that holds all these tests: their includes first, then each file in a namespace of its
# own, so that helpers of the same name do not meet. The files lie below tests/, which the compiler is given with -I.
set -eu
for file in "$@"; do
    folder=$(dirname "${file#tests/}")
    # Another system may lack a header that a test includes under a condition.
    sed -n 's/^#include \(<.*>\).*/\1/p' "$file"
    sed -n 's/^#include "\(.*\)".*/\1/p' "$file" | while read -r own; do
        [ ! -e "tests/$folder/$own" ] || own=$folder/$own
        echo "\"$own\""
    done
done | LC_ALL=C sort -u | sed 's/.*/#if __has_include(&)\n#include &\n#endif/'
for file in "$@"; do
    echo "namespace in_$(basename "$file" .cpp) {"
    echo "#include \"${file#tests/}\""
    echo "}"
done
