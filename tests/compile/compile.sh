#!/bin/sh
# compile.sh FILE COMMAND...: accept_*.cpp must compile, without a warning; reject_*.cpp must not, and the compiler must
# say the text of its line "// expect: TEXT", so that it fails for the reason meant. "// flags: ..." adds flags.
# guard_*.cpp is compiled with each header as HEADER, and ends at the first error.
file=$1
shift
flags=$(sed -n 's,^// flags: ,,p' "$file")
expect=$(sed -n 's,^// expect: ,,p' "$file")

compile() {
    # $flags is a list of words.
    output=$("$@" -fsyntax-only -Wall -Wextra -Wundef -Werror $flags "$file" 2>&1)
    status=$?
}
refused() {
    [ "$status" -ne 0 ] && [ -n "$expect" ] && printf '%s' "$output" | grep -qF -- "$expect" && return
    echo "$file must be refused with '$expect'; the compiler exits $status and says:"
    printf '%s\n' "$output"
    exit 1
}

case $file in
    */accept_*)
        compile "$@"
        [ "$status" -eq 0 ] && exit 0
        echo "$file does not compile:"
        printf '%s\n' "$output"
        exit 1
        ;;
    */guard_*)
        for header in ojs_shutdown.hpp extensions/*.hpp; do
            compile "$@" -Wfatal-errors "-DHEADER=\"$header\""
            refused
        done
        ;;
    *)
        compile "$@"
        refused
        ;;
esac
