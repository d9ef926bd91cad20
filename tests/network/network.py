#!/usr/bin/env python3
"""Workers behind a network that fails (relay.py), restarted and frozen at random, and then an account of every job:

    OJS_TEST_JOBS=10000 OJS_TEST_SEED=1 network.py

Or many workers without a relay, each signalled at random moments, at a backend that itself delays, resets, answers 500 and
loses responses. Leases last OJS_TEST_LEASE seconds, 1 by default:

    OJS_TEST_WORKERS=10000 OJS_TEST_SEED=1 network.py workers

What the handlers did is in a log to which all workers append, what became of the jobs in the backend's ledger. The seed
decides which request meets which fault, and the order of events; not what a worker sends when.
"""

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

# To each of `workers`, in this order, up to 60 ms apart.
SIGNALS = [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGTSTP, signal.SIGTERM),
           (signal.SIGTERM, signal.SIGCONT), (signal.SIGTSTP, signal.SIGCONT, signal.SIGTERM)]  # fmt: skip
# More attempts than lost responses to FETCH can use up, as each ends with a lease.
ATTEMPTS = {"retry": {"max_attempts": 100}}


def start_worker(folder, name, output, **settings):
    """test_worker, with what its handlers do added to the file `output`."""
    out = SimpleNamespace(id=name, stopped_at=None, ended=None, frozen=[], may_end_with=(0, 75), log=folder / f"{name}.log")
    with open(folder / output, "ab") as runs, open(out.log, "wb") as log:
        out.process = subprocess.Popen([BUILD / "test_worker"], env={**os.environ, "OJS_WORKER_ID": name, **settings},
                                       stdin=subprocess.DEVNULL, stdout=runs, stderr=log)  # fmt: skip
    return out


# [GS 1] [River no jobs lost]
class Crowd:
    """`count` workers, twelve at a time."""

    def __init__(self, backend, seed, count):
        self.backend, self.count, self.choose = backend, count, random.Random(seed)
        self.folder, self.workers, self.events, self.stalls = Path(tempfile.mkdtemp(prefix="ojs-workers-")), [], Counter(), []
        self.pushed, self.requests = 0, None
        self.lease = os.environ.get("OJS_TEST_LEASE", "1") + "s"

    def start(self, name, **settings):
        self.workers.append(start_worker(self.folder, name, f"{name}.out", OJS_URL=self.backend.url, OJS_POLL_INTERVAL="5ms",
                                         OJS_HEARTBEAT_INTERVAL="50ms", OJS_VISIBILITY_TIMEOUT=self.lease, **settings))  # fmt: skip
        return self.workers[-1]

    async def live(self, number, places):
        async with places:
            # Half of them claim the signals in the first line of main, and may get one while they start.
            claims = self.choose.random() < 0.5
            worker = self.start(f"w{number}", TEST_MODE="claimed" if claims else "", OJS_SIGNAL_DEBOUNCE="20ms",
                                OJS_CONCURRENCY=str(self.choose.randint(1, 8)), OJS_CANCEL_GRACE=self.choose.choice(["0", "20ms"]),
                                OJS_STOP_TIMEOUT="4s", OJS_SHUTDOWN_GRACE_PERIOD=f"{self.choose.randint(5, 64)}ms")  # fmt: skip
            worker.may_end_with = (0,)
            signals, out = self.choose.choice(SIGNALS), self.folder / f"w{number}.out"
            await self.until(lambda: b"claimed" in out.read_bytes() if claims else b"worker started" in worker.log.read_bytes())
            if self.choose.random() < 0.4:
                await self.until(lambda: b"begin " in out.read_bytes())
            for each in signals:
                await asyncio.sleep(self.choose.uniform(0, 0.06))
                if each in (signal.SIGTERM, signal.SIGINT):
                    worker.stopped_at = worker.stopped_at or time.monotonic()
                worker.process.send_signal(each)
            self.events["+".join(each.name for each in signals)] += 1
            await self.until(lambda: worker.process.poll() is not None)
            worker.ended = time.monotonic()
            # By a signal between run(), which has given it back, and the end of main.
            if b"worker stopped" in worker.log.read_bytes():
                worker.may_end_with = (0, *(-each for each in signals))

    async def feed(self):
        """There is always something to do."""
        while True:
            if await asyncio.to_thread(self.available) < 60:
                await asyncio.to_thread(self.push, 60)
            await asyncio.sleep(0.02)

    def available(self):
        return self.backend.ask("/dev/summary")["available"]

    def push(self, count):
        jobs = [{"type": self.choose.choice(["test.run", "test.run", "test.stubborn"]), "options": ATTEMPTS,
                 "args": [self.choose.randrange(51)]} for _ in range(count)]  # fmt: skip
        self.backend.ask("/ojs/v1/jobs/batch", {"jobs": jobs})
        self.pushed += count

    async def until(self, holds):
        async with asyncio.timeout(GUARD):
            while not holds():
                await asyncio.sleep(0.002)

    async def run(self):
        self.push(60)
        feeding, places = asyncio.create_task(self.feed()), asyncio.Semaphore(12)
        await asyncio.gather(*(self.live(number + 1, places) for number in range(self.count)))
        feeding.cancel()
        # One worker without trouble completes the rest.
        self.backend.ask("/dev/faults", {"faults": ""})
        last = self.start("last", OJS_CONCURRENCY="50")
        await self.until(lambda: self.backend.ask("/dev/summary")["completed"] == self.pushed)
        last.stopped_at = time.monotonic()
        last.process.terminate()
        last.ended = last.process.wait(GUARD) or time.monotonic()
        (self.folder / "runs").write_bytes(b"".join(each.read_bytes() for each in self.folder.glob("*.out")))


class Chaos:
    def __init__(self, backend, seed, jobs, workers):
        self.backend, self.jobs, self.choose = backend, jobs, random.Random(seed)
        self.relay = Relay(int(backend.url.rsplit(":", 1)[1]), seed)
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-network-"))
        self.wanted, self.workers, self.events, self.stalls, self.requests = workers, [], Counter(), [], self.relay.log

    def start_worker(self):
        self.workers.append(start_worker(
            self.folder, f"w{len(self.workers) + 1}", "runs", OJS_URL=f"http://127.0.0.1:{self.port}", OJS_CONCURRENCY="8",
            OJS_HEARTBEAT_INTERVAL="300ms", OJS_POLL_INTERVAL="20ms", OJS_VISIBILITY_TIMEOUT=f"{judge.LEASE}s",
            OJS_REQUEST_TIMEOUT=f"{judge.TRY}s", OJS_SHUTDOWN_GRACE_PERIOD=self.choose.choice(["200ms", "1s", "5s"])))  # fmt: skip

    def running(self):
        """Those that are neither stopping nor frozen."""
        for each in self.workers:
            if each.ended is None and each.process.poll() is not None:
                each.ended = time.monotonic()
        return [each for each in self.workers if not each.stopped_at and each.ended is None and None not in sum(each.frozen, [])]

    async def push(self):
        """All jobs, a few at a time, so that there is work until the end. Each fifth batch fills the slots with jobs that need
        their heartbeats, while the connections that the short ones used are idle."""
        for begin in range(0, self.jobs, 50):
            while await self.count("available") > 25:
                await asyncio.sleep(0.02)
            times = (1000, 4000) if begin % 250 == 100 else (0, 40)
            jobs = [{"type": "test.run", "args": [self.choose.randrange(*times), *[1] * (i % 10 == 0)],
                     "options": ATTEMPTS} for i in range(begin, min(begin + 50, self.jobs))]  # fmt: skip
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
        worker.stopped_at = time.monotonic()
        worker.process.terminate()

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

    async def count(self, state):
        return (await asyncio.to_thread(self.backend.ask, "/dev/summary"))[state]

    async def until(self, holds):
        async with asyncio.timeout(GUARD):
            while not await holds():
                await asyncio.sleep(0.05)

    async def all_completed(self):
        return await self.count("completed") == self.jobs

    async def all_ended(self):
        return not self.running() and all(each.ended for each in self.workers)

    async def watch_this_machine(self):
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            if time.monotonic() - before > 0.3:
                self.stalls.append((before, time.monotonic()))

    async def run(self):
        self.port = await self.relay.start()
        watch = asyncio.create_task(self.watch_this_machine())
        for _ in range(self.wanted):
            self.start_worker()
        tasks = [asyncio.create_task(self.push())]
        first, end = [*EVENTS], time.monotonic() + max(7, self.jobs / 20)  # each event once, also in a short run
        while first or (time.monotonic() < end and await self.count("completed") < self.jobs * 0.8):
            event = first.pop(0) if first else self.choose.choices([*EVENTS], EVENTS.values())[0]
            tasks.append(asyncio.create_task(self.cause(event)))
            await asyncio.sleep(self.choose.uniform(0.1, 0.8))
        await asyncio.gather(*tasks)
        self.relay.calm = True
        await self.until(self.all_completed)
        for each in self.running():
            self.stop(each)
        await self.until(self.all_ended)
        await self.relay.end_of_all()
        watch.cancel()


def number_from(name, default):
    return int(os.environ.get(f"OJS_TEST_{name}", default))


def main():
    without_relay, seed = sys.argv[1:] == ["workers"], number_from("SEED", random.SystemRandom().getrandbits(32))
    name, count = ("WORKERS", number_from("WORKERS", 120)) if without_relay else ("JOBS", number_from("JOBS", 150))
    print(f"seed: OJS_TEST_{name}={count} OJS_TEST_SEED={seed}", flush=True)
    faults = ["--faults", "delay:100,reset:40,e500:40,lose:40", "--seed", str(seed)] if without_relay else []
    # A worker that is silent for longer than a lease keeps its jobs no longer; nothing else takes them back.
    with Backend(BUILD, "--retry-delay", "50ms", "--dead-after", "10m", *faults) as backend:
        if without_relay:
            chaos = Crowd(backend, seed, count)
        else:
            chaos = Chaos(backend, seed, count, 6 if count > 1000 else 3)
        try:
            asyncio.run(chaos.run())
        finally:
            for each in chaos.workers:
                each.process.kill()
                each.process.wait()
            shutil.copy(backend.ledger, chaos.folder / "ledger")
            (chaos.folder / "requests").write_text("".join(f"{each}\n" for each in chaos.requests or []))
        books = judge.Account(backend.events(), chaos.folder / "runs", chaos.requests, chaos.workers, chaos.stalls)
    if books.report(chaos.events):
        print(f"logs: {chaos.folder}")
        return 1
    shutil.rmtree(chaos.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
