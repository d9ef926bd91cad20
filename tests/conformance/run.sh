#!/bin/sh
# dev_backend against the published conformance suites, by their own runner. `make conformance CHECKOUT=DIR` runs this:
#
#     run.sh BUILD DIR    the folder with dev_backend, and a checkout of openjobspec/ojs-conformance
#
# Each case begins with a backend that knows no job. Ends with "N passed, N failed"; of those that fail, the ones in
# contradictions.txt, which also says why, do not count. Types with hyphens are taken, as the suites have them.
set -eu
BUILD=$(realpath "$1")
SUITES=$(realpath "$2")
HERE=$(dirname "$(realpath "$0")")
INTO=$BUILD/conformance
PASSED=0 FAILED=0

command -v go >/dev/null || { echo "error: go is missing: apt-get install golang" >&2; exit 1; }
mkdir -p "$INTO"
# Beside the runner's own files, without writing into the checkout.
cp "$SUITES/go.mod" "$SUITES/go.sum" "$INTO"
printf '{"Replace":{"%s":"%s"}}' "$SUITES/lib/zz_report.go" "$HERE/report.go" >"$INTO/overlay.json"
(cd "$SUITES" && go build -mod=mod -modfile="$INTO/go.mod" -overlay "$INTO/overlay.json" -o "$INTO/runner" ./runner/http)

"$BUILD/dev_backend" --port 0 --quiet --hyphens >"$INTO/backend.log" 2>&1 &
BACKEND=$!
trap 'kill $BACKEND; wait $BACKEND 2>/dev/null || true' EXIT
until URL=http://$(sed -n 's/^listening on //p' "$INTO/backend.log" | grep .); do
    kill -0 $BACKEND || { cat "$INTO/backend.log" >&2; exit 1; }
done

for suite in level-0-core level-1-reliable ext-graceful-shutdown; do
    "$INTO/runner" -url "$URL" -reset-url "$URL/dev/reset" -suites "$SUITES/suites/$suite" -verbose \
        >"$INTO/$suite.log" || true
    # "  L0-ENV-001     Valid minimal job     PASS     3ms"
    grep -E '^  [A-Z0-9-]+ .* (PASS|FAIL|ERR|SKIP) +[0-9]+ms$' "$INTO/$suite.log" >"$INTO/$suite.cases"
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
