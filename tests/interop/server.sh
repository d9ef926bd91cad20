#!/bin/sh
# server.sh BUILD [URL [LACKS...]]: ojs_server against the server at URL, or dev_backend (`make server-test`, `make interop-test`).
set -eu
BUILD=$(realpath "$1")
shift
[ -z "${1:-}" ] || exec "$BUILD/ojs_server" "$@"

LOG=$(mktemp)
"$BUILD/dev_backend" --port 0 --quiet >"$LOG" 2>&1 &
BACKEND=$!
trap 'kill $BACKEND; wait $BACKEND 2>/dev/null || true; rm "$LOG"' EXIT
until AT=$(sed -n 's/^listening on //p' "$LOG" | grep .); do
    kill -0 $BACKEND || { cat "$LOG" >&2; exit 1; }
done
"$BUILD/ojs_server" "http://$AT"
