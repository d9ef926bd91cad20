#!/bin/sh
# run.sh BUILD SUITES RUNNER: dev_backend against conformance suites (`make conformance`). RUNNER is that of openjobspec/ojs-conformance
# (runner/http): it prints a line for each case, "  L0-ENV-001     Valid minimal job     PASS     3ms", or FAIL, ERR or SKIP. Ends with
# "N passed, N failed"; failures that contradictions.txt explains do not count.
set -eu
BUILD=$(realpath "$1")
SUITES=$2 RUNNER=$3
HERE=$(dirname "$(realpath "$0")")
INTO=$BUILD/conformance
PASSED=0 FAILED=0

[ -n "$RUNNER" ] && [ -d "$SUITES" ] || {
    echo "usage: make conformance RUNNER='COMMAND' SUITE_DIR=DIR: the runner of ojs-conformance and its folder suites/" >&2
    exit 64
}
mkdir -p "$INTO"
"$BUILD/dev_backend" --port 0 --quiet --hyphens >"$INTO/backend.log" 2>&1 &
BACKEND=$!
trap 'kill $BACKEND; wait $BACKEND 2>/dev/null || true' EXIT
until URL=http://$(sed -n 's/^listening on //p' "$INTO/backend.log" | grep .); do
    kill -0 $BACKEND || { cat "$INTO/backend.log" >&2; exit 1; }
done

for suite in level-0-core level-1-reliable ext-graceful-shutdown; do
    # Not "$RUNNER": it may have arguments.
    $RUNNER -url "$URL" -reset-url "$URL/dev/reset" -suites "$SUITES/$suite" -verbose >"$INTO/$suite.log" || true
    grep -E '^  [A-Z0-9-]+ .* (PASS|FAIL|ERR|SKIP) +[0-9]+ms$' "$INTO/$suite.log" >"$INTO/$suite.cases" || {
        echo "FAILED: $suite: the runner printed no case, see $INTO/$suite.log"
        FAILED=$((FAILED + 1))
    }
    FAILED_HERE=0
    while read -r id rest; do
        case $rest in
            *" PASS "*) continue ;;
        esac
        FAILED_HERE=$((FAILED_HERE + 1))
        grep "^$id " "$HERE/contradictions.txt" || { FAILED=$((FAILED + 1)); echo "FAILED: $id $rest"; }
    done <"$INTO/$suite.cases"
    of=$(wc -l <"$INTO/$suite.cases")
    echo "$suite: $((of - FAILED_HERE)) of $of"
    PASSED=$((PASSED + of - FAILED_HERE))
done
echo "$PASSED passed, $FAILED failed"
[ $FAILED -eq 0 ]
