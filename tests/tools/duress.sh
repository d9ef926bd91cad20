#!/bin/bash
# duress.sh KIND PROGRAM [ARGUMENT...]: runs a test program on a machine that is slow, busy, still or bare. Its output and
# exit status are the program's own. Kinds:
#   busy      beside 100 threads that never sleep
#   hogs      beside two processes that never sleep
#   user      as nobody, beside the same
#   quota     in a cgroup with 0.3 of a processor
#   freezes   stopped as a whole for 0.1 to 0.4 s, again and again
#   one-cpu   on one processor
#   bare      as nobody, no standard input, no IPv6, no /dev/pts, no /dev/shm, 512 descriptors at most
#
# `quota` and `freezes` need a cgroup that one may write to, `bare` needs root; where that is missing, it says so and exits
# with 77.
# What it starts and makes is gone when it ends.
set -u

usage() {
    sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,10p
    exit 64
}
skip() {
    echo "skipped: $1"
    exit 77
}
[ $# -ge 2 ] || usage
kind=$1
shift

helpers=()
group=
clean_up() {
    [ ${#helpers[@]} -eq 0 ] || kill "${helpers[@]}" 2>/dev/null
    wait
    [ -z "$group" ] || rmdir "$group" 2>/dev/null
}
trap clean_up EXIT

# A new cgroup with $1 (a controller of version 1, or a file of version 2), its path in $group.
make_group() {
    local parent
    for parent in "/sys/fs/cgroup/$1" /sys/fs/cgroup/unified /sys/fs/cgroup; do
        group=$parent/ojs-duress-$$
        mkdir "$group" 2>/dev/null || continue
        [ ! -e "$group/$2" ] && [ ! -e "$group/$3" ] || return 0
        rmdir "$group"
    done
    group=
    skip "no private cgroup can be made here"
}
# Runs the program in $group: the shell that becomes it goes there first.
run_in_group() {
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# beside COUNT PROGRAM...: beside that many processes that never sleep.
beside() {
    local i
    for ((i = 0; i < $1; i++)); do
        # Ends by itself should we be killed: no later than that.
        timeout 1800 bash -c 'while :; do :; done' &
        helpers+=($!)
    done
    shift
    "$@"
}
as_nobody=()
[ "$(id -u)" -ne 0 ] || as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/)

quota() {
    make_group cpu cpu.max cpu.cfs_quota_us
    if [ -e "$group/cpu.max" ]; then
        echo "30000 100000" >"$group/cpu.max"
    else
        echo 100000 >"$group/cpu.cfs_period_us"
        echo 30000 >"$group/cpu.cfs_quota_us"
    fi
    run_in_group "$@"
}

freeze_now_and_then() {
    local file=$group/cgroup.freeze on=1 off=0
    [ -e "$file" ] || file=$group/freezer.state on=FROZEN off=THAWED
    trap 'echo $off >"$file"; exit' TERM
    while :; do
        sleep "$((RANDOM % 2)).$((2 + RANDOM % 8))"
        echo $on >"$file"
        sleep "0.$((1 + RANDOM % 4))"
        echo $off >"$file"
    done
}
freezes() {
    make_group freezer cgroup.freeze freezer.state
    freeze_now_and_then &
    helpers+=($!)
    run_in_group "$@"
}

bare() {
    # Namespaces of its own, so that nothing of the machine changes.
    local inside='
        ip link set lo up
        echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
        mount -t tmpfs -o mode=755 none /dev/shm && mount -o remount,ro /dev/shm
        mount --bind /dev/null /dev/ptmx
        ulimit -n 512  # with less a launcher of a few processes refuses to begin
        exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all "$@" <&-'
    unshare --net --mount true 2>/dev/null || skip "no private namespaces can be made here"
    unshare --net --mount sh -c "$inside" sh "$@"
}

case $kind in
    busy) beside 100 "$@" ;;
    hogs) beside 2 "$@" ;;
    user) beside 2 "${as_nobody[@]}" "$@" ;;
    quota | freezes | bare) "$kind" "$@" ;;
    one-cpu) taskset -c 0 "$@" ;;
    *) usage ;;
esac
