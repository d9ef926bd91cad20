#!/usr/bin/env python3
"""ojs_river.hpp beside River's own client in Go, built from river_interop/. `make river-interop` runs this. Without Go all
of it is skipped.
"""

import json
import signal
import sys
import unittest

import neighbour
from programs import eventually
from river import River, new_river
from river_test import LONG, Adapter

NO_NEIGHBOUR = neighbour.build()
if NO_NEIGHBOUR:
    print(f"no client in Go: {NO_NEIGHBOUR}", file=sys.stderr)


# What the two forms of the tables must agree in.
CATALOGUE = {
    "columns": """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull,
        pg_get_expr(d.adbin, d.adrelid) AS default_is, c.relpersistence
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace""",
    "constraints": """SELECT conrelid::regclass::text AS of, conname, pg_get_constraintdef(oid) AS says
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "states": "SELECT enumlabel, rank() OVER (ORDER BY enumsortorder) AS place FROM pg_enum",
    "triggers": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
    "versions": "SELECT line, version FROM river_migration",
    "bitmask": """SELECT mask, state, river_job_state_in_bitmask(mask::bit(8), state) AS is_in
        FROM generate_series(0, 255) mask, unnest(enum_range(NULL::river_job_state)) state""",
}


def catalogue(db, what):
    return sorted(json.dumps(row, sort_keys=True) for row in db.rows(CATALOGUE[what]))


@unittest.skipIf(NO_NEIGHBOUR, NO_NEIGHBOUR)
class Interop(Adapter):
    """The tables are made by River's own migrations."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.real = River(cls.server, "real")
        cls.server.root().ask("CREATE DATABASE real TEMPLATE template0")
        cls.versions = neighbour.ask(cls.real, "migrate")

    def setUp(self):
        super().setUp()
        self.db = self.server.create(River, "real")

    def go(self, *command, lines=()):
        return neighbour.ask(self.db, *command, lines=lines)

    def neighbour(self, *flags):
        started = neighbour.worker(self, self.db, f"-trace={self.trace_file}", *flags)
        started.prints("started")
        return started

    def owners(self):
        """Who ran the jobs last: how many are ours, how many the neighbours'."""
        return tuple(int(self.db.ask("SELECT count(*) FROM river_job WHERE attempted_by[cardinality(attempted_by)] "
                                     f"{how} 'ojs:%'")) for how in ("LIKE", "NOT LIKE"))

    def test_the_tables_in_our_words_are_rivers(self):
        self.assertEqual(self.versions, list(range(1, 9)))
        ours = new_river(self.server)
        for what in CATALOGUE:
            self.assertEqual(catalogue(ours, what), catalogue(self.db, what), what)
        older = new_river(self.server)
        older.older()
        self.db = self.server.create(River)
        self.go("migrate", 6)
        for what in ("columns", "bitmask", "versions"):
            ours, real = set(catalogue(older, what)), set(catalogue(self.db, what))
            # Tables that version 7 drops are none of ours.
            self.assertEqual(ours ^ real, {row for row in real if '"river_client' in row}, what)

    def test_jobs_inserted_by_go_run_here_at_once(self):
        worker = self.worker(OJS_POLL_INTERVAL="60s")
        self.becomes(self.db.one("noop"), "completed", worker)
        jobs = self.go("insert", lines=[{"kind": "noop"}, {"kind": "sleep", "args": {"ms": 10}},
                                        {"kind": "fail", "max_attempts": 1}, {"kind": "cancel", "priority": 4}])
        for job, state in zip(jobs, ("completed", "completed", "discarded", "cancelled")):
            self.becomes(job, state, worker)
        later = self.go("insert", lines=[{"kind": "noop", "delay_ms": 1500}])[0]
        self.becomes(later, "completed", worker)
        row = self.db.job(later)
        self.assertGreaterEqual(row["attempted_at"], row["scheduled_at"])

    def test_a_neighbour_on_the_same_queue(self):
        ours, theirs = self.worker(OJS_CONCURRENCY="4"), self.neighbour("-concurrency=4", "-cooldown=5ms")
        jobs = self.db.insert("noop", count=200, state="scheduled", notify=False,
                              scheduled_at=("now() + interval '1 s' * (0.5 + random())",))  # both schedule
        for _ in range(50):
            jobs += self.db.insert("sleep", {"ms": 5}, count=20)
            if min(self.owners()) > 0:
                break
            eventually(lambda: self.db.unfinished() < 10)
        self.all_final(ours)
        self.assertEqual(self.db.states(), {"completed": len(jobs)})
        self.assertGreater(min(self.owners()), 0, "both had their share")
        self.assertEqual(self.trace().overlaps, [])
        self.assertEqual({self.trace().counts()[job] for job in jobs}, {1})
        self.stop(theirs)

    def test_a_job_cancelled_by_go(self):
        worker = self.worker()
        job = self.db.one("sleep", {"ms": LONG})
        self.begun(job)
        self.go("cancel", job)
        self.becomes(job, "cancelled", worker)

    def test_a_queue_paused_by_go(self):
        worker = self.worker(OJS_POLL_INTERVAL="60s", OJS_QUEUES="held,free")
        for queue in ("held", "free"):
            self.becomes(self.db.one("noop", queue=queue), "completed", worker)
        self.assertEqual(sorted(row["Name"] for row in self.go("queues")), ["free", "held"])
        self.go("pause", "held")
        held = self.db.one("noop", queue="held", priority=1)
        self.becomes(self.db.one("noop", queue="free", priority=4), "completed", worker)
        self.assertEqual(self.db.state(held), "available")
        self.go("resume", "held")
        self.becomes(held, "completed", worker)

    def test_go_reads_what_is_written_here(self):
        worker = self.worker()
        states = {"noop": "completed", "cancel": "cancelled", "discard": "discarded", "fail": "retryable"}
        jobs = {kind: self.db.one(kind, errors=("ARRAY[jsonb_build_object('at', now(), 'attempt', 1, 'error', 'old', 'trace', '')]",),
                                  attempt=1) for kind in states}
        snoozed = self.db.one("snooze", {"ms": LONG})
        for kind, state in states.items():
            self.becomes(jobs[kind], state, worker)
        self.becomes(snoozed, "scheduled", worker)
        listed = {row["ID"]: row for row in self.go("list")}
        for kind, state in states.items():
            row = listed[jobs[kind]]
            self.assertEqual((row["State"], row["Attempt"]), (state, 2))
            self.assertRegex(row["AttemptedBy"][-1], r"\Aojs:")
            self.assertEqual(len(row["Errors"]), 1 if kind == "noop" else 2)
            if kind != "noop":
                last = row["Errors"][-1]
                self.assertEqual((last["attempt"], last["trace"]), (2, ""))
                self.assertIn("as asked", last["error"])
                self.assertRegex(last["at"], r"\A20\d\d-")
        self.assertEqual(listed[snoozed]["Attempt"], 0)
        self.go("retry", jobs["cancel"], jobs["discard"])
        for kind in ("cancel", "discard"):
            self.assertTrue(eventually(lambda: len(self.db.job(jobs[kind])["errors"]) == 3), worker.said())

    def test_what_is_given_back_here_is_taken_there_and_the_other_way_round(self):
        ours = self.worker(OJS_SHUTDOWN_GRACE_PERIOD="200ms")
        job = self.db.one("sleep", {"ms": LONG})
        self.begun(job)
        self.stop(ours)
        theirs = self.neighbour()
        self.begun(job, 2)
        self.assertEqual(self.db.job(job)["attempt"], 1)
        theirs.process.send_signal(signal.SIGTERM)
        theirs.prints("stopping")
        self.stop(theirs)
        self.db.update(job, args={"ms": 1})
        row = self.becomes(job, "completed", self.worker())
        self.assertEqual((row["attempt"], row["errors"]), (1, None))
        self.assertEqual(self.trace().overlaps, [])


if __name__ == "__main__":
    unittest.main()
