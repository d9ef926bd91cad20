#!/bin/sh
# compile.sh FILE COMMAND...: accept_*.cpp must compile, without a warning; reject_*.cpp must not, and the compiler must
# say the text of its line "// expect: TEXT", so that it fails for the reason meant. "// flags: ..." adds flags.
file=$1
shift
flags=$(sed -n 's,^// flags: ,,p' "$file")
expect=$(sed -n 's,^// expect: ,,p' "$file")
# $flags is a list of words.
output=$("$@" -fsyntax-only -Wall -Wextra -Wundef -Werror $flags "$file" 2>&1)
status=$?
case $file in
    */accept_*)
        [ "$status" -eq 0 ] && exit 0
        echo "$file does not compile:"
        ;;
    *)
        [ "$status" -ne 0 ] && [ -n "$expect" ] && printf '%s' "$output" | grep -qF -- "$expect" && exit 0
        echo "$file must be refused with '$expect'; the compiler exits $status and says:"
        ;;
esac
printf '%s\n' "$output"
exit 1
