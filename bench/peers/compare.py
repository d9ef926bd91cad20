"""This library's worker beside those of the official SDKs, on one backend: what a stop holds, and what a job costs.

    python3 bench/peers/compare.py --go COMMAND --rust COMMAND --js COMMAND --python COMMAND --json FILE
    python3 bench/peers/compare.py --render FILE --markdown FILE --svg FILE

A COMMAND starts the worker of bench/peers/LANGUAGE/, made with the SDK as that one's documentation says; any of them may
be missing. build/worker, build/dev_backend and build/shutdown-probe are made by make.

The checks of shutdown-probe are judged once for each worker. What is measured is measured in rounds, each worker once in a
round, and printed as the median and the whole spread. Each worker gets the poll interval, of 1 s, 100, 10 and 1 ms, with
which it does most jobs a second. A job is a `noop`: what is measured is what a worker adds to it.
"""

import argparse
import json
import os
import platform
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import chart

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from dev_backend import Backend

BUILD = ROOT / "build"
CONCURRENCIES = (1, 10, 64)
POLLS = (1000, 100, 10, 1)  # milliseconds
SECONDS = 2.5  # about so long a measurement
MOST = 30000  # jobs of one
NAMES = {"go": "Go SDK", "rust": "Rust SDK", "js": "JavaScript SDK", "python": "Python SDK"}
TICKS = os.sysconf("SC_CLK_TCK")


class Peer:
    def __init__(self, name, about, command):
        self.name, self.about, self.command = name, about, shlex.split(command)
        self.poll = POLLS[0]

    def start(self, backend, concurrency, poll=None):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("OJS_")}
        kept |= {"OJS_URL": backend.url, "OJS_QUEUES": "default", "OJS_CONCURRENCY": str(concurrency)}
        if poll:
            kept["OJS_POLL_INTERVAL"] = f"{poll}ms"
        return subprocess.Popen(self.command, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until(holds, process, limit=60):
    end = time.monotonic() + limit
    while not holds():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def cpu_of(process):
    """Seconds, of all its threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(process):
    """The most it had, in MiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1024


def work_off(peer, concurrency, jobs, limit=20):
    """Jobs a second, microseconds of a processor a job, and MiB; the first tenth of the jobs is not counted."""
    with Backend(BUILD) as backend:
        for begin in range(0, jobs, 500):
            backend.ask("/ojs/v1/jobs/batch", {"jobs": [{"type": "noop", "args": []}] * min(500, jobs - begin)})

        def completed():
            return backend.ask("/dev/summary")["completed"]

        process = peer.start(backend, concurrency, peer.poll)
        try:
            wait_until(lambda: completed() >= jobs // 10, process, limit / 2)
            cpu, done = cpu_of(process), completed()
            wait_until(lambda: completed() >= jobs, process, limit)
            cpu, done = cpu_of(process) - cpu, completed() - done
            memory = memory_of(process)
        finally:
            process.kill()
            process.wait()
        acks = sorted(event["mono_ns"] for event in backend.events(event="ack") if event.get("status", 200) == 200)
    acks = acks[len(acks) // 10 :]
    if len(acks) < 2 or not done:
        return {"rate": 0.0, "cpu": None, "memory": memory}
    return {"rate": (len(acks) - 1) * 1e9 / (acks[-1] - acks[0]), "cpu": cpu * 1e6 / done, "memory": memory}


def idle_stop(peer):
    """Milliseconds from SIGTERM to the end of a worker that has no job, with the poll interval that is its own."""
    with Backend(BUILD) as backend:
        process = peer.start(backend, 10)
        wait_until(lambda: backend.events(event="fetch"), process)
        since = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        return {"ms": (time.monotonic() - since) * 1000, "status": status}


def pick_up(peer, jobs=200):
    """Milliseconds from the begin of a push to the response to the FETCH with that job, one job every 50 to 400 ms. The worker has
    the poll interval that is its own."""
    with Backend(BUILD) as backend:
        process = peer.start(backend, 10)
        try:
            wait_until(lambda: backend.events(event="fetch"), process)
            backend.await_state(backend.push("noop"), "completed")  # within a minute of it a worker may poll more often
            pushed = []
            for _ in range(jobs):
                time.sleep(random.uniform(0.05, 0.4))
                pushed.append(time.monotonic_ns())
                backend.push("noop")
            wait_until(lambda: backend.ask("/dev/summary")["completed"] > jobs, process)
        finally:
            process.kill()
            process.wait()
        fetched = [each["mono_ns"] for each in backend.events(event="fetch") for _ in each.get("jobs", [])]
    took = sorted((at - since) / 1e6 for since, at in zip(pushed, fetched[1:], strict=True))
    return {"p50": statistics.median(took), "p99": took[int(len(took) * 0.99)], "most": took[-1]}


def probe(peer):
    """The checks by what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [BUILD / "shutdown-probe", "--all", "--json", report, "--", *peer.command]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        checks = json.loads(report.read_text())["checks"]
    return {result: [each["id"] for each in checks if each["result"] == result] for result in ("PASS", "FAIL", "skipped")}


def size_of(peer):
    """MB of the program without its symbols, or nothing where something else runs it."""
    program = shutil.which(peer.command[0])
    if len(peer.command) > 1:
        return None
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "stripped"
        subprocess.run(["strip", "-o", stripped, program], check=True)
        return stripped.stat().st_size / 1e6


tell = partial(print, file=sys.stderr, flush=True)


def tune(peers, passes=2):
    """Chooses each one's poll interval; a worker that does no job at all is refused here."""
    best = {peer.name: dict.fromkeys(POLLS, 0.0) for peer in peers}
    for poll in POLLS * passes:
        for peer in peers:
            peer.poll = poll
            rate = work_off(peer, 10, MOST, limit=2)["rate"]
            best[peer.name][poll] = max(rate, best[peer.name][poll])
    for peer in peers:
        rates = best[peer.name]
        tell(f"{peer.name}: " + ", ".join(f"{rates[poll]:.0f} jobs/s polling every {poll} ms" for poll in POLLS))
        if not max(rates.values()):
            raise RuntimeError(f"{peer.name} completed no job")
        # No shorter than it must be: polling costs a processor, and the backend.
        peer.poll = max(poll for poll in POLLS if rates[poll] * 1.1 >= max(rates.values()))


def measure(peers, rounds):
    runs = {peer.name: {"stop": [], **{str(each): [] for each in CONCURRENCIES}} for peer in peers}
    counts = {}
    for peer in peers:
        for concurrency in CONCURRENCIES:
            rate = work_off(peer, concurrency, MOST, limit=2)["rate"]
            counts[peer.name, concurrency] = max(100, min(MOST, int(rate * SECONDS)))
    for number in range(rounds):
        # Another one first each time: what comes before may leave the machine warmer or busier.
        order = peers[number % len(peers) :] + peers[: number % len(peers)]
        for concurrency in CONCURRENCIES:
            for peer in order:
                got = work_off(peer, concurrency, counts[peer.name, concurrency])
                runs[peer.name][str(concurrency)].append(got)
                tell(f"round {number + 1}: {peer.name}, {concurrency} at a time: {got['rate']:.0f} jobs/s")
        for peer in order:
            runs[peer.name]["stop"].append(idle_stop(peer))
    return runs


def spread(values):
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summed_up(peer, runs, checks):
    ten = runs["10"]
    return {
        "name": peer.name, "about": peer.about, "poll_ms": peer.poll, "probe": checks, "size_mb": size_of(peer),
        "rate": {key: spread([run["rate"] for run in runs[key]]) for key in map(str, CONCURRENCIES)},
        "cpu_us": spread([run["cpu"] for run in ten]), "memory_mib": spread([run["memory"] for run in ten]),
        "stop_ms": spread([run["ms"] for run in runs["stop"]]),
        "stop_status": sorted({run["status"] for run in runs["stop"]}),
    }  # fmt: skip


def workers(asked):
    version = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "ojs_shutdown.hpp").read_text())[1]
    peers = [Peer("ojs_shutdown", f"{version}, C++17", str(BUILD / "worker"))]
    given = vars(asked)
    return peers + [Peer(NAMES[each], given[f"{each}_about"], given[each]) for each in NAMES if given[each]]


def measured(asked):
    peers = workers(asked)
    tune(peers)
    checks = {}
    for peer in [] if asked.no_probe else peers:
        checks[peer.name] = probe(peer)
        tell(f"{peer.name}: {len(checks[peer.name]['PASS'])} checks pass")
    runs = measure(peers, asked.rounds)
    machine = {"processors": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
    return {"rounds": asked.rounds, "machine": machine,
            "workers": [summed_up(peer, runs[peer.name], checks.get(peer.name)) for peer in peers]}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for language, name in NAMES.items():
        parser.add_argument(f"--{language}", metavar="COMMAND", help=f"starts the worker on the {name}")
        parser.add_argument(f"--{language}-about", metavar="TEXT", default="", help="its versions, for the table")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--no-probe", action="store_true", help="without the checks of shutdown-probe, which take minutes")
    parser.add_argument("--json", metavar="FILE", help="where to write what was measured")
    parser.add_argument("--render", metavar="FILE", help="measure nothing: read what was measured")
    parser.add_argument("--markdown", metavar="FILE", help="where to write the table")
    parser.add_argument("--svg", metavar="FILE", help="where to draw the picture")
    parser.add_argument("--pickup", action="store_true", help="measure only how soon an idle worker gets a job, and print that")
    asked = parser.parse_args()
    if asked.pickup:
        for peer in workers(asked):
            print(f"{peer.name}: " + ", ".join(f"{key} {value:.1f} ms" for key, value in pick_up(peer).items()), flush=True)
        return
    result = json.loads(Path(asked.render).read_text()) if asked.render else measured(asked)
    table = chart.table(result)
    written = {asked.json: json.dumps(result, indent=1) + "\n", asked.svg: chart.drawn(result), asked.markdown: table}
    for file, text in written.items():
        if file:
            Path(file).write_text(text)
    print(table, end="")


if __name__ == "__main__":
    main()
