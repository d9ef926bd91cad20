"""River's tables as its clients use them: inserts, cancels, pauses, and what became of the jobs."""

import json
from pathlib import Path

from postgres import Database, Postgres, literal

SCHEMA = Path(__file__).with_name("river_schema.sql")


class River(Database):
    """A database with River's tables, in the schema public."""

    def insert(self, kind, args=None, count=1, notify=True, **columns):
        """Jobs, and the notification that River's clients send with them. Returns their ids. A column's value is SQL where
        it is in a tuple of one."""
        columns = {"kind": kind, "args": args if args is not None else {}, "max_attempts": 25, **columns}
        values = [value[0] if isinstance(value, tuple) else literal(value) for value in columns.values()]
        queue = columns.get("queue", "default")
        notified = f", pg_notify('public.river_insert', {literal({'queue': queue})})" if notify else ""
        found = self.ask(f"WITH made AS (INSERT INTO river_job ({', '.join(columns)}) SELECT {', '.join(values)} "
                         f"FROM generate_series(1, {count}) RETURNING id), all_of AS (SELECT array_to_json(array_agg(id)) ids "
                         f"FROM made) SELECT ids{notified} FROM all_of")
        return json.loads(found.split("\x1f")[0])

    def one(self, kind, args=None, **columns):
        return self.insert(kind, args, **columns)[0]

    def job(self, job_id):
        """The row; times as seconds since the epoch."""
        found = self.rows("SELECT id, state, attempt, max_attempts, args, attempted_by, errors, kind, metadata, queue, priority, "
                          "extract(epoch FROM attempted_at) attempted_at, extract(epoch FROM finalized_at) finalized_at, "
                          "extract(epoch FROM scheduled_at) scheduled_at, extract(epoch FROM clock_timestamp()) AS now "
                          f"FROM river_job WHERE id = {job_id}")
        return found[0] if found else None

    def state(self, job_id):
        return self.ask(f"SELECT state FROM river_job WHERE id = {job_id}")

    def states(self):
        """How many jobs are in each state."""
        return {row["state"]: row["n"] for row in self.rows("SELECT state, count(*) n FROM river_job GROUP BY state")}

    def unfinished(self):
        return int(self.ask("SELECT count(*) FROM river_job WHERE finalized_at IS NULL"))

    def update(self, job_id, **columns):
        changes = ", ".join(f"{name} = {value[0] if isinstance(value, tuple) else literal(value)}"
                            for name, value in columns.items())
        self.ask(f"UPDATE river_job SET {changes} WHERE id = {job_id}")

    def notify(self, topic, payload):
        self.ask(f"SELECT FROM pg_notify('public.{topic}', {literal(payload)})")

    def cancel(self, job_id, notify=True):
        """As a client's JobCancel does: what runs is asked, what does not is cancelled."""
        notified = (", pg_notify('public.river_control', json_build_object('action', 'cancel', 'job_id', id, 'queue', queue)::text)"
                if notify else "")
        self.ask(f"""WITH asked AS (UPDATE river_job SET
            state = CASE state WHEN 'running' THEN state ELSE 'cancelled' END,
            finalized_at = CASE state WHEN 'running' THEN NULL ELSE now() END,
            metadata = jsonb_set(metadata, '{{cancel_attempted_at}}', to_jsonb(now()))
            WHERE id = {job_id} AND finalized_at IS NULL RETURNING id, queue) SELECT id{notified} FROM asked""")

    def pause(self, queue, notify=True, action="pause"):
        paused_at = "coalesce(paused_at, now())" if action == "pause" else "NULL"
        self.ask(f"UPDATE river_queue SET paused_at = {paused_at}, updated_at = now() WHERE {literal(queue)} IN ('*', name)")
        if notify:
            self.notify("river_control", {"action": action, "queue": queue})

    def resume(self, queue, notify=True):
        self.pause(queue, notify, "resume")

    def queues(self):
        return {row["name"]: row for row in self.rows(
            "SELECT name, paused_at FROM river_queue")}

    def version(self, number):
        """Says that the tables are of another version."""
        self.ask(f"DELETE FROM river_migration WHERE version > {number}")
        self.ask(f"INSERT INTO river_migration (line, version) SELECT 'main', generate_series(1, {number}) "
                 "ON CONFLICT DO NOTHING")

    def older(self):
        """Makes the tables those of version 6."""
        self.script("""DROP TABLE river_notification;
            ALTER TABLE river_job ALTER max_attempts DROP DEFAULT;
            ALTER TABLE river_queue ALTER updated_at DROP DEFAULT;
            DELETE FROM river_migration WHERE version > 6;""")


def with_river(clean_up, **how):
    """A server with a database river, to copy from."""
    server = Postgres(clean_up, **how)
    server.root().ask("CREATE DATABASE river TEMPLATE template0")
    template = River(server, "river")
    template.script(SCHEMA.read_text())
    return server


def new_river(server):
    return server.create(River, "river")
