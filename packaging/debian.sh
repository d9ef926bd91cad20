#!/bin/sh
# Runs a command in /src, this source tree, inside an image of Debian 13:
#
#     debian.sh FOLDER COMMAND...
#
# FOLDER is the image, its only writable part. What is not there is made, from the archive that this machine's apt uses.
set -eu
image=$1
shift
if [ "$(id -u)" -ne 0 ]; then
    echo "only root can make and enter the image"
    exit 77
fi
if [ ! -d "$image" ]; then
    # shellcheck disable=SC2016  # apt's own
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
    rm -rf "$image.new"
    mmdebstrap -q --variant=essential --include=g++,clang,make,python3,doctest-dev,picojson-dev trixie "$image.new" "$archive"
    mkdir "$image.new/src"
    mv "$image.new" "$image"
fi
# The mounts end with the command.
exec unshare --mount --pid --fork --kill-child sh -euc '
    mount --bind . "$0/src" && mount -o remount,bind,ro "$0/src"
    mount -t tmpfs tmpfs "$0/tmp" && mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev"
    exec chroot "$0" env -C /src "$@"' "$image" "$@"
