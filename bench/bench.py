#!/usr/bin/env python3
"""Measurements, each beside a floor measured in the same run, alternating with it. They are figures, not tests: the exit status
is 1 only if something could not be measured. Linux only; run from the repository.

    bench.py [--build DIR] [NAME]...    OJS_BENCH_INCLUDE: the folder of ojs_shutdown.hpp (default .)    CXX: the compiler
"""

import argparse
import contextlib
import json
import operator
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/support"))
import dev_backend  # noqa: E402
import pickup as pickups  # noqa: E402

TIME_LIMIT = 600  # seconds for a measurement, which would hang otherwise
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OJS_")} | {"CCACHE_DISABLE": "1"}
MEASUREMENTS = {}
ROWS = [("median (quartiles)", "ours", "floor", "ratio", "target", "")]
NOTES = []
PLAN = {"build": Path("build"), "scratch": Path()}


def measurement(function):
    MEASUREMENTS[function.__name__] = function
    return function


# ---- the table -------------------------------------------------------------------------------------------------------


def shown(number):
    return f"{number:.{0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2}f}"


def spread(samples, unit):
    if not samples:
        return "-"
    quartiles = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else []
    return f"{shown(statistics.median(samples))} {unit}" + (f" ({shown(quartiles[0])}..{shown(quartiles[2])})" if quartiles else "")


def add(name, unit, ours, floor=(), target="-"):
    """A row. The target, as "<= 1.5 x", is of the ratio (the median over the rounds of ours / floor), or of our figure."""
    ratio = statistics.median(map(operator.truediv, ours, floor)) if floor else None
    verdict = ""
    if target != "-":
        comparison, limit, of = target.split()
        reached = ratio if of == "x" else statistics.median(ours)
        verdict = "met" if {"<=": operator.le, ">=": operator.ge}[comparison](reached, float(limit)) else "NOT MET"
    ROWS.append((name, spread(ours, unit), spread(floor, unit), f"{ratio:.2f}" if floor else "-", target, verdict))


def interleave(rounds, ours, floor):
    """Other work on the machine affects both alike."""
    return zip(*((ours(), floor()) for _ in range(rounds)))


# ---- programs --------------------------------------------------------------------------------------------------------


class Child:
    """A program, killed with the block that it is started for."""

    def __init__(self, *command, **environment):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env={**ENVIRONMENT, **environment})
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def line(self, start=""):
        """The rest of the next line of output that starts so."""
        for line in self.process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip()
        self.wait()
        raise RuntimeError(f"{self.process.args}: no line '{start}'")

    def wait(self, expected=0):
        """(when it ended, in monotonic ns; its resource usage)"""
        _, status, usage = os.wait4(self.pid, 0)
        ended_at = time.monotonic_ns()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != expected:
            self.errors.seek(0)
            raise RuntimeError(f"{self.process.args}: status {self.process.returncode}: {self.errors.read()[-2000:]}")
        return ended_at, usage

    def end(self, expected=0):
        self.process.terminate()
        return self.wait(expected)

    def tasks(self, name):
        return [(task / name).read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]

    def await_asleep(self):
        while not self.is_asleep():
            time.sleep(0.0002)

    def is_asleep(self):
        try:
            return all(stat.rsplit(") ", 1)[1][0] == "S" for stat in self.tasks("stat"))
        except OSError:  # a thread has just ended
            return False


def program(name, *arguments, **environment):
    return Child(PLAN["build"] / name, *arguments, **environment)


def role(name, *arguments, **environment):
    return program("bench", name, *arguments, **environment)


class Backend(dev_backend.Backend):
    def __init__(self, has_ledger=True):
        super().__init__(PLAN["build"], has_ledger=has_ledger)

    def push(self, count, kind="bench"):
        for first in range(0, count, 5000):
            self.ask("/ojs/v1/jobs/batch", {"jobs": [{"type": kind, "args": []}] * min(5000, count - first)})

    def port(self):
        return self.url.rsplit(":", 1)[1]

    def worker(self, name, *arguments, concurrency=10, **environment):
        return role(name, *arguments, OJS_URL=self.url, OJS_CONCURRENCY=str(concurrency), **environment)

    def await_idle(self, worker):
        while not self.events(event="beat") or not self.events(event="fetch"):
            time.sleep(0.0002)
        worker.await_asleep()


# ---- the measurements ------------------------------------------------------------------------------------------------


@measurement
def throughput():
    """Jobs a second of a worker whose handler does nothing, from its 500th job to its 8500th. Floors: eight threads with a
    blocking socket each that send FETCHes of ten jobs, and their ACKs; and as many threads as the worker's that FETCH one."""
    jobs = 8000

    def rate(backend, start, end):
        backend.push(jobs + 2000)  # the first ones, and what a worker takes before its SIGTERM
        with start() as client:
            out = jobs / float(client.line("took ")) * 1e9
            end(client)
            return out

    for concurrency, threads, count, target in ((1, 1, 1, ">= 0.8 x"), (10, 8, 10, ">= 0.8 x"), (10, 10, 1, ">= 1.2 x"),
                                                (64, 8, 10, ">= 0.8 x"), (64, 64, 1, ">= 1.2 x")):
        with Backend(has_ledger=False) as backend:  # whose lines cost as much as half of a job
            add(f"no-op jobs/s, {concurrency} slots; floor: {threads} FETCH {count}", "/s", *interleave(
                9, lambda: rate(backend, lambda: backend.worker("noop_worker", jobs, concurrency=concurrency), Child.end),
                lambda: rate(backend, lambda: role("bare_client", jobs, backend.port(), threads, count), Child.wait)), target)


@measurement
def peers():
    """No-op jobs a second by the backend's clock. Floor: the workers on the Go and Rust SDK, as made by `make peers`, with a poll
    interval of 1 ms, at which they do most."""
    jobs = {1: 2000, 10: 12000, 64: 12000}

    def rate(command, concurrency, **environment):
        with Backend() as backend:
            backend.push(jobs[concurrency], "noop")
            with Child(command, OJS_URL=backend.url, OJS_QUEUES="default", OJS_CONCURRENCY=str(concurrency), **environment):
                while backend.ask("/dev/summary")["completed"] < jobs[concurrency]:
                    time.sleep(0.05)
            acks = sorted(each["mono_ns"] for each in backend.events(event="ack", status=200))[jobs[concurrency] // 10:]
        return (len(acks) - 1) * 1e9 / (acks[-1] - acks[0])

    for language, targets in {"go": (5, 1.8, 1.5), "rust": (5, 1.8, 1.5)}.items():
        command = PLAN["build"] / "peers" / f"{language}-worker"
        if not command.exists():
            NOTES.append(f"peers: {command} is left out: make peers")
            continue
        for concurrency, target in zip(jobs, targets):
            add(f"no-op jobs/s, {concurrency} slots; floor: {language} SDK", "/s", *interleave(
                5, lambda: rate(PLAN["build"] / "worker", concurrency),
                lambda: rate(command, concurrency, OJS_POLL_INTERVAL="1ms")), f">= {target} x")


@measurement
def server_rate():
    """Requests a second that a draining_server answers, on connections that each send their next request with the response to
    the last. Floor: one thread that reads and writes in a loop on epoll, and parses nothing."""
    def rate(server, connections):
        with role("load_client", server.port, connections) as client:
            return float(client.line("rate "))

    with role("draining_server") as ours, role("epoll_server") as bare:
        for server in (ours, bare):
            server.port = server.line("listening on 127.0.0.1:")
        for count in (4, 64):
            add(f"draining_server, requests/s on {count} connections", "/s",
                *interleave(9, lambda: rate(ours, count), lambda: rate(bare, count)), ">= 0.75 x")


@measurement
def spool():
    """One job of a spool directory: FETCH and ACK, 100 files waiting. Floor: the bare renames and fsyncs, and for an ACK with a
    result the new file. With TMPDIR in memory it shows the processor's part."""
    for flag, name in enumerate(("claim + settle of a job", "claim + settle, with a result")):
        with role("spool", PLAN["scratch"] / f"spool{flag}", flag) as running:
            lines = running.process.stdout.read().splitlines()
            running.wait()
        add(f"spool: {name}", "us", *zip(*(map(float, line.split()) for line in lines)), "<= 3 x")


@measurement
def term_to_gone():
    """SIGTERM to an idle worker until the process has ended. Floor: a sleep(1), which SIGTERM ends."""
    def timed(process, expected=0):
        sent = time.monotonic_ns()
        return (process.end(expected)[0] - sent) / 1e6

    def ours():
        with Backend() as backend, backend.worker("noop_worker", 1) as worker:
            backend.await_idle(worker)
            return timed(worker)

    def floor():
        with Child("sleep", 1000) as process:
            process.await_asleep()
            return timed(process, -signal.SIGTERM)

    add("idle SIGTERM -> process gone", "ms", *interleave(31, ours, floor), "<= 10 ms")


@measurement
def forced_stop():
    """1,000 jobs asleep on their token, SIGTERM, and a second one: from that until the backend has received the last of 1,000
    FAILs. Responses come at once, or 50 ms late."""
    def once(delay):
        with Backend() as backend:
            backend.push(1000)
            with backend.worker("sleeping_worker", 1000, concurrency=1000, OJS_SIGNAL_DEBOUNCE="1ms") as worker:
                worker.line("all asleep")
                backend.ask("/dev/delay", {"ms": delay})
                worker.process.send_signal(signal.SIGTERM)
                worker.line("phase draining")
                time.sleep(0.002)  # sooner, both would be one event
                sent = time.monotonic_ns()
                worker.end()
            fails = [each["recv_mono_ns"] for each in backend.events(event="nack", status=200)]
            assert len(fails) == 1000, len(fails)
            return (max(fails) - sent) / 1e6

    for delay, target in ((0, "-"), (50, "<= 1000 ms")):
        add(f"1,000 FAILs of a forced stop, {delay} ms added", "ms", [once(delay) for _ in range(5)], target=target)


@measurement
def idle_wakeups():
    """Context switches of all threads of an idle worker in 20 s, scaled to a minute, without two for each heartbeat and poll: its
    thread sleeps until it is due, and again until the response."""
    def counts(backend, worker):
        backend.await_idle(worker)
        lines = [line.split() for text in worker.tasks("status") for line in text.splitlines() if "_ctxt_switches:" in line]
        return sum(int(count) for _, count in lines), sum(len(backend.events(event=each)) for each in ("beat", "fetch"))

    with Backend() as backend, backend.worker("noop_worker", 1) as worker:
        before = counts(backend, worker)
        time.sleep(20)
        switches, requests = map(operator.sub, counts(backend, worker), before)
    add("idle wake-ups a minute, less beats, polls", "", [(switches - 2 * requests) * 3], target="<= 10 each")
    NOTES.append(f"idle: {switches} context switches, {requests} heartbeats and polls in 20 s")


def on_each_queue():
    """(name, p99 target, a context manager that begins a worker) of the queues that this machine has."""
    for name, (begin, target, missing) in pickups.QUEUES.items():
        if why := missing(PLAN["build"]):
            NOTES.append(f"pickup: {name} is left out: {why}")
        else:
            yield name, target, begin(PLAN["build"], ENVIRONMENT)


@measurement
def pickup():
    """From the begin of a push to that of its job, in an idle worker with default options: 200 jobs, 50 to 400 ms apart. The
    figure is p99. Floor: that of a byte to a process that waits, and back."""
    for name, target, begun in on_each_queue():
        with begun as worker:
            samples, echoes = pickups.soon(worker, 200)
        add(f"pick-up p99, {name}", "ms", *([pickups.quantile(each, 0.99)] for each in (samples, echoes)), f"<= {target} ms")
        NOTES.append(f"pickup: {name}: {pickups.summary(samples)}")


@measurement
def pickup_idle():
    """The same after 2 s without a job, 30 times, and after 65 s, 4 times; all queues at the same time."""
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(begun) for name, _, begun in on_each_queue()}

        def idle(worker, seconds, count):
            worker.pick_up()
            out = []
            for _ in range(count):
                time.sleep(seconds + random.random())
                out.append(worker.pick_up())
            return out

        for seconds, count in ((2, 30), (65, 4)):
            for name, samples in pickups.together(workers, lambda worker: idle(worker, seconds, count)).items():
                add(f"pick-up after {seconds} s, {name}", "ms", samples)
                NOTES.append(f"pickup_idle: {name} after {seconds} s: {pickups.summary(samples)}")


@measurement
def idle_minute():
    """Voluntary context switches of an HTTP worker with default options, in a minute that begins 62 s after its last job."""
    with contextlib.ExitStack() as stack:
        begin = lambda start: stack.enter_context(start(PLAN["build"], ENVIRONMENT))
        workers = {"polling": begin(pickups.on_http), "queue_events()": begin(pickups.on_http_events)}

        def counts(worker):
            return [worker.switches()] + [len(worker.backend.events(event=each)) for each in ("beat", "fetch")]

        def count_idle(worker):
            worker.pick_up()
            time.sleep(62)
            before = counts(worker)
            time.sleep(60)
            return list(map(operator.sub, counts(worker), before))

        for name, (switches, beats, fetches) in pickups.together(workers, count_idle).items():
            add(f"wake-ups in an idle minute, {name}", "", [switches], target="<= 12 each")
            NOTES.append(f"idle_minute: {name}: {switches} voluntary switches, {beats} heartbeats, {fetches} FETCHes")


@measurement
def compile_time():
    """User and system time, and memory, of `$CXX -std=c++17` on a file that includes the header alone: header-only, separate, and
    each extension. Floor: a file that includes <picojson.h> alone."""
    compiler = [*shlex.split(os.environ.get("CXX") or "c++"), "-std=c++17", "-pthread", "-isystem", "third_party/include",
                "-I" + os.environ.get("OJS_BENCH_INCLUDE", "."), "-Iextensions", "-I/usr/include/postgresql"]
    check, emit = ["-fsyntax-only"], ["-O2", "-c", "-o", PLAN["scratch"] / "included.o"]

    def compiled(included, flags):
        """(milliseconds of processor time, MiB)"""
        source = PLAN["scratch"] / "source.cpp"
        source.write_text(f"#include <{included}>\n")
        with Child(*compiler, *flags, source) as running:
            _, usage = running.wait()
        return (usage.ru_utime + usage.ru_stime) * 1e3, usage.ru_maxrss / 1024

    def compare(name, included, flags, beside, floor_flags, target="-", memory_target=None):
        ours, floor = interleave(9, lambda: compiled(included, flags), lambda: compiled(beside, floor_flags))
        (times, memory), (floor_times, floor_memory) = zip(*ours), zip(*floor)
        add(name, "ms", times, floor_times, target)
        if memory_target:
            add(f"peak memory, {name}", "MiB", memory, floor_memory, memory_target)

    header = "ojs_shutdown.hpp"
    compare("-fsyntax-only, header-only", header, check, "picojson.h", check, "<= 1.9 x", "<= 1.5 x")
    compare("-fsyntax-only, separate", header, [*check, "-DOJS_SHUTDOWN_SEPARATE=1"], "picojson.h", check, "<= 0.6 x")
    compare("-O2 -c, header-only", header, emit, "picojson.h", emit, memory_target="<= 2 x")
    compare("-O2 -c beside -fsyntax-only", header, emit, header, check, "<= 1.2 x")
    size = subprocess.run(["size", emit[-1]], capture_output=True, text=True, check=True).stdout.splitlines()[1].split()
    add("code of a file that only includes it, -O2", "bytes", [int(size[0])], target="<= 512 bytes")
    for path in sorted(Path("extensions").iterdir()):
        try:
            compare(f"-fsyntax-only, {path.name} beside {header}", path.name, check, header, check)
        except RuntimeError as why:  # its library is not installed
            NOTES.append(f"compile_time: {path.name} is left out: {str(why)[:200]}")


@measurement
def launcher():
    """A launcher with 100 children: VmRSS. Floor: without children."""
    admin = PLAN["scratch"] / "admin.sock"
    config = PLAN["scratch"] / "fleet.json"

    def start(children):
        config.write_text(json.dumps({"admin": f"unix:{admin}", "process_groups": [
            {"name": "group", "command": [str(PLAN["build"] / "lifecycle_runner")], "desired_instances": children}]}))
        return program("launcher", "run", "--config", config, OJS_LOG_LEVEL="off")

    def await_ready(process, children):
        ready = ["curl", "-sf", "--unix-socket", admin, "http://localhost/healthz"]
        while f'"ready":{children}' not in subprocess.run(ready, capture_output=True, text=True).stdout:
            time.sleep(0.05)
        process.await_asleep()

    def resident(process):
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    memory, floor = [], []
    for _ in range(3):
        with start(0) as empty:
            await_ready(empty, 0)
            floor.append(resident(empty))
            empty.end()
        with start(100) as full:
            await_ready(full, 100)
            memory.append(resident(full))
            full.end()
    add("launcher: RSS with 100 children", "MiB", memory, floor, "<= 10 MiB")


def on_alarm(*_):
    raise TimeoutError(f"not done after {TIME_LIMIT} s")


def main():
    names = "\n".join(f"{name}: {' '.join(function.__doc__.split())}" for name, function in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(description=__doc__, epilog=names, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=PLAN["build"], help="the folder of the programs")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    for name in given.names:
        if name not in MEASUREMENTS:
            parser.error(f"no measurement is called {name}; they are {', '.join(MEASUREMENTS)}")
    PLAN["build"] = given.build.resolve()
    signal.signal(signal.SIGALRM, on_alarm)
    failed = False
    with tempfile.TemporaryDirectory(prefix="ojs_bench_") as scratch:
        PLAN["scratch"] = Path(scratch)
        for name in given.names or MEASUREMENTS:
            print(f"bench: {name}", file=sys.stderr, flush=True)
            signal.alarm(TIME_LIMIT)
            try:
                MEASUREMENTS[name]()
            except Exception as why:
                failed = True
                ROWS.append((name, "could not run", "-", "-", "-", ""))
                NOTES.append(f"{name} could not run: {type(why).__name__}: {why}")
            signal.alarm(0)
    for row in ROWS:
        print("{:<48}  {:<29}  {:<29}  {:>5}  {:<12}  {}".format(*row).rstrip())
    print("\n".join(["", *NOTES]) if NOTES else "", end="\n" if NOTES else "")
    return failed


if __name__ == "__main__":
    sys.exit(main())
