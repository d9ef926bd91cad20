#!/usr/bin/env python3
"""Workers on one River queue that are stopped and killed at random while PostgreSQL restarts, in order and not, and then an
account of every job:

    river_chaos.py [--jobs N] [--seed N] [--workers N] [--neighbours N] [--seconds N] [--lease SECONDS]

The jobs are inserted over --seconds, by default a hundredth of their number.

Each job ends in the state that its handler decides, none runs in two processes at once, none is lost, and no attempt is reported
twice. Handlers write down when they begin and end, in a file that all processes append to. The neighbours are River's own
workers, where Go is installed; their killed jobs come back when River's leader finds them, a minute later.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import neighbour
import postgres
from postgres import literal
from programs import BUILD, Program, eventually
from river import new_river, with_river
from trace import Trace, note_kill

COMPLETED, CANCELLED, DISCARDED = "completed", "cancelled", "discarded"
# How many of a hundred, what becomes of them, and the queue: the neighbours do not know the kinds of the second one.
KINDS = {"noop": (50, COMPLETED, "default"), "sleep": (20, COMPLETED, "default"), "spin": (10, COMPLETED, "default"),
         "fail": (10, DISCARDED, "default"), "cancel": (5, CANCELLED, "default"), "discard": (5, DISCARDED, "ours")}


class Cleanups(contextlib.ExitStack):
    """What Program wants of a test."""

    def addCleanup(self, function, *arguments, **named):
        self.callback(function, *arguments, **named)


class Chaos:
    def __init__(self, cleanups, jobs, seed, workers=6, neighbours=0, seconds=None, lease=3):
        self.cleanups, self.choose, self.lease = cleanups, random.Random(seed), lease
        self.jobs, self.seconds = jobs, seconds or jobs / 100
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-chaos-"))
        self.trace_file = self.folder / "trace"
        self.server = with_river(cleanups.addCleanup, durable=True)
        self.db = new_river(self.server)
        self.expected, self.events, self.statuses = {}, Counter(), Counter()
        self.restarts_wanted = max(2, round(self.seconds / 8))
        self.leaving = []
        self.running = [self.worker(i >= workers) for i in range(workers + neighbours)]

    def worker(self, is_neighbour):
        if is_neighbour:
            started = neighbour.worker(self.cleanups, self.db, f"-trace={self.trace_file}", "-rescue-after=60s",
                                       "-cooldown=10ms")
        else:
            started = Program(self.cleanups, BUILD / "river_probe_worker", DATABASE_URL=self.db.url(),
                              OJS_QUEUES="default,ours", OJS_CONCURRENCY="10", OJS_POLL_INTERVAL="200ms",
                              OJS_VISIBILITY_TIMEOUT=f"{self.lease}s", OJS_HEARTBEAT_INTERVAL="200ms",
                              OJS_SHUTDOWN_GRACE_PERIOD="2s", RIVER_TEST_TRACE=str(self.trace_file))
        started.is_neighbour = is_neighbour
        return started

    def insert(self, count):
        rows = []
        for _ in range(count):
            kind = self.choose.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()])[0]
            ms = {"sleep": 60, "spin": 20}.get(kind)
            args = {"ms": self.choose.randrange(ms)} if ms else {}
            attempts = self.choose.randrange(1, 4) if kind == "fail" else 25
            priority = self.choose.randrange(1, 5)
            rows.append(f"({literal(kind)}, {literal(args)}::jsonb, {attempts}, {priority}, {literal(KINDS[kind][2])})")
        for row in self.db.rows("INSERT INTO river_job (kind, args, max_attempts, priority, queue) VALUES "
                                + ", ".join(rows) + " RETURNING id, kind"):
            self.expected[row["id"]] = KINDS[row["kind"]][1]
        for queue in ("default", "ours"):
            self.db.notify("river_insert", {"queue": queue})

    def bring_forward(self):
        """Nobody waits for the back-off of a failed job."""
        self.db.ask("UPDATE river_job SET scheduled_at = now() WHERE state IN ('available', 'retryable', 'scheduled') "
                    "AND scheduled_at > now()")

    def replace(self, how):
        gone = self.running.pop(self.choose.randrange(len(self.running)))
        self.running.append(self.worker(gone.is_neighbour))
        self.events[f"{how}{' of a neighbour' if gone.is_neighbour else ''}"] += 1
        if how == "SIGKILL":
            note_kill(self.trace_file, gone.process.pid)
            gone.process.kill()
            gone.process.wait()
        else:
            gone.process.send_signal(signal.SIGTERM)
            self.leaving.append(gone)

    def restart(self):
        mode = ("fast", "immediate")[(self.events["fast"] + self.events["immediate"]) % 2]
        self.events[mode] += 1
        self.server.restart(mode)

    def see_off(self):
        """Those that have ended; who did so unasked is replaced."""
        for each in [each for each in self.leaving + self.running if each.process.poll() is not None]:
            if each in self.running:
                self.running.append(self.worker(each.is_neighbour))
            (self.running if each in self.running else self.leaving).remove(each)
            self.note_status(each)

    def note_status(self, worker):
        status = worker.process.returncode
        self.statuses[status] += 1
        if status not in (0, 75):
            (self.folder / f"{worker.process.pid}.log").write_text(worker.said())

    def run(self):
        began = time.monotonic()
        next_restart = began + self.seconds / self.restarts_wanted / 2
        while len(self.expected) < self.jobs:
            now = time.monotonic() - began
            due = min(self.jobs, int(self.jobs * (now + 1) / self.seconds) + 1) - len(self.expected)
            if due > 0:
                self.insert(min(due, 1000))
            if began + now >= next_restart:
                next_restart += self.seconds / self.restarts_wanted
                self.restart()
            else:
                self.replace(self.choose.choice(("SIGTERM", "SIGKILL")))
            self.bring_forward()
            self.see_off()
            time.sleep(self.choose.uniform(0.1, 0.7))  # the pace of the run; nothing is waited for
        self.finish()
        return time.monotonic() - began

    def finish(self):
        def done():
            self.bring_forward()
            self.see_off()
            return self.db.unfinished() == 0

        eventually(done, 300)
        for each in self.running:
            each.process.send_signal(signal.SIGTERM)
        for each in self.running + self.leaving:
            each.process.wait(60)
            self.note_status(each)
        self.running, self.leaving = [], []

    def faults(self):
        """What must not be, by name: how often, and examples."""
        rows = {row["id"]: row for row in self.db.rows(
            "SELECT id, kind, state, attempt, max_attempts, attempted_by, errors FROM river_job")}
        trace = Trace(self.trace_file)
        ended = {(run.job, run.attempt) for runs in trace.runs.values() for run in runs if run.ended}
        # An attempt that a handler decided; others were reported by the worker that rescued the job before it ran.
        decided = {(job, row["attempt"]) for job, row in rows.items() if row["kind"] != "fail"}
        decided |= {(job, error["attempt"]) for job, row in rows.items() for error in row["errors"] or []
                    if "as asked" in error["error"]}
        reported = {job: [error["attempt"] for error in row["errors"] or []] for job, row in rows.items()}
        return {
            "lost from the table": [job for job in self.expected if job not in rows],
            "in another state than decided": [(job, row["kind"], row["state"], row["errors"]) for job, row in rows.items()
                                              if row["state"] != self.expected[job]],
            "run by two at once": trace.overlaps,
            "decided without a run": sorted(decided - ended),
            "an attempt reported twice": [(job, attempts) for job, attempts in reported.items() if len(set(attempts)) < len(attempts)],
            "failed, but not as often as allowed": [
                (job, reported[job]) for job, row in rows.items()
                if row["kind"] == "fail" and reported[job] != list(range(1, row["max_attempts"] + 1))],
            "more errors than attempts": [(job, row) for job, row in rows.items() if len(reported[job]) > row["attempt"]],
            "exit statuses": [each for each in self.statuses if each not in (0, 75)],
        }

    def summary(self):
        trace = Trace(self.trace_file)
        counts = trace.counts()
        killed = sum(run.killed for runs in trace.runs.values() for run in runs)
        # Not meant to fail, and run again by others though nobody killed who ran it first: that one could not report in time.
        again = [job for job, runs in trace.runs.items() if runs[0].kind != "fail"
                 and len([run for run in runs if run.pid not in trace.killed]) > 1]
        return {"jobs": len(self.expected), "states": self.db.states(), "runs": counts.total(), "runs killed": killed,
                "run again though nobody was killed": len(again), "events": dict(self.events), "exits": dict(self.statuses)}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("jobs", int, 20000), ("seed", int, random.randrange(1 << 30)), ("workers", int, 6),
                                ("neighbours", int, 2), ("seconds", float, None), ("lease", int, 3)):
        options.add_argument(f"--{name}", type=kind, default=default)
    given = options.parse_args()
    if postgres.missing():
        sys.exit(f"skipped: {postgres.missing()}")
    why = neighbour.build() if given.neighbours else ""
    if why:
        print(f"no neighbours: {why}")
        given.neighbours = 0
    print(f"seed {given.seed}", flush=True)
    with Cleanups() as cleanups:
        chaos = Chaos(cleanups, **vars(given))
        seconds = chaos.run()
        for name, value in {**chaos.summary(), "seconds": round(seconds, 1)}.items():
            print(f"{name}: {value}")
        faults = chaos.faults()
        for name, found in faults.items():
            print(f"{name}: {len(found)} {json.dumps(found[:5], default=str) if found else ''}")
    if any(faults.values()):
        sys.exit(f"FAILED; what the workers did is in {chaos.folder}")
    shutil.rmtree(chaos.folder)
    print("holds")


if __name__ == "__main__":
    main()
