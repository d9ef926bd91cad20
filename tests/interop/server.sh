#!/bin/sh
# ojs_server.py against a server that runs, or against dev_backend. `make server-test` and `make interop-test` run this:
#
#     server.sh BUILD [URL]    the folder with worker and dev_backend
set -eu
BUILD=$(realpath "$1")
HERE=$(dirname "$(realpath "$0")")
[ -z "${2:-}" ] || exec python3 -B "$HERE/ojs_server.py" --worker "$BUILD/worker" "$2"

LOG=$(mktemp)
"$BUILD/dev_backend" --port 0 --quiet >"$LOG" 2>&1 &
BACKEND=$!
trap 'kill $BACKEND; wait $BACKEND 2>/dev/null || true; rm "$LOG"' EXIT
until AT=$(sed -n 's/^listening on //p' "$LOG" | grep .); do
    kill -0 $BACKEND || { cat "$LOG" >&2; exit 1; }
done
# A killed worker costs a job an attempt there.
python3 -B "$HERE/ojs_server.py" --worker "$BUILD/worker" --unsaid 1 "http://$AT"
