"""How soon an idle worker (build/pickup) begins a job, for each queue that this machine has."""

import http.client
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / folder) for folder in ("support", "adapters", "queues")]
import dev_backend  # noqa: E402
import postgres  # noqa: E402
import rabbitmq  # noqa: E402
import redis_server  # noqa: E402
import river  # noqa: E402
from programs import eventually  # noqa: E402


class Worker:
    """build/pickup with a queue. push() enqueues a job, and returns when it began to, in monotonic ns."""

    def __init__(self, build, environment, push=None, **variables):
        self.process = subprocess.Popen([build / "pickup"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env={**environment, "OJS_LOG_LEVEL": "off", **variables})
        self.push_job = push

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def time_of(self, event):
        line = self.process.stdout.readline()
        if not line.startswith(event):
            raise RuntimeError(f"{self.process.args} said {line!r}, not {event}")
        return float(line.split()[1])

    def pick_up(self):
        """Milliseconds from the begin of a push to the begin of its job."""
        if self.push_job:
            pushed = time.monotonic_ns()
            self.push_job()
        else:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            pushed = self.time_of("pushed")
        return (self.time_of("began") - pushed) / 1e6

    def switches(self):
        """Voluntary context switches of all threads so far."""
        texts = [(task / "status").read_text() for task in Path(f"/proc/{self.process.pid}/task").iterdir()]
        return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("voluntary"))


# ---- the queues ------------------------------------------------------------------------------------------------------


@contextmanager
def on_memory(build, environment):
    with Worker(build, environment, OJS_URL="memory:") as worker:
        yield worker


@contextmanager
def on_spool(build, environment):
    with tempfile.TemporaryDirectory() as folder:
        requests, numbers = Path(folder) / "request", iter(range(10**6))
        job = json.dumps({"type": "pickup", "args": []})

        def push():
            name = requests / f"5-{next(numbers):06}.json"
            new = name.with_name("." + name.name)
            new.write_text(job)
            new.rename(name)

        with Worker(build, environment, push, OJS_URL=f"spool:{folder}") as worker:
            eventually(requests.exists, "request/")
            yield worker


@contextmanager
def on_http(build, environment, **variables):
    with dev_backend.Backend(build) as backend:
        client = http.client.HTTPConnection(backend.url.removeprefix("http://"))

        def push():
            client.request("POST", "/ojs/v1/jobs", '{"type":"pickup","args":[]}', {"Content-Type": "application/json"})
            client.getresponse().read()

        with Worker(build, environment, push, OJS_URL=backend.url, **variables) as worker:
            backend.await_event(event="fetch")
            worker.backend = backend
            yield worker


def on_http_events(build, environment):
    return on_http(build, environment, BENCH_EVENTS="1")


@contextmanager
def on_river(build, environment):
    with ExitStack() as stack:
        database = river.new_river(river.with_river(stack.callback))
        with Worker(build, environment, lambda: database.insert("pickup"), DATABASE_URL=database.url()) as worker:
            yield worker


@contextmanager
def on_amqp(build, environment):
    with rabbitmq.RabbitMQ() as broker:
        tool = [build / "amqp_tool", broker.url]
        subprocess.run([*tool, "declare", "q", "classic"], check=True)
        with subprocess.Popen([*tool, "publish", "q"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as publisher:
            numbers = iter(range(10**6))

            def push():
                publisher.stdin.write(f"{next(numbers)} 0\n")
                publisher.stdin.flush()

            with Worker(build, environment, push, OJS_URL=broker.url, OJS_QUEUES="q") as worker:
                yield worker
            publisher.stdin.close()


@contextmanager
def on_redis(build, environment):
    server = redis_server.RedisServer()
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def push():
                connection.sendall(redis_server.request("XADD", "q", "*", "type", "pickup"))
                connection.recv(100)

            with Worker(build, environment, push, OJS_URL=f"redis://127.0.0.1:{server.port}", OJS_QUEUES="q") as worker:
                yield worker
    finally:
        server.kill()


# What begins a worker with it, the target for p99 in milliseconds, and what is missing.
QUEUES = {
    "memory:": (on_memory, 5, lambda build: ""),
    "spool:": (on_spool, 5, lambda build: ""),
    "HTTP with queue_events()": (on_http_events, 10, lambda build: ""),
    "HTTP": (on_http, 250, lambda build: ""),
    "River": (on_river, 5, lambda build: postgres.missing()),
    "RabbitMQ": (on_amqp, 5, lambda build: rabbitmq.missing() or ("" if (build / "amqp_tool").exists() else "make queues")),
    "Redis Streams": (on_redis, 5, lambda build: "" if shutil.which("redis-server", path="/usr/bin:/usr/sbin") else "redis-server"),
}


def quantile(samples, share):
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def summary(samples):
    return f"p50 {statistics.median(samples):.2f} ms, p99 {quantile(samples, 0.99):.2f} ms, longest {max(samples):.2f} ms of {len(samples)}"


def soon(worker, count):
    """(pick-ups with 50 to 400 ms between two jobs, echoes of a process that waits as the worker does)"""
    worker.pick_up()
    pick_ups, echoes = [], []
    with subprocess.Popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        for _ in range(count):
            time.sleep(random.uniform(0.05, 0.4))
            pick_ups.append(worker.pick_up())
            sent = time.monotonic_ns()
            echo.stdin.write(b".")
            echo.stdout.read(1)
            echoes.append((time.monotonic_ns() - sent) / 1e6)
        echo.stdin.close()
    return pick_ups, echoes


def together(workers, body):
    """{name: body(worker)}, each in a thread: most of the time they wait."""
    out = {}

    def run(name, worker):
        out[name] = body(worker)

    threads = [threading.Thread(target=run, args=each) for each in workers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out
