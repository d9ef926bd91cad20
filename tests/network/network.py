#!/usr/bin/env python3
"""Workers behind a network that fails (relay.py), restarted and frozen at random, and then an account of every job:

    network.py [--jobs N] [--seed N] [--workers N]

What the handlers did is in a log to which all workers append, what became of the jobs in the backend's ledger. The seed
decides which request meets which fault, and the order of events; not what a worker sends when. The variables OJS_TEST_JOBS
and OJS_TEST_SEED are the same as the options.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import judge  # noqa: E402
from dev_backend import Backend  # noqa: E402
from relay import ANSWERS, Relay  # noqa: E402

BUILD = Path(os.environ.get("OJS_TEST_BIN", "build/test/header-separate")).resolve()
GUARD = 120  # seconds; ends a run that would hang, and proves nothing else
# Of a hundred events. A nap is shorter than a lease, a freeze longer; in a partition nothing moves; "away" are minutes, here a
# second, in which a proxy answers all requests by itself.
EVENTS = {"forget": 45, "restart": 25, "nap": 10, "freeze": 10, "partition": 4, "away": 6}


class Chaos:
    def __init__(self, backend, seed, jobs, workers):
        self.backend, self.jobs, self.choose = backend, jobs, random.Random(seed)
        self.relay = Relay(int(backend.url.rsplit(":", 1)[1]), seed)
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-network-"))
        self.wanted, self.workers, self.events, self.tasks = workers, [], Counter(), set()

    def start_worker(self):
        out = SimpleNamespace(id=f"w{len(self.workers) + 1}", told=None, ended=None, frozen=[])
        settings = {"OJS_URL": f"http://127.0.0.1:{self.port}", "OJS_WORKER_ID": out.id, "OJS_CONCURRENCY": "8",
                    "OJS_HEARTBEAT_INTERVAL": "300ms", "OJS_POLL_INTERVAL": "20ms",
                    "OJS_VISIBILITY_TIMEOUT": f"{judge.LEASE}s", "OJS_REQUEST_TIMEOUT": f"{judge.TRY}s",
                    "OJS_SHUTDOWN_GRACE_PERIOD": self.choose.choice(["200ms", "1s", "5s"])}  # fmt: skip
        with open(self.folder / "runs", "ab") as runs, open(self.folder / f"{out.id}.log", "wb") as log:
            out.process = subprocess.Popen([BUILD / "test_worker"], env={**os.environ, **settings},
                                           stdin=subprocess.DEVNULL, stdout=runs, stderr=log)  # fmt: skip
        self.workers.append(out)

    def running(self):
        """Those that are neither told to stop nor frozen."""
        for each in self.workers:
            if each.ended is None and each.process.poll() is not None:
                each.ended = time.monotonic()
        return [each for each in self.workers if not each.told and each.ended is None and None not in sum(each.frozen, [])]

    async def push(self):
        """All jobs, a few at a time, so that there is work until the end. Each fifth batch fills the slots with jobs that need
        their heartbeats, while the connections that the short ones used are idle."""
        for begin in range(0, self.jobs, 50):
            while (await asyncio.to_thread(self.backend.ask, "/dev/summary"))["available"] > 25:
                await asyncio.sleep(0.02)
            times = (1000, 4000) if begin % 250 == 100 else (0, 40)
            # More attempts than lost responses to FETCH can use up, as each ends with a lease.
            jobs = [{"type": "test.run", "args": [self.choose.randrange(*times), *[1] * (i % 10 == 0)],
                     "options": {"retry": {"max_attempts": 100}}} for i in range(begin, min(begin + 50, self.jobs))]  # fmt: skip
            await asyncio.to_thread(self.backend.ask, "/ojs/v1/jobs/batch", {"jobs": jobs})

    async def cause(self, event):
        self.events[event] += 1
        running = self.running()
        if event == "forget":
            some = self.choose.sample(running, self.choose.randrange(len(running) + 1)) or running
            self.relay.forget(self.events[event], {each.id for each in some})
        elif event == "partition":
            self.relay.flowing.clear()
            await asyncio.sleep(self.choose.uniform(0.1, 1.2 * judge.LEASE))
            self.relay.flowing.set()
        elif event == "away":
            self.relay.away = self.choose.choice(ANSWERS)
            await asyncio.sleep(self.choose.uniform(0.1, 1.5))
            self.relay.away = None
        elif running:
            chosen = self.choose.choice(running)
            if event == "restart":
                self.start_worker()
                self.stop(chosen)
            else:
                leases = self.choose.uniform(1.2, 1.6) if event == "freeze" else self.choose.uniform(0.05, 0.6)
                await self.freeze(chosen, leases * judge.LEASE)

    def stop(self, worker):
        worker.told = time.monotonic()
        worker.process.send_signal(signal.SIGTERM)

    async def freeze(self, worker, seconds):
        """While it waits for the response to a FETCH, if it sends one soon."""
        period, stopped = [None, None], asyncio.Event()

        def stop_now():
            period[0] = time.monotonic()
            worker.frozen.append(period)
            worker.process.send_signal(signal.SIGSTOP)
            stopped.set()

        self.relay.before_fetch[worker.id] = stop_now
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), 1)
        if self.relay.before_fetch.pop(worker.id, None):
            if worker not in self.running():
                return
            stop_now()
        await asyncio.sleep(seconds)
        worker.process.send_signal(signal.SIGCONT)
        period[1] = time.monotonic()

    def begin(self, event):
        task = asyncio.create_task(self.cause(event))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def until(self, holds, what):
        end = time.monotonic() + GUARD
        while not await holds():
            if time.monotonic() > end:
                raise AssertionError(f"not within {GUARD} s: {what}")
            await asyncio.sleep(0.05)

    async def completed(self):
        return (await asyncio.to_thread(self.backend.ask, "/dev/summary"))["completed"]

    async def all_completed(self):
        return await self.completed() == self.jobs

    async def run(self):
        self.port = await self.relay.start()
        for _ in range(self.wanted):
            self.start_worker()
        pushing = asyncio.create_task(self.push())
        first, end = [*EVENTS], time.monotonic() + max(7, self.jobs / 20)  # each event once, also in a short run
        while first or (time.monotonic() < end and await self.completed() < self.jobs * 0.8):
            self.begin(first.pop(0) if first else self.choose.choices([*EVENTS], EVENTS.values())[0])
            await asyncio.sleep(self.choose.uniform(0.1, 0.8))
        await asyncio.gather(pushing, *self.tasks)
        self.relay.calm = True
        await self.until(self.all_completed, "all jobs completed")
        for each in self.running():
            self.stop(each)
        await self.until(self.all_ended, "the end of all workers")
        await self.relay.end_of_all()

    async def all_ended(self):
        self.running()
        return all(each.ended for each in self.workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("OJS_TEST_JOBS", 150)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("OJS_TEST_SEED", random.SystemRandom().getrandbits(32))))
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    workers = options.workers or (6 if options.jobs > 1000 else 3)
    print(f"seed: {options.seed}, {options.jobs} jobs, {workers} workers at a time", flush=True)
    began = time.monotonic()
    # A worker that is silent for longer than a lease keeps its jobs no longer; nothing else takes them back.
    with Backend(BUILD, "--retry-delay", "50ms", "--dead-after", "10m") as backend:
        chaos = Chaos(backend, options.seed, options.jobs, workers)
        try:
            asyncio.run(chaos.run())
        finally:
            for each in chaos.workers:
                each.process.kill()
                each.process.wait()
            shutil.copy(backend.ledger, chaos.folder / "ledger")
            (chaos.folder / "requests").write_text("".join(f"{each}\n" for each in chaos.relay.log))
        books = judge.Account(backend.events(), chaos.folder / "runs", chaos.relay.log, chaos.workers)
    broken = books.report(chaos.events)
    print(f"took: {time.monotonic() - began:.0f} s")
    if broken:
        print(f"logs: {chaos.folder}")
        return 1
    shutil.rmtree(chaos.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
