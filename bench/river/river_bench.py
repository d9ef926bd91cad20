#!/usr/bin/env python3
"""Jobs a second from a River queue, of jobs that do nothing: river_worker, and the same statements in bare loops of libpq.
`make river-bench` runs this.

    river_bench.py [--jobs N] [--rounds N] [--no-fsync]

All work on one server, one after the other in each round; it prints medians over the rounds, and the spread. A time is
the database's, from the first claim to the last job that is done; the CPU is the worker's own, of the whole process.
"""

import argparse
import contextlib
import os
import signal
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/adapters"))
import postgres  # noqa: E402
from programs import BUILD, Program, eventually  # noqa: E402
from river import new_river, with_river  # noqa: E402

# What starts each, and its environment.
CONTESTANTS = {
    "bare loops: 10, a job at a time": ([BUILD / "river_bench", 10, 1], {}),
    "bare loops: 1, 10 jobs at a time": ([BUILD / "river_bench", 1, 10], {}),
    "bare loops: 2, 10 jobs at a time": ([BUILD / "river_bench", 2, 10], {}),
    "river_worker, concurrency 10": ([BUILD / "river_worker"], {"OJS_CONCURRENCY": "10"}),
    "river_worker, concurrency 100": ([BUILD / "river_worker"], {"OJS_CONCURRENCY": "100"}),
}


class Cleanups(contextlib.ExitStack):
    """What Program wants of a test."""

    addCleanup = contextlib.ExitStack.callback


def cpu_of_children():
    """In seconds, of those that were waited for."""
    now = os.times()
    return now.children_user + now.children_system


def measure(db, command, variables, jobs):
    """Jobs a second, and microseconds of CPU a job."""
    db.ask("TRUNCATE river_job, river_queue, river_leader")
    db.insert("noop", count=jobs, notify=False)
    for statement in ("VACUUM ANALYZE river_job", "VACUUM ANALYZE river_queue", "CHECKPOINT"):
        db.ask(statement)
    before = cpu_of_children()
    with Cleanups() as cleanups:
        worker = Program(cleanups, *command, DATABASE_URL=db.url(), **variables)

        def done():
            if worker.process.poll() not in (None, 0):
                sys.exit(f"{command}: {worker.said()}")
            # Asked rarely, and of an index: what asks takes from what is measured.
            return db.ask("SELECT NOT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running'))") == "t"

        while not eventually(lambda: done() or worker.process.poll() == 0 or time.sleep(0.1), 300):
            sys.exit(f"{command}: still at it after five minutes")
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
        worker.process.wait(60)
    used = cpu_of_children() - before
    assert db.states() == {"completed": jobs}, db.states()
    seconds = float(db.ask("SELECT extract(epoch FROM max(finalized_at) - min(attempted_at)) FROM river_job"))
    return jobs / seconds, used / jobs * 1e6


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=10000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--no-fsync", action="store_true")
    given = options.parse_args()
    if postgres.missing():
        sys.exit(f"skipped: {postgres.missing()}")
    found = {name: [] for name in CONTESTANTS}
    with Cleanups() as cleanups:
        server = with_river(cleanups.addCleanup, durable=not given.no_fsync, autovacuum="off", shared_buffers="256MB",
                            max_wal_size="4GB")
        db = new_river(server)
        for number in range(given.rounds):
            for name, (command, variables) in CONTESTANTS.items():
                found[name].append(measure(db, command, variables, given.jobs))
                print(f"round {number + 1}: {name}: {found[name][-1][0]:.0f} jobs/s", file=sys.stderr, flush=True)
        version = db.ask("SHOW server_version")
    print(f"PostgreSQL {version}, fsync {'off' if given.no_fsync else 'on'}, {os.cpu_count()} cores, "
          f"{given.jobs} jobs, {given.rounds} rounds")
    for name, runs in found.items():
        rates = [each for each, _ in runs]
        print(f"{name:34} {statistics.median(rates):7.0f} jobs/s  ({min(rates):.0f} to {max(rates):.0f})"
              f"  {statistics.median(cpu for _, cpu in runs):6.0f} us of CPU a job")


if __name__ == "__main__":
    main()
