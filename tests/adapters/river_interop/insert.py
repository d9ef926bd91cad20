"""Inserts jobs with River's client for Python: {"kind", "args", "max_attempts", "priority", "queue", "delay_ms"} a line of its
input. Prints their ids. DATABASE_URL: as SQLAlchemy wants it."""

import datetime
import json
import os
import sys

import riverqueue
import sqlalchemy
from riverqueue.driver import riversqlalchemy


class Args:
    def __init__(self, job):
        self.kind, self.args = job["kind"], job.get("args", {})

    def to_json(self):
        return json.dumps(self.args)


def options(job):
    given = {name: job[name] for name in ("max_attempts", "priority", "queue") if name in job}
    if "delay_ms" in job:
        now = datetime.datetime.now(datetime.timezone.utc)
        given["scheduled_at"] = now + datetime.timedelta(milliseconds=job["delay_ms"])
    return riverqueue.InsertOpts(**given)


client = riverqueue.Client(riversqlalchemy.Driver(sqlalchemy.create_engine(os.environ["DATABASE_URL"])))
print(json.dumps([client.insert(Args(job), insert_opts=options(job)).job.id for job in map(json.loads, sys.stdin)]))
