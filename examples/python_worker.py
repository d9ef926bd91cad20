#!/usr/bin/env python3
"""An Open Job Spec worker that stops without losing work: one file, the standard library alone. See tools/shutdown_probe/."""

import http.client
import json
import os
import re
import signal
import threading
import time
import urllib.parse


def seconds(name, default):
    """500ms, 30s, 1m30s"""
    parts = re.findall(r"(\d+)(ms|s|m)", os.environ.get(name, default))
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60}[unit] for number, unit in parts)


URL = urllib.parse.urlsplit(os.environ["OJS_URL"])
SLOTS = int(os.environ.get("OJS_CONCURRENCY", "4"))
LEASE = seconds("OJS_VISIBILITY_TIMEOUT", "30s")
WORKER = f"{os.uname().nodename}-{os.getpid()}"
HEADERS = {"Content-Type": "application/openjobspec+json"}
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
SIGNALS = STOP_SIGNALS | {signal.SIGTSTP, signal.SIGCONT}

changed = threading.Condition()  # guards what follows, and wakes the threads that wait for it
state = "running"  # then quiet: no FETCH; draining: quiet until the end; ended
jobs = {}  # claimed and not settled, by id
stop_at = float("inf")  # no report is repeated after this time


class Job:
    def __init__(self, claimed):
        self.id, self.type, self.args = claimed["id"], claimed["type"], claimed.get("args", [])
        self.cancelled = threading.Event()  # its handler returns as soon as it can
        self.lease_end = time.monotonic() + LEASE
        self.reported = False


def call(route, body):
    """Status and JSON object of the response; status 0: there was none, or it cannot be used."""
    timeout = max(0.1, min(5, stop_at - time.monotonic()))
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=timeout)
    try:
        connection.request("POST", f"{URL.path}/ojs/v1/workers/{route}", json.dumps(body), HEADERS)
        response = connection.getresponse()
        answer = json.loads(response.read(1 << 20) or b"{}")
        return (response.status, answer) if isinstance(answer, dict) else (0, {})
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return 0, {}
    finally:
        connection.close()


def enter(new_state):
    global state
    with changed:
        state = new_state
        changed.notify_all()


# Step 1: claim no more jobs than there are free slots.
def fetch_jobs():
    while state != "draining":
        with changed:
            changed.wait_for(lambda: state == "draining" or (state == "running" and len(jobs) < SLOTS))
        if state != "running":
            continue
        queues = os.environ.get("OJS_QUEUES", "default").split(",")
        claimed = call("fetch", {"queues": queues, "worker_id": WORKER, "count": SLOTS - len(jobs)})[1].get("jobs")
        with changed:
            new = [Job(each) for each in claimed] if isinstance(claimed, list) else []
            jobs.update({job.id: job for job in new})
        for job in new:
            try:
                threading.Thread(target=run, args=(job,), daemon=True).start()
            except RuntimeError:  # no thread for it
                hand_back(job)
        with changed:
            if not claimed and state == "running":
                changed.wait(seconds("OJS_POLL_INTERVAL", "1s"))


# Step 2: report each job once, and repeat the report until there is an answer.
def run(job):
    try:
        completed = HANDLERS[job.type](job)
    except Exception as error:  # fails the attempt
        return report(job, "nack", {"error": {"code": "handler_error", "message": repr(error)}})
    return report(job, "ack", {}) if completed else hand_back(job)


def hand_back(job):
    error = {"code": "cancelled", "message": "the worker stops", "details": {"error_class": "ShutdownError"}}
    report(job, "nack", {"error": error, "requeue": True})


def report(job, route, body):
    with changed:
        first, job.reported = not job.reported, True
    while first and time.monotonic() < min(stop_at, job.lease_end):  # after its lease it is another worker's job
        status = call(route, {"job_id": job.id, **body})[0]
        if status == 400 and body.pop("requeue", None):
            continue  # this backend accepts nothing but the published schema
        if status // 100 in (2, 4):  # 409: an earlier report had arrived
            break
        time.sleep(0.1)
    with changed:
        if first and time.monotonic() < stop_at and jobs.get(job.id) is job:
            del jobs[job.id]
        changed.notify_all()


# Step 3: heartbeats until the last report has its response. They renew the leases; a response may command a stop.
def beat(worker_state):
    body = {"worker_id": WORKER, "active_jobs": list(jobs), "visibility_timeout_ms": max(1000, int(LEASE * 1000))}
    sent = time.monotonic()
    status, answer = call("heartbeat", {**body, "state": worker_state})
    if status == 400:
        status, answer = call("heartbeat", body)
    extended = answer.get("jobs_extended", body["active_jobs"])
    for job in list(jobs.values()):
        if status // 100 == 2 and isinstance(extended, list) and job.id in extended:
            job.lease_end = sent + LEASE
    return answer.get("directive") or answer.get("state")


def send_beats():
    directive = None
    while state != "ended":
        sent = state
        previous, directive = directive, beat("running" if sent == "running" else "quiet")
        if directive != previous and directive in ("quiet", "terminate"):
            os.kill(os.getpid(), signal.SIGTSTP if directive == "quiet" else signal.SIGTERM)
        with changed:
            changed.wait_for(lambda: state != sent, seconds("OJS_HEARTBEAT_INTERVAL", "10s"))


# Step 4: SIGTERM begins the drain, until all jobs are settled, the grace period is over, or a second one comes.
def serve():
    began = deadline = next_line = float("inf")
    while time.monotonic() < deadline and (state != "draining" or jobs or fetcher.is_alive()):
        got = signal.sigtimedwait(SIGNALS, 0.02 if state == "draining" else 3600)
        now = time.monotonic()
        if got:
            print(f"{signal.Signals(got.si_signo).name} of process {got.si_pid}", flush=True)
        if got and state != "draining":
            stops = got.si_signo in STOP_SIGNALS
            enter("draining" if stops else "quiet" if got.si_signo == signal.SIGTSTP else "running")
            if stops:
                began, next_line, deadline = now, now, now + seconds("OJS_SHUTDOWN_GRACE_PERIOD", "30s")
        elif got and got.si_signo in STOP_SIGNALS and now > began + 0.25:  # sooner, it is the same stop
            deadline = now
        if now >= next_line:
            print(f"draining: {len(jobs)} jobs in flight", flush=True)
            next_line += seconds("OJS_PROGRESS_INTERVAL", "5s")


# Step 5: cancel the jobs that still run, hand them back, and send the last heartbeat.
def stop():
    global stop_at
    stop_at = time.monotonic() + seconds("OJS_STOP_TIMEOUT", "5s")
    while (jobs or fetcher.is_alive()) and time.monotonic() < stop_at:
        for job in list(jobs.values()):
            if not job.cancelled.is_set():
                job.cancelled.set()
                try:
                    threading.Timer(0.5, hand_back, (job,)).start()  # in case its handler does not return
                except RuntimeError:
                    hand_back(job)
        time.sleep(0.02)
    enter("ended")
    heartbeats.join(1)
    beat("terminate")
    os._exit(75 if jobs else 0)


# A handler returns True at its end, False if it was cancelled.
def sleep(job):
    return not job.cancelled.wait(job.args[0] / 1000)


def spin(job):
    end = time.monotonic() + job.args[0] / 1000
    while time.monotonic() < end:
        pass
    return True


HANDLERS = {"probe.sleep": sleep, "probe.spin": spin}
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in every thread: sigtimedwait() takes them
fetcher = threading.Thread(target=fetch_jobs, daemon=True)
heartbeats = threading.Thread(target=send_beats, daemon=True)
fetcher.start()
heartbeats.start()
serve()
stop()
