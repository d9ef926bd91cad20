"""What an Open Job Spec server holds of what a worker's stop relies on: python3 tests/interop/ojs_server.py URL

Pushes jobs into queues of its own, works on them with build/worker, stops that in every way, and looks what became of
each job. Other queues are left alone, and what is left of its own jobs is cancelled. One line a check, which says

    held               and what was seen
    did not hold       and why
    not said           what no published document asks of a server, and this one does not do

and last "N passed, N failed, N skipped"; those not said are the skipped. Exit status: 0 nothing failed, 1 something did,
64 wrong usage. A server that wants a token finds it in OJS_AUTH_TOKEN. Takes about half a minute.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 90  # seconds, for what must come; a slow machine is not a fault of the server
LEASE = 3  # seconds, where one has to end
ENDED = ("completed", "discarded", "cancelled")


class DidNotHold(Exception):
    pass


class NotSaid(Exception):
    pass


def hold(condition, why):
    if not condition:
        raise DidNotHold(why)


def wait_for(look, what):
    """What `look` returns, as soon as that is something."""
    end = time.monotonic() + TIMEOUT
    while not (found := look()):
        hold(time.monotonic() < end, f"waited {TIMEOUT} s for {what}")
        time.sleep(0.02)
    return found


class Server:
    def __init__(self, url):
        self.url = url.rstrip("/")
        self.pushed = []

    def ask(self, method, path, body=None, **more):
        """Status and body, as JSON where it is that."""
        headers = {"Content-Type": "application/openjobspec+json", "Accept": "application/openjobspec+json"}
        headers |= {"OJS-Version": "1.0"} | more
        if token := os.environ.get("OJS_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode(), headers, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            text = answer.read().decode()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def push(self, queue, kind, *args, attempts=None):
        options = {"queue": queue}
        if attempts:
            options["retry"] = {"max_attempts": attempts, "initial_interval": "PT1S"}
        status, said = self.ask("POST", "/ojs/v1/jobs", {"type": kind, "args": list(args), "options": options})
        hold(status in (200, 201), f"a push is answered {status}: {said}")
        job = said.get("job", said)["id"]
        self.pushed.append(job)
        return job

    def job(self, job):
        status, said = self.ask("GET", f"/ojs/v1/jobs/{job}")
        hold(status == 200, f"GET of a job is answered {status}: {said}")
        return said.get("job", said)

    def wait_state(self, job, *states):
        def look():
            now = self.job(job)
            return now if now["state"] in states else None

        return wait_for(look, f"the job to be {' or '.join(states)}; it is {self.job(job)['state']}")

    def fetch(self, queue, worker, lease):
        body = {"queues": [queue], "count": 1, "worker_id": worker, "visibility_timeout_ms": lease * 1000}
        status, said = self.ask("POST", "/ojs/v1/workers/fetch", body)
        hold(status == 200, f"a FETCH is answered {status}: {said}")
        return [each["id"] for each in said["jobs"]]

    def claim(self, queue, worker, lease):
        return wait_for(lambda: self.fetch(queue, worker, lease), "a FETCH to find the job")[0]

    def clean_up(self):
        for job in self.pushed:
            try:
                if self.job(job)["state"] not in ENDED:
                    self.ask("DELETE", f"/ojs/v1/jobs/{job}")
            except (DidNotHold, OSError):
                pass


class Worker:
    """The worker under test, and what it says in its log."""

    program = None

    def __init__(self, server, queue, concurrency=4, grace="60s", lease="30s"):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("OJS_") or key == "OJS_AUTH_TOKEN"}
        own = {
            "OJS_URL": server.url, "OJS_QUEUES": queue, "OJS_CONCURRENCY": str(concurrency),
            "OJS_SHUTDOWN_GRACE_PERIOD": grace, "OJS_VISIBILITY_TIMEOUT": lease, "OJS_HEARTBEAT_INTERVAL": "500ms",
            "OJS_POLL_INTERVAL": "100ms", "OJS_LOG_FORMAT": "json", "OJS_LOG_LEVEL": "debug",
        }  # fmt: skip
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen([Worker.program], env={**kept, **own}, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.output)

    @property
    def log(self):
        lines = os.pread(self.output.fileno(), 1 << 24, 0).split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def lines(self, message, **attributes):
        return [each for each in self.log if each["message"] == message
                and attributes.items() <= each.get("attributes", {}).items()]  # fmt: skip

    def wait_line(self, message, count=1, **attributes):
        what = f"the worker to log '{message}' {attributes or ''}"
        wait_for(lambda: len(self.lines(message, **attributes)) >= count, what)

    def wait_exit(self):
        try:
            status = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise DidNotHold(f"the worker did not end within {TIMEOUT} s") from None
        hold(status == 0, f"the worker ended with {status}: {self.log[-3:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.wait_exit()


# ---- the checks; the first line of each is its name --------------------------------------------------------------------


def fail(server, queue):
    """a job that fails is retried, then discarded"""
    job = server.push(queue, "fail", attempts=2)
    with Worker(server, queue) as worker:
        server.wait_state(job, "discarded")
        worker.stop()
        runs = len(worker.lines("job failed"))
    hold(runs == 2, f"{runs} runs of a job with two attempts")


def beat_forms(server, queue):
    """heartbeats are taken"""
    worker = "worker_" + secrets.token_hex(4)
    job = server.push(queue, "noop")
    hold(server.claim(queue, worker, lease=60) == job, "FETCH found another job")
    about = {"hostname": "here", "pid": 1, "queues": [queue], "concurrency": 1, "labels": [], "visibility_timeout_ms": 30000}
    forms = {
        "ids": {"active_jobs": [job]},
        "ids and all about the worker": {"active_jobs": [job], "active_job_ids": [job], "state": "running", **about},
        "a count": {"active_jobs": 1, "active_job_ids": [job], "state": "running"},
    }
    got = {form: server.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": worker, **body}) for form, body in forms.items()}
    server.ask("POST", "/ojs/v1/workers/ack", {"job_id": job})
    text = ", ".join(f"active_jobs as {form}: {status}" for form, (status, _) in got.items())
    hold(any(status == 200 for status, _ in got.values()), text)
    for status, said in got.values():
        if status == 200:
            directive = said.get("directive") or said.get("state")
            hold(directive not in ("quiet", "terminate"), f"it tells a worker to {directive}, unasked")
    return text


def worker_beats(server, queue):
    """heartbeats of the worker keep its claim beyond the lease"""
    job = server.push(queue, "probe.sleep", LEASE * 3 * 1000)
    with Worker(server, queue, lease=f"{LEASE}s") as worker:
        server.wait_state(job, "completed")
        worker.stop()
        fetched = len(worker.lines("job fetched"))
        dropped = sorted({each["message"] for each in worker.log if "refuse" in each["message"]})
    hold(fetched == 1, f"fetched {fetched} times")
    return f"three times a lease of {LEASE} s" + "".join(f"; {each}" for each in dropped)


def quiet_and_resume(server, queue):
    """SIGTSTP: nothing is begun; SIGCONT: work continues"""
    running = server.push(queue, "probe.sleep", 1000)
    with Worker(server, queue, concurrency=1) as worker:  # so that no FETCH is in flight: its job would be run
        worker.wait_line("job fetched")
        worker.process.send_signal(signal.SIGTSTP)
        worker.wait_line("phase changed", phase="quiet")
        waiting = server.push(queue, "noop")
        server.wait_state(running, "completed")
        time.sleep(1)  # ten times the poll interval, in which it is not to be begun
        state = server.job(waiting)["state"]
        hold(state == "available", f"a job pushed while quiet is {state}")
        worker.process.send_signal(signal.SIGCONT)
        server.wait_state(waiting, "completed")
        worker.stop()


def drain(server, queue):
    """SIGTERM: running jobs are finished, waiting ones left"""
    running = [server.push(queue, "probe.sleep", 1500) for _ in range(3)]
    with Worker(server, queue, concurrency=3) as worker:
        worker.wait_line("job fetched", 3)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_line("phase changed", phase="draining")
        waiting = [server.push(queue, "noop") for _ in range(3)]
        worker.wait_exit()
    states = [server.job(job)["state"] for job in running + waiting]
    hold(states == ["completed"] * 3 + ["available"] * 3, f"afterwards they are {', '.join(states)}")


def interrupt(server, queue, forced, attempts=None):
    """Stops a worker in the middle of a job: the job before that, and after."""
    job = server.push(queue, "probe.sleep", 600000, attempts=attempts)
    before = server.job(job)
    with Worker(server, queue, grace="60s" if forced else "300ms") as worker:
        worker.wait_line("job fetched")
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_line("phase changed", phase="draining")
        if forced:
            time.sleep(0.3)  # signals less than 250 ms apart are one: no order is bought by this
            worker.process.send_signal(signal.SIGTERM)
        worker.wait_exit()
        hold(len(worker.lines("job interrupted")) == 1, f"not interrupted: {worker.log[-3:]}")
    return before, server.wait_state(job, "available", "retryable", *ENDED)


def forced_stop(server, queue):
    """a second SIGTERM: the job is requeued now"""
    _, after = interrupt(server, queue, forced=True)
    hold(after["state"] not in ENDED, f"it is {after['state']}")
    server.wait_state(after["id"], "available")
    return f"it was {after['state']}"


def requeue(server, queue):
    """the grace period is over: a job with one attempt survives the hand-back (requeue)"""
    before, after = interrupt(server, queue, forced=False, attempts=1)
    if after["state"] in ENDED:
        raise NotSaid(f"a hand-back uses up the attempt: the job is {after['state']}")
    if after["attempt"] != before["attempt"]:
        raise NotSaid(f"a hand-back counts as an attempt: {after['attempt']}, before it {before['attempt']}")
    server.wait_state(after["id"], "available")


def kill_at_work(server, queue, attempts=None):
    """A worker dies with the job in flight: the job after that, and how many seconds that took."""
    job = server.push(queue, "probe.sleep", 8000, attempts=attempts)
    with Worker(server, queue, lease=f"{LEASE}s") as worker:
        worker.wait_line("job fetched")
        worker.process.kill()
        worker.process.wait()
        since = time.monotonic()
        return server.wait_state(job, "available", "retryable", *ENDED), time.monotonic() - since


def killed(server, queue):
    """kill -9: the lease brings the job back, another worker runs it"""
    after, seconds = kill_at_work(server, queue)
    hold(after["state"] not in ENDED, f"it is {after['state']}")
    with Worker(server, queue) as worker:
        server.wait_state(after["id"], "completed")
        worker.stop()
    return f"it was {after['state']} {seconds:.1f} s later, with a lease of {LEASE} s"


def killed_last_attempt(server, queue):
    """kill -9 with one attempt: the job runs again"""
    after, _ = kill_at_work(server, queue, attempts=1)
    if after["state"] in ENDED:
        raise NotSaid(f"a worker's death uses up the attempt: the job is {after['state']}")


def settle_once(server, queue):
    """a job is settled once: a second ACK is refused"""
    server.push(queue, "noop")
    job = server.claim(queue, "worker_once", lease=60)
    first, _ = server.ask("POST", "/ojs/v1/workers/ack", {"job_id": job})
    second, _ = server.ask("POST", "/ojs/v1/workers/ack", {"job_id": job})
    hold(first == 200, f"the first is answered {first}")
    hold(second in (404, 409), f"the second is answered {second}")
    return f"{second}"


def late_ack(server, queue):
    """an ACK of who lost its lease is refused while another runs the job"""
    server.push(queue, "noop")
    job = server.claim(queue, "worker_slow", lease=1)
    wait_for(lambda: server.fetch(queue, "worker_next", lease=60), "the job to be handed out again")
    whose = {"X-OJS-Worker-ID": "worker_slow"}
    status, _ = server.ask("POST", "/ojs/v1/workers/ack", {"job_id": job, "worker_id": "worker_slow"}, **whose)
    if status == 200:
        raise NotSaid("answered 200: nothing in an ACK that it looks at says whose it is")
    hold(status in (404, 409), f"it is answered {status}")
    return f"{status}"


def frozen(server, queue):
    """a worker freezes: another one runs its job, and only that one reports it"""
    job = server.push(queue, "probe.sleep", LEASE * 4 * 1000)
    with Worker(server, queue, lease=f"{LEASE}s") as first:
        first.wait_line("job fetched")
        first.process.send_signal(signal.SIGSTOP)
        server.wait_state(job, "available", "retryable", *ENDED)
        with Worker(server, queue) as second:
            server.wait_state(job, "completed")
            second.stop()
        first.process.send_signal(signal.SIGCONT)
        first.stop()
        reported = len(second.lines("job completed")), len(first.lines("job completed"))
    hold(reported == (1, 0), f"completed by the second worker: {reported[0]}, by the frozen one: {reported[1]}")


def checkpoint(server, queue):
    """a checkpoint can be stored, and comes back"""
    server.push(queue, "noop")
    job = server.claim(queue, "worker_checkpoint", lease=60)
    path = f"/ojs/v1/jobs/{job}/checkpoint"
    status, said = server.ask("POST", path, {"state": {"at": 7}})
    read, back = server.ask("GET", path) if status in (200, 201, 204) else (0, None)
    server.ask("POST", "/ojs/v1/workers/ack", {"job_id": job})
    if status in (404, 405, 501):
        raise NotSaid(f"no such route: {status}")
    hold(status in (200, 201, 204), f"storing is answered {status}: {said}")
    found = back.get("checkpoint", back) if read == 200 else {}
    hold(found.get("state") == {"at": 7}, f"reading is answered {read}: {back}")


def push_until(over, server, queue):
    """The jobs; without a pause long enough to let the queue run empty for long."""
    jobs = []
    while not over.wait(0.005):
        jobs.append(server.push(queue, "probe.sleep", 20 + len(jobs) % 40))
    return jobs


def replace_each(workers, old, start):
    for index, worker in enumerate(workers):
        worker.wait_line("job completed", 20)
        worker.process.send_signal(signal.SIGTERM)
        old.append(worker)
        workers[index] = start()
        worker.wait_exit()
        workers[index].wait_line("job completed")


def rolling_restart(server, queue):
    """a rolling restart under load: no job lost, none run twice"""
    workers, old, over = [Worker(server, queue) for _ in range(3)], [], threading.Event()
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pushed = pool.submit(push_until, over, server, queue)
            try:
                replace_each(workers, old, lambda: Worker(server, queue))
            finally:
                over.set()
            jobs = pushed.result()
        states = {job: server.wait_state(job, *ENDED)["state"] for job in jobs}
        for worker in workers:
            worker.stop()
    finally:
        for worker in workers + old:
            worker.__exit__()
    ran = Counter(each["ojs"]["job_id"] for worker in workers + old for each in worker.lines("job completed"))
    lost = [job for job in jobs if states[job] != "completed" or not ran[job]]
    twice = [job for job, count in ran.items() if count > 1]
    hold(not lost and not twice, f"of {len(jobs)} jobs {len(lost)} lost, {len(twice)} run twice")
    return f"{len(jobs)} jobs, three workers replaced"


CHECKS = [
    fail, beat_forms, worker_beats, quiet_and_resume, drain, forced_stop, requeue, killed, killed_last_attempt,
    settle_once, late_ack, frozen, checkpoint, rolling_restart,
]  # fmt: skip


def judge(check, server):
    """The kind of the answer, and its text."""
    try:
        return "held", check(server, f"interop-{secrets.token_hex(8)}")
    except DidNotHold as why:
        return "did not hold", str(why)
    except NotSaid as why:
        return "not said", str(why)
    except (OSError, http.client.HTTPException, KeyError, TypeError) as why:
        return "did not hold", f"{type(why).__name__}: {why}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", help="of a running server, http://127.0.0.1:8080")
    parser.add_argument("--unsaid", type=int, metavar="N", help="more checks not said than N are a failure")
    parser.add_argument("--worker", default=ROOT / "build/worker", help="another than build/worker")
    asked = parser.parse_args()
    if urllib.parse.urlsplit(asked.url).scheme != "http":
        parser.error(f"{asked.url} is no http:// address")
    Worker.program = asked.worker
    server = Server(asked.url)
    try:
        status, manifest = server.ask("GET", "/ojs/manifest")
    except OSError as why:
        sys.exit(f"error: no server answers at {server.url}: {why}")
    named = manifest.get("implementation", {}) if status == 200 else {}
    print(f"{named.get('name', 'a server that does not say its name')} {named.get('version', '')}, {server.url}")
    said = Counter()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for check, (kind, text) in zip(CHECKS, pool.map(lambda each: judge(each, server), CHECKS)):
            said[kind] += 1
            print(f"{kind:12}  {check.__doc__}" + (f": {text}" if text else ""), flush=True)
    server.clean_up()
    if asked.unsaid is not None and said["not said"] > asked.unsaid:
        print(f"did not hold  of this server at most {asked.unsaid} are known as not said")
        said["did not hold"] += 1
    print(f"{said['held']} passed, {said['did not hold']} failed, {said['not said']} skipped")
    return 1 if said["did not hold"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as left:
        sys.exit(64 if left.code == 2 else left.code)
