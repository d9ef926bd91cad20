"""The worker that shutdown-probe and compare.py ask for, on the official Python SDK."""

import asyncio
import os
import re
import time

import httpx
import ojs
from ojs.transport import HTTPTransport

UNITS = {"ms": 0.001, "s": 1, "m": 60}


def seconds(name, otherwise):
    """500ms, 30s, 1m30s"""
    parts = re.findall(r"(\d+)(ms|s|m)", os.environ.get(name, ""))
    return sum(int(number) * UNITS[unit] for number, unit in parts) if parts else otherwise


async def sleep(ctx):
    await asyncio.sleep(ctx.args[0] / 1000)


def spin_until(end):
    while time.monotonic() < end:
        pass


async def spin(ctx):
    await asyncio.to_thread(spin_until, time.monotonic() + ctx.args[0] / 1000)


async def noop(_):
    pass


async def as_plain_json(response):
    """This version of the SDK leaves a body unread whose type is application/openjobspec+json, as the specification's is."""
    response.headers["Content-Type"] = "application/json"


async def main():
    url = os.environ["OJS_URL"]
    headers = {"Content-Type": "application/openjobspec+json", "Accept": "application/openjobspec+json"}
    client = httpx.AsyncClient(base_url=url, timeout=30, headers=headers, event_hooks={"response": [as_plain_json]})
    worker = ojs.Worker(
        url,
        transport=HTTPTransport(url, client=client),
        queues=os.environ.get("OJS_QUEUES", "default").split(","),
        concurrency=int(os.environ.get("OJS_CONCURRENCY", "10")),
        poll_interval=seconds("OJS_POLL_INTERVAL", 2.0),
        heartbeat_interval=seconds("OJS_HEARTBEAT_INTERVAL", 5.0),
        visibility_timeout_ms=int(1000 * seconds("OJS_VISIBILITY_TIMEOUT", 30)),
    )
    worker.handler("probe.sleep", sleep)
    worker.handler("probe.spin", spin)
    worker.handler("noop", noop)
    await worker.start()


asyncio.run(main())
