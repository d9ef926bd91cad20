#!/bin/sh
# compile.sh FILE COMMAND...: accept_*.cpp must compile, without a warning; reject*.cpp must not, and for each line with
# "// expect: TEXT" the compiler must name that line and say the text. "// flags: ..." adds flags.
# guard_*.cpp is compiled with each header as HEADER, and ends at the first error.
file=$1
shift
flags=$(sed -n 's,^// flags: ,,p' "$file")

compile() {
    # $flags is a list of words.
    output=$("$@" -fsyntax-only -Wall -Wextra -Wundef -Werror $flags "$file" 2>&1)
    status=$?
}
fail() {
    echo "$file: $1; the compiler exits $status and says:"
    printf '%s\n' "$output"
    exit 1
}
# In the compiler's words, not in the lines of source that it quotes.
says() { printf '%s\n' "$output" | grep -v '^ *[0-9]* *|' | grep -cF -- "$1"; }
refused() {
    [ "$status" -ne 0 ] || fail "must be refused"
    expected=$(grep -n '// expect: ' "$file")
    [ -n "$expected" ] || fail "expects nothing"
    while IFS= read -r line; do
        text=${line##*// expect: }
        [ "$(says "$text")" -ge "$(grep -cF "// expect: $text" "$file")" ] || fail "must be refused with '$text'"
        case $file in */guard_*) continue ;; esac
        [ "$(says "$file:${line%%:*}:")" -ge 1 ] || fail "line ${line%%:*} must be refused"
    done <<END
$expected
END
}

case $file in
    */accept_*)
        compile "$@"
        [ "$status" -eq 0 ] || fail "must compile"
        ;;
    */guard_*)
        for header in ojs_shutdown.hpp extensions/*.hpp; do
            compile "$@" -Wfatal-errors "-DHEADER=\"$header\""
            refused
        done
        ;;
    *)
        case $("$@" --version) in *clang*) set -- "$@" -ferror-limit=0 ;; esac  # else it stops after 20
        compile "$@"
        refused
        ;;
esac
