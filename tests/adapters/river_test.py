#!/usr/bin/env python3
"""ojs_river.hpp against a PostgreSQL of its own with River's tables. `make adapters-test` runs this, a class at a time.
OJS_TEST_BUILD: the folder with river_worker, river_probe_worker and river_contract; default build. Without PostgreSQL all is
skipped."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path

import postgres
from programs import BUILD, GUARD, Program, eventually
from river import River, new_river, with_river
from river_chaos import chaos
from trace import Trace, note_kill

LONG = 60_000  # ms; a job that is not meant to come to its end


@unittest.skipIf(postgres.missing(), postgres.missing())
class Adapter(unittest.TestCase):
    SERVER = {}

    @classmethod
    def setUpClass(cls):
        cls.server = with_river(cls.addClassCleanup, **cls.SERVER)

    def setUp(self):
        self.db = new_river(self.server)
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.trace_file = self.folder / "trace"
        self.workers = 0

    def worker(self, program="river_probe_worker", **variables):
        """A worker with times short enough for a test: it polls each 100 ms, and its lease is two seconds."""
        self.workers += 1
        defaults = {"DATABASE_URL": self.db.url(), "OJS_POLL_INTERVAL": "100ms", "OJS_VISIBILITY_TIMEOUT": "2s",
                    "OJS_HEARTBEAT_INTERVAL": "200ms", "OJS_LOG_FORMAT": "json", "OJS_WORKER_ID": f"w{self.workers}",
                    "RIVER_TEST_TRACE": str(self.trace_file)}
        return Program(self, BUILD / program, **{**defaults, **variables})

    def becomes(self, job, state, worker=None):
        reached = eventually(lambda: self.db.state(job) == state)
        self.assertTrue(reached, f"{self.db.job(job)}\n{worker.said() if worker else ''}")
        return self.db.job(job)

    def begun(self, job, runs=1):
        self.assertTrue(eventually(lambda: self.trace().counts()[job] >= runs), f"not begun: {self.db.job(job)}")
        return job

    def trace(self):
        return Trace(self.trace_file)

    def all_final(self, worker=None, limit=GUARD * 3):
        done = eventually(lambda: self.db.unfinished() == 0, limit)
        self.assertTrue(done, f"{self.db.states()}\n{worker.said()[-3000:] if worker else ''}")

    def ends(self, worker, status=0):
        self.assertEqual(worker.process.wait(GUARD), status, worker.said())

    def stop(self, worker):
        worker.process.send_signal(signal.SIGTERM)
        self.ends(worker)

    def kill(self, worker):
        note_kill(self.trace_file, worker.process.pid)
        worker.process.kill()
        worker.process.wait()

    def end_connections(self):
        self.db.ask("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()")

    def alive(self, worker):
        self.assertIsNone(worker.process.poll(), worker.said())

    def still_works(self, worker):
        self.alive(worker)
        self.becomes(self.db.one("noop"), "completed", worker)


class Work(Adapter):
    """What becomes of jobs."""

    def test_a_job_is_completed(self):
        job = self.db.one("noop", {"any": "thing"}, metadata={"kept": [1]})
        worker = self.worker(program="river_worker", OJS_WORKER_ID="me")
        done = self.becomes(job, "completed", worker)
        self.assertEqual((done["attempt"], done["errors"], done["metadata"]), (1, None, {"kept": [1]}))
        self.assertRegex(",".join(done["attempted_by"]), r"\Aojs:2000:me:\w+\Z")
        self.assertLessEqual(done["attempted_at"], done["finalized_at"])
        self.assertLessEqual(done["finalized_at"], done["now"])
        self.stop(worker)

    def test_jobs_run_by_priority_then_time_then_id(self):
        wanted = []
        for priority in (3, 1, 2):
            for age in (10, 30, 30, 20):
                at = (f"now() - interval '{age} s'",)
                wanted.append((priority, -age, self.db.one("noop", priority=priority, scheduled_at=at, notify=False)))
        self.worker(OJS_CONCURRENCY="1")
        self.all_final()
        self.assertEqual(list(self.trace().runs), [job for _, _, job in sorted(wanted)])

    def test_only_available_jobs_that_are_due_are_run(self):
        others = {self.db.one("noop", priority=1, notify=False, **columns): columns["state"][0].strip("'") for columns in (
            {"state": ("'available'",), "scheduled_at": ("now() + interval '1 h'",)},
            {"state": ("'scheduled'",), "scheduled_at": ("now() + interval '1 h'",)},
            {"state": ("'retryable'",), "scheduled_at": ("now() + interval '1 h'",)},
            {"state": ("'pending'",)},
            {"state": ("'cancelled'",), "finalized_at": ("now()",)},
            {"state": ("'discarded'",), "finalized_at": ("now()",)},
            {"state": ("'running'",), "attempted_by": ("ARRAY['someone']",), "attempted_at": ("now()",)})}
        elsewhere = self.db.one("noop", priority=1, queue="elsewhere", notify=False)
        worker = self.worker()
        self.becomes(self.db.one("noop", priority=4), "completed", worker)
        self.assertEqual({job: self.db.state(job) for job in others}, others)
        self.assertEqual(self.db.state(elsewhere), "available")

    def test_a_failed_job_waits_by_rivers_retry_formula(self):
        # Errors count, attempts do not: a client may have raised or given them back.
        jobs = {self.db.one("fail", attempt=attempt, errors=(
            "ARRAY(SELECT jsonb_build_object('at', now(), 'attempt', n, 'error', 'old', 'trace', '') "
            f"FROM generate_series(1, {errors}) n)",)): (errors, attempt)
            for errors, attempt in ((1, 1), (2, 7), (3, 3), (3, 3), (3, 3), (9, 2))}
        worker = self.worker()
        waits = set()
        for job, (errors, attempt) in jobs.items():
            row = self.becomes(job, "retryable", worker)
            self.assertEqual((row["attempt"], len(row["errors"])), (attempt + 1, errors + 1))
            self.assertGreaterEqual(row["scheduled_at"], row["attempted_at"] + 0.9 * (errors + 1)**4 - 0.01, row)
            self.assertLessEqual(row["scheduled_at"], row["now"] + 1.1 * (errors + 1)**4 + 0.01, row)
            waits.add(round(row["scheduled_at"] - row["attempted_at"], 3))
            last = row["errors"][-1]
            self.assertRegex(last.pop("at"), r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
            self.assertEqual(last, {"attempt": attempt + 1, "error": "failed as asked", "trace": ""})
        self.assertEqual(len(waits), len(jobs), "no two wait equally long")

    def test_cancel_discard_and_snooze_of_a_handler_set_the_state_of_the_job(self):
        worker = self.worker()
        for kind, state in (("cancel", "cancelled"), ("discard", "discarded")):
            row = self.becomes(self.db.one(kind), state, worker)
            self.assertEqual((row["attempt"], len(row["errors"])), (1, 1), row)
        row = self.becomes(self.db.one("snooze", {"ms": 3600_000}), "scheduled", worker)
        self.assertEqual((row["attempt"], row["errors"]), (0, None))
        self.assertAlmostEqual(row["scheduled_at"] - row["attempted_at"], 3600, delta=GUARD)

    def test_due_jobs_are_made_available_without_a_leader(self):
        columns = {"scheduled_at": ("now() - interval '1 s'",), "notify": False}
        due = [self.db.one("noop", state=state, **columns) for state in ("scheduled", "retryable") for _ in range(3)]
        soon = self.db.one("noop", state="scheduled", scheduled_at=("now() + interval '1 s'",), notify=False)
        worker = self.worker()
        for job in (*due, soon):
            self.becomes(job, "completed", worker)
        row = self.db.job(soon)
        self.assertGreaterEqual(row["attempted_at"], row["scheduled_at"])


class Notices(Adapter):
    """LISTEN, pauses, queues, cancellations by others."""

    def test_notifications_wake_a_worker_also_after_a_reconnect(self):
        worker = self.worker(OJS_POLL_INTERVAL="60s")
        for _ in range(2):
            for _ in range(3):  # the first of them it finds as it begins to listen: nothing may have been missed
                self.becomes(self.db.one("noop"), "completed", worker)
            self.end_connections()
        self.becomes(self.db.one("noop"), "completed", worker)

    def test_no_job_of_a_paused_queue_runs_until_the_queue_is_resumed(self):
        for paused_first, notify in ((True, False), (False, True), (False, False)):
            with self.subTest(paused_first=paused_first, notify=notify):
                if paused_first:
                    self.db.ask("INSERT INTO river_queue (name, paused_at) VALUES ('held', now())")
                worker = self.worker(OJS_QUEUES="held,free")
                if not paused_first:
                    for queue in ("held", "free"):
                        self.becomes(self.db.one("noop", queue=queue), "completed", worker)
                    self.db.pause("held", notify)
                held = self.db.one("noop", queue="held", priority=1)
                free = self.db.one("noop", queue="free", priority=4)
                self.becomes(free, "completed", worker)
                self.assertEqual(self.db.state(held), "available")
                self.assertIsNotNone(self.db.queues()["held"]["paused_at"])
                self.db.resume("held", notify)
                self.becomes(held, "completed", worker)
                self.stop(worker)

    def test_a_cancel_request_in_the_database_cancels_a_running_job(self):
        for notify in (True, False):
            with self.subTest(notify=notify):
                worker = self.worker()
                job, other = (self.begun(self.db.one("sleep", {"ms": LONG})) for _ in range(2))
                done, failed = (self.begun(self.db.one(kind, {"ms": 1000})) for kind in ("spin", "spin_fail"))
                for each in (done, failed, job):
                    self.db.cancel(each, notify)
                self.becomes(job, "cancelled", worker)
                self.becomes(done, "completed", worker)  # it came to its end all the same
                self.assertEqual(len(self.becomes(failed, "cancelled", worker)["errors"]), 1)  # and is not tried again
                self.assertEqual(self.db.state(other), "running")
                self.db.cancel(other)
                self.becomes(other, "cancelled", worker)
                self.still_works(worker)
                self.stop(worker)

    def test_a_running_job_deleted_or_discarded_by_others_is_not_changed(self):
        worker = self.worker()
        deleted, taken = (self.begun(self.db.one("spin", {"ms": 1000})) for _ in range(2))
        self.db.ask(f"DELETE FROM river_job WHERE id = {deleted}")
        self.db.update(taken, state="discarded", finalized_at=("now()",))
        self.assertTrue(eventually(lambda: not self.trace().unended()))
        self.still_works(worker)
        row = self.db.job(taken)
        self.assertEqual((row["state"], row["errors"]), ("discarded", None))


class Stops(Adapter):
    """River's three stages, quiet, and what a killed worker leaves."""

    def test_a_cancelled_job_that_a_stop_interrupts_is_cancelled(self):
        worker = self.worker(OJS_SHUTDOWN_GRACE_PERIOD="300ms", OJS_HEARTBEAT_INTERVAL="20s",
                             OJS_VISIBILITY_TIMEOUT="60s")  # no heartbeat tells it before the stop
        job = self.begun(self.db.one("sleep", {"ms": LONG}))
        self.db.update(job, metadata={"cancel_attempted_at": "2024-01-01T00:00:00Z"})
        self.stop(worker)
        self.assertEqual(self.db.state(job), "cancelled")

    def test_jobs_of_a_killed_worker_are_rescued_by_another_worker(self):
        first = self.worker()
        jobs = [self.db.one("sleep", {"ms": LONG}) for _ in range(5)]
        asked = self.db.one("sleep", {"ms": LONG})
        last = self.db.one("sleep", {"ms": LONG}, max_attempts=1)
        for job in (*jobs, asked, last):
            self.begun(job)
        self.db.ask(f"UPDATE river_job SET args = '{{\"ms\": 1}}' WHERE id = ANY(ARRAY{jobs})")
        self.db.update(asked, metadata={"cancel_attempted_at": "2024-01-01T00:00:00Z"})
        self.kill(first)
        second, third = self.worker(), self.worker()
        for job in jobs:
            row = self.becomes(job, "completed", second)
            self.assertEqual(len(row["attempted_by"]), 2)
        self.becomes(asked, "cancelled", second)
        self.becomes(last, "discarded", third)
        counts = self.trace().counts()
        self.assertEqual({counts[job] for job in jobs}, {2})
        self.assertEqual((counts[asked], counts[last]), (1, 1))
        self.assertEqual(self.trace().overlaps, [])

    def test_jobs_of_go_clients_and_of_frozen_workers_are_never_rescued(self):
        columns = {"state": "running", "attempt": 1, "attempted_at": ("now() - interval '1 day'",), "notify": False}
        foreign = [self.db.one("noop", attempted_by=(owner,), **columns) for owner in (
            "NULL", "'{}'", "ARRAY['a-go-client']", "ARRAY['ojs:1:dead:x', 'a-go-client']", "ARRAY[NULL]", "ARRAY['ojs:']",
            "ARRAY['ojs:-1:y:z']", "ARRAY['ojs:99999999999999999999999:y:z']", "ARRAY['OJS:1:y:z']")]
        frozen = self.worker(OJS_VISIBILITY_TIMEOUT="1s")
        held = self.begun(self.db.one("sleep", {"ms": LONG}))
        frozen.process.send_signal(signal.SIGSTOP)
        owner = self.db.job(held)["attempted_by"]
        rescuer = self.worker(OJS_VISIBILITY_TIMEOUT="1s")
        for _ in range(2):  # each time that a dead worker's job comes back, the frozen one's would have come as well
            dead = self.worker(OJS_VISIBILITY_TIMEOUT="1s", OJS_QUEUES="dying")
            job = self.begun(self.db.one("sleep", {"ms": LONG}, queue="dying"))
            self.db.update(job, queue="default", args={"ms": 1})
            self.kill(dead)
            self.becomes(job, "completed", rescuer)
        self.assertEqual((self.db.state(held), self.db.job(held)["attempted_by"]), ("running", owner))
        self.assertEqual({self.db.state(job) for job in foreign}, {"running"})
        self.assertEqual(self.trace().overlaps, [])


class Crashes(Adapter):
    """Connections and servers that end: nothing is lost or done twice. For lost responses see river_contract.cpp."""

    def accounted_for(self, jobs, worker):
        self.all_final(worker)
        self.stop(worker)
        self.assertNotIn("claim lost", worker.said(), "it knows its own settlement again")
        self.assertEqual(self.db.states(), {"completed": len(jobs)})
        trace = self.trace()
        self.assertEqual(trace.overlaps, [])
        self.assertEqual(trace.unended(), [])
        self.assertEqual(trace.counts(), Counter({job: 1 for job in jobs}))
        self.assertEqual(self.db.rows("SELECT id, attempt, errors FROM river_job WHERE attempt <> 1 OR errors IS NOT NULL"), [])

    def test_a_session_ended_during_a_statement_is_replaced_and_locked_again(self):
        worker = self.worker()
        job = self.begun(self.db.one("sleep", {"ms": LONG}))
        sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojs session'"
        before = self.db.ask(sessions)
        self.db.ask("BEGIN")
        self.db.ask("LOCK TABLE river_job IN EXCLUSIVE MODE")
        self.assertTrue(eventually(lambda: self.db.rows(sessions + " AND wait_event_type = 'Lock'")))
        self.db.ask(f"SELECT pg_terminate_backend({before})")
        self.db.ask("ROLLBACK")
        locked = "SELECT 1 AS yes FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid IN"
        self.assertTrue(eventually(lambda: self.db.rows(f"{locked} ({sessions} AND pid <> {before})")), worker.said())
        self.assertEqual(self.trace().counts()[job], 1)

    def test_a_row_locked_by_another_client_delays_no_other_job(self):
        worker = self.worker(OJS_CONCURRENCY="4", OJS_REQUEST_TIMEOUT="60s")
        other = postgres.Database(self.server, self.db.name)
        self.addCleanup(other.close)
        other.ask("BEGIN")
        locked = self.begun(self.db.one("sleep", {"ms": 1000}))
        other.ask(f"SELECT FROM river_job WHERE id = {locked} FOR UPDATE")
        self.assertTrue(eventually(lambda: not self.trace().unended()))
        jobs = self.load(60)
        self.assertTrue(eventually(lambda: self.db.states().get("completed") == len(jobs)), self.db.states())
        self.assertEqual(self.db.state(locked), "running")
        other.ask("ROLLBACK")
        self.accounted_for([locked, *jobs], worker)
        self.assertNotIn("cannot report a completed job", worker.said())

    def test_a_promoted_standby_serves_the_worker_and_no_job_is_lost(self):
        self.server = with_river(self.addCleanup)
        self.db = new_river(self.server)
        standby = postgres.Postgres(self.addCleanup, standby_of=self.server)
        self.db.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.db.ask("SELECT pg_reload_conf()")
        url = self.db.url(host=f"{self.server.folder},{standby.folder}", target_session_attrs="read-write")
        worker = self.worker(OJS_CONCURRENCY="4", OJS_VISIBILITY_TIMEOUT="10s", DATABASE_URL=url)
        jobs = self.load(200)
        self.assertTrue(eventually(lambda: self.trace().counts().total() >= 100))
        self.server.stop("immediate")
        self.db = standby.database(self.db.name, River)
        self.db.ask("SELECT pg_promote()")
        jobs += self.load(100)
        self.accounted_for(jobs, worker)

    def load(self, count=300):
        return self.db.insert("noop", count=count // 2) + self.db.insert("sleep", {"ms": 20}, count=count // 2)

    def test_an_outage_longer_than_the_lease_runs_no_job_twice_at_once(self):
        worker, other = self.worker(), self.worker()
        jobs = [self.db.one("spin", {"ms": 300}) for _ in range(3)] + [self.db.one("sleep", {"ms": 1500})]
        for job in jobs:
            self.begun(job)
        self.server.stop("immediate")
        self.assertTrue(eventually(lambda: not self.trace().unended()))
        time.sleep(2.5)  # longer than the lease of two seconds: what is tested is that time
        self.server.start()
        self.all_final(worker)
        self.assertEqual(self.trace().overlaps, [])
        self.assertEqual(set(self.db.states()), {"completed"})
        self.alive(worker)
        self.alive(other)


class BadInput(Adapter):
    """Databases that refuse, and rows that nobody expects."""

    def refuse(self, state, kind="odd", code="P0001"):
        """From now on no job of that kind comes into that state."""
        name = f"refuse_{kind}_{state}"
        self.db.script(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                       f"RAISE 'not {state}' USING ERRCODE = '{code}'; END $$; "
                       f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON river_job FOR EACH ROW "
                       f"WHEN (NEW.kind = '{kind}' AND NEW.state = '{state}') EXECUTE FUNCTION {name}();")

    def test_a_row_that_cannot_be_claimed_does_not_block_other_claims(self):
        self.refuse("running")
        self.refuse("running", kind="corrupted", code="58030")
        odd, corrupted = self.db.one("odd", notify=False), self.db.one("corrupted", notify=False)
        jobs = [self.db.one("noop", attempted_by=(by,), notify=False)
                for by in ("ARRAY[ARRAY['a','b']]", "'[5:6]={a,b}'", "'{}'")] + self.db.insert("noop", count=20)
        worker = self.worker()
        for job in jobs:
            self.assertRegex(self.becomes(job, "completed", worker)["attempted_by"][-1], r"\Aojs:")
        for job, code in ((odd, "P0001"), (corrupted, "58030")):
            self.assertEqual((self.db.state(job), self.db.job(job)["attempt"]), ("available", 0))
            self.assertEqual(len(re.findall(rf"statement=claim  job_id={job} .*{code}", worker.said())), 1, worker.said())

    def test_a_row_that_cannot_be_updated_does_not_block_other_rescues(self):
        self.refuse("retryable")
        self.refuse("available", kind="stuck")
        unique = {"unique_key": ("'\\x01'::bytea",), "unique_states": ("B'00000001'",), "notify": False}
        self.db.one("noop", scheduled_at=("now() + interval '1 h'",), **unique)
        dead = {"state": "running", "attempt": 1, "attempted_at": ("now()",), "notify": False,
                "attempted_by": ("ARRAY['ojs:1000:x:0123456789abcdef']",)}
        odd, stuck, second = self.db.one("odd", **dead), self.db.one("stuck", **dead), self.db.one("noop", **{**dead, **unique})
        jobs = self.db.insert("noop", count=5, **dead) + self.db.insert("noop", errors=("'{{1},{2}}'",), **dead)
        worker = self.worker()
        for job in jobs:
            self.becomes(job, "completed", worker)
        row = self.becomes(second, "discarded", worker)
        self.assertEqual(row["metadata"].get("unique_key_conflict"), "scheduler_discarded")
        self.assertEqual((self.db.state(odd), self.db.state(stuck)), ("running", "retryable"))
        worker.prints(rf"statement=rescue  job_id={odd} .*P0001")
        worker.prints(rf"statement=schedule  job_id={stuck} .*P0001")

    def test_a_permanently_refused_report_frees_the_slot(self):
        self.refuse("completed", kind="sleep", code="XX001")  # as PostgreSQL refuses a row that is damaged
        odd = self.db.one("sleep", {"ms": 1}, notify=False)
        worker = self.worker(OJS_CONCURRENCY="1")
        self.begun(odd)
        self.still_works(worker)
        self.assertEqual(self.db.state(odd), "running")
        worker.prints("job could not be reported.*not completed")
        worker.process.send_signal(signal.SIGTERM)
        self.ends(worker, 75)

    def role(self, name, limit=-1, rights="ALL"):
        """A URL for a new role."""
        self.db.script(f"DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN CONNECTION LIMIT {limit}; "
                       f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {name};")
        return self.db.url(user=name)

    def test_no_job_is_claimed_until_the_worker_has_its_connections(self):
        job = self.db.one("noop")
        worker = self.logged("too many connections", DATABASE_URL=self.role("few", limit=0))
        for limit, refusals in ((1, 1), (3, 1), (4, 3)):
            before = worker.said().count("too many connections")
            self.assertTrue(eventually(lambda: worker.said().count("too many connections") >= before + refusals), worker.said())
            self.assertEqual((self.db.state(job), self.db.job(job)["attempt"]), ("available", 0))
            self.db.ask(f"ALTER ROLE few CONNECTION LIMIT {limit}")
        self.becomes(job, "completed", worker)

    @unittest.skipUnless(postgres.pooler(), "no pgbouncer")
    def test_a_pooler_in_session_mode_works_and_other_modes_are_refused(self):
        job = self.db.one("noop")
        for mode in ("transaction", "statement"):
            with self.subTest(mode=mode):
                self.refused(r'"message":"cannot start".*pool_mode', DATABASE_URL=postgres.Pooler(self.addCleanup, self.server, mode).url(self.db))
        self.assertEqual(self.db.job(job)["attempt"], 0)
        worker = self.worker(DATABASE_URL=postgres.Pooler(self.addCleanup, self.server, "session").url(self.db))
        self.becomes(job, "completed", worker)
        self.still_works(worker)
        self.stop(worker)

    def logged(self, pattern, **variables):
        worker = self.worker(OJS_REQUEST_TIMEOUT="500ms", **variables)
        worker.prints(pattern)
        return worker

    def refused(self, pattern, status=64, **variables):
        worker = self.worker(**variables)
        self.ends(worker, status)
        self.assertRegex(worker.said(), pattern)

    def test_only_supported_versions_of_the_tables_are_accepted(self):
        self.refused("river_", DATABASE_URL=self.server.create().url())
        for version in (5, 9, 1000):
            self.db = new_river(self.server)
            self.db.version(version)
            with self.subTest(version=version):
                self.refused(rf"\b{version}\b")
        for version in (6, 7):
            self.db = new_river(self.server)
            self.db.older() if version == 6 else self.db.version(version)
            with self.subTest(version=version):
                self.becomes(self.db.one("noop"), "completed", self.worker())

    def test_a_schema_name_too_long_for_its_channel_is_refused(self):
        for size, fits in ((46, True), (47, False)):
            self.db = new_river(self.server)
            self.db.ask(f"ALTER SCHEMA public RENAME TO {'s' * size}")
            found = self.db.url(options=f"-csearch_path={'s' * size}")
            for variables in ({"DATABASE_URL": found}, {"program": "river_worker", "RIVER_SCHEMA": "s" * size}):
                with self.subTest(size=size, **variables):
                    self.alive(self.logged("worker started", **variables)) if fits else self.refused(f"s{{{size}}}", **variables)

    def test_an_invalid_database_url_is_refused_at_start_up(self):
        for url in ("nonsense=1", "postgres://[", "user='x"):
            with self.subTest(url=url):
                self.refused(r'"message":"cannot start"', DATABASE_URL=url)
        self.alive(self.logged(r"invalid port number", DATABASE_URL="host=/x port=99999"))

    def test_a_wrong_password_is_logged_without_the_password(self):
        self.server.access("local all guarded scram-sha-256")
        self.db.ask("DROP ROLE IF EXISTS guarded")
        self.db.ask("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        eventually(lambda: subprocess.run(["psql", "-w", "-c", "", self.db.url(user="guarded")], capture_output=True).returncode)
        worker = self.logged("password authentication failed", DATABASE_URL=self.db.url(user="guarded", password="wrong"))
        self.assertNotIn("wrong", worker.said())

    def test_work_begins_once_the_database_grants_access(self):
        read_only = f"ALTER DATABASE {self.db.name} SET default_transaction_read_only = "
        reader = self.role("reader", rights="SELECT")
        for error, url, refuse, allow in (
            ("permission denied", reader, "SELECT", "GRANT ALL ON river_job, river_queue TO reader"),
            ("read-only transaction", self.db.url(), read_only + "on", read_only + "off"),
        ):
            with self.subTest(error):
                self.db.ask(refuse)
                job = self.db.one("noop")
                worker = self.logged(error, DATABASE_URL=url)
                self.assertEqual((self.db.state(job), self.db.job(job)["attempt"]), ("available", 0))
                self.db.ask(allow)
                self.end_connections()
                self.becomes(job, "completed", worker)
                self.stop(worker)

    def test_rows_that_cannot_be_claimed_are_logged_and_not_changed(self):
        self.db.script("ALTER TABLE river_job ALTER args DROP NOT NULL; ALTER TABLE river_job ALTER metadata DROP NOT NULL;")
        weighs = {size: (f"jsonb_build_object('a', repeat('a', {size}))",) for size in (5000000, 4000000)}
        left = {self.db.one("noop", notify=False, **columns): columns.get("attempt", 0) for columns in (
            {"args": ("NULL",)}, {"metadata": ("NULL",)}, {"args": weighs[5000000]}, {"metadata": weighs[5000000]},
            {"attempt": 32767, "max_attempts": 32767})}
        worker = self.worker(OJS_CONCURRENCY="1")
        for column in ("args", "metadata"):
            self.becomes(self.db.one("noop", priority=4, **{column: weighs[4000000]}), "completed", worker)
        missing, longer = "args or metadata are missing", r"args or metadata are longer than max_bytes \(4194304\)"
        reasons = (missing, missing, longer, longer, "attempt 32767,.*")
        for (job, attempt), reason in zip(left.items(), reasons):
            worker.prints(rf'jobs are not claimed  queue=default  jobs=1  reason="{reason}"  first_id={job}\b')
            row = self.db.job(job)
            self.assertEqual((row["state"], row["attempt"], row["errors"]), ("available", attempt, None))


class Contract(Adapter):
    """What every transport must do: river_contract.cpp."""

    SERVER = {"tcp": True}  # for its relay

    def test_river_transport_passes_the_transport_contract(self):
        url = self.server.url(dbname=self.db.name, host="127.0.0.1", sslmode="disable", gssencmode="disable")
        program = Program(self, BUILD / "river_contract", DATABASE_URL=url, OJS_TEST_PORT=str(self.server.port))
        self.assertEqual(program.process.wait(GUARD * 15), 0, program.said())


@unittest.skipIf(postgres.missing(), postgres.missing())
class Chaos(unittest.TestCase):
    def test_stops_kills_and_server_restarts_lose_no_job(self):
        chaos.check(self, "river_probe_worker", messages=1000)


if __name__ == "__main__":
    unittest.main()
