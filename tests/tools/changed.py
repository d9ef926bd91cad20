#!/usr/bin/env python3
"""Prints the parts of `make ci` that the change since the merge base needs, on one line.

    changed.py [BASE]

Without BASE, the change is that since the merge base with origin/main; on main itself, that of the last day, as `make nightly` runs
every part. Changes that are not committed count. Where the history is missing, every part is printed.
"""

import subprocess
import sys

# A part, and the beginnings of the paths that it depends on.
PARTS = {
    "queues": ("src/ojs/amqp/", "src/ojs/redis_streams/", "src/ojs/ledger/", "src/ojs/stop_token/", "examples/amqp", "examples/asio",
               "examples/grpc_drain", "examples/kafka", "examples/nats", "examples/redis", "tests/queues/", "tests/support/", "tests/libraries.mk"),
    "adapters": ("src/ojs/tls/", "src/ojs/river/", "examples/river", "examples/tls", "tests/adapters/", "tests/support/",
                 "tests/libraries.mk"),
    "container": ("src/ojs/coordinator/", "src/ojs/launcher/", "src/ojs/ops/", "src/ojs/process/", "src/ojs/server/", "src/ojs/spool/",
                  "tools/", "examples/deploy/", "packaging/", "tests/container/"),
    "packaging": ("CMakeLists.txt", "Makefile", "CHANGELOG.md", "tools/amalgamate.py", "tools/shutdown_probe/", "tools/worker",
                  "examples/deploy/", "packaging/", "tests/packaging/"),
}  # fmt: skip
# What every part depends on: the main header, and how the parts are chosen.
EVERY_PART = (*(f"src/ojs/{layer}/" for layer in ("base", "core", "host", "net", "loop", "worker")), ".ci/", "tests/tools/changed.py")


def parts_of(paths):
    """The parts that depend on one of these paths."""
    if any(path.startswith(EVERY_PART) for path in paths):
        return list(PARTS)
    return [part for part, beginnings in PARTS.items() if any(path.startswith(beginnings) for path in paths)]


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()


def base():
    """The commit before the change; "": the history does not have it."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        return ""
    merge_base = git("merge-base", "HEAD", "origin/main")
    return merge_base if merge_base != git("rev-parse", "HEAD") else git("rev-list", "-1", "--before=1 day ago", "HEAD")


def changed_paths(since):
    names = git("diff", "--name-only", since) + "\n" + git("ls-files", "--others", "--exclude-standard")
    return names.split("\n")


def main():
    try:
        since = sys.argv[1] if len(sys.argv) > 1 else base()
        parts = parts_of(changed_paths(since)) if since else list(PARTS)
    except (OSError, subprocess.CalledProcessError):  # no git, or no such commit
        parts = list(PARTS)
    print(*parts)


if __name__ == "__main__":
    main()
