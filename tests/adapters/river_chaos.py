"""The chaos of tests/queues/chaos.py with River's tables as the broker.

Each job ends in the state that its handler decides, none runs in two processes at once, none is lost, and no attempt is reported
twice. Handlers write down when they begin and end, in a file that all processes append to.
"""

import contextlib
import random
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "queues"))
import chaos
from postgres import literal
from river import new_river, with_river
from trace import Trace, note_kill

COMPLETED, CANCELLED, DISCARDED = "completed", "cancelled", "discarded"
# How many of a hundred, and what becomes of them.
KINDS = {"noop": (50, COMPLETED), "sleep": (20, COMPLETED), "spin": (10, COMPLETED), "fail": (10, DISCARDED),
         "cancel": (5, CANCELLED), "discard": (5, DISCARDED)}


class RiverQueue(contextlib.ExitStack):
    programs = ()  # see postgres.missing()

    def __init__(self):
        super().__init__()
        self.choose = random.Random(1)
        self.server = with_river(self.callback, durable=True)
        self.db = new_river(self.server)
        self.trace_file = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="ojs-chaos-"))) / "trace"
        self.expected = {}

    def declare(self, queue):
        """It exists with its first job."""

    def start(self):
        if self.server.process.poll() is not None:
            self.server.start()

    def stop(self):
        self.server.stop("fast")

    def kill(self):
        self.server.stop("immediate")

    def publish(self, queue, bodies):
        rows = []
        for body in bodies:
            kind = self.choose.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
            attempts = self.choose.randrange(1, 4) if kind == "fail" else 25
            priority = self.choose.randrange(1, 5)
            args = literal({"ms": int(body.split()[1])})
            rows.append(f"({literal(kind)}, {args}::jsonb, {attempts}, {priority}, {literal(queue)})")
        for row in self.db.rows("INSERT INTO river_job (kind, args, max_attempts, priority, queue) VALUES "
                                + ", ".join(rows) + " RETURNING id, kind"):
            self.expected[row["id"]] = KINDS[row["kind"]][1]
        self.db.notify("river_insert", {"queue": queue})

    def done(self):
        """The jobs that a handler has come to the end of."""
        return [job for job, runs in Trace(self.trace_file).runs.items() if any(run.ended for run in runs)]

    def left(self, queue):
        # Nobody waits for the back-off of a failed job.
        self.db.ask("UPDATE river_job SET scheduled_at = now() WHERE state IN ('available', 'retryable', 'scheduled') "
                    "AND scheduled_at > now()")
        return self.db.unfinished()

    def note_kill(self, pid):
        note_kill(self.trace_file, pid)

    def variables(self, queue):
        return {"DATABASE_URL": self.db.url(), "OJS_QUEUES": queue, "RIVER_TEST_TRACE": str(self.trace_file),
                "OJS_LOG_FORMAT": "json", "OJS_SHUTDOWN_GRACE_PERIOD": "2s",
                "OJS_VISIBILITY_TIMEOUT": "3s"}  # shorter than a stop without the broker

    def faults(self):
        """What must not be."""
        rows = {row["id"]: row for row in self.db.rows(
            "SELECT id, kind, state, attempt, max_attempts, errors FROM river_job")}
        trace = Trace(self.trace_file)
        ended = {(run.job, run.attempt) for runs in trace.runs.values() for run in runs if run.ended}
        # An attempt that a handler decided; others were reported by the worker that rescued the job before it ran.
        decided = {(job, row["attempt"]) for job, row in rows.items() if row["kind"] != "fail"}
        decided |= {(job, error["attempt"]) for job, row in rows.items() for error in row["errors"] or []
                    if "as asked" in error["error"]}
        reported = {job: [error["attempt"] for error in row["errors"] or []] for job, row in rows.items()}
        found = {
            "lost from the table": [job for job in self.expected if job not in rows],
            "in another state than decided": [(job, row["kind"], row["state"], row["errors"]) for job, row in rows.items()
                                              if row["state"] != self.expected[job]],
            "run by two at once": trace.overlaps,
            "decided without a run": sorted(decided - ended),
            "an attempt reported twice": [(job, each) for job, each in reported.items() if len(set(each)) < len(each)],
            "failed, but not as often as allowed": [
                (job, reported[job]) for job, row in rows.items()
                if row["kind"] == "fail" and reported[job] != list(range(1, row["max_attempts"] + 1))],
            "more errors than attempts": [(job, row) for job, row in rows.items() if len(reported[job]) > row["attempt"]],
        }
        return [f"{name}: {len(cases)}, such as {cases[:3]}" for name, cases in found.items() if cases]


# It also runs on hosts under duress, where a stop may take long.
chaos.CONSUMERS["river_probe_worker"] = chaos.Consumer(
    RiverQueue, True, processes=4, leaves_out=frozenset({"broker frozen"}), slack=60, statuses=frozenset({0, 75}))
