#!/bin/sh
# run.sh PROGRAM SECONDS: fuzzes with one target for its share of SECONDS, which all targets have on all processors, from the
# committed seeds and what earlier runs found. What breaks a promise is kept as a file, and the last line says how to see it
# again.
set -u
program=$1
set -- tests/fuzz/corpus/* "$2"
targets=$(($# - 1))
shift $targets
seconds=$((($1 * $(getconf _NPROCESSORS_ONLN) + targets - 1) / targets))
name=$(basename "$program")
folder=$(dirname "$program")
found=$folder/corpus/$name
log=$folder/$name.log
mkdir -p "$found"
rm -f "$folder/$name"-*
# The limit for one input is no measure of speed: it tells one that never ends, also on a machine that stands still.
if "$program" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$folder/$name-" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    exit 0
fi
grep -v '^#[0-9]' "$log" | tail -n 80
for input in "$folder/$name"-*; do
    [ ! -e "$input" ] || echo "again: $program $input"
done
exit 1
