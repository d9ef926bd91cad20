"""build/dev_backend and real workers, on loopback.

    python3 real.py costs      measures the processor time of each kind of request, for costs.json
    python3 real.py compare    200 workers beside the model: the backend resets all connections for a time, then all get SIGTERM
"""

import argparse
import http.client
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from inputs import KINDS, read_inputs
from model import REFUSED, Fleet, Worker

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/support"))
from dev_backend import Backend  # noqa: E402

HEADERS = {"Content-Type": "application/openjobspec+json"}
TICKS = os.sysconf("SC_CLK_TCK")
JOB_SECONDS = 5
BACKEND_DOWN, BACKEND_BACK, STOP, END = 15, 27, 45, 56  # seconds
ENVIRONMENT = {"OJS_SHUTDOWN_GRACE_PERIOD": "5s", "OJS_HEARTBEAT_INTERVAL": "2s", "OJS_LOG_LEVEL": "off"}


def push(backend, jobs):
    for first in range(0, len(jobs), 500):
        backend.ask("/ojs/v1/jobs/batch", {"jobs": jobs[first : first + 500]})


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure_costs(build, count):
    """Microseconds of the backend's processor time a request, on one connection."""
    owner, beating = ({"worker_id": name, "queues": ["default"]} for name in ("owner", "beating"))
    out = {}
    with Backend(build) as backend:
        connection = http.client.HTTPConnection(backend.url.removeprefix("http://"), timeout=60)

        def measure(kind, path, bodies):
            before = cpu_seconds(backend.process.pid)
            responses = []
            for body in bodies:
                connection.request("POST", f"/ojs/v1/workers/{path}", json.dumps(body), HEADERS)
                response = connection.getresponse()
                responses.append(json.load(response))
                assert response.status < 300, responses[-1]
            out[kind] = round((cpu_seconds(backend.process.pid) - before) * 1e6 / len(bodies), 1)
            return [job["id"] for each in responses for job in each.get("jobs", [])]

        push(backend, [{"type": "noop", "args": []}] * (2 * count + 10))
        held = measure("FETCH", "fetch", [{**beating, "count": 10}])
        measure("BEAT", "heartbeat", [{**beating, "state": "running", "active_jobs": held, "active_job_ids": held}] * count)
        ids = measure("FETCH", "fetch", [{**owner, "count": 1}] * (2 * count))
        measure("ACK", "ack", [{"job_id": each} for each in ids[:count]])
        why = {"code": "ShutdownError", "message": "the worker is shutting down", "retryable": True}
        measure("FAIL", "nack", [{"job_id": each, "error": why, "requeue": True} for each in ids[count:]])
    return {kind: out[kind] for kind in KINDS}


# ---- real workers beside the model -----------------------------------------------------------------------------------


def sleep_jobs(workers, concurrency, seed):
    durations = random.Random(seed)
    count = round(1.5 * workers * concurrency * STOP / JOB_SECONDS)
    return [{"type": "sleep", "args": [round(durations.expovariate(1 / JOB_SECONDS) * 1000)]} for _ in range(count)]


def run_real(build, workers, concurrency, seed):
    """The times of all requests that the backend received, the times when it went down and returned, and the exit statuses."""
    started = []
    with Backend(build) as backend:
        push(backend, sleep_jobs(workers, concurrency, seed))
        environment = {**os.environ, **ENVIRONMENT, "OJS_URL": backend.url}
        began = time.monotonic()

        def elapsed():
            return time.monotonic() - began

        try:
            for index in range(workers):
                started.append(subprocess.Popen([build / "worker"], env=environment, stderr=subprocess.DEVNULL))
                time.sleep(max(0.0, 5 * index / workers - elapsed()))
            outage = []
            for at, faults in ((BACKEND_DOWN, "reset:1000"), (BACKEND_BACK, "")):
                time.sleep(max(0.0, at - elapsed()))
                backend.ask("/dev/faults", {"faults": faults})
                outage.append(elapsed())
            time.sleep(max(0.0, STOP - elapsed()))
            for worker in started:
                worker.send_signal(signal.SIGTERM)
            statuses = [worker.wait(30) for worker in started]
        finally:
            for worker in started:
                worker.kill()
                worker.wait()
        names = dict(zip(("fetch", "ack", "nack", "beat"), KINDS))
        seen = {kind: [] for kind in KINDS}
        for event in backend.events():
            if event["event"] in names and "recv_mono_ns" in event:
                seen[names[event["event"]]].append(event["recv_mono_ns"] / 1e9 - began)
    return seen, outage, statuses


def run_model(inputs, workers, outage, seed):
    inputs = replace(inputs, grace_period=5.0, heartbeat_interval=2.0)
    fleet = Fleet(inputs, 1e-6, lambda random: random.expovariate(1 / JOB_SECONDS), seed)
    for index in range(workers):
        fleet.sim.at(5 * index / workers, fleet.start)
    fleet.sim.at(outage[0], fleet.backend.go_down, REFUSED)
    fleet.sim.at(outage[1], fleet.backend.return_)
    fleet.watch(STOP)
    fleet.tell(Worker.stop)
    fleet.watch(END)
    return fleet


def show_comparison(seen, back_at, fleet):
    """Requests a second by stage: the mean, and the busiest second."""
    def modelled(kind, second):
        return fleet.backend.arrivals[kind][second]

    def real(kind, second):
        return sum(second <= at < second + 1 for at in seen[kind])

    print("| stage | kind | real: mean | model: mean | real: peak | model: peak |\n|---|---|---|---|---|---|")
    stages = {"steady": (7, BACKEND_DOWN), "backend back": (math.ceil(back_at), STOP), "stop": (STOP, END)}
    for stage, (first, last) in stages.items():
        seconds = range(first, last)
        for kind in (*KINDS, "all"):
            of = [kind] if kind != "all" else list(KINDS)
            counts = [[sum(count(each, second) for each in of) for second in seconds] for count in (real, modelled)]
            means = [f"{sum(each) / len(each):.0f}" for each in counts]
            print(f"| {stage} | {kind} | {' | '.join(means)} | {' | '.join(str(max(each)) for each in counts)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="the folder of the programs")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5000, help="of each kind, for costs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("what", choices=["costs", "compare"])
    given = parser.parse_args()
    if not (given.build / "dev_backend").exists() or not (given.build / "worker").exists():
        raise SystemExit(f"{given.build} lacks dev_backend or worker: make")
    if given.what == "costs":
        print(json.dumps({"microseconds": measure_costs(given.build, given.requests)}))
        return
    inputs = read_inputs(given.build / "fleet_defaults")
    seen, outage, statuses = run_real(given.build, given.workers, inputs.concurrency, given.seed)
    show_comparison(seen, outage[1], run_model(inputs, given.workers, outage, given.seed))
    exits = {each: statuses.count(each) for each in set(statuses)}
    print(f"\nbackend away from {outage[0]:.1f} s to {outage[1]:.1f} s; exit statuses: {exits}")
    sys.exit(any(statuses))


if __name__ == "__main__":
    main()
