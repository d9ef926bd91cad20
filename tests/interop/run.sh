#!/bin/sh
# run.sh BUILD: the coordinator and the launcher against programs that nobody here wrote (`make interop-test`). BUILD has
# lifecycle_runner, launcher and, where gRPC is installed, grpc_bridge. Ends with "N passed, N failed, N skipped". Status 77: node, or the packages of package.json, cannot be had here.
set -eu
BUILD=$(realpath "$1")
HERE=$(dirname "$(realpath "$0")")
REPOSITORY=$(realpath "$HERE/../..")
INTO=$BUILD/interop

leave_out() { echo "skipped: $1"; exit 77; }

for program in node npm; do
    command -v $program >/dev/null || leave_out "$program is missing: apt-get install nodejs npm"
done

mkdir -p "$INTO"
# Installed only if the list has changed, so that later runs need no network.
if ! cmp -s "$HERE/package.json" "$INTO/installed"; then
    rm -rf "$INTO/node_modules"
    cp "$HERE/package.json" "$INTO"
    (cd "$INTO" && npm install --no-package-lock --ignore-scripts --no-audit --no-fund) >"$INTO/npm.log" 2>&1 ||
        { tail -n 5 "$INTO/npm.log"; leave_out "npm could not install the packages of tests/interop/package.json"; }
    cp "$HERE/package.json" "$INTO/installed"
fi

# The tests stand beside node_modules, which is where node looks for packages.
cd "$INTO"
rm -rf generated ./*.mjs
cp "$HERE"/*.mjs "$HERE/buf.gen.yaml" .
BUF=$(ls "$INTO"/node_modules/@bufbuild/buf-*/bin/buf 2>/dev/null) || leave_out "buf has no program for $(uname -sm)"
PATH=$INTO/node_modules/.bin:$PATH "$BUF" generate "$REPOSITORY/examples/proto"

status=0
OJS_TEST_BUILD=$BUILD node --test --test-reporter=tap --test-concurrency=2 ./*.test.mjs >tap.log 2>&1 || status=$?
count() { sed -n "s/^# $1 //p" tap.log | tail -n 1; }
grep -E '^ *ok .*# SKIP' tap.log | sed 's/^ *ok [0-9]* - //' || true
failed=$(($(count fail) + $(count cancelled)))
[ $status -eq 0 ] && [ $failed -eq 0 ] || cat tap.log
echo "$(count pass) passed, $failed failed, $(count skipped) skipped"
exit $status
